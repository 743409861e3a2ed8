/* The parts of `multihead count`: its two output formats. */
#ifndef CLI_COUNT_H
#define CLI_COUNT_H

#include "common/config.h"
#include "common/table.h"

/* An alternative: the same shape with another number of key/value heads, or of heads. */
enum { COUNT_MOST_ROWS = 24 };
typedef struct count_row {
    const char *name; /* "MHA", "GQA", "MQA"; NULL in the list of heads */
    counts_shape shape;
    counts counts;
    bool asked; /* this is the requested shape */
} count_row;

/* Columns of a row: the table of heads, and the JSON of both lists. */
enum { COUNT_COLUMNS = 9 };
extern const table_column count_columns[COUNT_COLUMNS];

typedef struct count_report {
    config config;
    const char *dtype;
    counts counts;
    int64_t allocated, allocated_window; /* bytes that the library allocates for a layer's cache */
    count_row sharing[3], heads[COUNT_MOST_ROWS];
    int sharing_count, heads_count;
} count_report;

void count_print(const count_report *report);
mha_status count_write_json(const count_report *report, const mha_sink *sink);

#endif
