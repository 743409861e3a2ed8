/* One query row in double: its position, its visible keys, its scores. Used by the plain paths,
 * forward and backward. */
#ifndef MHAI_ATTN_ROW_H
#define MHAI_ATTN_ROW_H

#include "attention/attn.h"

typedef struct mhai_attn_query {
    mhai_attn_sequence seq;
    int64_t h, hk, t;
    int64_t position; /* t + offset */
    mhai_attn_range limit, window;
    bool finite; /* whether the query is finite */
    const float *q;
    float *wide;         /* [max(D, Dv)] room for a key or a value that is not f32 */
    const uint8_t *keep; /* the callback's result, from key keep_first on; not read without a
                            callback */
    int64_t keep_first;
} mhai_attn_query;

/* Query t of head h of sequence b; the caller sets keep. room: [D + max(D, Dv)] floats, which
 * must remain valid while the query is in use; NULL if all tensors are f32. */
mhai_attn_query mhai_attn_query_at(const mhai_attn_problem *p, const mhai_attn_sequence *seq,
                                   int64_t h, int64_t t, float *room);

/* Row [b, h, t] as f32: in place, or widened into room. */
const float *mhai_attn_read(const mha_tensor *x, int64_t b, int64_t h, int64_t t, float *room);

/* The sequence of row `row`, counted over all sequences, and the index of its query there. */
mhai_attn_sequence mhai_attn_sequence_of_row(const mhai_attn_problem *p, int64_t row, int64_t *t);

/* A score in its parts: value = cap(scale * product) + bias + relative. */
typedef struct mhai_attn_score {
    double value;   /* -inf: not visible; NaN: visible and not finite */
    double product; /* q (k + shaw); not set if value is not finite */
    double slope;   /* slope of the cap, 1 without a cap; likewise not set */
} mhai_attn_score;

mhai_attn_score mhai_attn_score_at(const mhai_attn_problem *p, const mhai_attn_query *r, int64_t s);

/* scale * product, capped or not, of any pair, visible or not; NaN if it is not finite. */
double mhai_attn_pair_score(const mhai_attn_problem *p, const mhai_attn_query *r, int64_t s,
                            bool capped);

/* The factor that dropout gives key s: 0 or 1 / (1 - dropout). */
double mhai_attn_dropout_at(const mhai_attn_problem *p, const mhai_attn_query *r, int64_t s);

/* The index of a Shaw table's row for key s, and the row itself. */
int64_t mhai_attn_shaw_index(const mha_tensor *table, const mhai_attn_query *r, int64_t s);
const float *mhai_attn_shaw_row(const mha_tensor *table, const mhai_attn_query *r, int64_t s);

bool mhai_attn_finite(const float *x, int64_t n);
double mhai_attn_dot(const float *x, const float *y, int64_t n);

#endif
