/* multihead: interventions on a transformer (libmultihead-model): run one text repeatedly, with heads
 * ablated (switched off) or patched from another text.
 *
 * A run keeps the queries and keys of all layers and the last hidden states. From these,
 * mha_trials_run() computes any map of the text, and mha_trials_predict() the prediction at any
 * token. A run is kept until a call requests another text or intervention. The baseline, the same
 * text without intervention, is also kept for comparison.
 *
 * Example, given mha_context *context, const mha_transformer *transformer, const int32_t *ids,
 * int64_t count:
 *
 *   const mha_trial_head induction = {4, 1};
 *   mha_trial run = MHA_INIT(mha_trial);
 *   run.tokens = ids, run.count = count, run.off = &induction, run.off_count = 1;
 *   mha_trials_options options = MHA_INIT(mha_trials_options);
 *   options.most_bytes = 1e9;
 *   mha_trials *trials = NULL;
 *   mha_trial_next next;
 *   mha_status status = mha_trials_create(context, transformer, &options, &trials);
 *   if (!status) status = mha_trials_predict(trials, &run, -1, &next); // next.divergence
 *   mha_trials_destroy(trials);
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_TRIAL_H
#define MULTIHEAD_TRIAL_H

#include <multihead/maps.h>
#include <multihead/transformer.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mha_trial_head {
    int64_t layer, head;
} mha_trial_head;

/* mha_trial.flags */
enum {
    /* Patch the last token from the last token of the other text. Default: patch every position
     * that both texts have, from the same position */
    MHA_TRIAL_AT_LAST = 1 << 0,
    /* Of an encoder-decoder: `off`, and the rows that mha_trials_run() passes, are of the decoder's
     * cross-attention, not of its self-attention */
    MHA_TRIAL_CROSS = 1 << 1
};

/* A text and an intervention. The baseline if all fields except the tokens are zero. */
typedef struct mha_trial {
    uint32_t struct_size;
    uint32_t flags;
    const int32_t *tokens, *types; /* [count]; types NULL: all 0 */
    int64_t count;
    const mha_trial_head *off;     /* ablated heads: their output is 0 */
    const mha_trial_head *patched; /* patched heads: their output comes from the other text */
    int64_t off_count, patched_count;
    const int32_t *other, *other_types; /* [other_count]; required for patched heads */
    int64_t other_count;
    /* Noise is added to the output of this head: normal, its standard deviation `noise` times the root mean square
     * of the output over all tokens; 0: none */
    double noise;
    mha_trial_head noisy;
    uint64_t noise_seed;
    /* For mha_trial_choice.p_drawn, as in mha_sampling (sampling.h); 0: temperature 1, all tokens. top_k is at most
     * MHA_TRIAL_TOP */
    double temperature;
    int64_t top_k;
    /* [source_count] required for an encoder-decoder, which takes no patches and no noise: the
     * tokens of its encoder; else NULL */
    const int32_t *source;
    int64_t source_count;
} mha_trial;

typedef struct mha_trials_options {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    /* Limit for the queries and keys of a run, and for its patches. If queries and keys exceed it, the
     * run keeps none, and its maps take another run */
    double most_bytes;
    /* Called often; if it returns true, the call stops with MHA_ERR_CALLBACK. NULL: not called */
    bool (*is_over)(void *user);
    void *user;
    /* Compare predictions with those of these trials of another transformer with the same vocabulary, which
     * must outlive the new ones. NULL: compare with the same transformer without intervention */
    struct mha_trials *baseline;
    const mha_transformer *encoder; /* of an encoder-decoder; must outlive the trials. NULL: none */
} mha_trials_options;

typedef struct mha_trials mha_trials;

