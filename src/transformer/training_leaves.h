/* Gradients of the leaves of a batch (training_tree.h). */
#ifndef MHAI_TRAINING_LEAVES_H
#define MHAI_TRAINING_LEAVES_H

#include "transformer/training_parts.h"
#include "transformer/training_tree.h"

typedef struct mhai_views {
    mha_training_batch batch;
    mha_transformer_input input, source;
    mha_tensor memory, memory_gradient, logits;
    mha_tensor rows, targets, weights; /* [B T,V], [B T] */
    int64_t counted;                   /* targets that are not -1 */
} mhai_views;

/* Add up the gradients of this rank's leaves as far as the tree allows. The caller sets
 * own->leaves. The first sum uses the trainer's own gradient; the others use the context's
 * scratch. */
MHA_NODISCARD mha_status mhai_leaves_learn(mha_trainer *t, const mhai_views *v, mhai_nodes *own);

void mhai_helpers_free(mha_trainer *t);

#endif
