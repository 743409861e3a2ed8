/* Tables on stdout. A column has a heading, a width and a format. It may name a field of the rows'
 * struct; the same columns then write the rows as JSON. */
#ifndef CLI_TABLE_H
#define CLI_TABLE_H

#include <multihead/json.h>
#include <multihead/render.h>

#include <stdbool.h>

typedef enum table_unit { TABLE_PLAIN, TABLE_COUNT, TABLE_BYTES } table_unit; /* words.h */

typedef struct table_column {
    const char *heading;  /* NULL: not in the text */
    int width;            /* including the gap before it; negative: left-aligned */
    int decimals;         /* decimals of a number */
    table_unit unit;      /* for integers */
    mha_json_field field; /* name NULL: not in JSON; type 0: none */
} table_column;

#define TABLE_FIELD(heading, width, decimals, unit, name, type, structure, member)    \
    {                                                                                 \
        heading, width, decimals, unit, MHA_JSON_NAMED(name, type, structure, member) \
    }

/* A table being printed: set columns, and limit if rows are truncated to the terminal's width. */
enum { TABLE_LINE_BYTES = 2048 };
typedef struct table {
    const table_column *columns;
    int64_t limit; /* 0: none */
    bool ascii;    /* mark truncated rows with ~ */
    const table_column *next;
    size_t used;
    char line[TABLE_LINE_BYTES];
} table;

/* Print the headings of count columns. */
void table_head(table *t, int count);

/* Print the next cell of a column with a heading. NaN is "-". A cell wider than its column moves
 * the rest of the row. */
void table_text(table *t, const char *format, ...) MHA_PRINTF(2, 3);
void table_number(table *t, double value);
void table_integer(table *t, int64_t value);

/* Print the fields of the next count columns; those without a heading are skipped. */
void table_fields(table *t, int count, const void *row);

/* Print the row. */
void table_end(table *t);

/* Write the fields of count named columns as members of the open object. */
void table_json(const table_column *columns, int count, mha_json *json, const void *row);

#endif
