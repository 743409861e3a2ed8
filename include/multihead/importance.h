/* multihead: importance of heads: the change of a loss when a head's gate changes or the head is
 * removed; the order in which to remove heads, and the loss as they are removed.
 *
 *   gate gradient     I(h) = mean over examples of |dL / dgate(h)|      (Michel et al. 2019, 4.1)
 *   ablation          I(h) = L(gate(h) = 0) - L
 *   mean ablation     I(h) = L(head h outputs its mean at every token) - L
 *
 * The gradient is a linear estimate and takes one backward pass for all heads; ablation is exact
 * for a single head and takes one forward pass per head. Mean ablation costs the same and avoids
 * inputs that later layers never received in training. None of them accounts for heads that
 * compensate for each other: mha_head_order() removes heads and measures again.
 *
 * Letters: L layers, H heads, D size of a head, B sequences of T tokens in a batch.
 *
 * Example, given mha_context *context, const mha_transformer *transformer,
 * mha_importance_data data, double *scores:
 *
 *   mha_importance_desc desc = MHA_INIT(mha_importance_desc);
 *   desc.kind = MHA_IMPORTANCE_GRADIENT;
 *   data.loss = mha_loss_targets; // with data.user, data.inputs and data.batches set
 *   mha_status status = mha_head_importance(context, transformer, &desc, &data, scores, NULL);
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_IMPORTANCE_H
#define MULTIHEAD_IMPORTANCE_H

#include <multihead/transformer.h>
#include <multihead/transport.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- losses ---------------------------------------------------------------------------------- */

/* The loss of each sequence of batch number `batch`, and its gradient. input is the batch, output
 * the transformer's output for it; output_gradient [as output] is 0 and receives the gradient of
 * losses[b] with respect to rows b of the output; NULL: not requested. A status other than MHA_OK
 * ends the calling function, which returns it. */
typedef mha_status (*mha_loss_fn)(mha_context *context, int64_t batch,
                                  const mha_transformer_input *input, const mha_tensor *output,
                                  const mha_tensor *output_gradient, double *losses, void *user);

/* Called between passes; a status other than MHA_OK (MHA_ERR_CALLBACK) ends the call. */
typedef mha_status (*mha_progress_fn)(int64_t done, int64_t total, void *user);

/* The data on which importance is measured. */
typedef struct mha_importance_data {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    int64_t batches;   /* 1 or more */
    /* [batches] without gates, head_means or dropout. Every sequence has equal weight */
    const mha_transformer_input *const *inputs;
    mha_loss_fn loss;
    void *user;
    mha_progress_fn progress; /* NULL: none */
    void *progress_user;
    /* Ranks that share the passes of mha_head_importance(), mha_head_order() and mha_head_curve(),
     * each with the whole transformer and all data. All make the same calls and get results
     * bit-identical to one process: each pass, or gradient of a batch, runs on one rank, and sums
     * are added in the order of batches. loss and progress are called for the passes of this rank;
     * `done` counts those of all ranks. NULL: none */
    const mha_transport *transport;
} mha_importance_data;

/**
 * A loss for transformers with an output: cross-entropy, the mean over the rows of a sequence that
 * have a target. user is `const mha_tensor *const *`: [batches] of i32 [B,T], -1 where there is no
 * target. A sequence without any has loss 0.
 *
 * Memory   scratch from the context.   Errors  MHA_ERR_NULL, those of mha_cross_entropy().
 * Threads  one call per context.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_loss_targets(mha_context *context, int64_t batch,
                                                  const mha_transformer_input *input,
                                                  const mha_tensor *output,
                                                  const mha_tensor *output_gradient, double *losses,
                                                  void *user);

/**
 * The embedding of each sequence: the mean of its rows, those within its length.
 *
 *   output [B,T,E] f32 in    lengths [B], NULL: T    embeddings [B,E] f32 out
 *
 * Memory   borrowed for the call.
 * Errors   MHA_ERR_NULL, MHA_ERR_SHAPE, MHA_ERR_DTYPE, MHA_ERR_STRIDE, MHA_ERR_ARGUMENT (a length);
 *          nothing is then written.
 * Threads  any.   Accuracy  summed in double, rounded once.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_mean_embedding(const mha_tensor *output,
                                                    const int64_t *lengths,
                                                    const mha_tensor *embeddings);

/**
 * A loss for encoders without an output: 1 - cos(embedding, target embedding). user is `const
 * mha_tensor *const *`: [batches] of f32 [B,E], from mha_mean_embedding() of the full model.
 * A sequence whose embedding is 0 has loss 1. Its gradient is 0 where the embedding equals the
 * target, so gate gradients of a full model need mha_loss_direction() instead.
 *
 * Memory   none.   Errors  MHA_ERR_NULL, MHA_ERR_SHAPE, MHA_ERR_DTYPE, MHA_ERR_STRIDE.
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_loss_cosine(mha_context *context, int64_t batch,
                                                 const mha_transformer_input *input,
                                                 const mha_tensor *output,
                                                 const mha_tensor *output_gradient, double *losses,
                                                 void *user);

/**
 * The component of a sequence's normalised embedding along a direction: user holds the directions,
 * as in mha_loss_cosine(). With random directions, N(0, 1) each, the gradient with respect to a
 * gate is normally distributed. Its standard deviation is the angle by which the embedding turns
 * per unit of gate; for a small angle 1 - cos is half its square.
 *
 * Memory   none.   Errors  as mha_loss_cosine().   Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_loss_direction(mha_context *context, int64_t batch,
                                                    const mha_transformer_input *input,
                                                    const mha_tensor *output,
                                                    const mha_tensor *output_gradient,
                                                    double *losses, void *user);

/* ---- importance ------------------------------------------------------------------------------ */

