/* multihead: a page about many heads: a scatter of two scores, a grid of layers and heads, a table,
 * and a card for each head. The renderer does not interpret the scores.
 *
 * Strings are UTF-8, end with a NUL and may be untrusted (tokens, file names): they are escaped,
 * and invalid bytes become U+FFFD. NULL strings are empty. All memory is borrowed for the call.
 *
 * Example, given mha_heads_page page, const mha_heads_card *heads, const mha_heads_column *columns,
 * const mha_heads_value *values, int64_t count:
 *
 *   page.heads = heads, page.head_count = count;
 *   page.columns = columns, page.column_count = 2, page.values = values; // [count][2]
 *   page.x = 0, page.y = 1, page.first_head = -1;
 *   mha_buffer html;
 *   memset(&html, 0, sizeof html);
 *   mha_sink sink = mha_buffer_sink(&html);
 *   mha_status status = mha_render_heads_page(&page, &sink);
 *   mha_buffer_free(&html);
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_RENDER_HEADS_H
#define MULTIHEAD_RENDER_HEADS_H

#include <multihead/render.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A score that every head may have. */
typedef struct mha_heads_column {
    const char *name;  /* "induction", in the page's address */
    const char *text;  /* its definition, with its source */
    const char *unit;  /* "nats"; NULL: a share or a plain number */
    bool share;        /* 0 .. 1 */
    double luck;       /* 95th percentile under the permutation null; NaN: unknown */
    const char *label; /* its displayed name; NULL: name */
} mha_heads_column;

/* Its value for a head. */
typedef struct mha_heads_value {
    double value;
    double chance, low, high; /* NaN: unknown; low and high: the interval of the mean */
    double deciles[11];       /* of rows; deciles[0] NaN: unknown */
    int64_t rows;             /* measured; 0: there is no value */
} mha_heads_value;

typedef struct mha_heads_role {
    const char *name, *evidence;
} mha_heads_role;

/* An example of a head in a text, with the tokens around it. */
typedef struct mha_heads_place {
    int64_t column; /* the score that it is an example of */
    bool least;     /* the smallest score */
    double value;
    const char *where;         /* "text 12, token 40" */
    const char *const *tokens; /* [token_count] in order */
    int64_t token_count;
    int64_t query, key; /* of tokens; -1: none */
} mha_heads_place;

/* A titled list of tokens, the first one first. */
typedef struct mha_heads_list {
    const char *title, *text; /* text: the meaning of the numbers */
    const char *const *names; /* [count] */
    const double *values;     /* [count] */
    int64_t count;
} mha_heads_list;

/* A connection: this head reads the output of an earlier head. */
typedef struct mha_heads_arrow {
    const char *kind; /* "K" */
    int64_t layer, head;
    double value, chance;
} mha_heads_arrow;

/* A line over positions. */
typedef struct mha_heads_line {
    const char *title, *unit;
    const double *x, *y; /* [count], x ascending and at least 0 */
    int64_t count;
} mha_heads_line;

/* A head and its card. */
typedef struct mha_heads_card {
    int64_t layer, head;
    const char *note;    /* a sentence; NULL: none */
    const char *command; /* a command that shows the head in a text; NULL: none */
    const mha_heads_role *roles;
    const mha_heads_place *places;
    const mha_heads_list *lists;
    const mha_heads_arrow *arrows;
    const mha_heads_line *lines;
    int64_t role_count, place_count, list_count, arrow_count, line_count;
} mha_heads_card;

typedef struct mha_heads_page {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    const char *title, *subtitle, *producer;
    const mha_fact *facts; /* [fact_count] */
    int64_t fact_count;
    const mha_heads_column *columns; /* [column_count], at most 256, each name once */
    int64_t column_count;
    const mha_heads_card *heads; /* [head_count], at least one, each layer and head once */
    int64_t head_count;
    const mha_heads_value *values; /* [head_count][column_count] */
    int64_t x, y;                  /* the columns that the scatter shows at first */
    int64_t first_head;            /* the head whose card is open at first; -1: none */
} mha_heads_page;

/**
 * Write one HTML file, which uses no network and no other file. The fragment of its address holds
 * the state of the view (#x=induction&y=entropy&heads=L18H6,L17H4&role=induction). Without scripts
 * it shows the columns x and y of the table.
 *
 * A page of 270 heads with 30 columns, 30 places of 24 tokens and lists takes about 7 MB.
 *
 * Memory   from the C library, for the call.
 * Errors   MHA_ERR_NULL (page, sink, a list with a count); MHA_ERR_ARGUMENT (struct_size, a negative
 *          count, no head, a column, place or first head out of range, a head or a name twice);
 *          MHA_ERR_SIZE (more than 256 columns, 10^5 heads); MHA_ERR_UNSUPPORTED (fields of a newer
 *          version); the status that sink returned; MHA_ERR_NOMEM.
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_render_heads_page(const mha_heads_page *page,
                                                       const mha_sink *sink);

#ifdef __cplusplus
}
#endif
#endif
