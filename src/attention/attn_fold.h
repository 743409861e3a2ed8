/* The forward pass of a problem whose keys and values arrive in blocks. The rows keep their sums
 * between calls. The result is that of one walk over all keys. */
#ifndef MHAI_ATTN_FOLD_H
#define MHAI_ATTN_FOLD_H

#include "attention/attn_split.h"

/* The keys and values of one call: rows begin .. end - 1 of k and v; row r is row first + r of
 * the whole problem. In problems with pages, rows are positions of each sequence in the pages. */
typedef struct mhai_attn_keys {
    mha_tensor k, v;
    int64_t first, begin, end;
} mhai_attn_keys;

typedef struct mhai_attn_fold {
    mhai_attn_plan plan;
    mhai_attn_part part; /* the part of the problem */
    mhai_attn_walk walk;
    float *o, *m, *l; /* [rows of all items][Dv padded], [rows] twice */
    float *shaw;      /* [rows][table padded] */
    int64_t rows;
    bool begun; /* the sums are valid: set it if they come from elsewhere, clear it to restart */
} mhai_attn_fold;

/* Whether the tiled path in f32 accepts a call with no outputs other than o and lse. */
bool mhai_attn_folds(const mhai_attn_problem *p, const mhai_attn_backend *backend);

/* Bytes of the rows' sums, for a problem in a plan. */
MHA_NODISCARD mha_status mhai_attn_fold_bytes(const mhai_attn_plan *plan, size_t *bytes);

/* Allocate scratch from the context. plan and part are copied; the plan's problem has that part. */
MHA_NODISCARD mha_status mhai_attn_fold_begin(mha_context *context, const mhai_attn_plan *plan,
                                              mhai_attn_fold *fold);

/* Fold keys into the rows. Call in the order of keys, which begin and end at boundaries of key
 * blocks. */
void mhai_attn_fold_keys(mha_context *context, mhai_attn_fold *fold, const mhai_attn_keys *keys);

/* Point the walk's problem to these keys, before a stretch of them is processed. */
void mhai_attn_fold_place(mhai_attn_fold *fold, const mhai_attn_keys *keys);

/* Join a stretch whose sums are complete (attn_split.h). Call in the order of keys. */
void mhai_attn_fold_stretch(mha_context *context, mhai_attn_fold *fold,
                            const mhai_attn_stretch *stretch);

/* Write o and lse. */
void mhai_attn_fold_finish(mha_context *context, mhai_attn_fold *fold);

#endif