/* s(h,b,t) is the gate times token t's contribution to the gradient of sequence b's loss with
 * respect to the gate; sums are over the n sequences b of all batches. */
typedef enum mha_importance {
    MHA_IMPORTANCE_GRADIENT = 0,        /* sum_b |sum_t s| / n, as in the paper */
    MHA_IMPORTANCE_GRADIENT_TOKEN = 1,  /* sum_b sum_t |s| / n, as in the authors' program */
    MHA_IMPORTANCE_GRADIENT_BATCH = 2,  /* sum over batches |sum_b sum_t s| / n: sequences cancel */
    MHA_IMPORTANCE_GRADIENT_SIGNED = 3, /* sum_b sum_t s / n: negative for a harmful head */
    MHA_IMPORTANCE_ABLATION = 4,
    MHA_IMPORTANCE_MEAN_ABLATION = 5
} mha_importance;

/* mha_importance_desc.flags */
enum {
    MHA_IMPORTANCE_NORMALISE = 1 << 0 /* divide each layer's scores by their l2 norm */
};

typedef struct mha_importance_desc {
    uint32_t struct_size;
    uint32_t flags;
    mha_importance kind;
    uint32_t reserved;       /* 0 */
    const mha_tensor *gates; /* f32 [L,H] in: heads already closed (0) score 0; NULL: all are
                                open */
    const mha_tensor
        *means; /* f32 [L,H D] in, for mean ablation; NULL: measured on the data first */
} mha_importance_desc;

/** "gradient", "gradient-token", "gradient-batch", "gradient-signed", "ablation", "mean-ablation";
 * NULL if unknown. Memory static. Errors none. Threads any. Since 0.1 */
MHA_API const char *mha_importance_name(mha_importance kind);

/**
 * The loss: its mean over all sequences.
 *
 *   gates f32 [L,H] in, NULL: all open
 *
 * Memory   scratch from the context.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (an input with gates, head_means or dropout, no
 *          sequences); MHA_ERR_UNSUPPORTED; those of mha_transformer_forward() and the callbacks.
 * Threads  one call per context.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_gated_loss(mha_context *context,
                                                const mha_transformer *transformer,
                                                const mha_importance_data *data,
                                                const mha_tensor *gates, double *loss);

/**
 * Compute the mean of every head's output over all tokens within lengths.
 *
 *   means f32 [L,H D] out
 *
 * Memory   scratch from the context.
 * Errors   as mha_gated_loss(), MHA_ERR_SHAPE, MHA_ERR_DTYPE, MHA_ERR_STRIDE.
 * Threads  one call per context.   Accuracy  summed in double, rounded once.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_head_means(mha_context *context,
                                                const mha_transformer *transformer,
                                                const mha_importance_data *data,
                                                const mha_tensor *means);

/**
 * The importance of every head of self-attention.
 *
 *   scores [L H] out, larger: more important    loss out, the mean loss; NULL: not requested
 *
 * A head whose W_o is 0 scores 0. An ablation's score is exactly the difference of two
 * results of mha_gated_loss(). Scores of heads that a layer does not have
 * (mha_transformer_desc.layer_heads) are 0.
 *
 * Memory   scratch from the context; nothing is written on error.
 * Errors   as mha_gated_loss(), MHA_ERR_SHAPE, MHA_ERR_DTYPE, MHA_ERR_STRIDE (gates, means).
 * Threads  one call per context.   Accuracy  that of the transformer's passes, f32.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_head_importance(mha_context *context,
                                                     const mha_transformer *transformer,
                                                     const mha_importance_desc *desc,
                                                     const mha_importance_data *data,
                                                     double *scores, double *loss);

/* A call of mha_head_order(). */
typedef struct mha_head_order_call {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    int64_t step;      /* in: heads to close before the rest is measured again; 1 or more */
    int64_t least;     /* in: every layer keeps at least this many heads */
    int64_t *order;    /* out: [L H] order[k] = layer * H + head is the k-th to be removed */
    double *scores;    /* out: [L H] the score of each when it was removed; NULL: not requested */
    int64_t count;     /* out: heads in the order */
} mha_head_order_call;

