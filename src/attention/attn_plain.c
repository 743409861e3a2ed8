/* The plain path: the formula of attention.h, one row of scores at a time, in double. It
 * accepts any head size and shares no code with the tiled path. It is the reference of
 * `path plain` and selftest. */
#include "attention/attn_pages.h"
#include "attention/attn_plan.h"
#include "attention/attn_row.h"

#include "base/checked.h"
#include "base/context.h"
#include "base/convert.h"
#include "base/math.h"

#include <multihead/component.h>

#include <math.h>
#include <string.h>

typedef struct plain_job {
    const mhai_attn_problem *p;
    unsigned char *memory;
    size_t worker_bytes;
} plain_job;

typedef struct row {
    mhai_attn_query at;
    double *w; /* [S] scores, then weights; HIDDEN for hidden keys */
    double max, sum;
    double *o;       /* [Dv] */
    double *columns; /* [S] column sums over many rows */
    uint8_t *keep;   /* [S] the callback's result */
} row;

/* No weight, log-weight or score has this value. */
static const double HIDDEN = -INFINITY;

/* Replace scores by exp(score - max). Compute max, and the sum including the sink's term. */
static void weigh_row(const mhai_attn_problem *p, row *r)
{
    const mhai_attn_query *at = &r->at;
    double sink = -INFINITY;
    if (p->callback && at->limit.end > 0)
        p->callback(p->callback_user, at->seq.b, p->first_head + at->h, at->seq.before + at->t, 1,
                    0, at->limit.end, r->keep, at->limit.end);
    if (p->sink_logits.data)
        sink = (double)((const float *)p->sink_logits.data)[at->h * p->sink_logits.stride[0]];
    r->max = sink;
    for (int64_t s = 0; s < at->limit.end; s++) {
        r->w[s] = mhai_attn_score_at(p, at, s).value;
        if (r->w[s] > r->max) r->max = r->w[s];
    }
    double *w = r->w, max = r->max, sum = sink == -INFINITY ? 0 : mhai_exp(sink - max);
    for (int64_t s = 0; s < at->limit.end; s++)
        if (w[s] != HIDDEN) sum += w[s] = mhai_exp(w[s] - max);
    r->sum = sum;
}

static void write_output(const mhai_attn_problem *p, const row *r)
{
    memset(r->o, 0, (size_t)p->Dv * sizeof(double));
    for (int64_t s = 0; s < r->at.limit.end; s++) {
        if (r->w[s] == HIDDEN) continue;
        const float *v = r->at.wide;
        if (p->pages)
            mhai_attn_page_value(p, &r->at.seq, r->at.hk, s, r->at.wide);
        else
            v = mhai_attn_read(&p->v, r->at.seq.batch, r->at.hk, r->at.seq.k0 + s, r->at.wide);
        const float *shaw =
            p->shaw_values.data ? mhai_attn_shaw_row(&p->shaw_values, &r->at, s) : NULL;
        double weight = r->w[s] * mhai_attn_dropout_at(p, &r->at, s);
        for (int64_t d = 0; d < p->Dv; d++)
            r->o[d] += weight * ((double)v[d] + (shaw ? (double)shaw[d] : 0));
    }
    double gate = p->gates.data ? (double)mhai_attn_f32(&p->gates, r->at.seq.b, r->at.h) : 1;
    void *out = mhai_attn_data(&p->o, r->at.seq.batch, r->at.h, r->at.seq.q0 + r->at.t);
    float *wide = p->o.dtype == MHA_F32 ? out : r->at.wide;
    /* Adding +0 turns -0 into +0. No path returns -0. */
    for (int64_t d = 0; d < p->Dv; d++)
        wide[d] = r->sum == 0 ? 0.0f : (float)(r->o[d] / r->sum * gate) + 0.0f;
    if (wide != out) mhai_narrow(p->o.dtype, out, wide, p->Dv);
}

/* ---- outputs on request --------------------------------------------------------------------- */

