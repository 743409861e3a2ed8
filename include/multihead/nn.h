/* multihead: the layers of a transformer besides attention, forward and backward.
 *
 * Letters: M rows (tokens), K inputs, N outputs or features. Tensors are f32 unless stated
 * otherwise, with a contiguous last axis. The gradient of a parameter is always accumulated (clear
 * it before the first batch); the gradient of an activation is overwritten, or accumulated with
 * MHA_GRADIENT_ADD. NULL: not requested. Sums over rows are taken in a fixed order: bits do not
 * depend on the number of threads.
 *
 * Example, given mha_context *context, mha_tensor weight, mha_tensor bias, mha_tensor x, mha_tensor
 * y:
 *
 *   mha_linear *linear = NULL;
 *   mha_status status = mha_linear_create(context, &weight, &bias, &linear);
 *   if (!status) status = mha_linear_forward(context, linear, MHA_ACTIVATION_GELU, &x, &y);
 *   mha_linear_destroy(linear);
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_NN_H
#define MULTIHEAD_NN_H

#include <multihead/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Flags of backward functions. */
enum { MHA_GRADIENT_ADD = 1 << 0 /* add to dx instead of overwriting it */ };

/* A linear layer with its weight packed for the matrix kernels. */
typedef struct mha_linear mha_linear;

/* The activation after the linear map, fused. */
typedef enum mha_activation {
    MHA_ACTIVATION_NONE = 0,
    MHA_ACTIVATION_GELU = 1, /* x Phi(x), Phi the normal distribution; exact, not tanh */
    MHA_ACTIVATION_RELU = 2,
    /* x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2 (Hendrycks, Gimpel 2016, section 2) */
    MHA_ACTIVATION_GELU_TANH = 3,
    MHA_ACTIVATION_RELU2 = 4,     /* max(x, 0)^2 (So et al. 2021) */
    MHA_ACTIVATION_SILU = 5,      /* x / (1 + exp(-x)), also called swish */
    MHA_ACTIVATION_QUICK_GELU = 6 /* x sigmoid(1.702 x) (Hendrycks, Gimpel 2016, section 2) */
} mha_activation;

