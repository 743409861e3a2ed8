/* Tables of numbers in a trace, with a name before each row and over each column. */
#ifndef CLI_RUN_TABLE_H
#define CLI_RUN_TABLE_H

#include "run/run.h"

typedef struct run_table {
    char row, column;              /* their letters; column 0: none */
    const int64_t *rows, *columns; /* their numbers; NULL: 0, 1, 2, ... */
    int64_t row_count, column_count;
    double *numbers; /* [rows,columns]; -inf is drawn as a dot */
    double *sums;    /* [rows] or NULL: a last column */
    bool cut;        /* more columns than are shown */
} run_table;

void run_print_table(const run_table *table);

#endif
