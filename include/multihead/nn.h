/* multihead: what stands around attention in a transformer. Forward only so far.
 *
 * Letters: M rows (tokens), K inputs, N outputs or features. All tensors f32, last axis contiguous.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_NN_H
#define MULTIHEAD_NN_H

#include <multihead/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A linear layer with its weight packed for the matrix kernels. */
typedef struct mha_linear mha_linear;

/* What follows the linear map, fused. */
typedef enum mha_activation {
    MHA_ACTIVATION_NONE = 0,
    MHA_ACTIVATION_GELU = 1, /* x Phi(x), Phi the normal distribution; exact, not tanh */
    MHA_ACTIVATION_RELU = 2
} mha_activation;

/**
 * Make a linear layer y = x W^T + b.
 *
 *   weight [N,K] in, PyTorch's order    bias [N] in, or NULL
 *
 * Memory   copied and packed; the caller owns *linear. From the context's allocator, which must
 *          outlive it.
 * Errors   MHA_ERR_NULL, _SHAPE, _DTYPE, _SIZE, _NOMEM.
 * Threads  as mha_context_create().   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_linear_create(mha_context *context, const mha_tensor *weight,
                                                   const mha_tensor *bias, mha_linear **linear);

/** Destroy a linear layer; NULL is fine. Memory frees all. Errors none. Threads nobody uses it.
 * Since 0.1 */
MHA_API void mha_linear_destroy(mha_linear *linear);

/**
 * y = activation(x W^T + b).
 *
 *   x [M,K] in    y [M,N] out, may not overlap x
 *
 * Memory   scratch from the context.   Errors  MHA_ERR_NULL, _SHAPE, _DTYPE, _STRIDE, _OVERLAP,
 *          _NOMEM; y is then untouched.
 * Threads  one call per context.
 * Accuracy |y - exact| <= (K/128 + 129) u sum_i |x_i w_i| + (K/128 + 1) u |b| before the
 *          activation; bits do not depend on M or the number of threads.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_linear_forward(mha_context *context, const mha_linear *linear,
                                                    mha_activation activation, const mha_tensor *x,
                                                    const mha_tensor *y);

/**
 * y = (z - mean(z)) / sqrt(var(z) + epsilon) * weight + bias per row, z = x + residual
 * (Ba et al. 2016; var divides by N).
 *
 *   x [M,N] in    residual [M,N] in, or NULL    weight [N] in    bias [N] in    y [M,N] out
 *   y may be x or residual itself, element for element; no other overlap.
 *
 * Memory   none.   Errors  MHA_ERR_NULL, _SHAPE, _DTYPE, _STRIDE, _ARGUMENT (epsilon not in
 *          [0, inf)); y is then untouched.
 * Threads  one call per context.
 * Accuracy |y - exact| <= u |y|, and with a residual, which rounds z, also
 *          u |weight| / sigma (|z| + mean|z| + |z - mean| rms(z) / sigma), sigma = sqrt(var + eps).
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_layer_norm(mha_context *context, const mha_tensor *x,
                                                const mha_tensor *residual,
                                                const mha_tensor *weight, const mha_tensor *bias,
                                                float epsilon, const mha_tensor *y);

#ifdef __cplusplus
}
#endif
#endif
