/* The backward of a problem whose keys and values are elsewhere: blocks of them come by, with sums of
 * their gradients, to which the rows here add their share, and keep their own dq and what chunks of
 * them give the parameters. */
#ifndef MHAI_ATTN_BACKWARD_FOLD_H
#define MHAI_ATTN_BACKWARD_FOLD_H

#include "attention/attn_backward_cells.h"

typedef struct mhai_backward_fold {
    mhai_backward_plan plan;
    mhai_attn_part part;
    mhai_cells_job job;
    mhai_cells_rows rows; /* [batch, H, rows]; sums: [B][H][chunks of the sequence here] */
    int64_t *chunks;      /* [B + 1] of a head in the sequences before */
} mhai_backward_fold;

/* A block of keys of one key/value head of sequence b, with its sums so far. */
typedef struct mhai_backward_block {
    int64_t b, hk, key, rows;
    int64_t first;                /* its first row among the whole's keys */
    const void *k, *v;            /* [rows, D], [rows, Dv] */
    float *dk, *dv;               /* [rows][D padded], [rows][Dv padded] */
    int64_t head_begin, head_end; /* query heads that are added now */
} mhai_backward_block;

/* Whether a planned call can be done so: the tiled path. */
bool mhai_backward_folds(const mhai_backward_plan *plan);

/* Take scratch from the context; plan is copied. keys: gradients of keys and values are wanted. */
MHA_NODISCARD mha_status mhai_backward_fold_begin(mha_context *context,
                                                  const mhai_backward_plan *plan, bool keys,
                                                  mhai_backward_fold *fold);

/* By worker `worker` of a loop. For a row of q blocks must come in the order of keys, for a block rows in
 * the order of heads and queries. */
void mhai_backward_fold_block(const mhai_backward_fold *fold, const mhai_backward_block *block,
                              int worker);

/* When all blocks have been there: write dq, and make ready the sums of the parameters. */
void mhai_backward_fold_finish(mha_context *context, const mhai_backward_fold *fold);

/* Add what the rows here give the parameters. One process adds in the order of sequences, heads, rows; and
 * then, likewise, what gradients of probabilities add to the sinks' (again). */
void mhai_backward_fold_sum(const mhai_backward_fold *fold, int64_t b, int64_t h, bool again,
                            const mhai_backward_sums *to);

/* What takes all keys and values at once, by walks of their own. Before any block comes: the last part of
 * delta, if gradients of probabilities are given. */
void mhai_backward_fold_weights(mha_context *context, mhai_backward_fold *fold, const mha_tensor *k,
                                const mha_tensor *v);

/* The gradient of a bias with elements for each query. */
void mhai_backward_fold_bias(mha_context *context, const mhai_backward_fold *fold,
                             const mha_tensor *k, const mha_tensor *v);

/* What a head's rows here add to an item of any other (mhai_cells_add_bias()). */
void mhai_backward_fold_add_bias(const mhai_backward_fold *fold, const mha_tensor *k,
                                 const mha_tensor *v, int64_t b, int64_t h, int64_t item,
                                 double *sums, int worker);

#endif