/**
 * Create a linear layer y = x W^T + b.
 *
 *   weight [N,K] in, PyTorch's order    bias [N] in, or NULL
 *
 * Memory   copied and packed; the caller owns *linear. From the context's allocator, which must
 *          outlive it.
 * Errors   MHA_ERR_NULL, MHA_ERR_SHAPE, MHA_ERR_DTYPE, MHA_ERR_SIZE, MHA_ERR_NOMEM.
 * Threads  as mha_context_create().   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_linear_create(mha_context *context, const mha_tensor *weight,
                                                   const mha_tensor *bias, mha_linear **linear);

/**
 * Create a linear layer y = x W^T + b in bf16 arithmetic: less accurate, in half the memory and 0.5
 * to 0.6 of the time if the processor multiplies pairs of bf16 (VDPBF16PS: Zen 4, Cooper Lake,
 * Sapphire Rapids). Without that instruction the bits are the same, but it is no faster than f32.
 *
 *   x', w' = x, w to the nearest bf16, ties to even; 0 where they are below 2^-50 in magnitude
 *   y = b, and then for each 128 inputs, in order:
 *     y = y + sum, where sum = 0 and then sum = fma(x'_i, w'_i, sum) for i = 1, 0, 3, 2, 5, 4, ...
 *     of them (if their number is odd, the last one is last)
 *
 *   weight [N,K] in, f32, f16 or bf16, its last axis contiguous    bias [N] f32 in, or NULL
 *
 * mha_linear_update() and mha_linear_forward() accept it; an update may have weights of any of
 * these types.
 *
 * Memory   copied and packed, 2 bytes per weight where the instruction is available and 4
 *          elsewhere; forward calls take scratch of the size of x. Otherwise as
 *          mha_linear_create().
 * Errors   MHA_ERR_NULL, MHA_ERR_SHAPE, MHA_ERR_DTYPE, MHA_ERR_STRIDE, MHA_ERR_SIZE, MHA_ERR_NOMEM.
 * Range    a row of x with an element that is not finite, or of magnitude 2^59 or more, gives a row
 *          of NaN; such a row of W gives a column of NaN.
 * Accuracy |y - exact| <= sum_i (2^-7 + 2^-16) |x_i w_i| + 2^-49 (|x_i| + |w_i|), plus the bound of
 *          mha_linear_forward(): docs/numerics.md 15.2. Weights stored as bf16 are exact; the bound
 *          is then half.
 * Bits     the same on every instruction set including portable C, for any M and number of threads.
 * Threads  as mha_context_create().   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_linear_create_bf16(mha_context *context,
                                                        const mha_tensor *weight,
                                                        const mha_tensor *bias,
                                                        mha_linear **linear);

/**
 * Create a linear layer y = x W^T + b in the arithmetic of AMX's bf16 tiles, which Intel's manual
 * defines (TDPBF16PS): where the context's instruction set is amx, tiles compute it, and elsewhere
 * vectors compute the same bits, about as fast as f32. Not those of mha_linear_create_bf16().
 *
 *   x', w' as in mha_linear_create_bf16()
 *   y = b, and then for each 256 inputs, in order:
 *     y = y + sum, where sum = 0, and then for each 32 of them, in order:
 *       sum = sum + (even + odd), where even = 0 and then
 *       even = fma(x'_i, w'_i, even) for i = 0, 2, ..., 30; odd likewise for i = 1, 3, ..., 31
 *
 * Memory   2 bytes per weight everywhere. Otherwise this and all else as mha_linear_create_bf16().
 * Errors   as mha_linear_create_bf16().
 * Accuracy as mha_linear_create_bf16(), with K/256 + 26 roundings instead of K/128 + 130:
 *          docs/numerics.md 15.3.
 * Bits     the same on every instruction set including portable C, for any M and number of threads.
 *          Before the first use of tiles, a process compares them with vectors; if any bit differs,
 *          it does not use them.
 * Threads  as mha_context_create().   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_linear_create_tiles(mha_context *context,
                                                         const mha_tensor *weight,
                                                         const mha_tensor *bias,
                                                         mha_linear **linear);

/**
 * Replace the parameters of a linear layer by others of the same shape, as after a step of
 * training.
 *
 *   weight [N,K] in    bias [N] in; NULL if the layer has none
 *
 * Memory   copied and packed; nothing is allocated.
 * Errors   MHA_ERR_NULL, MHA_ERR_SHAPE, MHA_ERR_DTYPE, MHA_ERR_SIZE; MHA_ERR_ARGUMENT (a bias for a
 *          layer without one). Nothing is then changed.
 * Threads  no other thread may be using the layer.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_linear_update(mha_linear *linear, const mha_tensor *weight,
                                                   const mha_tensor *bias);

/** Destroy a linear layer; NULL: a no-op. Memory frees all. Errors none. Threads no other thread
 * may be using it. Since 0.1 */
MHA_API void mha_linear_destroy(mha_linear *linear);

/**
 * y = activation(x W^T + b).
 *
 *   x [M,K] in    y [M,N] out, may not overlap x
 *
 * Memory   scratch from the context.
 * Errors   MHA_ERR_NULL, MHA_ERR_SHAPE, MHA_ERR_DTYPE, MHA_ERR_STRIDE, MHA_ERR_OVERLAP,
 *          MHA_ERR_NOMEM; y is then untouched.
 * Threads  one call per context.
 * Accuracy |y - exact| <= (K/128 + 129) u sum_i |x_i w_i| + (K/128 + 1) u |b| before the
 *          activation; bits do not depend on M or the number of threads.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_linear_forward(mha_context *context, const mha_linear *linear,
                                                    mha_activation activation, const mha_tensor *x,
                                                    const mha_tensor *y);

/* A call of mha_linear_backward(). No output may overlap an input; each may be NULL. */
typedef struct mha_linear_gradients {
    uint32_t struct_size;
    uint32_t flags;                    /* MHA_GRADIENT_ADD: add to dx */
    const mha_tensor *weight;          /* [N,K] in */
    const mha_tensor *x;               /* [M,K] in; not read without dweight */
    const mha_tensor *dy;              /* [M,N] in */
    const mha_tensor *dx;              /* [M,K] out */
    const mha_tensor *dweight, *dbias; /* [N,K], [N] out */
} mha_linear_gradients;

