/* The plain path: the formula as it stands, one row of scores at a time, in double. It takes any
 * head size, shares no code with the tiles, and is what `path plain` and selftest compare with. */
#include "attention/attn.h"

#include "base/checked.h"
#include "base/context.h"
#include "base/philox.h"

#include <multihead/component.h>

#include <math.h>
#include <string.h>

typedef struct plain_job {
    const mhai_attn_problem *p;
    unsigned char *memory;
    size_t worker_bytes;
    int64_t rows; /* of q, all sequences and heads */
} plain_job;

typedef struct row {
    mhai_attn_sequence seq;
    int64_t h, hk, t;
    int64_t position; /* t + offset */
    mhai_attn_range limit, window;
    bool finite; /* the query is */
    const float *q;
    double *w;     /* [S] scores, then weights; HIDDEN where a key is not visible */
    double *o;     /* [Dv] */
    uint8_t *keep; /* [S] what the callback said */
} row;

/* Weights and log-weights are never this; no score that matters is. */
static const double HIDDEN = -INFINITY;

static bool finite_row(const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(x[i])) return false;
    return true;
}

static double dot(const float *x, const float *y, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i] * (double)y[i];
    return sum;
}

/* Row of a Shaw table for key s. */
static const float *shaw_row(const mha_tensor *table, const row *r, int64_t s)
{
    int64_t farthest = table->shape[0] / 2;
    int64_t rel = mhai_max_i64(-farthest, mhai_min_i64(s - r->position, farthest));
    return (const float *)table->data + (rel + farthest) * table->stride[0];
}

static bool window_keeps(const mhai_attn_problem *p, const row *r, int64_t s)
{
    return (s >= r->window.begin && s < r->window.end) || s < p->sink_keys ||
           mhai_attn_flag(&p->global_keys, r->seq.batch, r->seq.k0 + s) ||
           mhai_attn_flag(&p->global_queries, r->seq.batch, r->seq.q0 + r->t);
}

static bool visible(const mhai_attn_problem *p, const row *r, int64_t s)
{
    const int64_t batch = r->seq.batch, t = r->seq.q0 + r->t, b = batch, h = r->h;
    if (!window_keeps(p, r, s)) return false;
    if (p->key_documents.data && mhai_attn_i32(&p->query_documents, batch, t) !=
                                     mhai_attn_i32(&p->key_documents, batch, r->seq.k0 + s))
        return false;
    if (p->keep_blocks.data &&
        !((const uint8_t *)p->keep_blocks
              .data)[mhai_attn_offset(&p->keep_blocks, b, h, r->t / p->block_queries) +
                     s / p->block_keys * p->keep_blocks.stride[3]])
        return false;
    if (p->keep.data && !((const uint8_t *)p->keep
                              .data)[mhai_attn_offset(&p->keep, b, h, t) + s * p->keep.stride[3]])
        return false;
    return !p->callback || r->keep[s];
}

static double dense_bias(const mhai_attn_problem *p, const row *r, int64_t s)
{
    if (!p->bias.data) return 0;
    return (double)((const float *)p->bias
                        .data)[mhai_attn_offset(&p->bias, r->seq.batch, r->h, r->seq.q0 + r->t) +
                               s * p->bias.stride[3]];
}

static double score(const mhai_attn_problem *p, const row *r, int64_t s)
{
    double bias = dense_bias(p, r, s);
    if (bias == -INFINITY || !visible(p, r, s)) return HIDDEN;
    const float *k = mhai_attn_row(&p->k, r->seq.batch, r->hk, r->seq.k0 + s);
    if (!r->finite || !finite_row(k, p->D)) return NAN;
    double x = dot(r->q, k, p->D);
    if (p->shaw_keys.data) x += dot(r->q, shaw_row(&p->shaw_keys, r, s), p->D);
    x *= (double)p->scale;
    if (p->softcap > 0) x = (double)p->softcap * tanh(x / (double)p->softcap);
    if (mhai_attn_has_relative(p))
        x += (double)mhai_attn_relative(p, r->seq.batch, r->h, s - r->position);
    return x + bias;
}

/* Scores turned into exp(score - max); returns max, and the sum of these with the sink's. */
static double row_weights(const mhai_attn_problem *p, row *r, double *sum)
{
    double max = -INFINITY, sink = -INFINITY;
    if (p->sink_logits.data)
        sink = (double)((const float *)p->sink_logits.data)[r->h * p->sink_logits.stride[0]];
    if (sink > max) max = sink;
    for (int64_t s = 0; s < r->limit.end; s++) {
        r->w[s] = score(p, r, s);
        if (r->w[s] > max) max = r->w[s];
    }
    *sum = sink == -INFINITY ? 0 : exp(sink - max);
    for (int64_t s = 0; s < r->limit.end; s++)
        if (r->w[s] != HIDDEN) *sum += r->w[s] = exp(r->w[s] - max);
    return max;
}

