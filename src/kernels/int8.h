/* Contracts of the kernels of linear layers in int8 arithmetic (docs/numerics.md 13). They have a
 * separate table, since an instruction set may exist with and without fast byte products (VNNI).
 * Results are bit-identical on every instruction set, including portable C: sums of products are
 * integers, and all f32 operations are in a fixed order and never fused.
 *
 * A dword holds `group` small numbers, adjacent along the inner dimension. */
#ifndef MHAI_INT8_H
#define MHAI_INT8_H

#include "kernels/kernels.h"

/* 32 inputs of a row. Index 0 is for all of them, 1 for the first half, 2 for the second. start is
 * the initial value of a run's sum of products. */
enum { MHAI_INT8_BLOCK = 32, MHAI_INT8_BLOCKS = MHA_CODED_COLUMNS / MHAI_INT8_BLOCK };
typedef struct mhai_int8_block {
    float unit;   /* max |x| / 127; 0 if max |x| < 2^-80 */
    float sum[3]; /* of the small numbers, times unit */
    int32_t start[3];
    int32_t unused; /* pads to 32 bytes */
} mhai_int8_block;
/* int8_inputs: convert n inputs, a multiple of 16, at most MHA_CODED_COLUMNS, to small numbers and
 * blocks. `small` is padded with zeros to the end of the last block. If an input is 2^93 or more in
 * magnitude, or not finite, all small numbers become 0 and all units NaN. */

/* out[r][i] = from[r][i] + the products of row r of x with row i of W: docs/numerics.md 13. */
typedef struct mhai_int8_product {
    int64_t rows;
    const mha_coded *w;
    int64_t inputs, cols; /* inputs: whole runs, at most MHA_CODED_COLUMNS; cols: 1 .. 32 */
    const int32_t *x;     /* [rows][row_stride] small numbers */
    const mhai_int8_block *blocks; /* [rows][MHAI_INT8_BLOCKS] */
    const float *from;
    int64_t from_stride; /* 0: one row for all, a bias */
    float *out;
    int64_t out_stride;
} mhai_int8_product;

typedef struct mhai_int8_kernels {
    int group, row_stride; /* row_stride in dwords */
    int strip_rows;        /* rows of a register block */
#define MHAI_KERNEL(name, arguments) void(*name) arguments;
#include "kernels/int8.inc"
#undef MHAI_KERNEL
} mhai_int8_kernels;

/* The best table on this machine for a context of that instruction set. */
const mhai_int8_kernels *mhai_int8_kernels_for(mha_isa isa);

#endif
