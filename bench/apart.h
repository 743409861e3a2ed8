/* Measure a function in a separate process: processor seconds over all threads, which depend less
 * on other load than wall time, and peak resident memory (Linux only).
 */
#ifndef BENCH_APART_H
#define BENCH_APART_H

#include <multihead/multihead.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct apart_result {
    double seconds;
    long long beyond_kb; /* -1: the work failed */
} apart_result;

static inline double apart_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A line of /proc/self/status, in kB; -1 if missing. */
static inline long long apart_status_kb(const char *name)
{
    char line[256];
    long long kb = -1;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, name, strlen(name)) == 0) kb = atoll(line + strlen(name) + 1);
    if (file) fclose(file);
    return kb;
}

/* Returns resident memory and resets the peak. */
static inline long long apart_begin_kb(void)
{
    FILE *file = fopen("/proc/self/clear_refs", "w");
    if (file) fputs("5", file), fclose(file);
    return apart_status_kb("VmRSS:");
}

/* The rise of the peak since then. */
static inline long long apart_beyond_kb(long long begin)
{
    return apart_status_kb("VmHWM:") - begin;
}

/* Reproducible numbers in -0.5 .. 0.5; NULL: out of memory. */
static inline float *apart_floats(int64_t count)
{
    float *x = malloc((size_t)count * sizeof *x);
    uint32_t state = 1;
    for (int64_t i = 0; x && i < count; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(state >> 8) * 0x1p-24f - 0.5f;
    }
    return x;
}

/* measure() in a new process, so that cases do not influence each other. */
static inline apart_result apart(apart_result (*measure)(int kind, int64_t n), int kind, int64_t n)
{
    apart_result r = {.beyond_kb = -1};
    int ends[2];
    if (pipe(ends) != 0) return r;
    pid_t child = fork();
    if (child == 0) {
        r = measure(kind, n);
        _exit(write(ends[1], &r, sizeof r) != sizeof r);
    }
    close(ends[1]);
    if (read(ends[0], &r, sizeof r) != sizeof r) r.beyond_kb = -1;
    close(ends[0]);
    if (child > 0) waitpid(child, NULL, 0);
    return r;
}

/* Print the first line of a table; false if no context can be created. */
static inline bool apart_print_machine(int head_dim)
{
    mha_context *context = NULL;
    if (mha_context_create(NULL, &context) != MHA_OK) return false;
    const int threads = mha_context_threads(context);
    printf("One head of %d, f32; %s, %d thread%s.\n\n", head_dim,
           mha_isa_name(mha_context_isa(context)), threads, threads == 1 ? "" : "s");
    mha_context_destroy(context);
    return true;
}

#endif
