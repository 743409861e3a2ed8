/* CSV on its way to a sink: commas, quotes and ends of lines. The first failure is kept, and after it
 * nothing is written. */
#ifndef CLI_CSV_H
#define CLI_CSV_H

#include <multihead/sink.h>

#include <stdbool.h>
#include <stdint.h>

typedef struct csv_out {
    const mha_sink *sink;
    mha_status status;
    bool filled; /* the row has a cell */
} csv_out;

/* The row of names, with commas between them. */
void csv_names(csv_out *csv, const char *names);

/* A cell: quoted where it must be, with ' before what a spreadsheet would take for a formula (OWASP, CSV
 * injection), and hidden characters as cli_print() writes them. NULL is an empty cell. */
void csv_text(csv_out *csv, const char *text);
void csv_integer(csv_out *csv, int64_t value);

/* A number with so many digits; an empty cell unless it is known. */
void csv_number(csv_out *csv, double value, int digits, bool known);

void csv_end_row(csv_out *csv);

#endif
