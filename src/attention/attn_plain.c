/* The plain path: the formula as it stands, one row of scores at a time, in double. It takes any
 * head size, shares no code with the tiles, and is what `path plain` and selftest compare with. */
#include "attention/attn.h"

#include "base/checked.h"
#include "base/context.h"

#include <multihead/component.h>

#include <math.h>

typedef struct plain_job {
    const mhai_attn_problem *p;
    double *memory;
    int64_t worker_doubles; /* S scores and Dv sums */
} plain_job;

typedef struct place {
    int64_t b, h, hk, t;
} place;

static bool finite_row(const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(x[i])) return false;
    return true;
}

/* -inf where the query does not see key s. */
static double score(const mhai_attn_problem *p, place at, int64_t s, bool finite_query)
{
    const uint8_t *keep = p->keep.data;
    const float *bias = p->bias.data;
    double added = 0;
    if (keep && !keep[mhai_attn_offset(&p->keep, at.b, at.h, at.t) + s * p->keep.stride[3]])
        return -INFINITY;
    if (bias)
        added = (double)bias[mhai_attn_offset(&p->bias, at.b, at.h, at.t) + s * p->bias.stride[3]];
    if (added == -INFINITY) return -INFINITY;
    const float *q = mhai_attn_row(&p->q, at.b, at.h, at.t);
    const float *k = mhai_attn_row(&p->k, at.b, at.hk, s);
    if (!finite_query || !finite_row(k, p->D)) return NAN;
    double dot = 0;
    for (int64_t d = 0; d < p->D; d++) dot += (double)q[d] * (double)k[d];
    return dot * (double)p->scale + added;
}

/* Scores of keys 0 .. end-1 turned into exp(score - max); returns max and the sum of these. */
static double row_weights(const mhai_attn_problem *p, place at, int64_t end, double *w, double *sum)
{
    bool finite = finite_row(mhai_attn_row(&p->q, at.b, at.h, at.t), p->D);
    double max = -INFINITY;
    *sum = 0;
    for (int64_t s = 0; s < end; s++) {
        w[s] = score(p, at, s, finite);
        if (w[s] > max) max = w[s];
    }
    for (int64_t s = 0; s < end; s++) {
        if (w[s] != -INFINITY)
            *sum += w[s] = exp(w[s] - max);
        else
            w[s] = -1; /* not visible; weights are never negative */
    }
    return max;
}

static void write_output(const mhai_attn_problem *p, place at, int64_t end, const double *w,
                         double sum, double *o)
{
    for (int64_t d = 0; d < p->Dv; d++) o[d] = 0;
    for (int64_t s = 0; s < end; s++) {
        const float *v = mhai_attn_row(&p->v, at.b, at.hk, s);
        for (int64_t d = 0; w[s] != -1 && d < p->Dv; d++) o[d] += w[s] * (double)v[d];
    }
    float *out = mhai_attn_row(&p->o, at.b, at.h, at.t);
    for (int64_t d = 0; d < p->Dv; d++) out[d] = sum == 0 ? 0.0f : (float)(o[d] / sum);
}

static void write_extras(const mhai_attn_problem *p, place at, int64_t end, const double *w,
                         double max, double sum)
{
    if (p->lse.data)
        *mhai_attn_row(&p->lse, at.b, at.h, at.t) = sum == 0 ? -INFINITY : (float)(max + log(sum));
    if (!p->probabilities.data) return;
    float *out = mhai_attn_row(&p->probabilities, at.b, at.h, at.t);
    for (int64_t s = 0; s < p->S; s++) out[s] = s < end && w[s] != -1 ? (float)(w[s] / sum) : 0.0f;
}

static void run_row(void *argument, int64_t item, int worker)
{
    const plain_job *job = argument;
    const mhai_attn_problem *p = job->p;
    double *w = job->memory + (int64_t)worker * job->worker_doubles, sum;
    place at = {.b = item / p->T / p->H, .h = item / p->T % p->H, .t = item % p->T};
    at.hk = at.h / p->group;
    int64_t end = mhai_attn_row_end(p, at.b, at.t);
    double max = row_weights(p, at, end, w, &sum);
    write_output(p, at, end, w, sum, w + p->S);
    write_extras(p, at, end, w, max, sum);
}

mha_status mhai_attn_plain_bytes(const mhai_attn_problem *p, size_t *bytes)
{
    int64_t doubles;
    if (!mhai_add_i64(p->S, p->Dv, &doubles) ||
        !mhai_mul_size((size_t)doubles, sizeof(double), bytes))
        return mha_fail(MHA_ERR_SIZE, "k: a row of scores does not fit in memory");
    return MHA_OK;
}

mha_status mhai_attn_plain(mha_context *context, const mhai_attn_problem *p)
{
    size_t bytes = 0;
    void *memory;
    MHA_TRY(mhai_attn_plain_bytes(p, &bytes));
    mha_scratch_mark mark = mha_scratch_top(context);
    MHA_TRY(mha_scratch_alloc(context, context->num_threads, bytes, &memory));
    plain_job job = {p, memory, p->S + p->Dv};
    mha_parallel_for(context, p->B * p->H * p->T, run_row, &job);
    mha_scratch_release(context, mark);
    return MHA_OK;
}
