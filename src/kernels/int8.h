/* Kernels of int8 arithmetic (docs/numerics.md 13): the contracts. They are a table of their own,
 * since one instruction set may have faster products of bytes (VNNI) or not. All results have the
 * same bits on every instruction set, portable C too: sums of products are integers, everything
 * else is single operations of f32 in a fixed order, never fused.
 *
 * A dword holds `group` small numbers that lie one after the other along the inner dimension, and
 * panels hold dwords as those of kernels.h hold floats: [dwords of the inner dimension][32]. */
#ifndef MHAI_INT8_H
#define MHAI_INT8_H

#include "kernels/kernels.h"

/* A query row: out = round(q 127 / max |q|), unit = max |q| / 127 2^24. out has ceil(n / group)
 * dwords, and what follows them up to the table's row_stride may be overwritten. start is what an
 * instruction set's products need as the first term of a sum: with keys that have an offset added,
 * minus that times the sum of the small numbers. A row whose largest |q| is 2^93 or more becomes 0,
 * its unit NaN; one whose largest is below 2^-80 becomes 0, its unit 1. */

/* The keys of a block, from their f32 panels, padded with zeros: their mean, and what is left of
 * them by 127 steps a key. bad[j] is set to 1 for a key with an element 2^126 or more from the
 * mean. out and unit are written up to the next multiple of 64 keys. A key that is nowhere 2^-80
 * from the mean becomes 0, its unit too; of values, a channel likewise. */
typedef struct mhai_int8_keys {
    const float *in; /* [panels][head_dim][32] */
    int keys;
    int64_t head_dim;
    int32_t *out; /* [16][dwords][32] */
    float *mean;  /* [head_dim padded to 16] */
    float *unit;  /* [512] max |k - mean| / 127 2^-24; 0 from `keys` on, as far as it is written */
    uint8_t *bad; /* [512] */
    bool *any_bad;
} mhai_int8_keys;

/* The values of a block, from their f32 panels, padded with rows of zeros to a multiple of 16: 127
 * steps a channel; out is written up to the next multiple of 64 keys. */
typedef struct mhai_int8_values {
    const float *in; /* [panels][MHAI_KEY_BLOCK][32] */
    int keys;
    int64_t panels;
    int32_t *out; /* [panels][MHAI_KEY_BLOCK / group][32] */
    float *unit;  /* [panels * 32] max |v| / 127 2^-8 */
} mhai_int8_values;

/* What int8_forward takes beside a tile: q of the tile is read for the mean's part of the scores,
 * its k and v are not. */
typedef struct mhai_int8_tile {
    const int32_t *q; /* [rows][row stride of the table] */
    const float *q_unit;
    const int32_t *q_start;
    const int32_t *k;
    const float *mean, *k_unit;
    const int32_t *v;
    const float *v_unit;
} mhai_int8_tile;
/* int8_forward: tile_forward of kernels.h without cap, Shaw's tables and dropout; leaves no
 * probabilities in s. */

/* Inputs of a linear layer, 32 of a row: [0] all, [1] the first half, [2] the second. start is what a
 * run's sum of products begins with. */
enum { MHAI_INT8_BLOCK = 32, MHAI_INT8_BLOCKS = MHA_CODED_COLUMNS / MHAI_INT8_BLOCK };
typedef struct mhai_int8_block {
    float unit;   /* max |x| / 127; 0 where it is below 2^-80 */
    float sum[3]; /* of the small numbers, times unit */
    int32_t start[3];
    int32_t unused; /* 32 bytes */
} mhai_int8_block;
/* int8_inputs: n inputs, a multiple of 16, at most MHA_CODED_COLUMNS, become small numbers and blocks;
 * small is written to the end of the last block, with zeros. If one of them is 2^93 or more, or not
 * finite, all become 0 and their units NaN. */

/* out[r][i] = from[r][i] + the products of rows r of x with row i of W: docs/numerics.md 13.4. */
typedef struct mhai_int8_product {
    int64_t rows;
    const mha_coded *w;
    int64_t inputs, cols;          /* whole runs, at most MHA_CODED_COLUMNS; 1 .. 32 rows of w */
    const int32_t *x;              /* [rows][row_stride] small numbers */
    const mhai_int8_block *blocks; /* [rows][MHAI_INT8_BLOCKS] */
    const float *from;
    int64_t from_stride; /* 0: one row for all, a bias */
    float *out;
    int64_t out_stride;
} mhai_int8_product;

typedef struct mhai_int8_kernels {
    const char *reason;    /* explain's sentence */
    int group, row_stride; /* row_stride in dwords */
    int strip_rows;        /* of a register block */
#define MHAI_KERNEL(name, arguments) void(*name) arguments;
#include "kernels/int8.inc"
#undef MHAI_KERNEL
} mhai_int8_kernels;

/* The best table that this machine runs for a context of that instruction set. */
const mhai_int8_kernels *mhai_int8_kernels_for(mha_isa isa);

#endif
