/* The position of a query, its visible keys before mask tensors apply, and the terms that depend on
 * distance. Used by both paths. */
#include "attention/attn.h"

#include "base/checked.h"
#include "base/math.h"

#include <math.h>

mhai_attn_sequence mhai_attn_sequence_of(const mhai_attn_problem *p, int64_t b)
{
    mhai_attn_sequence seq = {.b = b, .batch = b, .T = p->T, .S = p->S};
    if (p->query_starts) {
        seq.batch = 0;
        seq.q0 = p->query_starts[b];
        seq.k0 = p->key_starts[b];
        seq.T = p->query_starts[b + 1] - seq.q0;
        seq.S = p->key_starts[b + 1] - seq.k0;
    }
    seq.stored = seq.S;
    if (p->key_lengths) seq.S = p->key_lengths[b];
    if (p->key_begins) seq.begin = p->key_begins[b];
    seq.offset = p->q_offsets ? p->q_offsets[b] : p->q_offset;
    seq.s0 = seq.k0;
    if (p->part) {
        seq.before = p->part->queries_before[b];
        seq.offset += seq.before;
        seq.k0 -= p->part->first_key;
    }
    return seq;
}

/* Number of visible pairs of one head. */
static int64_t visible_keys(const mhai_attn_problem *p, const mhai_attn_sequence *seq)
{
    int64_t pairs = 0;
    for (int64_t t = 0; t < seq->T; t++) {
        mhai_attn_range window = mhai_attn_window(p, seq, t);
        pairs += window.end - window.begin;
        if (!p->window) continue;
        const mhai_attn_range limit = mhai_attn_limit(p, seq, t);
        const int64_t sinks = mhai_min_i64(limit.begin + p->sink_keys, limit.end);
        pairs +=
            sinks - limit.begin - mhai_max_i64(0, mhai_min_i64(sinks, window.end) - window.begin);
    }
    return pairs;
}

int64_t mhai_attn_visible_pairs(const mhai_attn_problem *p)
{
    int64_t pairs = 0;
    for (int64_t b = 0; b < p->B; b++) {
        const mhai_attn_sequence seq = mhai_attn_sequence_of(p, b);
        pairs += visible_keys(p, &seq);
    }
    return pairs * p->H;
}

/* Half of the buckets (a quarter if two-sided) are exact distances. The others grow by a
 * constant ratio up to max_distance, and the last bucket includes all larger distances. At the
 * first distance of a bucket, `steps` may round to just below an integer, so a small number is
 * added before truncation. */
int64_t mhai_attn_t5_bucket(int64_t rel, int64_t buckets, int64_t max_distance, bool one_sided)
{
    int64_t side = 0, distance = -rel;
    if (one_sided) {
        distance = mhai_max_i64(0, distance);
    } else {
        buckets /= 2;
        if (rel > 0) side = buckets, distance = rel;
    }
    int64_t exact = buckets / 2;
    if (distance < exact || exact == 0) return side + mhai_min_i64(distance, buckets - 1);
    double steps = mhai_log((double)distance / (double)exact) /
                   mhai_log((double)max_distance / (double)exact) * (double)(buckets - exact);
    if (steps >= (double)(buckets - exact)) return side + buckets - 1;
    return side + mhai_min_i64(buckets - 1, exact + (int64_t)(steps + 1e-9));
}

float mhai_attn_relative(const mhai_attn_problem *p, int64_t b, int64_t h, int64_t rel)
{
    float term = 0;
    if (p->alibi_slopes.data)
        term = -mhai_attn_f32(&p->alibi_slopes, b, h) * (float)(rel < 0 ? -rel : rel);
    if (p->t5_table.data) {
        const mha_tensor *table = &p->t5_table;
        int64_t bucket =
            mhai_attn_t5_bucket(rel, table->shape[0], p->t5_max_distance, p->t5_one_sided);
        term += ((const float *)table->data)[bucket * table->stride[0] + h * table->stride[1]];
    }
    return term;
}
