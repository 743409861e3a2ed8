/* multihead: attribution: how heads, keys and layers contribute to a result.
 *
 * Letters as in attention.h, and E the width of the residual stream, L layers. W_O [E, H Dv] is an
 * output projection as linear layers store it (o_proj.weight), b_O [E] its bias; W_O[h] are its
 * columns h Dv .. h Dv + Dv - 1.
 *
 *   out_h[t] = W_O[h] z_h[t]            the vector that head h adds to the stream at token t, with
 *                                       z_h = A_h V_h. Calls for a layer multiply W_O by the
 *                                       transformer's residual_scale
 *   Y[t]     = sum_h out_h[t] + b_O     the module's output
 *   f_h(x_j) = W_O[h] (W_V x_j + b_V)   the vector that head h would add if it attended to token j
 *                                       only:
 *                                       out_h[i] = sum_j alpha_h[i,j] f_h(x_j)
 *
 * All sums are in double and rounded once if the result is f32, in an order that depends on shapes
 * only: the same bits for any number of threads and instruction set. docs/attribution.md has the
 * definitions with their sources and limits.
 *
 * Example, given mha_context *context, const mha_transformer *transformer, const mha_activations
 * *activations, double *heads, int64_t last, int32_t right, int32_t wrong:
 *
 *   mha_attribution_target target = MHA_INIT(mha_attribution_target);
 *   target.position = last, target.token = right, target.against = wrong;
 *   mha_attribution terms = MHA_INIT(mha_attribution);
 *   terms.heads = heads; // [L,H] out: the term of each head in logit[right] - logit[wrong]
 *   mha_status status = mha_logit_attribution(context, transformer, activations, &target, &terms);
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_ATTRIBUTION_H
#define MULTIHEAD_ATTRIBUTION_H

#include <multihead/importance.h>
#include <multihead/transformer.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- outputs of heads ------------------------------------------------------------------------ */

/* The outputs; NULL: not requested. All f32, last axis contiguous. */
typedef struct mha_head_writing {
    uint32_t struct_size;
    uint32_t reserved;         /* 0 */
    const mha_tensor *written; /* [B,H,T,E] out_h: the signed term of each head in each feature */
    const mha_tensor *norms;   /* [B,H,T] ||out_h|| */
    const mha_tensor *shares;  /* [B,H,T] ||out_h|| / sum_g ||out_g||; 0 if all are 0 */
    const mha_tensor *cosines; /* [H,H] mean over tokens of cos(out_h, out_g). Tokens beyond
                                  lengths, and those where either is 0, do not count; 0 if none
                                  counts */
    const mha_tensor *output;  /* [B,T,E] Y */
} mha_head_writing;

/**
 * Compute the contribution of each head from its attention result z.
 *
 *   heads [B,H,T,Dv] in, z; with [B,Hk,T,Dv], H a multiple of Hk, head h reads heads[h / (H / Hk)],
 *   so values in place of z give f_h    weight [E,H Dv] in, W_O    bias [E] in, or NULL
 *   gates [H] in, factors of the heads, or NULL    lengths [B] in, valid tokens, or NULL
 *
 * Memory   borrowed for the call; outputs must not overlap inputs or each other. Scratch:
 *          E H Dv floats, H E doubles per thread, H^2 per 64 tokens if cosines are requested.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (struct_size, a length), MHA_ERR_SHAPE, MHA_ERR_DTYPE,
 *          MHA_ERR_STRIDE, MHA_ERR_OVERLAP, MHA_ERR_UNSUPPORTED, MHA_ERR_SIZE, MHA_ERR_NOMEM. No
 *          output byte is then written.
 * Threads  one call at a time per context.
 * Accuracy each out_h within Dv 2^-52 sum_d |W z| of the exact one before it is rounded.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_heads_write(mha_context *context, const mha_tensor *heads,
                                                 const mha_tensor *weight, const mha_tensor *bias,
                                                 const mha_tensor *gates, const int64_t *lengths,
                                                 const mha_head_writing *outputs);

/**
 * mha_heads_write() of an attention of a transformer, from the activations of its last forward
 * call; their sum is `sum - stream` of mha_activations_layer() up to rounding.
 *
 *   part  self- or cross-attention
 *
 * Memory, Threads, Accuracy  as mha_heads_write().
 * Errors   as mha_heads_write() and mha_activations_layer().   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_layer_write(mha_context *context,
                                                 const mha_transformer *transformer,
                                                 const mha_activations *activations, int64_t layer,
                                                 mha_layer_part part, const int64_t *lengths,
                                                 const mha_head_writing *outputs);

/**
 * Compute how strongly each head can write to each feature of the stream: the norm of row e of
 * W_O[h].
 *
 *   weight [E,H Dv] in    map [H,E] out
 *
 * Memory   borrowed; no scratch.
 * Errors   MHA_ERR_NULL, MHA_ERR_SHAPE, MHA_ERR_DTYPE, MHA_ERR_STRIDE, MHA_ERR_OVERLAP.
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_head_weight_norms(const mha_tensor *weight,
                                                       const mha_tensor *map);

/* ---- norm-based maps (Kobayashi et al. 2020, section 3) -------------------------------------- */

