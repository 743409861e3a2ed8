/* Strips of queries against a block of keys: random cases, a reference that computes scores,
 * weights and sums for single pairs in double, and the bounds of docs/numerics.md 3. Checks of
 * attention's tiles use them.
 */
#ifndef KERNEL_STRIP_H
#define KERNEL_STRIP_H

#include "kernel_test.h"

/* Options of a case (bits). */
enum {
    WITH_POISON = 1 << 0,
    WITH_DROPOUT = 1 << 1,
    WITH_RUNS = 1 << 2,
    WITH_ROWS = 1 << 3, /* keys and values in rows, not in panels */
    WITH_TERMS = 1 << 4,
    WITH_MASK = 1 << 5,
    WITH_BF16 = 1 << 6 /* numbers exact in bf16, and weights that round to it */
};

/* Keys and values of a block, which several strips may share. */
typedef struct block_case {
    int keys;                   /* number of readable keys */
    int64_t dim, panels, cols;  /* panels of 32 columns and all columns of values */
    int64_t value_dim;          /* number of read columns */
    const float *k, *v;         /* [keys][dim], [keys][cols] without gaps, for the reference */
    float *k_panels, *v_panels; /* for kernels; elements that are not finite are 0 */
    float *k_rows, *v_rows;     /* for kernels, unchanged */
    int64_t k_stride, v_stride, readable;
    mhai_run *key_runs, *value_runs; /* NULL if keys and values are rows */
    bool poisoned;
    const uint8_t *bad_key, *bad_value;
} block_case;

typedef struct strip_case {
    const block_case *block;
    int rows, begin, end;
    const float *q;
    const uint8_t *bad_query;
    bool masked, drops, poisoned;
    mhai_tile_mask mask;
    mhai_poison poison;
    mhai_dropout dropout;
    const float *o, *m, *l; /* previous values */
    double weight;          /* relative error of a weight rounded before it multiplies values */
} strip_case;

/* The score of a pair, in units of log2 e, and its error bound. The pair may be hidden, and the
 * score NaN. */
typedef struct score {
    double y, error;
    bool hidden, nan;
    double slope, slope_error; /* of the cap */
} score;

/* All pairs of a row. */
typedef struct strip_row {
    score scores[MHAI_KEY_BLOCK];
    double max, error; /* of the visible scores */
    bool any, nan;
} strip_row;

/* The nearest finite bf16; 0 below 2^-50. */
float strip_bf16(float x);

/* Rounds x [rows][cols] to the type and returns it as runs of keys or values. Further copies follow
 * the last run. */
mhai_run *strip_runs(kernel_test *t, mha_dtype type, float *x, int64_t rows, int64_t cols,
                     bool keys);
mha_dtype strip_run_type(kernel_test *t);
block_case strip_block(kernel_test *t, unsigned with, int keys, int64_t dim, int64_t panels);
strip_case strip_make(kernel_test *t, unsigned with, const block_case *b, int rows);

/* The tile of a strip without its outputs. */
mhai_tile strip_tile(kernel_test *t, const strip_case *c, mhai_tile_mask *mask,
                     mhai_poison *poison);

/* The pairs of all rows. */
const strip_row **strip_rows(kernel_test *t, const strip_case *c);

/* 2^(y - m) of a score, and its error. */
double strip_power(const score *s, double m, double *error);

/* The dropout factor of p: 0 or its scale. */
double strip_dropped(const strip_case *c, int row, int key);

/* Checks a row after a step of the online softmax. s and alpha are not compared if NULL. */
void strip_expect(kernel_test *t, const strip_case *c, const strip_row *x, int row, double m,
                  double l, const float *o, const float *s, const float *alpha);

/* Floating-point operations of the scores. */
double strip_flops(const strip_case *c);

#endif
