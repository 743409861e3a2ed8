/* Gradients of the leaves of a batch (training_tree.h). */
#ifndef MHAI_TRAINING_LEAVES_H
#define MHAI_TRAINING_LEAVES_H

#include "transformer/training_parts.h"
#include "transformer/training_tree.h"

/* A batch as tensors. */
typedef struct mhai_views {
    mha_training_batch batch;
    mha_transformer_input input, source;
    mha_tensor memory, memory_gradient, logits;
    mha_tensor rows, targets, weights; /* [B T,V], [B T] */
    int64_t counted;                   /* targets that are not -1 */
} mhai_views;

/* Add the gradients of this rank's leaves as far as the tree allows. The caller sets own->leaves.
 * The first buffer for sums is the trainer's own gradient; the others are on the context's scratch
 * stack. */
MHA_NODISCARD mha_status mhai_leaves_learn(mha_trainer *t, const mhai_views *v, mhai_nodes *own);

void mhai_helpers_free(mha_trainer *t);

#endif
