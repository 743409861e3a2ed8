/* A share of one backward call, whose other rows and keys are computed elsewhere (src/distributed): the walks of
 * the tiled path for some queries, and for some blocks of keys. All keys and values are here. */
#ifndef MHAI_ATTN_BACKWARD_SHARE_H
#define MHAI_ATTN_BACKWARD_SHARE_H

#include "attention/attn_backward_cells.h"

typedef struct mhai_backward_share {
    mhai_backward_plan plan;
    mhai_attn_part part;
    mhai_cells_job job; /* sums: of all chunks here, [B][H][job.chunks] */
    float *room;
} mhai_backward_share;

/* A block of keys of sequence b, with the sums of its gradients so far. */
typedef struct mhai_backward_block {
    int64_t b, key;
    float *dk, *dv; /* [rows][D padded], [rows][Dv padded] */
} mhai_backward_block;

/* Whether a planned call can be shared: the tiled path. */
bool mhai_backward_shares(const mhai_backward_plan *plan);

/* Take scratch from the context; plan is copied, part too. Not to be copied. No input is read but Shaw's tables. */
MHA_NODISCARD mha_status mhai_backward_share_begin(mha_context *context,
                                                   const mhai_backward_plan *plan,
                                                   mhai_backward_share *share);

/* Of the rows here: delta, dq, and the sums of chunks. */
void mhai_backward_share_queries(mha_context *context, mhai_backward_share *share);

/* Add what rows of head h here give the parameters of a call of so many heads, whose head `first` is head 0 here. One
 * process adds in the order of sequences, heads, rows; and then, likewise, what gradients of probabilities add
 * to the sinks' (again). */
void mhai_backward_share_sum(const mhai_backward_share *share, int64_t heads, int64_t first,
                             int64_t b, int64_t h, bool again, const mhai_backward_sums *to);

/* With delta given in plan.x: add what all rows of the only query head give blocks of keys. They are wanted even if
 * the plan has no gradients of them. */
void mhai_backward_share_keys(mha_context *context, mhai_backward_share *share,
                              const mhai_backward_block *blocks, int64_t count);

/* The gradient of a bias with elements for each query; and what a head's rows add to an item of any other
 * (mhai_cells_add_bias()). */
void mhai_backward_share_bias(mha_context *context, mhai_backward_share *share);
void mhai_backward_share_add_bias(const mhai_backward_share *share, int64_t b, int64_t h,
                                  int64_t item, double *sums, int worker);

#endif
