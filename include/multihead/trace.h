/* multihead: attention and the residual stream step by step (libmultihead-model): the values of one token in
 * every layer of a transformer, and of one head and one pair of tokens from x to the stream.
 *
 *   x -> q = W_q x, k = W_k x -> q.k -> scale -> softcap, bias, mask -> softmax -> sum of p v -> W_O -> x + ...
 *
 * Each step is a result of the forward pass, not recomputed separately: the row of weights is bit-identical
 * to that of mha_trials_run(), the heads and the stream to those of mha_transformer_forward().
 *
 * Example, given mha_trials *trials, const mha_trial *run:
 *
 *   mha_trace trace = MHA_INIT(mha_trace);
 *   mha_trace_options options = MHA_INIT(mha_trace_options);
 *   options.head.layer = 1, options.head.head = 3, options.row = options.key = -1;
 *   mha_status status = mha_trials_trace(trials, run, &options, &trace); // trace.weights[trace.key]
 *   mha_trace_free(&trace);
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_TRACE_H
#define MULTIHEAD_TRACE_H

#include <multihead/component.h>
#include <multihead/trial.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mha_trace_options {
    uint32_t struct_size;
    uint32_t reserved;   /* 0 */
    mha_trial_head head; /* layer -1: no head, only the stream */
    int64_t row;         /* the query token; -1: the last */
    int64_t key;         /* the key token; -1: that of the largest weight */
} mha_trace_options;

/* A layer, at the row. All [E]. */
typedef struct mha_trace_layer {
    int64_t heads, kv_heads;
    /* mha_transformer_norms_input(), mha_transformer_norms_branch() */
    bool norms_input, norms_branch;
    float *stream;    /* the residual stream before the layer */
    float *attention; /* the sum of the heads' outputs and the bias of W_O; NULL: the layer has no
                         heads */
    float *middle;    /* the stream after attention */
    float *feed_forward; /* the term of the feed-forward layer, the difference of the streams; NULL:
                         there is none, or a norm follows it */
    float *next;         /* the stream after the layer */
    float *norms;        /* [heads] the length of each head's output */
} mha_trace_layer;

/* Letters: E width of the stream, T tokens, D width of a head, H heads of the head's layer. NULL: the model
 * does not have it, or no head was requested. */
typedef struct mha_trace {
    uint32_t struct_size; /* in: sizeof(mha_trace) */
    uint32_t reserved;
    int64_t row, key, tokens; /* key -1: none */
    int64_t width, layer_count;
    float *token, *position, *type; /* [E] rows of the tables whose sum is the embedding */
    mha_trace_layer *layers;        /* [layer_count] */
    float *last;                    /* [E] the input of W_out */

    int64_t layer, head, kv_head, heads, head_dim; /* layer -1: no head */
    float *query_input, *key_input; /* [E] the inputs of W_q and W_k at the row and at the key */
    float *query_plain, *key_plain; /* [D] W_q x + b_q, W_k x + b_k */
    float *query, *keys,
        *values;     /* [D], [T,D], [T,D] normalised and rotated, if the model does so */
    int64_t channel; /* of the largest |product| */
    float *query_weight, *key_weight; /* [E] the rows of W_q and W_k for this channel */
    int64_t rotary_dim;               /* number of leading elements of q and k that are rotated; 0:
                                     none */
    bool normalised;                  /* q and k are normalised */
    double *products;                 /* [D] query[d] keys[key][d] */
    double scale, softcap;            /* softcap 0: none */
    float *raw, *scaled, *capped;     /* [T] q.k, times scale, after the softcap */
    float *biased;       /* [T] after biases and masks, the input of the softmax; -inf: masked */
    float *weights;      /* [T] */
    float *output;       /* [D] the sum of weights times values, times the gate */
    float *concatenated; /* [H D] */
    float *written;      /* [E] the head's term in the stream */
    mha_room memory;     /* for mha_trace_free() */
} mha_trace;

/**
 * Run a trial and record the steps at one row, for one head and one pair of tokens.
 *
 * Memory   the caller frees *trace with mha_trace_free(). Scratch from the context.
 * Errors   as mha_trials_run(); MHA_ERR_MODEL (no such head, row or key), MHA_ERR_UNSUPPORTED (a model with
 *          gated delta nets or output gates). *trace is then empty.
 * Threads  one call per context.
 * Accuracy attention and written as mha_heads_write() (attribution.h); everything else is bit-identical to the
 *          forward call.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_trials_trace(mha_trials *trials, const mha_trial *run,
                                                  const mha_trace_options *options,
                                                  mha_trace *trace);

/** Free a trace and clear the struct, except for struct_size; NULL is allowed. Memory frees it. Errors none.
 * Threads one. Since 0.1 */
MHA_API void mha_trace_free(mha_trace *trace);

/**
 * Project the queries and keys of a head, as its scores use them (normalised, rotated), onto their first two
 * principal components: the eigenvectors of the largest eigenvalues of sum (x - m)(x - m)^T over the T queries and
 * the T keys together, where m is their mean. The element of largest magnitude of each
 * eigenvector is positive.
 *
 *   points [2T,2] out   queries, then keys
 *   shares [2] out      of the variance along each component: its eigenvalue over the sum of all
 *
 * Memory   scratch of (2 T D + 2 D^2) doubles.
 * Errors   as mha_trials_run(); MHA_ERR_MODEL (no such head of softmax attention, a number that is not finite).
 * Threads  one call per context.
 * Accuracy eigenvectors by Jacobi's method in double, whose order is fixed: the same queries and keys give the same
 *          bits.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_trials_plane(mha_trials *trials, const mha_trial *run,
                                                  mha_trial_head head, float *points,
                                                  double shares[2]);

#ifdef __cplusplus
}
#endif
#endif