/* p of key s, as f32. */
static float probability(const row *r, int64_t s)
{
    bool seen = s >= 0 && s < r->at.limit.end && r->w[s] != HIDDEN;
    return seen ? (float)(r->w[s] / r->sum) : 0.0f;
}

/* The element of key s in probabilities and average_probabilities. */
static float shown_probability(const mhai_attn_problem *p, const row *r, int64_t s)
{
    if (!p->want.dropped) return probability(r, s);
    if (s >= r->at.limit.end || r->w[s] == HIDDEN) return 0;
    double factor = mhai_attn_dropout_at(p, &r->at, s);
    return factor > 0 ? (float)(r->w[s] / r->sum * factor) : 0.0f;
}

/* Write the row at indices (i, j) of probabilities and scores. */
static void write_matrices(const mhai_attn_problem *p, const row *r, int64_t i, int64_t j)
{
    const mha_score_stage stage = p->want.stage;
    if (p->probabilities.data) {
        float *out = mhai_attn_row(&p->probabilities, r->at.seq.batch, i, j);
        for (int64_t s = 0; s < p->S; s++) out[s] = shown_probability(p, r, s);
    }
    if (p->want.scores.data) {
        float *out = mhai_attn_row(&p->want.scores, r->at.seq.batch, i, j);
        const int64_t end = stage == MHA_SCORES_BIASED ? r->at.limit.end
                            : p->pages                 ? r->at.seq.S
                                                       : r->at.seq.stored;
        for (int64_t s = 0; s < p->S; s++) {
            double x = -INFINITY;
            if (s < end)
                x = stage == MHA_SCORES_BIASED
                        ? mhai_attn_score_at(p, &r->at, s).value
                        : mhai_attn_pair_score(p, &r->at, s, stage == MHA_SCORES_CAPPED);
            out[s] = (float)x;
        }
    }
}

static void write_f32(const mha_tensor *x, const row *r, float value)
{
    if (x->data) *mhai_attn_row(x, r->at.seq.batch, r->at.h, r->at.seq.q0 + r->at.t) = value;
}

static int64_t *i64_row(const mha_tensor *x, const row *r)
{
    return (int64_t *)x->data + r->at.seq.batch * x->stride[0] + r->at.h * x->stride[1] +
           (r->at.seq.q0 + r->at.t) * x->stride[2];
}

/* -sum p log p, with -log p = log sum - (score - max), so that rounding of p has little effect. */
static double entropy(const row *r)
{
    double sum = 0;
    for (int64_t s = 0; s < r->at.limit.end; s++) {
        if (r->w[s] == HIDDEN || r->w[s] == 0) continue;
        sum += r->w[s] / r->sum * (mhai_log(r->sum) - mhai_log(r->w[s]));
    }
    return sum;
}

static int64_t largest_key(const mhai_attn_problem *p, const row *r)
{
    int64_t best = -1;
    float weight = 0;
    for (int64_t s = 0; s < p->S; s++)
        if (probability(r, s) > weight) weight = probability(r, best = s);
    return best;
}

/* Insert into descending order. Among equal weights, earlier keys come first. */
static void write_top(const mhai_attn_problem *p, const row *r)
{
    const mhai_attn_wanted *want = &p->want;
    const int64_t count = want->top_keys.shape[3];
    int64_t *keys = i64_row(&want->top_keys, r), used = 0;
    float *weights =
        mhai_attn_row(&want->top_weights, r->at.seq.batch, r->at.h, r->at.seq.q0 + r->at.t);
    for (int64_t s = 0; s < p->S; s++) {
        float weight = probability(r, s);
        if (!(weight > 0) || (used == count && weight <= weights[count - 1])) continue;
        int64_t i = used < count ? used++ : count - 1;
        for (; i > 0 && weights[i - 1] < weight; i--)
            weights[i] = weights[i - 1], keys[i] = keys[i - 1];
        weights[i] = weight, keys[i] = s;
    }
    for (; used < count; used++) weights[used] = isnan(r->sum) ? NAN : 0.0f, keys[used] = -1;
}

