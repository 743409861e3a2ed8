/* The share of one rank in a backward call (src/distributed): the walks of the tiled path for some
 * queries and some blocks of keys. This rank has all keys and values in memory. */
#ifndef MHAI_ATTN_BACKWARD_SHARE_H
#define MHAI_ATTN_BACKWARD_SHARE_H

#include "attention/attn_backward_cells.h"

typedef struct mhai_backward_share {
    mhai_backward_plan plan;
    mhai_attn_part part;
    mhai_cells_job job; /* job.sums: sums of this rank's chunks, [B][H][job.chunks] */
    float *room;
} mhai_backward_share;

/* A block of keys of sequence b, with its partial gradients. */
typedef struct mhai_backward_block {
    int64_t b, key;
    float *dk, *dv; /* [rows][D padded], [rows][Dv padded] */
} mhai_backward_block;

/* Whether a planned call can be divided among ranks. Only the tiled path can. */
bool mhai_backward_shares(const mhai_backward_plan *plan);

/* Allocate scratch, and copy plan and part. The struct points into itself and must not be copied.
 * Reads no input except Shaw's tables. */
MHA_NODISCARD mha_status mhai_backward_share_begin(mha_context *context,
                                                   const mhai_backward_plan *plan,
                                                   mhai_backward_share *share);

/* Compute delta, dq and sums of chunks for this rank's rows. */
void mhai_backward_share_queries(mha_context *context, mhai_backward_share *share);

/* Add this rank's terms of head h to the parameters of a call with this many heads, whose
 * head `first` is head 0 of this rank. Call it in the order of sequences and heads, like a single
 * process. Then call it with `again` to add to the sinks the terms from gradients of
 * probabilities. */
void mhai_backward_share_sum(const mhai_backward_share *share, int64_t heads, int64_t first,
                             int64_t b, int64_t h, bool again, const mhai_backward_sums *to);

/* Add the terms of all rows of the single query head to blocks of keys, whether or not the plan
 * requests their gradients. plan.x must hold delta. */
void mhai_backward_share_keys(mha_context *context, mhai_backward_share *share,
                              const mhai_backward_block *blocks, int64_t count);

/* Compute the gradient of a bias whose elements differ by query. For any other bias, add the terms
 * of a head's rows to an item (mhai_cells_add_bias()). */
void mhai_backward_share_bias(mha_context *context, mhai_backward_share *share);
void mhai_backward_share_add_bias(const mhai_backward_share *share, int64_t b, int64_t h,
                                  int64_t item, double *sums, int worker);

#endif
