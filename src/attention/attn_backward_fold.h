/* The backward of a problem whose keys and values are elsewhere: blocks of them come by, with sums of
 * their gradients, to which the rows here add their share, and keep their own dq. */
#ifndef MHAI_ATTN_BACKWARD_FOLD_H
#define MHAI_ATTN_BACKWARD_FOLD_H

#include "attention/attn_backward_cells.h"

typedef struct mhai_backward_fold {
    mhai_backward_plan plan;
    mhai_attn_part part;
    mhai_cells_job job;
    float *dq; /* [batch, H, rows][D padded]; NULL: not requested */
} mhai_backward_fold;

/* A block of keys of one key/value head of sequence b, with its sums so far. */
typedef struct mhai_backward_block {
    int64_t b, hk, key, rows;
    int64_t first;                /* its first row among the whole's keys */
    const void *k, *v;            /* [rows, D], [rows, Dv] */
    float *dk, *dv;               /* [rows][D padded], [rows][Dv padded] */
    int64_t head_begin, head_end; /* query heads that are added now */
} mhai_backward_block;

/* Whether a planned call can be done so: the tiled path, gradients of q, k and v alone. */
bool mhai_backward_folds(const mhai_backward_plan *plan);

/* Take scratch from the context; plan is copied. keys: gradients of keys and values are wanted. */
MHA_NODISCARD mha_status mhai_backward_fold_begin(mha_context *context,
                                                  const mhai_backward_plan *plan, bool keys,
                                                  mhai_backward_fold *fold);

/* By worker `worker` of a loop. For a row of q blocks must come in the order of keys, for a block rows in
 * the order of heads and queries. */
void mhai_backward_fold_block(const mhai_backward_fold *fold, const mhai_backward_block *block,
                              int worker);

void mhai_backward_fold_finish(const mhai_backward_fold *fold);

#endif
