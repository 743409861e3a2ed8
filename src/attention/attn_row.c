/* See attn_row.h. The formula of attention.h; shares no code with the tiled path. */
#include "attention/attn_row.h"

#include "attention/attn_pages.h"

#include "base/checked.h"
#include "base/convert.h"
#include "base/math.h"
#include "base/philox.h"

#include <math.h>
#include <string.h>

/* No score has this value. */
static const double HIDDEN = -INFINITY;

const float *mhai_attn_read(const mha_tensor *x, int64_t b, int64_t h, int64_t t, float *room)
{
    const void *row = mhai_attn_data(x, b, h, t);
    if (x->dtype == MHA_F32) return row;
    mhai_widen(x->dtype, row, x->shape[3], room);
    return room;
}

static bool all_finite(const float *x, int64_t n)
{
    /* The loop has no branches, so that the compiler vectorises it. An element is not finite if all
     * bits of its exponent are set. */
    uint32_t bad = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bad |= (bits & 0x7F800000u) == 0x7F800000u;
    }
    return bad == 0;
}

double mhai_attn_dot(const float *x, const float *y, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i] * (double)y[i];
    return sum;
}

int64_t mhai_attn_shaw_index(const mha_tensor *table, const mhai_attn_query *r, int64_t s)
{
    int64_t farthest = table->shape[0] / 2;
    return mhai_max_i64(-farthest, mhai_min_i64(s - r->position, farthest)) + farthest;
}

const float *mhai_attn_shaw_row(const mha_tensor *table, const mhai_attn_query *r, int64_t s)
{
    return (const float *)table->data + mhai_attn_shaw_index(table, r, s) * table->stride[0];
}

static bool window_keeps(const mhai_attn_problem *p, const mhai_attn_query *r, int64_t s)
{
    return (s >= r->window.begin && s < r->window.end) || s < r->seq.begin + p->sink_keys ||
           mhai_attn_flag(&p->global_keys, r->seq.batch, r->seq.s0 + s) ||
           mhai_attn_flag(&p->global_queries, r->seq.batch, r->seq.q0 + r->t);
}

static bool visible(const mhai_attn_problem *p, const mhai_attn_query *r, int64_t s)
{
    const int64_t batch = r->seq.batch, t = r->seq.q0 + r->t, b = batch, h = r->h;
    if (s < r->limit.begin || !window_keeps(p, r, s)) return false;
    if (p->key_documents.data && mhai_attn_i32(&p->query_documents, batch, t) !=
                                     mhai_attn_i32(&p->key_documents, batch, r->seq.s0 + s))
        return false;
    if (p->keep_blocks.data &&
        !((const uint8_t *)p->keep_blocks
              .data)[mhai_attn_offset(&p->keep_blocks, b, h, mhai_attn_pattern_row(p, r->t)) +
                     s / p->block_keys * p->keep_blocks.stride[3]])
        return false;
    if (p->keep_mask.data &&
        !((const uint8_t *)p->keep_mask
              .data)[mhai_attn_offset(&p->keep_mask, b, h, t) + s * p->keep_mask.stride[3]])
        return false;
    return !p->callback || r->keep[s - r->keep_first];
}

static double dense_bias(const mhai_attn_problem *p, const mhai_attn_query *r, int64_t s)
{
    if (!p->bias.data) return 0;
    int64_t at = mhai_attn_offset(&p->bias, r->seq.batch, r->h, r->seq.q0 + r->t);
    float bias;
    mhai_widen(p->bias.dtype, mhai_attn_element(&p->bias, at + s * p->bias.stride[3]), 1, &bias);
    return (double)bias;
}

/* q (k + shaw); NaN if it is not finite. */
static double product_at(const mhai_attn_problem *p, const mhai_attn_query *r, int64_t s)
{
    const float *k = r->wide;
    if (p->pages)
        mhai_attn_page_key(p, &r->seq, r->hk, s, r->wide);
    else
        k = mhai_attn_read(&p->k, r->seq.batch, r->hk, r->seq.k0 + s, r->wide);
    if (!r->finite || !all_finite(k, p->D)) return NAN;
    double product = mhai_attn_dot(r->q, k, p->D);
    if (p->shaw_keys.data)
        product += mhai_attn_dot(r->q, mhai_attn_shaw_row(&p->shaw_keys, r, s), p->D);
    return product;
}

double mhai_attn_pair_score(const mhai_attn_problem *p, const mhai_attn_query *r, int64_t s,
                            bool capped)
{
    double x = product_at(p, r, s) * (double)p->scale;
    if (capped && p->softcap > 0) x = (double)p->softcap * mhai_tanh(x / (double)p->softcap);
    return x;
}

mhai_attn_score mhai_attn_score_at(const mhai_attn_problem *p, const mhai_attn_query *r, int64_t s)
{
    double bias = dense_bias(p, r, s);
    mhai_attn_score x = {.value = HIDDEN, .slope = 1};
    if (bias == -INFINITY || !visible(p, r, s)) return x;
    x.product = product_at(p, r, s);
    x.value = x.product * (double)p->scale;
    if (p->softcap > 0) {
        double flat = mhai_tanh(x.value / (double)p->softcap);
        x.slope = 1 - flat * flat;
        x.value = (double)p->softcap * flat;
    }
    if (mhai_attn_has_relative(p))
        x.value += (double)mhai_attn_relative(p, r->seq.b, r->h, s - r->position);
    x.value += bias;
    return x;
}

double mhai_attn_dropout_at(const mhai_attn_problem *p, const mhai_attn_query *r, int64_t s)
{
    if (p->dropout <= 0) return 1;
    const uint32_t seed[2] = {(uint32_t)p->dropout_seed, (uint32_t)(p->dropout_seed >> 32)};
    uint32_t word[4];
    mhai_dropout_words(word, seed, (uint32_t)r->seq.b, (uint32_t)(p->first_head + r->h),
                       (uint32_t)(r->seq.before + r->t), s / 4);
    bool dropped = (double)word[s % 4] < (double)p->dropout * 4294967296.0;
    return dropped ? 0 : 1 / (1 - (double)p->dropout);
}

mhai_attn_sequence mhai_attn_sequence_of_row(const mhai_attn_problem *p, int64_t row, int64_t *t)
{
    int64_t b = 0;
    if (p->query_starts) {
        while (row >= p->query_starts[b + 1]) b++;
        *t = row - p->query_starts[b];
    } else {
        b = row / p->T;
        *t = row % p->T;
    }
    return mhai_attn_sequence_of(p, b);
}

mhai_attn_query mhai_attn_query_at(const mhai_attn_problem *p, const mhai_attn_sequence *seq,
                                   int64_t h, int64_t t, float *room)
{
    mhai_attn_query r = {.seq = *seq, .h = h, .hk = h / p->group, .t = t};
    r.wide = room ? room + p->D : NULL;
    r.position = t + seq->offset;
    r.limit = mhai_attn_limit(p, seq, t);
    r.window = mhai_attn_window(p, seq, t);
    r.q = mhai_attn_read(&p->q, seq->batch, h, seq->q0 + t, room);
    r.finite = all_finite(r.q, p->D);
    return r;
}
