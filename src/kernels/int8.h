/* Kernels of linear layers in int8 arithmetic (docs/numerics.md 13): the contracts. They are a table of
 * their own, since one instruction set may have faster products of bytes (VNNI) or not. All results
 * have the same bits on every instruction set, portable C too: sums of products are integers,
 * everything else is single operations of f32 in a fixed order, never fused.
 *
 * A dword holds `group` small numbers that lie one after the other along the inner dimension. */
#ifndef MHAI_INT8_H
#define MHAI_INT8_H

#include "kernels/kernels.h"

/* Inputs of a linear layer, 32 of a row: [0] all, [1] the first half, [2] the second. start is
 * the initial value of a run's sum of products. */
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

/* out[r][i] = from[r][i] + the products of row r of x with row i of W: docs/numerics.md 13. */
typedef struct mhai_int8_product {
    int64_t rows;
    const mha_coded *w;
    int64_t inputs, cols;          /* whole runs, at most MHA_CODED_COLUMNS; 1 .. 32 rows of w */
    const int32_t *x;              /* [rows][row_stride] small numbers */
    const mhai_int8_block *blocks; /* [rows][MHAI_INT8_BLOCKS] */
    const float *from;
    int64_t from_stride; /* 0: all rows share one, a bias */
    float *out;
    int64_t out_stride;
} mhai_int8_product;

typedef struct mhai_int8_kernels {
    int group, row_stride; /* row_stride in dwords */
    int strip_rows;        /* of a register block */
#define MHAI_KERNEL(name, arguments) void(*name) arguments;
#include "kernels/int8.inc"
#undef MHAI_KERNEL
} mhai_int8_kernels;

/* The best table on this machine for a context of that instruction set. */
const mhai_int8_kernels *mhai_int8_kernels_for(mha_isa isa);

#endif
