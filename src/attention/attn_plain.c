/* The plain path: the formula as it stands, one row of scores at a time, in double. It takes any
 * head size, shares no code with the tiles, and is what `path plain` and selftest compare with. */
#include "attention/attn_row.h"

#include "base/checked.h"
#include "base/context.h"

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
    mhai_attn_query at;
    double *w;     /* [S] scores, then weights; HIDDEN where a key is not visible */
    double *o;     /* [Dv] */
    uint8_t *keep; /* [S] what the callback said */
} row;

/* Weights and log-weights are never this; no score that matters is. */
static const double HIDDEN = -INFINITY;

/* Scores turned into exp(score - max); returns max, and the sum of these with the sink's. */
static double row_weights(const mhai_attn_problem *p, row *r, double *sum)
{
    double max = -INFINITY, sink = -INFINITY;
    if (p->sink_logits.data)
        sink = (double)((const float *)p->sink_logits.data)[r->at.h * p->sink_logits.stride[0]];
    if (sink > max) max = sink;
    for (int64_t s = 0; s < r->at.limit.end; s++) {
        r->w[s] = mhai_attn_score_at(p, &r->at, s).value;
        if (r->w[s] > max) max = r->w[s];
    }
    *sum = sink == -INFINITY ? 0 : exp(sink - max);
    for (int64_t s = 0; s < r->at.limit.end; s++)
        if (r->w[s] != HIDDEN) *sum += r->w[s] = exp(r->w[s] - max);
    return max;
}

static void write_extras(const mhai_attn_problem *p, const row *r, double max, double sum)
{
    const int64_t t = r->at.seq.q0 + r->at.t;
    if (p->lse.data)
        *mhai_attn_row(&p->lse, r->at.seq.batch, r->at.h, t) =
            sum == 0 ? -INFINITY : (float)(max + log(sum));
    if (!p->probabilities.data) return;
    float *out = mhai_attn_row(&p->probabilities, r->at.seq.batch, r->at.h, t);
    for (int64_t s = 0; s < p->S; s++)
        out[s] = s < r->at.limit.end && r->w[s] != HIDDEN ? (float)(r->w[s] / sum) : 0.0f;
}

static void write_output(const mhai_attn_problem *p, const row *r, double sum)
{
    memset(r->o, 0, (size_t)p->Dv * sizeof(double));
    for (int64_t s = 0; s < r->at.limit.end; s++) {
        if (r->w[s] == HIDDEN) continue;
        const float *v = mhai_attn_row(&p->v, r->at.seq.batch, r->at.hk, r->at.seq.k0 + s);
        const float *shaw =
            p->shaw_values.data ? mhai_attn_shaw_row(&p->shaw_values, &r->at, s) : NULL;
        double weight = r->w[s] * mhai_attn_dropout_at(p, &r->at, s);
        for (int64_t d = 0; d < p->Dv; d++)
            r->o[d] += weight * ((double)v[d] + (shaw ? (double)shaw[d] : 0));
    }
    double gate = p->gates.data ? (double)mhai_attn_f32(&p->gates, r->at.seq.batch, r->at.h) : 1;
    float *out = mhai_attn_row(&p->o, r->at.seq.batch, r->at.h, r->at.seq.q0 + r->at.t);
    /* Adding +0 turns -0 into +0: no result is -0, on this path as on the other. */
    for (int64_t d = 0; d < p->Dv; d++)
        out[d] = sum == 0 ? 0.0f : (float)(r->o[d] / sum * gate) + 0.0f;
}

/* Items are rows of q, all heads of a row of memory in a row. */
static void run_row(void *argument, int64_t item, int worker)
{
    const plain_job *job = argument;
    const mhai_attn_problem *p = job->p;
    int64_t t;
    mhai_attn_sequence seq = mhai_attn_sequence_of_row(p, item / p->H, &t);
    row r = {.at = mhai_attn_query_at(p, &seq, item % p->H, t)};
    r.w = (double *)(void *)(job->memory + (size_t)worker * job->worker_bytes);
    r.o = r.w + p->S;
    r.at.keep = r.keep = (uint8_t *)(r.o + p->Dv);
    if (p->callback && r.at.limit.end > 0)
        p->callback(p->callback_user, seq.b, r.at.h, t, 1, 0, r.at.limit.end, r.keep,
                    r.at.limit.end);
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
