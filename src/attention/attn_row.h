/* One query row in double: its position, visible keys, and scores. Used by the plain
 * paths, forward and backward. */
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
    float *wide;         /* [max(D, Dv)] room to convert a key or value that is not f32 */
    const uint8_t *keep; /* result of the callback, starting at key keep_first; used only with a
                          * callback */
    int64_t keep_first;
} mhai_attn_query;

/* Query t of head h of sequence b. The caller sets keep. room [D + max(D, Dv)] must stay valid
 * while the query is in use; it may be NULL if all tensors are f32. */
mhai_attn_query mhai_attn_query_at(const mhai_attn_problem *p, const mhai_attn_sequence *seq,
                                   int64_t h, int64_t t, float *room);

/* Row [b, h, t] as f32: in place, or converted in room. */
const float *mhai_attn_read(const mha_tensor *x, int64_t b, int64_t h, int64_t t, float *room);

/* The sequence that contains row `row` of all sequences, and the index of the query in it. */
mhai_attn_sequence mhai_attn_sequence_of_row(const mhai_attn_problem *p, int64_t row, int64_t *t);

/* A score and its parts: value = cap(scale * product) + bias + relative. */
typedef struct mhai_attn_score {
    double value;   /* -inf: hidden; NaN: visible and not finite */
    double product; /* q (k + shaw); only set if value is finite */
    double slope;   /* slope of the cap, 1 without a cap; only set if value is finite */
} mhai_attn_score;

mhai_attn_score mhai_attn_score_at(const mhai_attn_problem *p, const mhai_attn_query *r, int64_t s);

/* scale * product of any pair, hidden or not, with or without the cap; NaN if not finite. */
double mhai_attn_pair_score(const mhai_attn_problem *p, const mhai_attn_query *r, int64_t s,
                            bool capped);

/* The dropout factor of key s: 0 or 1 / (1 - dropout). */
double mhai_attn_dropout_at(const mhai_attn_problem *p, const mhai_attn_query *r, int64_t s);

/* The index of the row for key s in a Shaw table, and the row. */
int64_t mhai_attn_shaw_index(const mha_tensor *table, const mhai_attn_query *r, int64_t s);
const float *mhai_attn_shaw_row(const mha_tensor *table, const mhai_attn_query *r, int64_t s);

double mhai_attn_dot(const float *x, const float *y, int64_t n);

#endif