static void write_statistics(const mhai_attn_problem *p, const row *r)
{
    const mhai_attn_wanted *want = &p->want;
    const bool seen = r->at.limit.end > 0 && r->sum != 0;
    if (p->lse.data)
        write_f32(&p->lse, r, r->sum == 0 ? -INFINITY : (float)(r->max + mhai_log(r->sum)));
    if (want->entropy.data) write_f32(&want->entropy, r, seen ? (float)entropy(r) : 0.0f);
    if (want->largest_weight.data || want->largest_key.data) {
        int64_t key = largest_key(p, r);
        write_f32(&want->largest_weight, r, isnan(r->sum) ? NAN : probability(r, key));
        if (want->largest_key.data) *i64_row(&want->largest_key, r) = key;
    }
    write_f32(&want->first_token, r, probability(r, r->at.seq.begin));
    write_f32(&want->diagonal, r, probability(r, r->at.position));
    for (int64_t n = 0; want->offset_mass.data && n < want->offsets_count; n++) {
        int64_t key;
        if (!mhai_add_i64(r->at.position, want->offsets[n], &key)) key = -1;
        mhai_attn_row(&want->offset_mass, r->at.seq.batch, r->at.h, r->at.seq.q0 + r->at.t)[n] =
            probability(r, key);
    }
    if (want->top_keys.data) write_top(p, r);
}

/* ---- items ----------------------------------------------------------------------------------- */

/* Set up the row's memory. Returns room for a query and a key in f32. */
static float *give_memory(const plain_job *job, int worker, row *r)
{
    const mhai_attn_problem *p = job->p;
    r->w = (double *)(void *)(job->memory + (size_t)worker * job->worker_bytes);
    r->o = r->w + p->S;
    r->columns = r->o + p->Dv;
    float *room = (float *)(void *)(r->columns + p->S);
    r->keep = (uint8_t *)(room + p->D + mhai_max_i64(p->D, p->Dv));
    return room;
}

/* Compute row `at` of head h. `at` counts the rows of q over all sequences. */
static row row_at(const plain_job *job, int worker, int64_t at, int64_t h)
{
    int64_t t;
    mhai_attn_sequence seq = mhai_attn_sequence_of_row(job->p, at, &t);
    row r = {0};
    float *room = give_memory(job, worker, &r);
    r.at = mhai_attn_query_at(job->p, &seq, h, t, room);
    r.at.keep = r.keep;
    weigh_row(job->p, &r);
    return r;
}

/* Items are pairs of a row of q and a head. The heads of a row are consecutive. */
static void run_row(void *argument, int64_t item, int worker)
{
    const plain_job *job = argument;
    const mhai_attn_problem *p = job->p;
    row r = row_at(job, worker, item / p->H, item % p->H);
    write_statistics(p, &r);
    if (!p->want.heads && !p->want.rows) write_matrices(p, &r, r.at.h, r.at.seq.q0 + r.at.t);
    write_output(p, &r);
}

/* Items are chosen rows, by batch, head and row. */
static void run_chosen(void *argument, int64_t item, int worker)
{
    const plain_job *job = argument;
    const mhai_attn_problem *p = job->p;
    const mhai_attn_wanted *want = &p->want;
    int64_t j = item % want->rows_count, i = item / want->rows_count % want->heads_count;
    int64_t batch = item / want->rows_count / want->heads_count;
    int64_t at = batch * p->q.shape[2] + (want->rows ? want->rows[j] : j);
    row r = row_at(job, worker, at, want->heads ? want->heads[i] : i);
    write_matrices(p, &r, i, j);
}

