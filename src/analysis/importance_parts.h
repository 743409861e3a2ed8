/* Internals of importance: a run over the batches of the data, with scratch for the largest one. */
#ifndef MHAI_IMPORTANCE_PARTS_H
#define MHAI_IMPORTANCE_PARTS_H

#include <multihead/component.h>
#include <multihead/importance.h>

typedef struct mhai_importance_run {
    mha_context *context;
    const mha_transformer *t;
    const mha_transport *ranks; /* NULL: none */
    mha_transformer_desc d;
    mha_importance_desc desc;
    mha_importance_data data;
    mha_activations *a;
    int64_t examples, tokens, batch, longest; /* of all; of the largest batch; of a sequence */
    int64_t width;                            /* of an output's row */
    int64_t passes, done;                     /* for progress */
    uint64_t mark;                            /* of all tokens, for ranks */
    float *output, *slope;                    /* [tokens, width] */
    float *shares;                            /* [L,B,H,T] */
    float *gates;                             /* [L,H] of the current pass */
    float *means;                             /* [L,H D] */
    double *losses, *scores;                  /* [batch], [L H] */
    double *parts; /* shared by ranks: gradients [batches, L H + batch], or ablations [L H] */
} mhai_importance_run;

/* Check everything and allocate scratch; desc may be NULL. Must be ended even on failure. */
MHA_NODISCARD mha_status mhai_importance_begin(mhai_importance_run *r, mha_context *context,
                                               const mha_transformer *t,
                                               const mha_importance_desc *desc,
                                               const mha_importance_data *data);
void mhai_importance_end(mhai_importance_run *r);

/* The means for mean ablation, as given or measured: 0 for heads that are closed. */
MHA_NODISCARD mha_status mhai_importance_prepare(mhai_importance_run *r);

/* mine() divides `count` passes: this rank runs *begin .. *end - 1; without ranks, all. share()
 * takes the status of these passes and gives every rank all items, `each` per pass. */
void mhai_importance_mine(const mhai_importance_run *r, int64_t count, int64_t *begin,
                          int64_t *end);
MHA_NODISCARD mha_status mhai_importance_share(const mhai_importance_run *r, mha_status status,
                                               double *items, int64_t count, int64_t each);

/* After the checks of a call, before its passes: compare the call and the status of all ranks. */
MHA_NODISCARD mha_status mhai_importance_agree(const mhai_importance_run *r, mha_status status,
                                               int64_t what, int64_t more);

/* One pass: the mean loss with the current gates. */
MHA_NODISCARD mha_status mhai_importance_loss(mhai_importance_run *r, double *loss);

/* Scores of every head under the current gates; *loss is the loss with them. */
MHA_NODISCARD mha_status mhai_importance_score(mhai_importance_run *r, double *loss);

/* The number of passes over the data that mhai_importance_score() makes. */
int64_t mhai_importance_passes(const mhai_importance_run *r);

/* The number of heads of a layer. */
int64_t mhai_importance_heads(const mhai_importance_run *r, int64_t layer);

#endif
