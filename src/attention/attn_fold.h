/* The forward pass of a problem whose keys and values arrive in blocks. The sums of rows are kept
 * between calls. The result is bit-identical to a pass over all keys at once. */
#ifndef MHAI_ATTN_FOLD_H
#define MHAI_ATTN_FOLD_H

#include "attention/attn_split.h"

/* The keys and values of one call: rows begin .. end - 1 of k and v. Row r is row first + r of the
 * whole problem. With pages, rows are positions in each sequence. */
typedef struct mhai_attn_keys {
    mha_tensor k, v;
    int64_t first, begin, end;
} mhai_attn_keys;

typedef struct mhai_attn_fold {
    mhai_attn_plan plan;
    mhai_attn_part part; /* the part in plan.p */
    mhai_attn_walk walk;
    float *o, *m, *l; /* [rows of all items][Dv padded], [rows] twice */
    float *shaw;      /* [rows][table padded] */
    int64_t rows;
    bool begun; /* the sums are valid. Set it after filling them from elsewhere; clear it to
                 * restart */
} mhai_attn_fold;

/* Whether the f32 tiled path accepts a call that only requests o and lse. */
bool mhai_attn_folds(const mhai_attn_problem *p, const mhai_attn_backend *backend);

/* Bytes of the sums of rows, for the problem of a plan. */
MHA_NODISCARD mha_status mhai_attn_fold_bytes(const mhai_attn_plan *plan, size_t *bytes);

/* Allocate scratch, and copy plan and part. The fold's problem points to the copied part. */
MHA_NODISCARD mha_status mhai_attn_fold_begin(mha_context *context, const mhai_attn_plan *plan,
                                              mhai_attn_fold *fold);

/* Add keys to the rows. Call it in the order of keys. They begin and end at boundaries of key
 * blocks. */
void mhai_attn_fold_keys(mha_context *context, mhai_attn_fold *fold, const mhai_attn_keys *keys);

/* Set the keys of the problem. Must be called before a stretch of them is processed. */
void mhai_attn_fold_place(mhai_attn_fold *fold, const mhai_attn_keys *keys);

/* Add a stretch whose passes are complete (attn_split.h). Call in the order of keys. */
void mhai_attn_fold_stretch(mha_context *context, mhai_attn_fold *fold,
                            const mhai_attn_stretch *stretch);

/* Write o and lse. */
void mhai_attn_fold_finish(mha_context *context, mhai_attn_fold *fold);

#endif
