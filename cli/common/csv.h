/* A CSV writer over a sink: commas, quotes and line ends. After the first failure it writes
 * nothing more. */
#ifndef CLI_CSV_H
#define CLI_CSV_H

#include <multihead/sink.h>

#include <stdbool.h>
#include <stdint.h>

typedef struct csv_out {
    const mha_sink *sink;
    mha_status status;
    bool filled; /* the row has a cell already */
} csv_out;

/* Write the header row. */
void csv_names(csv_out *csv, const char *names);

/* Write a cell, quoted if necessary. A text that a spreadsheet would read as a formula gets a leading ' (OWASP,
 * CSV injection). Hidden characters are escaped as by cli_print(). NULL is an empty cell. */
void csv_text(csv_out *csv, const char *text);
void csv_integer(csv_out *csv, int64_t value);

/* Write a number with `digits` significant digits; an unknown one is an empty cell. */
void csv_number(csv_out *csv, double value, int digits, bool known);

void csv_end_row(csv_out *csv);

#endif
