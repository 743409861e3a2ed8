/* Internals of linear layers: packed weights, and products over the context's threads. */
#ifndef MHAI_LINEAR_H
#define MHAI_LINEAR_H

#include "kernels/kernels.h"
#include "nn/matmul.h"

#include <multihead/component.h>
#include <multihead/nn.h>

struct mha_linear {
    mha_allocator allocator;
    const mhai_kernels *kernels; /* used for packing */
    int64_t inputs, outputs;     /* K, N */
    float *weight;               /* packed: mhai_matmul_place(); NULL: read from rows */
    mha_compute compute;         /* of the panels; with bf16 and tiles, bias is NaN for rows
                                  * that bf16 cannot represent */
    mhai_rows rows;              /* source of the weight; read is NULL without one */
    mha_tensor lent;             /* [N, K] the caller's matrix that `rows` reads; data NULL: none */
    float *bias;                 /* [N], zeros if the layer has no bias */
    bool has_bias;
    size_t weight_bytes, bias_bytes;
};

/* Create a layer whose parameters are zero. */
MHA_NODISCARD mha_status mhai_linear_create(mha_context *context, int64_t inputs, int64_t outputs,
                                            bool has_bias, mha_linear **linear);

/* Create a layer that reads its weight from rows in every product. mhai_linear_pack()
 * reads it once and packs it. */
MHA_NODISCARD mha_status mhai_linear_create_from(mha_context *context, int64_t inputs,
                                                 int64_t outputs, bool has_bias,
                                                 const mhai_rows *rows, bool packed,
                                                 mha_linear **linear);
MHA_NODISCARD mha_status mhai_linear_pack(mha_context *context, const mha_linear *linear);

/* Pack rows `row` .. row + N - 1 of a checked tensor [>= row + N, K] with any strides, in f32, f16
 * or bf16; for a vector, the same entries. The layer must have panels. */
void mhai_linear_set_weight(mha_linear *linear, const mha_tensor *weight, int64_t row);
void mhai_linear_set_bias(mha_linear *linear, const mha_tensor *bias, int64_t row);

/* mhai_linear_borrow() frees the panels. The layer then reads these rows, each contiguous, from the
 * caller's memory. mhai_linear_take_panels() allocates panels again (MHA_ERR_NOMEM), which the
 * caller must then fill. */
void mhai_linear_borrow(mha_linear *linear, const mha_tensor *weight, int64_t row);
MHA_NODISCARD mha_status mhai_linear_take_panels(mha_linear *linear);
void mhai_linear_drop_panels(mha_linear *linear);

/* Unpack the weight or the bias into the same rows or entries. */
void mhai_linear_get_weight(const mha_linear *linear, const mha_tensor *weight, int64_t row);
void mhai_linear_get_bias(const mha_linear *linear, const mha_tensor *bias, int64_t row);

/* y = activation(x W^T + b) for `rows` rows with the given strides. The first function describes
 * the product; the second computes it without an activation. Neither checks its arguments. A
 * borrowed weight needs scratch (mhai_matmul_rows_bytes()). */
mhai_matmul mhai_linear_job(const mha_linear *linear, mha_activation activation, const float *x,
                            int64_t x_stride, int64_t rows, float *y, int64_t y_stride);
MHA_NODISCARD mha_status mhai_linear_run(mha_context *context, const mha_linear *linear,
                                         const float *x, int64_t x_stride, int64_t rows, float *y,
                                         int64_t y_stride);

#endif
