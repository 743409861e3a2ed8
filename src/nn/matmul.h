/* Matrix products over the context's threads, for linear layers and their gradients. The right
 * factor is packed into panels (kernels.h). Nothing else is copied. */
#ifndef MHAI_MATMUL_H
#define MHAI_MATMUL_H

#include "kernels/kernels.h"

#include <multihead/component.h>
#include <multihead/nn.h>

/* c[rows, cols] = activation(a b + bias), or c += a b.
 *
 * Each element is summed over blocks of MHAI_GEMM_BLOCK inner indices in order, so it depends only
 * on its own row and column. */
typedef struct mhai_matmul {
    int64_t rows, inner, cols;
    const float *a; /* [rows][inner]; transposed: [inner][rows] */
    int64_t a_stride;
    bool a_transposed;
    const float *panels; /* b, packed: mhai_matmul_place() */
    bool pairs;          /* a and b are pairs of bf16, and inner and a_stride count pairs;
                          * a chain then has half as many indices */
    const float *bias;   /* [cols]; NULL: 0 */
    bool accumulate;     /* c += a b, without bias and activation */
    mha_activation activation;
    float *c;
    int64_t c_stride;
} mhai_matmul;

/* x = activation(x). */
void mhai_activate(const mhai_kernels *kernels, mha_activation activation, float *x, int64_t n);

/* Compute up to MHAI_MATMULS independent products in one parallel step. Nothing
 * is checked or allocated. */
enum { MHAI_MATMULS = 3 };
void mhai_matmul_run_all(mha_context *context, const mhai_matmul *jobs, int count);
void mhai_matmul_run(mha_context *context, const mhai_matmul *job);

/* Reserve optional scratch, which makes some products faster. */
MHA_NODISCARD mha_status mhai_matmul_reserve(mha_context *context, const mhai_matmul *job);

/* The position of element [input][col] in packed b. Packed b is divided into blocks of
 * MHAI_GEMM_BLOCK inner indices; the last may be shorter. A block has panels [ceil(cols/32)][inner
 * indices][32], so that data used by all strips is contiguous. If panels spanned all inner indices,
 * blocks would be a power of two apart and map to few cache sets. */
int64_t mhai_matmul_place(int64_t inner, int64_t cols, int64_t input, int64_t col);

/* The number of floats of packed b [inner, cols]; false on overflow. */
bool mhai_matmul_panels(int64_t inner, int64_t cols, int64_t *floats);

/* Rows of a matrix W that is not packed: in a file, quantised, in another order, or borrowed. */
typedef struct mhai_rows {
    /* Read W[row .. row + rows)[column .. column + columns) into `to` [rows][columns]. May be
     * called by several threads at once. */
    void (*read)(const void *user, int64_t at, int64_t row, int64_t rows, int64_t column,
                 int64_t columns, float *to);
    /* Get the coded form of at most 32 rows and 256 columns. `column` is a multiple of 256. Returns
     * false if the rows have none. *rows becomes the number of rows to which the result applies. */
    bool (*read_coded)(const void *user, int64_t at, int64_t row, int64_t *rows, int64_t column,
                       int64_t columns, mha_coded *to);
    /* The address of rows row .. row + rows - 1 in f32, f16 or bf16, *stride elements apart; NULL
     * if they are not in memory. */
    const void *(*stored)(const void *user, int64_t at, int64_t row, int64_t rows, mha_dtype *type,
                          int64_t *stride);
    const void *user;
    int64_t at;          /* identifies the matrix in these functions */
    mha_compute compute; /* int8: use it for coded rows */
} mhai_rows;

/* Pack b = W^T. Error: MHA_ERR_NOMEM for scratch. */
MHA_NODISCARD mha_status mhai_matmul_pack_rows(mha_context *context, const mhai_rows *from,
                                               int64_t inner, int64_t cols, float *panels);

/* The product with b = W^T, by groups of columns that fit in L2 for each thread. Bit-identical to
 * mhai_matmul_run(), or to the arithmetic of from->compute (docs/numerics.md 13 and 15).
 * job->panels is not read. a must not be transposed. On error, nothing is written. */
MHA_NODISCARD mha_status mhai_matmul_run_rows(mha_context *context, const mhai_matmul *job,
                                              const mhai_rows *from);

/* Upper bound on the scratch bytes of the product, for up to this many rows and inputs. */
size_t mhai_matmul_rows_bytes(const mha_context *context, mha_compute compute, int64_t rows,
                              int64_t inner);

/* Panels in bf16 from rows of W of any type, `stride` elements apart. The first function returns
 * their size in floats (false on overflow); the second packs them. If bf16 arithmetic cannot
 * represent a row, its bias becomes NaN. */
bool mhai_matmul_bf16_panels(const mhai_kernels *kernels, int64_t inner, int64_t cols,
                             int64_t *floats);
void mhai_matmul_pack_bf16(const mhai_kernels *kernels, mha_dtype type, const void *rows,
                           int64_t stride, int64_t inner, int64_t cols, float *panels, float *bias);

/* The product with bf16 panels. The job has the sizes of the layer. Rows of a are rounded first.
 * Error: MHA_ERR_NOMEM for scratch; c is then unchanged. */
MHA_NODISCARD mha_status mhai_matmul_run_bf16(mha_context *context, const mhai_matmul *job);

/* The same for the sums of tiles (docs/numerics.md 15.3). */
bool mhai_matmul_tiles_panels(int64_t inner, int64_t cols, int64_t *floats);
void mhai_matmul_pack_tiles(const mhai_kernels *kernels, mha_dtype type, const void *rows,
                            int64_t stride, int64_t inner, int64_t cols, float *panels,
                            float *bias);
MHA_NODISCARD mha_status mhai_matmul_run_tiles(mha_context *context, const mhai_matmul *job);

/* The same as mhai_matmul_run(), but packs b [inner][cols] into temporary scratch first. */
MHA_NODISCARD mha_status mhai_matmul_packing(mha_context *context, const mhai_matmul *job,
                                             const float *b, int64_t stride);

#endif