typedef struct mha_norm_maps {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    const mha_tensor
        *probabilities;       /* in: [B,H,T,S], any rows; NULL if only values are requested */
    const mha_tensor *gates;  /* in: [H] of the forward call; NULL: none */
    const mha_tensor *values; /* [B,H,S] ||f_h(x_j)|| */
    const mha_tensor *heads;  /* [B,H,T,S] ||alpha_h[i,j] f_h(x_j)|| = |alpha| ||f_h(x_j)||. May be
                                 the tensor of probabilities itself, computed in place */
    const mha_tensor *layer;  /* [B,T,S] ||sum_h alpha_h[i,j] f_h(x_j)|| */
} mha_norm_maps;

/**
 * Norm-based maps: the contribution of each key to a row's result, measured by the norm of the term
 * that the key adds. A key with a small f adds little, however large its weight.
 *
 *   v [B,Hk,S,Dv] in, values as attention saw them    weight [E,H Dv] in, W_O
 *
 * Memory   as mha_heads_write(); H^2 S doubles of scratch if layer is requested.
 * Errors   as mha_heads_write().   Threads  one call at a time per context.
 * Accuracy values as mha_heads_write(); layer within 2^-26 H sum_h |alpha| ||f_h|| (it is the root
 *          of a sum that may cancel).   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_attention_norm_maps(mha_context *context, const mha_tensor *v,
                                                         const mha_tensor *weight,
                                                         const mha_norm_maps *maps);

/**
 * mha_attention_norm_maps() of an attention of a transformer, from its last forward call.
 *
 * Memory, Threads, Accuracy  as mha_attention_norm_maps().
 * Errors   as mha_attention_norm_maps() and mha_activations_layer().   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_layer_norm_maps(mha_context *context,
                                                     const mha_transformer *transformer,
                                                     const mha_activations *activations,
                                                     int64_t layer, mha_layer_part part,
                                                     const mha_norm_maps *maps);

/* ---- logit attribution ----------------------------------------------------------------------- */

/* The quantity to explain, at one token of the batch: logit[token] - logit[against], before the
 * softcap of logits. */
typedef struct mha_attribution_target {
    uint32_t struct_size;
    uint32_t reserved;       /* 0 */
    int64_t batch, position; /* b and t of the row of logits */
    int64_t token;           /* of the vocabulary */
    int64_t against;         /* -1: logit[token] alone */
    const float *direction;  /* [E], instead of token: direction . (final stream, normed).
                                Required for a transformer without output */
} mha_attribution_target;

/* The terms; with `remainder` they sum to total. Arrays are filled; NULL: not requested. */
typedef struct mha_attribution {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    double total;      /* out: the difference of the logits, in double, from the final stream */
    double embedding;  /* out: of the embeddings of token and position */
    double norms;      /* out: of the biases of all norms and of the output */
    double remainder;  /* out: total minus all terms: the rounding of the forward call */
    double *heads;     /* [L,H] of self-attention; H is the transformer's, missing heads have 0 */
    double *biases;    /* [L] of b_O */
    double *cross_heads, *cross_biases; /* likewise for cross-attention; 0 without it */
    double *feed_forward;               /* [L], with its bias */
} mha_attribution;

/**
 * Direct logit attribution: the amount by which each part of a transformer raised one logit above
 * another. The output layer is applied directly to the vector that the part wrote. Every later norm
 * is frozen at this token's mean and deviation and thereby linear: the final norm for pre-norm, all
 * later ones for post-norm.
 *
 * Effects through later parts are attributed to those parts. Removing a head (gates) measures its
 * direct and indirect effects together (docs/attribution.md).
 *
 * Memory   fills *out; scratch of 3 E + H D + F doubles.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (struct_size, a target out of range, neither an output
 *          nor a direction, activations of another transformer or without a batch),
 *          MHA_ERR_UNSUPPORTED, MHA_ERR_NOMEM.
 * Threads  one call at a time per context.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_logit_attribution(mha_context *context,
                                                       const mha_transformer *transformer,
                                                       const mha_activations *activations,
                                                       const mha_attribution_target *target,
                                                       mha_attribution *out);

/* ---- composition of heads -------------------------------------------------------------------- */

/* Each [L,H,L,H] f32, contiguous last axis: [reading layer, head, writing layer, head]; 0
 * unless the writer precedes the reader. NULL: not requested. */
typedef struct mha_composition {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    const mha_tensor *q, *k, *v;
    double baseline;          /* out: 1 / sqrt(E), the value of random matrices */
    mha_progress_fn progress; /* called before each pair of layers; NULL: none */
    void *progress_user;
} mha_composition;