/* Items are rows of q. The mean adds the heads in order. */
static void run_average(void *argument, int64_t item, int worker)
{
    const plain_job *job = argument;
    const mhai_attn_problem *p = job->p;
    const mha_tensor *average = &p->want.average;
    const int64_t rows = p->q.shape[2];
    float *out = (float *)average->data + item / rows * average->stride[0] +
                 item % rows * average->stride[1];
    for (int64_t s = 0; s < p->S; s++) out[s] = 0;
    for (int64_t h = 0; h < p->H; h++) {
        row r = row_at(job, worker, item, h);
        for (int64_t s = 0; s < p->S; s++) out[s] += shown_probability(p, &r, s);
    }
    for (int64_t s = 0; p->H > 0 && s < p->S; s++) out[s] /= (float)p->H;
}

/* Items are heads of sequences. Rows are added in order. */
static void run_columns(void *argument, int64_t item, int worker)
{
    const plain_job *job = argument;
    const mhai_attn_problem *p = job->p;
    const int64_t h = item % p->H;
    const mhai_attn_sequence seq = mhai_attn_sequence_of(p, item / p->H);
    row none = {0};
    give_memory(job, worker, &none);
    double *columns = none.columns;
    mhai_attn_begin_columns(p, &seq, h, 0, seq.stored, columns);
    for (int64_t t = 0; t < seq.T; t++) {
        row r = row_at(job, worker, seq.b * (p->query_starts ? 0 : p->T) + seq.q0 + t, h);
        for (int64_t s = 0; s < seq.stored; s++) columns[s] += (double)probability(&r, s);
    }
    mhai_attn_end_columns(p, &seq, h, 0, seq.stored, columns);
}

static mha_status row_bytes(const mhai_attn_problem *p, size_t *bytes)
{
    int64_t doubles, floats = p->D / 2 + mhai_max_i64(p->D, p->Dv) / 2 + 1; /* in doubles */
    if (!mhai_mul_i64(2, p->S, &doubles) || !mhai_add_i64(doubles, p->Dv, &doubles) ||
        !mhai_add_i64(doubles, p->S / 8 + 8, &doubles) ||
        !mhai_add_i64(doubles, floats, &doubles) ||
        !mhai_mul_size((size_t)doubles, sizeof(double), bytes))
        return mha_fail(MHA_ERR_SIZE, "k: a row of scores does not fit in memory");
    return MHA_OK;
}

static mha_status run(mha_context *context, plain_job *job)
{
    const mhai_attn_problem *p = job->p;
    const mhai_attn_wanted *want = &p->want;
    const int64_t rows = p->q.shape[0] * p->q.shape[2];
    mha_parallel_for(context, rows * p->H, run_row, job);
    bool matrices = mhai_attn_wants(&p->probabilities) || mhai_attn_wants(&want->scores);
    if (matrices && (want->heads || want->rows))
        mha_parallel_for(context, p->q.shape[0] * want->heads_count * want->rows_count, run_chosen,
                         job);
    if (mhai_attn_wants(&want->average)) mha_parallel_for(context, rows, run_average, job);
    if (!mhai_attn_wants(&want->column_sums)) return MHA_OK;
    return mhai_attn_run_columns(context, p, p->B * p->H, run_columns, job);
}

/* ---- the back end ---------------------------------------------------------------------------- */

mha_status mhai_plain_plan(const mha_context *context, mhai_attn_plan *plan)
{
    const mhai_attn_problem *p = &plan->p;
    (void)context;
    plan->account.isa = MHA_ISA_PORTABLE;
    plan->account.key_block = p->S;
    plan->account.row_block = 1;
    plan->account.work_items = p->q.shape[0] * p->H * p->q.shape[2]; /* also for ragged batches */
    return row_bytes(p, &plan->scratch.worker);
}

mha_status mhai_plain_run(mha_context *context, const mhai_attn_plan *plan)
{
    plain_job job = {.p = &plan->p, .worker_bytes = plan->scratch.worker};
    MHA_TRY(mha_scratch_alloc(context, plan->threads, job.worker_bytes, &job.memory));
    return run(context, &job);
}