/**
 * Create the store that runs and keeps trials of a transformer: an encoder, a decoder, or the decoder of
 * an encoder-decoder.
 *
 * Memory   borrows context, transformer and user until mha_trials_destroy(); the caller owns *trials.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (cross-attention without an encoder, or the reverse),
 *          MHA_ERR_NOMEM.   Threads  one call per context.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_trials_create(mha_context *context,
                                                   const mha_transformer *transformer,
                                                   const mha_trials_options *options,
                                                   mha_trials **trials);

/** Destroy trials and all kept runs; NULL is allowed. Memory frees all. Errors none. Threads one. Since
 * 0.1 */
MHA_API void mha_trials_destroy(mha_trials *trials);

/* Receives the attention probabilities of a layer's heads, as mha_rows_fn (attention.h) does: p [H,R,T] of
 * the queries row .. row+R-1; of cross-attention [H,R,S]. */
typedef mha_status (*mha_trial_rows_fn)(void *user, int64_t layer, int64_t row,
                                        const mha_tensor *p);

/**
 * Run the transformer, unless the last run was the same. Then call fn for the rows of each layer, in
 * order; layers without heads are skipped.
 *
 *   layer    the only layer to pass to fn; -1: all
 *   fn       NULL: not called
 *   patched  out: number of tokens at which heads were patched; may be NULL
 *
 * Memory   the run is kept until the next one; scratch from the context. A failed run is not kept.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT; MHA_ERR_MODEL (a head that the model does not have, or one
 *          given twice; patches beyond most_bytes); MHA_ERR_CALLBACK (is_over); MHA_ERR_NOMEM; those of
 *          mha_transformer_forward() and mha_attention_visit_rows(); any status that fn returned.
 * Threads  one call per context.
 * Accuracy bit-identical to mha_transformer_forward() with the same gates and patches.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_trials_run(mha_trials *trials, const mha_trial *run,
                                                int64_t layer, mha_trial_rows_fn fn, void *user,
                                                int64_t *patched);

enum { MHA_TRIAL_TOP = 10 };

/* A candidate for the next token: its logit and probability in the run, and in the baseline (_whole). */
typedef struct mha_trial_choice {
    int32_t id;
    float logit, logit_whole;
    double p, p_whole;
    double p_drawn; /* the probability that sampling draws it with the temperature and top_k of the
                    trial */
} mha_trial_choice;

typedef struct mha_trial_next {
    int64_t row;       /* the query position that predicts */
    bool changed;      /* an intervention is set; otherwise run and baseline are the same */
    double divergence; /* KL(baseline || run), in nats */
    int64_t count;     /* of tokens; 0: the transformer does not predict the next token */
    /* The MHA_TRIAL_TOP most likely tokens of the run, then the baseline's other most likely
     * ones */
    mha_trial_choice tokens[2 * MHA_TRIAL_TOP];
} mha_trial_next;

/**
 * Find the experts of each token of a run.
 *
 *   routes   out, borrowed until the next call with these trials
 *
 * Memory, accuracy as mha_trials_run().   Errors   likewise.   Threads  likewise.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_trials_routes(mha_trials *trials, const mha_trial *run,
                                                   const mha_routes **routes);

/**
 * Predict the most likely next tokens after a position. Only causal transformers with an output layer
 * predict; for others next->count is 0.
 *
 *   row   the position; -1: the last
 *
 * Memory   as mha_trials_run().
 * Errors   as mha_trials_run(); MHA_ERR_MODEL (no such row; logits that are not finite).
 * Threads  one call per context.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_trials_predict(mha_trials *trials, const mha_trial *run,
                                                    int64_t row, mha_trial_next *next);

/**
 * Compute the logits of all tokens after the last position of a run.
 *
 *   logits [V] out
 *
 * Memory   as mha_trials_run().
 * Errors   as mha_trials_predict(); MHA_ERR_UNSUPPORTED (the transformer has no output layer).
 * Threads  one call per context.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_trials_logits(mha_trials *trials, const mha_trial *run,
                                                   float *logits);

#ifdef __cplusplus
}
#endif
#endif
