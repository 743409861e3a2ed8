/* The forward pass of a problem whose keys and values are not all here at once: they are given block
 * after block, and between two calls the rows keep their sums, as one walk over all keys would. */
#ifndef MHAI_ATTN_FOLD_H
#define MHAI_ATTN_FOLD_H

#include "attention/attn_split.h"

/* Keys and values at hand: rows begin .. end - 1 of k and v, of which row r is row first + r of the whole.
 * Problems with pages have rows in those: positions of each sequence. */
typedef struct mhai_attn_keys {
    mha_tensor k, v;
    int64_t first, begin, end;
} mhai_attn_keys;

typedef struct mhai_attn_fold {
    mhai_attn_plan plan;
    mhai_attn_part part; /* of which the problem is */
    mhai_attn_walk walk;
    float *o, *m, *l; /* [rows of all items][Dv padded], [rows] twice */
    float *shaw;      /* [rows][table padded] */
    int64_t rows;
    bool
        begun; /* the sums are there; set it where they come from elsewhere, unset it to begin anew */
} mhai_attn_fold;

/* Whether the tiled path in f32 takes a call, with no other outputs than o and lse. */
bool mhai_attn_folds(const mhai_attn_problem *p, const mhai_attn_backend *backend);

/* Bytes of the rows' sums, for a problem in a plan. */
MHA_NODISCARD mha_status mhai_attn_fold_bytes(const mhai_attn_plan *plan, size_t *bytes);

/* Take scratch from the context. plan is copied, part too; the plan's problem has that part. */
MHA_NODISCARD mha_status mhai_attn_fold_begin(mha_context *context, const mhai_attn_plan *plan,
                                              mhai_attn_fold *fold);

/* Fold keys into one of `turns` shares of the rows; so many calls, from turn 0 on, fold them into all. Calls
 * come in the order of keys; each element of keys begins and ends where blocks of each sequence do. */
void mhai_attn_fold_keys(mha_context *context, mhai_attn_fold *fold, const mhai_attn_keys *keys,
                         int64_t count, int64_t turn, int64_t turns);

/* Have the problem of the walk read these keys, for a stretch of them. */
void mhai_attn_fold_place(mhai_attn_fold *fold, const mhai_attn_keys *keys);

/* Likewise in the order of keys: a stretch of which all but the joining is done (attn_split.h). */
void mhai_attn_fold_stretch(mha_context *context, mhai_attn_fold *fold,
                            const mhai_attn_stretch *stretch);

/* o and lse. */
void mhai_attn_fold_finish(mha_context *context, mhai_attn_fold *fold);

#endif
