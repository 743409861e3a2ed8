/* The runs that trials keep. */
#ifndef MHAI_TRIAL_H
#define MHAI_TRIAL_H

#include <multihead/trial.h>

/* The queries and keys of a layer, and how its heads follow from them. */
typedef struct mhai_kept_layer {
    mha_attention_desc attention;
    mha_tensor q, k; /* contiguous; ndim 0: the layer has no heads */
} mhai_kept_layer;

typedef struct mhai_kept_run {
    void *key; /* what it is a run of; NULL: nothing */
    size_t key_bytes;
    int64_t patched;         /* tokens that another text's heads went into */
    float *hidden;           /* [T,E] what the output reads */
    mhai_kept_layer *layers; /* [L]; NULL: no room, and maps take another run */
    float *memory;           /* theirs */
} mhai_kept_run;

struct mha_trials {
    mha_context *context;
    const mha_transformer *transformer;
    mha_trials_options options;
    mha_transformer_desc desc;
    mhai_kept_run now, whole; /* as asked for; the same text with all heads as they are */
};

/* A run's arguments, checked. */
MHA_NODISCARD mha_status mhai_trial_read(const mha_trials *trials, const mha_trial *given,
                                         mha_trial *run);

/* The same text with all heads as they are, in trials->whole, or trials->now if no head differs. */
MHA_NODISCARD mha_status mhai_trial_whole(mha_trials *trials, const mha_trial *run,
                                          const mhai_kept_run **whole);

#endif
