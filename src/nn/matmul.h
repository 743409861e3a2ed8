/* Matrix products over the context's threads, for linear layers and their gradients. The right
 * factor is packed into panels (kernels.h); nothing else is copied. */
#ifndef MHAI_MATMUL_H
#define MHAI_MATMUL_H

#include "kernels/kernels.h"

#include <multihead/component.h>
#include <multihead/nn.h>

/* c[rows, cols] = activation(a b + bias), or c += a b.
 *
 * Each element is summed over blocks of MHAI_GEMM_BLOCK inner indices in order, so its bits depend
 * only on its own row and column. */
typedef struct mhai_matmul {
    int64_t rows, inner, cols;
    const float *a; /* [rows][inner]; transposed: [inner][rows] */
    int64_t a_stride;
    bool a_transposed;
    const float *panels; /* b, from mhai_matmul_pack() */
    bool pairs; /* a and b are pairs of bf16, counted by inner and a_stride: a chain is half as
                * many */
    const float *bias; /* [cols]; NULL: 0 */
    bool accumulate;   /* c += a b; then there is no bias and no activation */
    mha_activation activation;
    float *c;
    int64_t c_stride;
} mhai_matmul;

/* x = activation(x). */
void mhai_activate(const mhai_kernels *kernels, mha_activation activation, float *x, int64_t n);

/* Up to this many independent products, with one fork and join. Nothing is checked or allocated. */
enum { MHAI_MATMULS = 3 };
void mhai_matmul_run_all(mha_context *context, const mhai_matmul *jobs, int count);
void mhai_matmul_run(mha_context *context, const mhai_matmul *job);

/* Optional scratch that makes some products faster. */
MHA_NODISCARD mha_status mhai_matmul_reserve(mha_context *context, const mhai_matmul *job);

/* Packed b: blocks of MHAI_GEMM_BLOCK inner indices, the last one possibly shorter, each in panels
 * [ceil(cols/32)][inner indices][32]. The data that strips share is thus contiguous. In panels of
 * all inner indices, blocks of 2^n inputs would map to a few sets of the cache. The position of
 * element [input][col]: */
int64_t mhai_matmul_place(int64_t inner, int64_t cols, int64_t input, int64_t col);

/* The floats of b [inner, cols] in panels; false if the number overflows. */
bool mhai_matmul_panels(int64_t inner, int64_t cols, int64_t *floats);

/* Pack b [inner][cols], or [cols][inner] if transposed (a weight as PyTorch has it). */
void mhai_matmul_pack(mha_context *context, const float *b, int64_t stride, bool transposed,
                      int64_t inner, int64_t cols, float *panels);

/* Rows of a matrix W that are not in panels: from a file, quantised, in another order, or
 * borrowed. */
typedef struct mhai_rows {
    /* W[row .. row + rows)[column .. column + columns) into to [rows][columns]. Threads call it at
     * the same time. */
    void (*read)(const void *user, int64_t at, int64_t row, int64_t rows, int64_t column,
                 int64_t columns, float *to);
    /* Code at most 32 rows and 256 columns, from a multiple of 256 on; false if they have no coded
     * form. *rows becomes the number of rows with the same answer. */
    bool (*read_coded)(const void *user, int64_t at, int64_t row, int64_t *rows, int64_t column,
                       int64_t columns, mha_coded *to);
    /* The address of rows row .. row + rows as f32, f16 or bf16, *stride elements apart; NULL if
     * they are not in memory. */
    const void *(*stored)(const void *user, int64_t at, int64_t row, int64_t rows, mha_dtype *type,
                          int64_t *stride);
    const void *user;
    int64_t at;          /* identifies the matrix, for all */
    mha_compute compute; /* int8: for coded rows */
} mhai_rows;

/* mhai_matmul_pack() of b = W^T. Errors: MHA_ERR_NOMEM, of scratch. */
MHA_NODISCARD mha_status mhai_matmul_pack_rows(mha_context *context, const mhai_rows *from,
                                               int64_t inner, int64_t cols, float *panels);

/* The product with b = W^T, some columns at a time, so that a thread's part fits in its L2.
 * Bit-identical to mhai_matmul_run(), or with from->compute to that arithmetic: docs/numerics.md 13
 * and 15.2. job->panels is not read, a is not transposed then. Nothing is written after an
 * error. */
MHA_NODISCARD mha_status mhai_matmul_run_rows(mha_context *context, const mhai_matmul *job,
                                              const mhai_rows *from);

/* Maximum scratch bytes of the product, for up to this many rows and inputs. */
size_t mhai_matmul_rows_bytes(const mha_context *context, mha_compute compute, int64_t rows,
                              int64_t inner);

/* bf16 panels of rows of W, of a type, `stride` elements apart: their size in floats (false if it
 * overflows), and packing. For a row that does not fit bf16 arithmetic, bias becomes NaN. */
bool mhai_matmul_bf16_panels(const mhai_kernels *kernels, int64_t inner, int64_t cols,
                             int64_t *floats);
void mhai_matmul_pack_bf16(const mhai_kernels *kernels, mha_dtype type, const void *rows,
                           int64_t stride, int64_t inner, int64_t cols, float *panels, float *bias);

/* The product with such panels, for a job with the sizes of the layer: rows of a are rounded first.
 * Errors: MHA_ERR_NOMEM, of scratch; c is then untouched. */
MHA_NODISCARD mha_status mhai_matmul_run_bf16(mha_context *context, const mhai_matmul *job);

/* Likewise, with b packed into scratch that is free again on return. */
MHA_NODISCARD mha_status mhai_matmul_packing(mha_context *context, const mhai_matmul *job,
                                             const float *b, int64_t stride, bool transposed);

#endif
