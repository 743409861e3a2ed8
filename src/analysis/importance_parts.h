/* Internals of importance: a run over batches of data, with scratch for the largest batch. */
#ifndef MHAI_IMPORTANCE_PARTS_H
#define MHAI_IMPORTANCE_PARTS_H

#include <multihead/component.h>
#include <multihead/importance.h>

typedef struct mhai_importance_run {
    mha_context *context;
    const mha_transformer *t;
    const mha_transport *ranks; /* NULL: a single process */
    mha_transformer_desc d;
    mha_importance_desc desc;
    mha_importance_data data;
    mha_activations *a;
    int64_t examples, tokens, batch, longest; /* examples and tokens in total; largest
                                               * batch; longest sequence */
    int64_t width;                            /* width of an output row */
    int64_t passes, done;                     /* for progress */
    uint64_t mark;                            /* hash of all tokens, compared by ranks */
    float *output, *slope;                    /* [tokens, width] */
    float *shares;                            /* [L,B,H,T] */
    float *gates;                             /* [L,H] of the current pass */
    float *means;                             /* [L,H D] */
    double *losses, *scores;                  /* [batch], [L H] */
    double *parts; /* exchanged by ranks: gradients [batches, L H + batch], or ablations [L H] */
} mhai_importance_run;

/* Check all arguments and allocate scratch. desc may be NULL. The run must be ended even after an
 * error. */
MHA_NODISCARD mha_status mhai_importance_begin(mhai_importance_run *r, mha_context *context,
                                               const mha_transformer *t,
                                               const mha_importance_desc *desc,
                                               const mha_importance_data *data);
void mhai_importance_end(mhai_importance_run *r);

/* Set the means for mean ablation, given or measured; 0 for closed heads. */
MHA_NODISCARD mha_status mhai_importance_prepare(mhai_importance_run *r);

/* Divide `count` passes among ranks. mine() gives the passes *begin .. *end - 1 of this rank;
 * without ranks, all of them. share() takes the status of these passes, and gives all items to
 * every rank, `each` per pass. */
void mhai_importance_mine(const mhai_importance_run *r, int64_t count, int64_t *begin,
                          int64_t *end);
MHA_NODISCARD mha_status mhai_importance_share(const mhai_importance_run *r, mha_status status,
                                               double *items, int64_t count, int64_t each);

/* Compare the call and the status on all ranks, between the checks of a call and its passes. */
MHA_NODISCARD mha_status mhai_importance_agree(const mhai_importance_run *r, mha_status status,
                                               int64_t what, int64_t more);

/* Compute the mean loss with the current gates, in one pass. */
MHA_NODISCARD mha_status mhai_importance_loss(mhai_importance_run *r, double *loss);

/* Score every head under the current gates. *loss is the loss with these gates. */
MHA_NODISCARD mha_status mhai_importance_score(mhai_importance_run *r, double *loss);

/* The number of passes over the data in mhai_importance_score(). */
int64_t mhai_importance_passes(const mhai_importance_run *r);

/* The number of heads of a layer. */
int64_t mhai_importance_heads(const mhai_importance_run *r, int64_t layer);

#endif
