/* Matrix products over the context's threads: what linear layers run forward, and what their
 * gradients need. The right factor is packed into panels (kernels.h); nothing else is copied. */
#ifndef MHAI_MATMUL_H
#define MHAI_MATMUL_H

#include "kernels/kernels.h"

#include <multihead/component.h>
#include <multihead/nn.h>

/* c[rows, cols] = activation(a b + bias), or c += a b.
 *
 * Each element is summed over blocks of MHAI_GEMM_BLOCK inner indices in order, so its bits depend
 * on its own row, its own column and nothing else. */
typedef struct mhai_matmul {
    int64_t rows, inner, cols;
    const float *a; /* [rows][inner]; transposed: [inner][rows] */
    int64_t a_stride;
    bool a_transposed;
    const float *panels; /* b, from mhai_matmul_pack() */
    bool
        pairs; /* a and b are pairs of bf16, which inner and a_stride count: half as many a chain */
    const float *bias; /* [cols]; NULL: 0 */
    bool accumulate;   /* c += a b; then there is no bias and no activation */
    mha_activation activation;
    float *c;
    int64_t c_stride;
} mhai_matmul;

/* x = activation(x). */
void mhai_activate(const mhai_kernels *kernels, mha_activation activation, float *x, int64_t n);

/* Some products that do not need each other, at most so many, with one fork and join. Nothing is
 * checked or allocated. */
enum { MHAI_MATMULS = 3 };
void mhai_matmul_run_all(mha_context *context, const mhai_matmul *jobs, int count);
void mhai_matmul_run(mha_context *context, const mhai_matmul *job);

/* Scratch that makes some products faster, if it is there when they run. */
MHA_NODISCARD mha_status mhai_matmul_reserve(mha_context *context, const mhai_matmul *job);

/* Packed b: blocks of MHAI_GEMM_BLOCK inner indices, the last one with those that are left, each in
 * panels [ceil(cols/32)][inner indices][32]. So what strips pass over together lies together: with
 * panels of all inner indices, their blocks of 2^n inputs would meet in a few sets of the cache.
 * Where element [input][col] of it is: */
int64_t mhai_matmul_place(int64_t inner, int64_t cols, int64_t input, int64_t col);

/* Floats that b [inner, cols] takes in panels; false if the number overflows. */
bool mhai_matmul_panels(int64_t inner, int64_t cols, int64_t *floats);

/* Pack b [inner][cols], or [cols][inner] if transposed (a weight as PyTorch has it). */
void mhai_matmul_pack(mha_context *context, const float *b, int64_t stride, bool transposed,
                      int64_t inner, int64_t cols, float *panels);

/* Rows of a matrix W that are not in panels: from a file, of fewer bits, in another order, lent. */
typedef struct mhai_rows {
    /* W[row .. row + rows)[column .. column + columns) into to [rows][columns]. Threads call it at
     * the same time. */
    void (*read)(const void *user, int64_t at, int64_t row, int64_t rows, int64_t column,
                 int64_t columns, float *to);
    /* The same of at most 32 rows and 256 columns, from a multiple of 256 on; false: they have no
     * such form. *rows becomes how many of them have it, or do not. */
    bool (*read_coded)(const void *user, int64_t at, int64_t row, int64_t *rows, int64_t column,
                       int64_t columns, mha_coded *to);
    /* Where rows row .. row + rows lie as f32, f16 or bf16, *stride elements apart; NULL: they do
     * not. */
    const void *(*stored)(const void *user, int64_t at, int64_t row, int64_t rows, mha_dtype *type,
                          int64_t *stride);
    const void *user;
    int64_t at;          /* which matrix, for all */
    mha_compute compute; /* int8: of rows that have that form */
} mhai_rows;

/* mhai_matmul_pack() of b = W^T. Errors: MHA_ERR_NOMEM, of scratch. */
MHA_NODISCARD mha_status mhai_matmul_pack_rows(mha_context *context, const mhai_rows *from,
                                               int64_t inner, int64_t cols, float *panels);

/* The product with b = W^T, some columns at a time: what a thread is at fits in its L2. The bits are
 * those of mhai_matmul_run(), or those of from->compute: docs/numerics.md 13 and 15.2.
 * job->panels is not read, a not transposed then. Nothing is written after an error. */
MHA_NODISCARD mha_status mhai_matmul_run_rows(mha_context *context, const mhai_matmul *job,
                                              const mhai_rows *from);

/* Bytes of scratch that it takes at most, for up to so many rows and inputs. */
size_t mhai_matmul_rows_bytes(const mha_context *context, mha_compute compute, int64_t rows,
                              int64_t inner);

/* Panels of bf16 from rows of W, of a type, `stride` elements apart: floats that they take (false if the
 * number overflows), and packing them. Where a row does not fit bf16 arithmetic, bias becomes NaN. */
bool mhai_matmul_bf16_panels(const mhai_kernels *kernels, int64_t inner, int64_t cols,
                             int64_t *floats);
void mhai_matmul_pack_bf16(const mhai_kernels *kernels, mha_dtype type, const void *rows,
                           int64_t stride, int64_t inner, int64_t cols, float *panels, float *bias);

/* The product with such panels, of a job that has the numbers of the layer: rows of a are rounded first.
 * Errors: MHA_ERR_NOMEM, of scratch; c is then untouched. */
MHA_NODISCARD mha_status mhai_matmul_run_bf16(mha_context *context, const mhai_matmul *job);

/* The same with b packed on the way, into scratch that is free again on return. */
MHA_NODISCARD mha_status mhai_matmul_packing(mha_context *context, const mhai_matmul *job,
                                             const float *b, int64_t stride, bool transposed);

#endif
