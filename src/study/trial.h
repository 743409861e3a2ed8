/* The runs kept by mha_trials. */
#ifndef MHAI_TRIAL_H
#define MHAI_TRIAL_H

#include <multihead/trial.h>

/* The queries and keys of a layer, and the descriptor of its attention. */
typedef struct mhai_kept_layer {
    mha_layer_view view; /* contiguous inputs of rows; q.ndim 0: the layer has no heads */
    mha_tensor bias;     /* that of view.attention, if there is one */
} mhai_kept_layer;

typedef struct mhai_kept_run {
    void *key; /* identifies text and intervention; NULL: no run is kept */
    size_t key_bytes;
    int64_t patched;         /* number of patched tokens */
    float *hidden;           /* [T,E] input of the output layer */
    mhai_kept_layer *layers; /* [L]; NULL: beyond most_bytes, so maps take another run */
    float *memory;           /* memory of the layers */
    mha_routes routes;       /* not of a baseline */
} mhai_kept_run;

struct mha_trials {
    mha_context *context;
    const mha_transformer *transformer;
    mha_trials_options options;
    mha_transformer_desc desc;
    mhai_kept_run now, whole; /* the last run; the baseline of the same text */
};

/* Read and validate the arguments of a run. */
MHA_NODISCARD mha_status mhai_trial_read(const mha_trials *trials, const mha_trial *given,
                                         mha_trial *run);

/* Receives each layer of a run when it is done. */
typedef mha_status (*mhai_trial_layer_fn)(void *user, const mha_activations *activations,
                                          int64_t layer);

/* Run the transformer again, with the intervention of the run, and pass each layer to fn. */
MHA_NODISCARD mha_status mhai_trial_watch(mha_trials *trials, const mha_trial *run,
                                          mhai_trial_layer_fn fn, void *user);

/* Provide the baseline of a run: trials->whole, or trials->now if the run has no intervention. */
MHA_NODISCARD mha_status mhai_trial_whole(mha_trials *trials, const mha_trial *run,
                                          const mhai_kept_run **whole);

#endif