/**
 * Composition scores (Elhage et al. 2021): how much of a head's output a later head reads into its
 * queries, keys or values, from the weights only. With W_OV = W_O[h] W_V[h], W_QK = W_Q[h]^T
 * W_K[h],
 *
 *   q = ||W_QK^T W_OV'|| / (||W_QK|| ||W_OV'||)    k with W_QK    v with W_OV in its place
 *
 * in Frobenius norms; ' marks the writer. The weights of a norm before the reader (pre-norm) are
 * multiplied into its W_Q, W_K and W_V; its division, centring, biases, positions and everything
 * between the two heads are ignored. Self-attention only.
 *
 * Cost: products of D x E with E x D matrices and traces of D x D ones, never one of E x E.
 *
 * Memory   fills *out; scratch of about 10 L H D max(E, D) numbers.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT, MHA_ERR_SHAPE, MHA_ERR_DTYPE, MHA_ERR_STRIDE,
 *          MHA_ERR_OVERLAP, MHA_ERR_UNSUPPORTED, MHA_ERR_SIZE, MHA_ERR_NOMEM; the status that
 *          progress returned. Outputs are then unspecified.
 * Threads  one call at a time per context.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_transformer_composition(mha_context *context,
                                                             const mha_transformer *transformer,
                                                             mha_composition *out);

/* ---- from tokens to tokens ------------------------------------------------------------------- */

/* Tokens of one text: `from` are queries, `to` are keys. */
typedef struct mha_head_attribution_desc {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    int64_t from_first, from_count, to_first, to_count;
    const uint8_t *heads;     /* [L,H], not 0: measure this head; NULL: all */
    mha_progress_fn progress; /* called before each run without a head; NULL: none */
    void *progress_user;
} mha_head_attribution_desc;

/* Entries of heads that are not measured, or that a layer lacks, are left as they are. NULL: not
 * requested. */
typedef struct mha_head_attribution {
    uint32_t struct_size;
    int32_t predicted;  /* out: the argmax of the last row of `from`; -1: the model has no output */
    double probability; /* out: of `predicted`; 0 without an output */
    double *weights, *shares, *effects; /* [L,H] */
} mha_head_attribution;

/**
 * Measure how much each head of self-attention moves from the tokens `to` to the tokens `from` of a
 * text. With alpha the weights of a head, and means over the rows t of `from`:
 *
 *   weights   mean_t sum_{s in to} alpha[t,s]
 *   shares    mean_t (sum_{s in to} ||alpha[t,s] f(x_s)|| / sum_s ||alpha[t,s] f(x_s)||)
 *   effects   log P(predicted) - log P without the head(predicted), at the last row of `from`;
 *             without an output mean_t (1 - cos(y_t, y_t without the head)), y_t the final states
 *
 * "Without the head" means with its gate at 0. The text runs once, and once more for each effect.
 *
 *   tokens [T] in, i32
 *
 * Memory   activations of T tokens from the context's allocator; scratch of T rows of the output (V
 *          numbers, or E), and of H T numbers for each token of `from`.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (struct_size, tokens outside the text), MHA_ERR_SHAPE,
 *          MHA_ERR_DTYPE, MHA_ERR_STRIDE, MHA_ERR_UNSUPPORTED (cross-attention, reserved),
 *          MHA_ERR_SIZE, MHA_ERR_NOMEM; those of mha_transformer_forward(); the status that
 *          progress returned. Outputs are then unspecified.
 * Threads  one call at a time per context.
 * Accuracy that of the forward call; sums in double, the same bits for any number of threads.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_transformer_head_attribution(
    mha_context *context, const mha_transformer *transformer, const mha_tensor *tokens,
    const mha_head_attribution_desc *desc, mha_head_attribution *found);

/* ---- across layers --------------------------------------------------------------------------- */

/**
 * One layer of attention rollout (Abnar and Zuidema 2020): with A the mean of the heads' maps and I
 * the residual connection,
 *
 *   after = (A + I), rows divided by their sums, times before
 *
 *   maps [B,H,T,T] in    before [B,T,T] in, NULL for the first layer: I    after [B,T,T] out
 *
 * Its rows sum to 1. Call it from the first layer to the last, with one map of T x T at a time.
 *
 * Memory   borrowed; after must not overlap the others. Scratch of T doubles per thread.
 * Errors   MHA_ERR_NULL, MHA_ERR_SHAPE, MHA_ERR_DTYPE, MHA_ERR_STRIDE, MHA_ERR_OVERLAP,
 *          MHA_ERR_NOMEM.
 * Threads  one call at a time per context.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_rollout_step(mha_context *context, const mha_tensor *maps,
                                                  const mha_tensor *before,
                                                  const mha_tensor *after);

#ifdef __cplusplus
}
#endif
#endif