/**
 * The gradients of y = x W^T + b:
 *
 *   dx (+)= dy W        dweight += dy^T x        dbias += sum of the rows of dy
 *
 * Memory   scratch from the context, of the size of weight or x.
 * Errors   MHA_ERR_NULL, MHA_ERR_SHAPE, MHA_ERR_DTYPE, MHA_ERR_STRIDE, MHA_ERR_OVERLAP,
 *          MHA_ERR_SIZE, MHA_ERR_NOMEM, MHA_ERR_UNSUPPORTED (flags); nothing is then written.
 * Threads  one call per context.
 * Accuracy as mha_linear_forward(), with the length of each sum (N, M) in place of K.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_linear_backward(mha_context *context,
                                                     const mha_linear_gradients *call);

/**
 * y = activation(x), element by element: for activations that are not fused, as in training, where
 * x is needed later.
 *
 *   x [M,N] in    y [M,N] out, may be x itself
 *
 * Memory   none.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT, MHA_ERR_SHAPE, MHA_ERR_DTYPE, MHA_ERR_STRIDE,
 *          MHA_ERR_OVERLAP.
 * Threads  one call per context.
 * Accuracy GELU: |y - exact| <= 5 u |x|. GELU_TANH, with z = 1.6 x + 0.0714 x^3: |y - exact| <=
 *          (6 |z| sigmoid(-z) + 7) u |y| + 2^-125 |x|. QUICK_GELU: |y - exact| <= u |y|, computed in
 *          double.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_activation_forward(mha_context *context,
                                                        mha_activation activation,
                                                        const mha_tensor *x, const mha_tensor *y);

/**
 * dx (+)= dy activation'(x); ReLU has slope 0 at 0.
 *
 *   x [M,N] in, before the activation    dy [M,N] in    dx [M,N] out, may be dy itself
 *
 * Memory   none.   Errors  as mha_activation_forward(), MHA_ERR_UNSUPPORTED (flags).
 * Threads  one call per context.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_activation_backward(mha_context *context,
                                                         mha_activation activation,
                                                         const mha_tensor *x, const mha_tensor *dy,
                                                         const mha_tensor *dx);

/**
 * y = activation(gate) * up (Shazeer 2020): GEGLU with MHA_ACTIVATION_GELU or _GELU_TANH (Gemma),
 * ReGLU with _RELU.
 *
 *   gate, up [M,N] in    y [M,N] out, may be either of them
 *
 * Memory   none.   Errors  as mha_activation_forward().   Threads  one call per context.
 * Accuracy that of mha_activation_forward(), and one more rounding.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_glu(mha_context *context, mha_activation activation,
                                         const mha_tensor *gate, const mha_tensor *up,
                                         const mha_tensor *y);

/** The gradients of mha_glu(), as mha_swiglu_backward(). Memory none. Errors as
 * mha_activation_forward(). Threads one call per context. Since 0.1 */
MHA_API MHA_NODISCARD mha_status mha_glu_backward(mha_context *context, mha_activation activation,
                                                  const mha_tensor *gate, const mha_tensor *up,
                                                  const mha_tensor *dy, const mha_tensor *dgate,
                                                  const mha_tensor *dup);

/**
 * y = silu(gate) * up, silu(x) = x / (1 + exp(-x)) (Shazeer 2020, SwiGLU).
 *
 *   gate, up [M,N] in    y [M,N] out, may be either of them
 *
 * Memory   none.   Errors  as mha_activation_forward().   Threads  one call per context.
 * Accuracy |y - exact| <= (1.4 |gate| + 9) u |y| + 2^-125 |gate up|.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_swiglu(mha_context *context, const mha_tensor *gate,
                                            const mha_tensor *up, const mha_tensor *y);

/** The gradients of mha_swiglu(): dgate, dup [M,N] out from dy; either may be gate, up or dy
 * itself, but not each other. Memory none. Errors as mha_activation_forward(). Threads one call per
 * context. Since 0.1
 */
MHA_API MHA_NODISCARD mha_status mha_swiglu_backward(mha_context *context, const mha_tensor *gate,
                                                     const mha_tensor *up, const mha_tensor *dy,
                                                     const mha_tensor *dgate,
                                                     const mha_tensor *dup);

/* mha_short_convolution() */
enum {
    MHA_CONVOLUTION_SILU = 1 << 0, /* y = silu(z) */
    MHA_CONVOLUTION_MOST = 64      /* weights of a kernel */
};

