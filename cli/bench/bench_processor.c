/* The processor's identity from /proc/cpuinfo; unknown on other systems. */
#include "bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Numbers that are not found are -1. */
typedef struct numbers {
    char vendor[32];
    long family, model, stepping;
} numbers;

static const char *microarchitecture(const numbers *n)
{
    static const struct {
        const char *vendor;
        long family, first_model, last_model, first_stepping, last_stepping;
        const char *name;
    } known[] = {
#define PROCESSOR(...) {__VA_ARGS__},
#include "bench/processors.inc"
#undef PROCESSOR
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i].vendor, n->vendor) && known[i].family == n->family &&
            known[i].first_model <= n->model && n->model <= known[i].last_model &&
            known[i].first_stepping <= n->stepping && n->stepping <= known[i].last_stepping)
            return known[i].name;
    return "";
}

/* The value of a line "label   : value"; NULL: the line has another label. */
static const char *value_of(const char *line, const char *label)
{
    const size_t length = strlen(label);
    if (strncmp(line, label, length) != 0) return NULL;
    line += length + strspn(line + length, " \t");
    return *line == ':' ? line + 1 + strspn(line + 1, " \t") : NULL;
}

static void take_text(const char *line, const char *label, char *text, size_t size)
{
    const char *value = value_of(line, label);
    if (value && !*text) snprintf(text, size, "%s", value);
}

static void take_number(const char *line, const char *label, long *number)
{
    const char *value = value_of(line, label);
    if (value && *number < 0) *number = strtol(value, NULL, 0);
}

void bench_processor_read(bench_processor *p)
{
    char line[512];
    numbers n = {.family = -1, .model = -1, .stepping = -1};
    *p = (bench_processor){0};
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        take_text(line, "model name", p->name, sizeof p->name);
        take_text(line, "vendor_id", n.vendor, sizeof n.vendor);
        take_text(line, "CPU implementer", n.vendor, sizeof n.vendor);
        take_number(line, "cpu family", &n.family);
        take_number(line, "CPU architecture", &n.family);
        take_number(line, "model", &n.model);
        take_number(line, "CPU part", &n.model);
        take_number(line, "stepping", &n.stepping);
        take_number(line, "CPU revision", &n.stepping);
    }
    if (file) fclose(file);
    snprintf(p->microarchitecture, sizeof p->microarchitecture, "%s", microarchitecture(&n));
    if (*n.vendor)
        snprintf(p->id, sizeof p->id, "%s family %ld model %ld stepping %ld", n.vendor, n.family,
                 n.model, n.stepping);
}
