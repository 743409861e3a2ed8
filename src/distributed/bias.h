/* The gradient of a bias that is broadcast over queries: its sums go from piece to piece as those of other
 * parameters (parameters.h), but each of them only past the pieces that it is over, and several at once. */
#ifndef MHAI_BIAS_H
#define MHAI_BIAS_H

#include "distributed/split.h"

#include "attention/attn_backward_fold.h"

/* Items whose sums travel in one message. */
typedef struct mhai_bias_wave {
    int32_t at; /* the rank that has them; -1: nobody yet, they are 0 */
    bool pending;
    mha_transfer transfer;
} mhai_bias_wave;

typedef struct mhai_bias {
    mha_context *context;
    const mhai_split *s;
    const mha_attention_desc *desc;
    const mhai_cells_job *job;       /* of none of the queries: its items */
    const mhai_backward_fold *folds; /* of this rank's pieces */
    const mha_tensor *k, *v;         /* all of them */
    int64_t items, numbers;          /* numbers: of an item */
    int64_t together, wave_count;    /* together: items of a wave */
    double *sums;                    /* [items][numbers] */
    mhai_bias_wave *waves;
} mhai_bias;

/* Take scratch; of what the caller sets there are context, s, desc and job. */
MHA_NODISCARD mha_status mhai_bias_take(mhai_bias *bias);

/* Add up, and write the gradient at every rank. */
MHA_NODISCARD mha_status mhai_bias_run(mhai_bias *bias);

#endif
