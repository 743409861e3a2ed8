/* One rank's share of a backward call (src/distributed): the walks of the tiled path for some
 * queries and some blocks of keys. Other ranks compute the other rows and keys. All keys and
 * values are in this rank's memory. */
#ifndef MHAI_ATTN_BACKWARD_SHARE_H
#define MHAI_ATTN_BACKWARD_SHARE_H

#include "attention/attn_backward_cells.h"

typedef struct mhai_backward_share {
    mhai_backward_plan plan;
    mhai_attn_part part;
    mhai_cells_job job; /* sums of this rank's chunks, [B][H][job.chunks] */
    float *room;
} mhai_backward_share;

/* A block of keys of sequence b, with the sums of its gradients so far. */
typedef struct mhai_backward_block {
    int64_t b, key;
    float *dk, *dv; /* [rows][D padded], [rows][Dv padded] */
} mhai_backward_block;

/* Whether a planned call can be shared: only the tiled path can. */
bool mhai_backward_shares(const mhai_backward_plan *plan);

/* Allocate scratch from the context; plan and part are copied. The struct must not be copied. No
 * input is read except Shaw's tables. */
MHA_NODISCARD mha_status mhai_backward_share_begin(mha_context *context,
                                                   const mhai_backward_plan *plan,
                                                   mhai_backward_share *share);

/* Compute delta, dq and the sums of chunks for this rank's rows. */
void mhai_backward_share_queries(mha_context *context, mhai_backward_share *share);

/* Add the terms of this rank's rows of head h to the parameters of a call with this many heads;
 * head `first` of that call is head 0 here. One process adds in the order of sequences, heads,
 * rows. The second function then adds the terms of gradients of probabilities to the sinks. */
void mhai_backward_share_sum(const mhai_backward_share *share, int64_t heads, int64_t first,
                             int64_t b, int64_t h, bool again, const mhai_backward_sums *to);

/* With delta in plan.x, add the terms of all rows of the only query head to blocks of keys. They
 * are computed even if the plan requests no gradients of keys. */
void mhai_backward_share_keys(mha_context *context, mhai_backward_share *share,
                              const mhai_backward_block *blocks, int64_t count);

/* Compute the gradient of a bias with elements for each query; or the terms of a head's rows in
 * an item of any other bias (mhai_cells_add_bias()). */
void mhai_backward_share_bias(mha_context *context, mhai_backward_share *share);
void mhai_backward_share_add_bias(const mhai_backward_share *share, int64_t b, int64_t h,
                                  int64_t item, double *sums, int worker);

#endif