/**
 * The order in which to remove heads: the `step` least important ones of all layers are closed, the
 * rest is measured again, and so on. (Among equal scores the earlier head is removed first.)
 *
 * Heads that desc->gates closes from the beginning are not in the order. The means of mean ablation
 * are measured on the full model; removed heads output 0.
 *
 * Memory   scratch from the context; nothing is written on error.
 * Errors   as mha_head_importance(); MHA_ERR_ARGUMENT (step < 1, least < 0).
 * Threads  one call per context.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_head_order(mha_context *context,
                                                const mha_transformer *transformer,
                                                const mha_importance_desc *desc,
                                                const mha_importance_data *data,
                                                mha_head_order_call *call);

/**
 * Apply the limit of mha_head_order() to another order, such as a random one for comparison: `from`
 * without the heads whose layer would be left with fewer than `least`.
 *
 *   from [count] in      layer * H + head, each at most once
 *   order [count] out    *made of them; may be the same array as from
 *
 * Memory   none.   Errors  MHA_ERR_NULL; MHA_ERR_ARGUMENT (a head that is missing or repeated;
 *          least < 0); nothing is then written.
 * Threads  any.   Cost  O(count^2).   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_head_order_limit(const mha_transformer *transformer,
                                                      const int64_t *from, int64_t count,
                                                      int64_t least, int64_t *order, int64_t *made);

/**
 * Reverse an order, so that the most important heads come first: those that are not in it, then the
 * order backwards, with the same limit.
 *
 *   order [count] in       as from mha_head_order()
 *   reversed [L H] out     *made of them; may be the same array as order if that has room for L H
 *
 * Memory, Errors, Threads, Since  as mha_head_order_limit().   Cost  O((L H)^2).
 */
MHA_API MHA_NODISCARD mha_status mha_head_order_reverse(const mha_transformer *transformer,
                                                        const int64_t *order, int64_t count,
                                                        int64_t least, int64_t *reversed,
                                                        int64_t *made);

/* A call of mha_head_curve(). */
typedef struct mha_head_curve_call {
    uint32_t struct_size;
    uint32_t reserved;       /* 0 */
    const mha_tensor *gates; /* in: f32 [L,H] heads already closed; NULL: all open */
    const int64_t *order;    /* in: [count] layer * H + head, each at most once */
    int64_t count;           /* in */
    const int64_t *removed;  /* in: [points] 0 .. count each, in any order */
    int64_t points;          /* in */
    double *losses;          /* out: [points] */
} mha_head_curve_call;

/**
 * The loss as heads are removed: losses[p] is bit-identical to mha_gated_loss() with the first
 * removed[p] heads of an order closed.
 *
 * data->progress is called after each point, with done = its number + 1. It may read other sums of
 * a loss function (correct answers, rows) point by point.
 *
 * Memory   scratch from the context; nothing is written on error.
 * Errors   as mha_gated_loss(); MHA_ERR_ARGUMENT (order, removed); MHA_ERR_SHAPE, MHA_ERR_DTYPE,
 *          MHA_ERR_STRIDE (gates).
 * Threads  one call per context.   Cost  a forward pass over the data for each point.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_head_curve(mha_context *context,
                                                const mha_transformer *transformer,
                                                const mha_importance_data *data,
                                                const mha_head_curve_call *call);

#ifdef __cplusplus
}
#endif
#endif
