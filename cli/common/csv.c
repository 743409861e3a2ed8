/* See csv.h. */
#include "common/csv.h"

#include "common/print.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void put(csv_out *csv, const char *bytes, size_t count)
{
    if (csv->status == MHA_OK && count > 0)
        csv->status = csv->sink->write(csv->sink->user, bytes, count);
}

void csv_names(csv_out *csv, const char *names)
{
    put(csv, names, strlen(names));
    csv_end_row(csv);
}

static void begin(csv_out *csv)
{
    put(csv, ",", csv->filled);
    csv->filled = true;
}

void csv_text(csv_out *csv, const char *text)
{
    begin(csv);
    if (!text) return;
    const bool quoted = strpbrk(text, "\",") != NULL;
    put(csv, "\"", quoted);
    put(csv, "'", *text && strchr("=+-@", *text));
    for (const char *end = text + strlen(text); text < end;) {
        char shown[CLI_SHOWN_BYTES];
        put(csv, "\"", *text == '"');
        cli_show(&text, end, shown);
        put(csv, shown, strlen(shown));
    }
    put(csv, "\"", quoted);
}

void csv_integer(csv_out *csv, int64_t value)
{
    char text[24];
    begin(csv);
    put(csv, text, (size_t)snprintf(text, sizeof text, "%" PRId64, value));
}

void csv_number(csv_out *csv, double value, int digits, bool known)
{
    char text[32];
    begin(csv);
    if (known) put(csv, text, (size_t)snprintf(text, sizeof text, "%.*g", digits, value));
}

void csv_end_row(csv_out *csv)
{
    put(csv, "\n", 1);
    csv->filled = false;
}