static void write_extras(const mhai_attn_problem *p, const row *r, double max, double sum)
{
    const int64_t t = r->seq.q0 + r->t;
    if (p->lse.data)
        *mhai_attn_row(&p->lse, r->seq.batch, r->h, t) =
            sum == 0 ? -INFINITY : (float)(max + log(sum));
    if (!p->probabilities.data) return;
    float *out = mhai_attn_row(&p->probabilities, r->seq.batch, r->h, t);
    for (int64_t s = 0; s < p->S; s++)
        out[s] = s < r->limit.end && r->w[s] != HIDDEN ? (float)(r->w[s] / sum) : 0.0f;
}

/* The factor of key s: 0 or 1 / (1 - dropout). */
static double dropout_factor(const mhai_attn_problem *p, const row *r, int64_t s)
{
    if (p->dropout <= 0) return 1;
    const uint32_t seed[2] = {(uint32_t)p->dropout_seed, (uint32_t)(p->dropout_seed >> 32)};
    uint32_t word[4];
    mhai_dropout_words(word, seed, (uint32_t)r->seq.b, (uint32_t)r->h, (uint32_t)r->t, s / 4);
    bool dropped = (double)word[s % 4] < (double)p->dropout * 4294967296.0;
    return dropped ? 0 : 1 / (1 - (double)p->dropout);
}

static void write_output(const mhai_attn_problem *p, const row *r, double sum)
{
    memset(r->o, 0, (size_t)p->Dv * sizeof(double));
    for (int64_t s = 0; s < r->limit.end; s++) {
        if (r->w[s] == HIDDEN) continue;
        const float *v = mhai_attn_row(&p->v, r->seq.batch, r->hk, r->seq.k0 + s);
        const float *shaw = p->shaw_values.data ? shaw_row(&p->shaw_values, r, s) : NULL;
        double weight = r->w[s] * dropout_factor(p, r, s);
        for (int64_t d = 0; d < p->Dv; d++)
            r->o[d] += weight * ((double)v[d] + (shaw ? (double)shaw[d] : 0));
    }
    double gate = p->gates.data ? (double)mhai_attn_f32(&p->gates, r->seq.batch, r->h) : 1;
    float *out = mhai_attn_row(&p->o, r->seq.batch, r->h, r->seq.q0 + r->t);
    /* Adding +0 turns -0 into +0: no result is -0, on this path as on the other. */
    for (int64_t d = 0; d < p->Dv; d++)
        out[d] = sum == 0 ? 0.0f : (float)(r->o[d] / sum * gate) + 0.0f;
}

/* Items are rows of q, all heads of a row of memory in a row. */
static row place(const mhai_attn_problem *p, int64_t item)
{
    int64_t t = item / p->H, b = 0;
    if (p->query_starts) {
        while (t >= p->query_starts[b + 1]) b++;
        t -= p->query_starts[b];
    } else {
        b = t / p->T;
        t %= p->T;
    }
    row r = {.seq = mhai_attn_sequence_of(p, b), .h = item % p->H, .t = t};
    r.hk = r.h / p->group;
    r.position = t + r.seq.offset;
    r.limit = mhai_attn_limit(p, &r.seq, t);
    r.window = mhai_attn_window(p, &r.seq, t);
    r.q = mhai_attn_row(&p->q, r.seq.batch, r.h, r.seq.q0 + t);
    r.finite = finite_row(r.q, p->D);
    return r;
}

static void run_row(void *argument, int64_t item, int worker)
{
    const plain_job *job = argument;
    const mhai_attn_problem *p = job->p;
    row r = place(p, item);
    r.w = (double *)(void *)(job->memory + (size_t)worker * job->worker_bytes);
    r.o = r.w + p->S;
    r.keep = (uint8_t *)(r.o + p->Dv);
    if (p->callback && r.limit.end > 0)
        p->callback(p->callback_user, r.seq.b, r.h, r.t, 1, 0, r.limit.end, r.keep, r.limit.end);
    double sum, max = row_weights(p, &r, &sum);
    write_extras(p, &r, max, sum);
    write_output(p, &r, sum);
}

mha_status mhai_attn_plain_bytes(const mhai_attn_problem *p, size_t *bytes)
{
    int64_t doubles;
    if (!mhai_add_i64(p->S, p->Dv, &doubles) || !mhai_add_i64(doubles, p->S / 8 + 8, &doubles) ||
        !mhai_mul_size((size_t)doubles, sizeof(double), bytes))
        return mha_fail(MHA_ERR_SIZE, "k: a row of scores does not fit in memory");
    return MHA_OK;
}

mha_status mhai_attn_plain(mha_context *context, const mhai_attn_problem *p)
{
    plain_job job = {.p = p, .rows = p->q.shape[0] * p->q.shape[2] * p->H};
    void *memory;
    MHA_TRY(mhai_attn_plain_bytes(p, &job.worker_bytes));
    mha_scratch_mark mark = mha_scratch_top(context);
    MHA_TRY(mha_scratch_alloc(context, context->num_threads, job.worker_bytes, &memory));
    job.memory = memory;
    mha_parallel_for(context, job.rows, run_row, &job);
    mha_scratch_release(context, mark);
    return MHA_OK;
}