/**
 * A causal depthwise convolution with K weights per channel (the short convolutions of Mamba, gated
 * delta nets and LFM 2):
 *
 *   z[t,c] = bias[c] + sum_k weight[c,k] x[t - K + 1 + k,c]           y = z, or silu(z)
 *
 *   x [B,T,C] in    weight [C,K] in    bias [C] in, or NULL    y [B,T,C] out, may be x itself
 *   state [B,K-1,C] in and out: the inputs before x[0] on entry, the last inputs on return, the
 *         oldest first; NULL: they are 0 and not kept
 *
 * Several calls of any lengths with a state are bit-identical to one call, for any number of
 * threads.
 *
 * Memory   none.
 * Errors   MHA_ERR_NULL, MHA_ERR_SHAPE (also K above MHA_CONVOLUTION_MOST), MHA_ERR_DTYPE,
 *          MHA_ERR_STRIDE, MHA_ERR_OVERLAP, MHA_ERR_UNSUPPORTED (flags). Nothing is then written.
 * Threads  one call per context.
 * Accuracy |z - exact| <= (K + 1) u (|bias| + sum |weight x|); silu as mha_swiglu() with up 1.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_short_convolution(
    mha_context *context, uint32_t flags, const mha_tensor *x, const mha_tensor *weight,
    const mha_tensor *bias, const mha_tensor *state, const mha_tensor *y);

/* A call of mha_short_convolution_backward(). Each output may be NULL. */
typedef struct mha_convolution_gradients {
    uint32_t struct_size;
    uint32_t flags;                      /* MHA_CONVOLUTION_SILU, as in the forward call */
    const mha_tensor *x, *weight, *bias; /* in, as in the forward call, before it overwrote x */
    const mha_tensor *dy;                /* [B,T,C] in */
    const mha_tensor *dx;                /* [B,T,C] out, may be dy itself */
    const mha_tensor *dweight;           /* [C,K] out */
    const mha_tensor *dbias;             /* [C] out */
} mha_convolution_gradients;

/**
 * The gradients of mha_short_convolution() without a state; with dz = dy silu'(z), or dy:
 *
 *   dx[t,c] = sum_k weight[c,k] dz[t + K - 1 - k,c]
 *   dweight[c,k] += sum_t x[t - K + 1 + k,c] dz[t,c]       dbias[c] += sum_t dz[t,c]
 *
 * Memory   none.
 * Errors   as mha_short_convolution(); MHA_ERR_ARGUMENT (dbias without bias). Nothing is then written.
 * Threads  one call per context; bits do not depend on their number.
 * Accuracy dz and dx in f32, sums over tokens in double, rounded once.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status
mha_short_convolution_backward(mha_context *context, const mha_convolution_gradients *call);

/**
 * y = (z - mean(z)) / sqrt(var(z) + epsilon) * weight + bias per row, z = x + residual
 * (Ba et al. 2016; var divides by N).
 *
 *   x [M,N] in    residual [M,N] in, or NULL    weight [N] in    bias [N] in, or NULL: 0    y [M,N] out
 *   y may be x or residual itself, element for element; no other overlap.
 *
 * Memory   none.
 * Errors   MHA_ERR_NULL, MHA_ERR_SHAPE, MHA_ERR_DTYPE, MHA_ERR_STRIDE, MHA_ERR_ARGUMENT (epsilon
 *          not in [0, inf)); y is then untouched.
 * Threads  one call per context.
 * Accuracy |y - exact| <= u |y|, and with a residual, which rounds z, also
 *          u |weight| / sigma (|z| + mean|z| + |z - mean| rms(z) / sigma), sigma = sqrt(var + eps).
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_layer_norm(mha_context *context, const mha_tensor *x,
                                                const mha_tensor *residual,
                                                const mha_tensor *weight, const mha_tensor *bias,
                                                float epsilon, const mha_tensor *y);

/**
 * y = z / sqrt(mean(z^2) + epsilon) * weight per row, z = x + residual (Zhang and Sennrich 2019).
 * Memory, Errors, Threads, Accuracy as mha_layer_norm(). Since 0.1
 */
MHA_API MHA_NODISCARD mha_status mha_rms_norm(mha_context *context, const mha_tensor *x,
                                              const mha_tensor *residual, const mha_tensor *weight,
                                              float epsilon, const mha_tensor *y);

