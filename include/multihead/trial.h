/* multihead: one text through a transformer again and again, with heads switched off or patched from
 * another text (libmultihead-model): what a reader asks who tries what heads are for.
 *
 * A run keeps the queries and keys of all layers, from which any map of the text follows, and what the
 * output reads, from which the prediction at any token follows. It stays until another text, or other
 * heads, are asked for. The same text with all heads as they are stays beside it, to compare with.
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_TRIAL_H
#define MULTIHEAD_TRIAL_H

#include <multihead/transformer.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mha_trial_head {
    int64_t layer, head;
} mha_trial_head;

/* mha_trial.flags */
enum {
    /* Patched at the last token, from the last one of the other text; else at each token that both texts
     * have, from its own place */
    MHA_TRIAL_AT_LAST = 1 << 0
};

/* What a run is a run of. Zero but for the tokens: all heads as they are. */
typedef struct mha_trial {
    uint32_t struct_size;
    uint32_t flags;
    const int32_t *tokens, *types; /* [count]; types NULL: all 0 */
    int64_t count;
    const mha_trial_head *off;     /* heads whose output is 0 */
    const mha_trial_head *patched; /* heads whose output is that in the other text */
    int64_t off_count, patched_count;
    const int32_t *other, *other_types; /* [other_count]; required if heads are patched */
    int64_t other_count;
} mha_trial;

typedef struct mha_trials_options {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    /* For queries and keys, or for patches. A run that needs more keeps none: its maps take another run */
    double most_bytes;
    /* Asked often: whether the work is to end, with MHA_ERR_CALLBACK. NULL: it is not */
    bool (*is_over)(void *user);
    void *user;
} mha_trials_options;

typedef struct mha_trials mha_trials;

/**
 * What runs are kept in, for a transformer without memory (no encoder-decoder).
 *
 * Memory   borrows context, transformer and user until mha_trials_destroy().
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT, MHA_ERR_NOMEM.   Threads  one call per context.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_trials_create(mha_context *context,
                                                   const mha_transformer *transformer,
                                                   const mha_trials_options *options,
                                                   mha_trials **trials);

/** Free a trials; NULL is fine. Memory frees. Errors none. Threads one. Since 0.1 */
MHA_API void mha_trials_destroy(mha_trials *trials);

/* Probabilities of a layer's heads, as mha_rows_fn (heads.h) gets them: p [H,R,T] of the queries
 * row .. row+R-1. */
typedef mha_status (*mha_trial_rows_fn)(void *user, int64_t layer, int64_t row,
                                        const mha_tensor *p);

/**
 * Let the transformer run, unless the last run was the same; then fn for the rows of the layers in
 * order, those without heads left out.
 *
 *   layer    the only one whose rows are wanted; -1: all
 *   fn       NULL: none are
 *   patched  out: tokens at which heads were patched; may be NULL
 *
 * Memory   the run stays, as above; scratch from the context. A run that fails leaves none.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT; MHA_ERR_MODEL (no such head, or twice the same; patches beyond
 *          most_bytes); MHA_ERR_CALLBACK (is_over); MHA_ERR_NOMEM; those of
 *          mha_transformer_forward() and mha_attention_visit_rows(); what fn returned.
 * Threads  one call per context.
 * Accuracy the bits of mha_transformer_forward() with gates and patches.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_trials_run(mha_trials *trials, const mha_trial *run,
                                                int64_t layer, mha_trial_rows_fn fn, void *user,
                                                int64_t *patched);

enum { MHA_TRIAL_TOP = 10 };

/* A token, its logit and probability in the run, and with all heads as they are. */
typedef struct mha_trial_choice {
    int32_t id;
    float logit, logit_whole;
    double p, p_whole;
} mha_trial_choice;

typedef struct mha_trial_next {
    int64_t row;       /* the token that looks */
    bool changed;      /* heads are off or patched; else both are the same */
    double divergence; /* of the run from the whole one, KL(whole || run), in nats */
    int64_t count;     /* 0: the transformer predicts nothing */
    /* the MHA_TRIAL_TOP most likely of the run, then those of the whole that are not among them */
    mha_trial_choice tokens[2 * MHA_TRIAL_TOP];
} mha_trial_next;

/**
 * The most likely tokens behind a token. Only causal transformers with an output predict.
 *
 *   row   -1: the last
 *
 * Memory   as mha_trials_run().
 * Errors   as there; MHA_ERR_MODEL (no such row; logits that are not finite).
 * Threads  one call per context.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_trials_predict(mha_trials *trials, const mha_trial *run,
                                                    int64_t row, mha_trial_next *next);

#ifdef __cplusplus
}
#endif
#endif
