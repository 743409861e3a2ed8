/* Contracts of the kernels for linear layers in int8 arithmetic (docs/numerics.md 13) and in bf16
 * with the sums of tiles (15.3). They have a separate table, because an instruction set may or may
 * not include fast byte products (VNNI) and tiles (AMX).
 * Results are bit-identical on every instruction set, including portable C: sums of products are
 * integers, and all f32 operations have a fixed order and are never fused.
 *
 * A dword holds `group` quantised numbers that are adjacent along the inner dimension. */
#ifndef MHAI_INT8_H
#define MHAI_INT8_H

#include "kernels/kernels.h"

/* 32 inputs of a row. sum[0] covers all inputs, sum[1] the first half, sum[2] the second half.
 * start is the initial value of a run's sum of products. */
enum { MHAI_INT8_BLOCK = 32, MHAI_INT8_BLOCKS = MHA_CODED_COLUMNS / MHAI_INT8_BLOCK };
typedef struct mhai_int8_block {
    float unit;   /* max |x| / 127; 0 if max |x| < 2^-80 */
    float sum[3]; /* sums of the quantised numbers, times unit */
    int32_t start[3];
    int32_t unused; /* padding to 32 bytes */
} mhai_int8_block;
/* int8_inputs: quantise n inputs in blocks. n is a multiple of 16, at most MHA_CODED_COLUMNS.
 * `small` is padded with zeros to the end of the last block. If the magnitude of an input is 2^93
 * or more, or not finite, all quantised numbers become 0 and all units NaN. */

/* out[r][i] = from[r][i] + the product of row r of x and row i of W (docs/numerics.md 13). */
typedef struct mhai_int8_product {
    int64_t rows;
    const mha_coded *w;
    int64_t inputs, cols; /* inputs: whole runs, at most MHA_CODED_COLUMNS; cols: 1 .. 32 */
    const int32_t *x;     /* [rows][row_stride] quantised numbers */
    const mhai_int8_block *blocks; /* [rows][MHAI_INT8_BLOCKS] */
    const float *from;
    int64_t from_stride; /* 0: all rows share one row, a bias */
    float *out;
    int64_t out_stride;
} mhai_int8_product;

/* bf16 products with the sums of tiles (docs/numerics.md 15.3), for layers in that arithmetic:
 *
 *   out[r][i] = from[r][i] + sum, where sum = 0 and then sum = sum + (even + odd) for each 16 pairs
 *   even, odd: chains of FMAs from 0 over the first and the second numbers of the pairs
 *
 * Elements are 0 or between 2^-50 and 2^59 in magnitude. */
enum { MHAI_TILE_STEP = 16, MHAI_TILE_PAIRS = 128 };
typedef struct mhai_bf16_product {
    int64_t rows, pairs, cols; /* pairs: whole steps, at most MHAI_TILE_PAIRS; cols: 1 .. 32 */
    const int32_t *x;          /* [rows][x_stride] pairs, the first number in the lower half */
    int64_t x_stride;
    const int32_t *w; /* [pairs][32] */
    const float *from;
    int64_t from_stride; /* 0: all rows share one row, a bias */
    float *out;
    int64_t out_stride;
} mhai_bf16_product;

typedef struct mhai_int8_kernels {
    int group, row_stride; /* row_stride in dwords */
    int strip_rows;        /* rows that a product should have, if there are as many */
#define MHAI_KERNEL(name, arguments) void(*name) arguments;
#include "kernels/int8.inc"
#undef MHAI_KERNEL
} mhai_int8_kernels;

/* The fastest table that this machine can run for a context of this instruction set. */
const mhai_int8_kernels *mhai_int8_kernels_for(mha_isa isa);

#endif
