/* multihead circuits: what heads read and write, computed from the weights alone (circuits.h of the
 * library, docs/circuits.md), and which earlier heads they read (attribution.h). Options are in
 * cmd_circuits.c, the analysis in circuits_decompose.c and circuits_composition.c, printing in
 * circuits_out.c. */
#ifndef CLI_CIRCUITS_H
#define CLI_CIRCUITS_H

#include "heads/heads.h"

typedef struct circuits_options {
    heads_options heads; /* must be first: selection, outputs, scores of a state */
    const char *offset;  /* key offsets: "1", "0-63" */
    int64_t offsets[2];
    int composition;
} circuits_options;

enum { CIRCUITS_ENDS = 2, CIRCUITS_SIDES = 4, CIRCUITS_TOKENS = 8 };

typedef struct circuits {
    const circuits_options *options;
    const heads_found *found;
    const heads_row *rows; /* [count] chosen heads */
    int64_t count;
    bool decomposed;     /* the fields below are set */
    int64_t first, last; /* key offsets; 0, 0 without rotary positions */
    int64_t directions, tokens, heads, size;
    double *values[2];            /* [layers, heads, size] of QK and OV */
    double *copying, *matching;   /* [layers, heads] */
    int64_t *row_of;              /* [layers, heads] row in ids and scores; -1: not chosen */
    int32_t *ids[CIRCUITS_SIDES]; /* [rows, directions, 2, tokens] */
    float *scores[CIRCUITS_SIDES];
    float *composition[HEADS_COMPOSITIONS]; /* q, k, v: [layers, heads, layers, heads], or NULL */
    double composition_chance;
} circuits;

/* Parse key offsets: "1", "0-63". */
cli_exit circuits_offsets(const char *text, int64_t offsets[2]);

/* Compute singular values, directions and the tokens at their ends for the rows; fails without LAPACK. */
cli_exit circuits_decompose(circuits *c);

cli_exit circuits_print(const circuits *c);
cli_exit circuits_write_json(const circuits *c);

/* Columns and cards for the page and arrays: copying, matching, the tokens that a head reads and writes,
 * and arrows from earlier heads. */
void circuits_beside(const circuits *c, heads_beside *beside);

/* Compute which earlier heads each head reads. */
cli_exit circuits_compose(circuits *c);
void circuits_writers_json(mha_json *json, const circuits *c, const heads_row *row);
void circuits_writers_line(const circuits *c, const heads_row *row, char *line, size_t size);
cli_exit circuits_arrows(const circuits *c, const heads_row *row, mha_heads_card *card);

#endif
