/* multihead: which heads matter: how much a loss moves when a head's gate moves, or when the head
 * is taken away; and in which order heads can go.
 *
 *   gate gradient     I(h) = mean over examples of |dL / dgate(h)|         (Michel et al.
 * 2019, 4.1) ablation          I(h) = L(gate(h) = 0) - L mean ablation     I(h) = L(head h gives
 * its mean at every token) - L
 *
 * The gradient is one backward pass for all heads and a linear guess; ablation is a forward pass a
 * head and the truth about each head alone, and mean ablation the same without numbers that the
 * layers behind never saw. None of them sees that one head stands in for another: mha_head_order()
 * takes heads away and measures again.
 *
 * Letters: L layers, H heads, D numbers of a head, B sequences of T tokens in a batch.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_IMPORTANCE_H
#define MULTIHEAD_IMPORTANCE_H

#include <multihead/transformer.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- what is lost ---------------------------------------------------------------------------- */

/* The loss of each sequence of batch number `batch`, and its gradient. input is the batch, output
 * what the transformer made of it, output_gradient [as output] is 0 and takes the gradient of
 * losses[b] by rows b of the output; NULL: not wanted. A status other than MHA_OK ends the call
 * that asked, and is what that call returns. */
typedef mha_status (*mha_loss_fn)(mha_context *context, int64_t batch,
                                  const mha_transformer_input *input, const mha_tensor *output,
                                  const mha_tensor *output_gradient, double *losses, void *user);

/* Called between passes; a status other than MHA_OK (MHA_ERR_CALLBACK) ends the call. */
typedef mha_status (*mha_progress_fn)(int64_t done, int64_t total, void *user);

/* What importance is measured on. */
typedef struct mha_importance_data {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    int64_t batches;   /* 1 or more */
    /* [batches] without gates, head_means or dropout. Every sequence counts alike */
    const mha_transformer_input *const *inputs;
    mha_loss_fn loss;
    void *user;
    mha_progress_fn progress; /* NULL: none */
    void *progress_user;
} mha_importance_data;

/**
 * A loss for transformers with an output: cross-entropy, the mean over the rows of a sequence that
 * have a target. user is `const mha_tensor *const *`: [batches] of i32 [B,T], -1 where there is no
 * target. A sequence without any has loss 0.
 *
 * Memory   scratch from the context.   Errors  MHA_ERR_NULL, what mha_cross_entropy() gives.
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
 * Memory   borrowed for the call.   Errors  MHA_ERR_NULL, _SHAPE, _DTYPE, _STRIDE, _ARGUMENT (a
 *          length); nothing is then written.
 * Threads  any.   Accuracy  summed in double, rounded once.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_mean_embedding(const mha_tensor *output,
                                                    const int64_t *lengths,
                                                    const mha_tensor *embeddings);

/**
 * A loss for encoders without an output: 1 - cos(embedding, wanted embedding). user is `const
 * mha_tensor *const *`: [batches] of f32 [B,E], what mha_mean_embedding() makes of the whole model.
 * A sequence whose embedding is 0 has loss 1. Its gradient is 0 where the embedding is the wanted
 * one, so that gate gradients of a whole model want mha_loss_direction() instead.
 *
 * Memory   none.   Errors  MHA_ERR_NULL, _SHAPE, _DTYPE, _STRIDE.   Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_loss_cosine(mha_context *context, int64_t batch,
                                                 const mha_transformer_input *input,
                                                 const mha_tensor *output,
                                                 const mha_tensor *output_gradient, double *losses,
                                                 void *user);

/**
 * Where the embedding of a sequence, made one long, lies along a direction: user as in
 * mha_loss_cosine(), the directions. With random ones, N(0, 1) each, the gradient by a gate is
 * normal too, and its deviation is how far the embedding turns: 1 - cos is half its square for a
 * small step.
 *
 * Memory   none.   Errors  as mha_loss_cosine().   Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_loss_direction(mha_context *context, int64_t batch,
                                                    const mha_transformer_input *input,
                                                    const mha_tensor *output,
                                                    const mha_tensor *output_gradient,
                                                    double *losses, void *user);

/* ---- importance ------------------------------------------------------------------------------ */