/* A call of mha_layer_norm_backward() or mha_rms_norm_backward(). */
typedef struct mha_norm_gradients {
    uint32_t struct_size;
    uint32_t flags;                          /* MHA_GRADIENT_ADD: add to dx */
    const mha_tensor *x, *residual, *weight; /* in, as in the forward call */
    const mha_tensor *dy;                    /* [M,N] in */
    const mha_tensor *dx;                    /* [M,N] out, may be dy itself; NULL: not requested */
    const mha_tensor *dweight, *dbias;       /* [N] out; likewise */
    float epsilon;                           /* as in the forward call */
} mha_norm_gradients;

/**
 * The gradients of mha_layer_norm(); with r = 1 / sqrt(var + epsilon), n = (z - mean) r, g = dy *
 * weight:
 *
 *   dx (+)= r (g - mean(g) - n mean(g n))        dweight += sum of dy n        dbias += sum of dy
 *
 * dx is the gradient of z, hence of both x and residual.
 *
 * Memory   scratch from the context: 2 N doubles for every 64 rows.
 * Errors   as mha_layer_norm(), MHA_ERR_OVERLAP, MHA_ERR_NOMEM, MHA_ERR_UNSUPPORTED (flags);
 *          nothing is then written.
 * Threads  one call per context.   Accuracy  in double, rounded once.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_layer_norm_backward(mha_context *context,
                                                         const mha_norm_gradients *call);

/** The gradients of mha_rms_norm(): as mha_layer_norm_backward() without means and bias; dbias is
 * MHA_ERR_UNSUPPORTED. Memory, Errors, Threads, Accuracy as there. Since 0.1 */
MHA_API MHA_NODISCARD mha_status mha_rms_norm_backward(mha_context *context,
                                                       const mha_norm_gradients *call);

/**
 * y[m] = table[ids[m]], or with MHA_GRADIENT_ADD y[m] += table[ids[m]].
 *
 *   table [V,N] in    ids [M] i32 in    y [M,N] out
 *
 * Memory   none.
 * Errors   MHA_ERR_NULL, MHA_ERR_SHAPE, MHA_ERR_DTYPE, MHA_ERR_STRIDE, MHA_ERR_OVERLAP;
 *          MHA_ERR_ARGUMENT (an id outside 0 .. V-1; the detail has its index); y is then
 *          untouched.
 * Threads  one call per context.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_embedding(mha_context *context, const mha_tensor *table,
                                               const mha_tensor *ids, uint32_t flags,
                                               const mha_tensor *y);

/** dtable[ids[m]] += dy[m], rows in order. dtable [V,N] out. Memory none. Errors as
 * mha_embedding(). Threads one call per context. Since 0.1 */
MHA_API MHA_NODISCARD mha_status mha_embedding_backward(mha_context *context, const mha_tensor *ids,
                                                        const mha_tensor *dy,
                                                        const mha_tensor *dtable);

/**
 * Cross-entropy against one target per row, weighted:
 *
 *   loss = sum_m weights[m] (log sum_v exp(logits[m,v]) - logits[m,targets[m]])
 *   dlogits[m,v] = weights[m] (softmax(logits[m])[v] - [v = targets[m]])
 *
 *   logits [M,V] in    targets [M] i32 in, -1: the row is ignored
 *   weights [M] in, or NULL: 1 / (number of rows that are not ignored), the mean
 *   loss out           losses [M] out, each row's unweighted loss (0 if ignored)
 *   dlogits [M,V] out, may be logits itself;   loss, losses, dlogits may be NULL
 *
 * Memory   scratch from the context, M doubles.
 * Errors   MHA_ERR_NULL, MHA_ERR_SHAPE, MHA_ERR_DTYPE, MHA_ERR_STRIDE, MHA_ERR_OVERLAP,
 *          MHA_ERR_NOMEM; MHA_ERR_ARGUMENT (a target outside -1 .. V-1); nothing is then written.
 * Threads  one call per context.
 * Accuracy of a row's loss: (V/16 + 9 + 2.4 sum_v p_v |logits[m,v] - max|) u.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_cross_entropy(mha_context *context, const mha_tensor *logits,
                                                   const mha_tensor *targets,
                                                   const mha_tensor *weights, double *loss,
                                                   const mha_tensor *losses,
                                                   const mha_tensor *dlogits);

#ifdef __cplusplus
}
#endif
#endif