/* With s(h,b,t) = gate times the gradient of sequence b's loss by the gate, as token t of it adds
 * to it, summed over the n sequences b of all batches. */
typedef enum mha_importance {
    MHA_IMPORTANCE_GRADIENT = 0,        /* sum_b |sum_t s| / n, as published */
    MHA_IMPORTANCE_GRADIENT_TOKEN = 1,  /* sum_b sum_t |s| / n, as the authors' program has it */
    MHA_IMPORTANCE_GRADIENT_BATCH = 2,  /* sum over batches |sum_b sum_t s| / n: sequences cancel */
    MHA_IMPORTANCE_GRADIENT_SIGNED = 3, /* sum_b sum_t s / n: below 0 is a head that does harm */
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
    const mha_tensor *gates; /* f32 [L,H] in: heads already closed (0) score 0; NULL: all open */
    const mha_tensor
        *means; /* f32 [L,H D] in, for mean ablation; NULL: measured on the data first */
} mha_importance_desc;

/** "gradient", "gradient-token", "gradient-batch", "gradient-signed", "ablation", "mean-ablation";
 * NULL for another number. Memory static. Errors none. Threads any. Since 0.1 */
MHA_API const char *mha_importance_name(mha_importance kind);

/**
 * The loss: its mean over all sequences.
 *
 *   gates f32 [L,H] in, NULL: all open
 *
 * Memory   scratch from the context.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (an input with gates, head_means or dropout, no
 *          sequences); MHA_ERR_UNSUPPORTED; what mha_transformer_forward() and the callbacks give.
 * Threads  one call per context.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_gated_loss(mha_context *context,
                                                const mha_transformer *transformer,
                                                const mha_importance_data *data,
                                                const mha_tensor *gates, double *loss);

/**
 * The mean of every head's output over all tokens of the data (those within lengths).
 *
 *   means f32 [L,H D] out
 *
 * Memory   scratch from the context.   Errors  as mha_gated_loss(), MHA_ERR_SHAPE, _DTYPE, _STRIDE.
 * Threads  one call per context.   Accuracy  summed in double, rounded once.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_head_means(mha_context *context,
                                                const mha_transformer *transformer,
                                                const mha_importance_data *data,
                                                const mha_tensor *means);

/**
 * The importance of every head of self-attention.
 *
 *   scores [L H] out, larger: more important    loss out, the mean loss; NULL: not wanted
 *
 * A head whose W_o is 0 scores 0. An ablation's score is the difference of two mha_gated_loss(), to
 * the bit. Scores of heads that a layer does not have (mha_transformer_desc.layer_heads) are 0.
 *
 * Memory   scratch from the context; nothing is written on error.
 * Errors   as mha_gated_loss(), MHA_ERR_SHAPE, _DTYPE, _STRIDE (gates, means).
 * Threads  one call per context.   Accuracy  that of the transformer's passes, f32.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_head_importance(mha_context *context,
                                                     const mha_transformer *transformer,
                                                     const mha_importance_desc *desc,
                                                     const mha_importance_data *data,
                                                     double *scores, double *loss);

/**
 * The order in which heads go: the `step` least important ones of all layers are closed, the rest
 * is measured again, and so on. (Where scores are equal the earlier head goes first.)
 *
 *   least     every layer keeps at least this many heads
 *   order     [L H] out: order[k] = layer * H + head is the k-th to go, *count of them
 *   scores    [L H] out, what each had when it went; NULL: not wanted
 *
 * desc->gates closes heads from the beginning, which are not in the order. Measured means of mean
 * ablation are those of the whole model; heads that went give 0, as when they are removed.
 *
 * Memory   scratch from the context; nothing is written on error.
 * Errors   as mha_head_importance(); MHA_ERR_ARGUMENT (step < 1, least < 0).
 * Threads  one call per context.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_head_order(mha_context *context,
                                                const mha_transformer *transformer,
                                                const mha_importance_desc *desc,
                                                const mha_importance_data *data, int64_t step,
                                                int64_t least, int64_t *order, int64_t *count,
                                                double *scores);

#ifdef __cplusplus
}
#endif
#endif
