/* The plain path of the backward pass: the formulas of backward.h, one pair at a time, in double.
 * It accepts any head size and shares no code with the tiled path. Each gradient has a separate
 * walk that recomputes the pairs. Every output therefore has one owner and a fixed order of
 * additions:
 *
 *   dq by query rows     dk, dv by keys     parameters by query heads     bias by its elements */
#include "attention/attn_backward.h"
#include "attention/attn_row.h"
#include "base/checked.h"
#include "base/context.h"
#include "base/math.h"

#include <multihead/component.h>

#include <math.h>
#include <string.h>

typedef struct plain_job {
    const mhai_backward_problem *x;
    unsigned char *memory; /* per worker: sums in double, rows as f32, bytes from the callback */
    size_t worker_bytes;
    double
        *by_head; /* [H] of shaw_keys, shaw_values and scale, before they are summed over heads */
    int64_t head_sums;
} plain_job;

/* The terms of a visible pair in the gradients; all NaN if the row is not finite. */
typedef struct pair {
    bool visible;
    double kept; /* p after dropout */
    double x, ds, dx, product;
} pair;

static int64_t widest(const mhai_attn_problem *p)
{
    return mhai_max_i64(p->D, p->Dv);
}

/* The gradient of the loss with respect to p of key s, with dropout. */
static double weight_gradient(const mhai_backward_problem *x, const mhai_attn_query *r, int64_t s,
                              double weight, double factor)
{
    const mha_tensor *each = &x->probabilities_gradient, *mean = &x->average_gradient;
    const int64_t batch = r->seq.batch, row = r->seq.q0 + r->t;
    double sum = 0;
    if (weight == 0 || (x->dropped && factor == 0)) return 0;
    if (each->data) sum += (double)mhai_attn_row(each, batch, r->h, row)[s * each->stride[3]];
    if (mean->data)
        sum += (double)((const float *)mean->data)[batch * mean->stride[0] + row * mean->stride[1] +
                                                   s * mean->stride[2]] /
               (double)x->p.H;
    return x->dropped ? sum * factor : sum;
}

/* p = exp(score - lse) */
static double weight_of(const mhai_attn_problem *p, const mhai_attn_query *r, double score)
{
    double lse = (double)*mhai_attn_row(&p->lse, r->seq.batch, r->h, r->seq.q0 + r->t);
    return lse == -INFINITY ? 0 : mhai_exp(score - lse);
}

static pair pair_at(const plain_job *job, const mhai_attn_query *r, int64_t s)
{
    const mhai_attn_problem *p = &job->x->p;
    const int64_t batch = r->seq.batch, row = r->seq.q0 + r->t;
    mhai_attn_score score = mhai_attn_score_at(p, r, s);
    if (score.value == -INFINITY) return (pair){.visible = false};
    double delta = mhai_backward_delta(job->x, batch, r->h, row);
    if (isnan(delta) || isnan(score.value)) return (pair){true, NAN, NAN, NAN, NAN, NAN};
    const float *g = mhai_attn_read(&job->x->o_gradient, batch, r->h, row, r->wide + widest(p));
    double weight = weight_of(p, r, score.value);
    double factor = mhai_attn_dropout_at(p, r, s);
    pair made = {.visible = true, .kept = weight * factor, .product = score.product};
    const float *v = mhai_attn_read(&p->v, batch, r->hk, r->seq.k0 + s, r->wide);
    made.x = mhai_attn_dot(g, v, p->Dv);
    if (p->shaw_values.data)
        made.x += mhai_attn_dot(g, mhai_attn_shaw_row(&p->shaw_values, r, s), p->Dv);
    made.ds = weight * (mhai_backward_gate(p, r->seq.b, r->h) * factor * made.x - delta);
    if (mhai_backward_has_weights(job->x))
        made.ds += weight * weight_gradient(job->x, r, s, weight, factor);
    made.dx = made.ds * score.slope;
    return made;
}

static double *worker_sums(const plain_job *job, int worker)
{
    return (double *)(void *)(job->memory + (size_t)worker * job->worker_bytes);
}

static float *worker_room(const plain_job *job, int worker)
{
    return (float *)(void *)(worker_sums(job, worker) + job->x->p.D + job->x->p.Dv);
}

/* Set up the query, and run the callback for all its keys. */
static mhai_attn_query query_at(const plain_job *job, const mhai_attn_sequence *seq, int64_t h,
                                int64_t t, int worker)
{
    const mhai_attn_problem *p = &job->x->p;
    float *room = worker_room(job, worker);
    mhai_attn_query r = mhai_attn_query_at(p, seq, h, t, room);
    uint8_t *keep = (uint8_t *)(room + p->D + widest(p) + p->Dv);
    r.keep = keep;
    if (p->callback && r.limit.end > 0)
        p->callback(p->callback_user, seq->b, p->first_head + h, seq->before + t, 1, 0, r.limit.end,
                    keep, r.limit.end);
    return r;
}

static void write_row(const mhai_backward_problem *x, const mha_tensor *out, int64_t batch,
                      int64_t h, int64_t row, const double *sums, double factor)
{
    float *to = mhai_attn_row(out, batch, h, row);
    for (int64_t d = 0; d < out->shape[3]; d++) mhai_backward_write(x, to + d, sums[d] * factor);
}

/* ---- the last term of delta ------------------------------------------------------------------ */

static void run_weights(void *argument, int64_t item, int worker)
{
    const plain_job *job = argument;
    const mhai_backward_problem *x = job->x;
    const mhai_attn_problem *p = &x->p;
    int64_t t;
    mhai_attn_sequence seq = mhai_attn_sequence_of_row(p, item / p->H, &t);
    mhai_attn_query r = query_at(job, &seq, item % p->H, t, worker);
    const int64_t row = seq.q0 + t;
    double sum = 0;
    if (isnan(mhai_backward_delta(x, seq.batch, r.h, row))) return;
    for (int64_t s = 0; s < r.limit.end; s++) {
        const mhai_attn_score score = mhai_attn_score_at(p, &r, s);
        if (score.value == -INFINITY) continue;
        const double weight = weight_of(p, &r, score.value);
        sum += weight * weight_gradient(x, &r, s, weight, mhai_attn_dropout_at(p, &r, s));
    }
    x->weight_sums[(seq.batch * p->H + r.h) * p->q.shape[2] + row] = sum;
}

/* ---- queries --------------------------------------------------------------------------------- */

static void add_row(double *sums, double factor, const float *row, int64_t n)
{
    for (int64_t i = 0; i < n; i++) sums[i] += factor * (double)row[i];
}

static void run_query(void *argument, int64_t item, int worker)
{
    const plain_job *job = argument;
    const mhai_attn_problem *p = &job->x->p;
    double *sums = worker_sums(job, worker);
    int64_t t;
    mhai_attn_sequence seq = mhai_attn_sequence_of_row(p, item / p->H, &t);
    mhai_attn_query r = query_at(job, &seq, item % p->H, t, worker);
    memset(sums, 0, (size_t)p->D * sizeof *sums);
    for (int64_t s = 0; s < r.limit.end; s++) {
        pair at = pair_at(job, &r, s);
        if (!at.visible) continue;
        add_row(sums, at.dx, mhai_attn_read(&p->k, seq.batch, r.hk, seq.k0 + s, r.wide), p->D);
        if (p->shaw_keys.data) add_row(sums, at.dx, mhai_attn_shaw_row(&p->shaw_keys, &r, s), p->D);
    }
    write_row(job->x, &job->x->q, seq.batch, r.h, seq.q0 + t, sums, (double)p->scale);
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* The terms of key s and query t. */
static pair pair_of_key(const plain_job *job, const mhai_attn_sequence *seq, int64_t h, int64_t t,
                        int64_t s, int worker, const float **q)
{
    const mhai_attn_problem *p = &job->x->p;
    mhai_attn_query r = mhai_attn_query_at(p, seq, h, t, worker_room(job, worker));
    uint8_t keep;
    *q = r.q;
    if (s >= r.limit.end) return (pair){.visible = false};
    r.keep = &keep;
    r.keep_first = s;
    if (p->callback)
        p->callback(p->callback_user, seq->b, p->first_head + h, seq->before + t, 1, s, 1, &keep,
                    1);
    return pair_at(job, &r, s);
}

/* An item is a key row of the tensors; all key/value heads of a row are consecutive. */
static void run_key(void *argument, int64_t item, int worker)
{
    const plain_job *job = argument;
    const mhai_backward_problem *x = job->x;
    const mhai_attn_problem *p = &x->p;
    double *dk = worker_sums(job, worker), *dv = dk + p->D;
    int64_t hk = item % p->Hk, s = item / p->Hk, b = 0;
    if (p->key_starts)
        while (s >= p->key_starts[b + 1]) b++;
    else
        b = s / p->S, s %= p->S;
    mhai_attn_sequence seq = mhai_attn_sequence_of(p, b);
    if (p->key_starts) s -= seq.k0;
    memset(dk, 0, (size_t)(p->D + p->Dv) * sizeof *dk);
    for (int64_t h = hk * p->group; h < (hk + 1) * p->group; h++)
        for (int64_t t = 0; t < seq.T; t++) {
            const float *q;
            pair at = pair_of_key(job, &seq, h, t, s, worker, &q);
            if (!at.visible) continue;
            add_row(dk, at.dx, q, p->D);
            const float *g = mhai_attn_read(&x->o_gradient, seq.batch, h, seq.q0 + t,
                                            worker_room(job, worker) + p->D);
            add_row(dv, at.kept * mhai_backward_gate(p, seq.b, h), g, p->Dv);
        }
    if (x->k.data) write_row(x, &x->k, seq.batch, hk, seq.k0 + s, dk, (double)p->scale);
    if (x->v.data) write_row(x, &x->v, seq.batch, hk, seq.k0 + s, dv, 1);
}

/* ---- parameters ------------------------------------------------------------------------------ */

static void add_pair(const plain_job *job, const mhai_attn_query *r, int64_t s, const pair *at,
                     double *own)
{
    const mhai_attn_problem *p = &job->x->p;
    const mhai_backward_sums *sums = &job->x->sums;
    const int64_t batch = r->seq.batch, head = r->seq.b * p->H + r->h, rel = s - r->position;
    if (sums->gates) sums->gates[head] += at->kept * at->x;
    if (sums->alibi) sums->alibi[head] -= at->ds * fabs((double)rel);
    if (sums->t5)
        sums->t5[mhai_attn_t5_bucket(rel, p->t5_table.shape[0], p->t5_max_distance,
                                     p->t5_one_sided) *
                     p->H +
                 r->h] += at->ds;
    if (sums->scale) own[0] += at->dx * at->product;
    own += 1;
    if (sums->shaw_keys) {
        add_row(own + mhai_attn_shaw_index(&p->shaw_keys, r, s) * p->D, at->dx * (double)p->scale,
                r->q, p->D);
        own += p->shaw_keys.shape[0] * p->D;
    }
    if (sums->shaw_values)
        add_row(own + mhai_attn_shaw_index(&p->shaw_values, r, s) * p->Dv,
                at->kept * mhai_backward_gate(p, r->seq.b, r->h),
                mhai_attn_read(&job->x->o_gradient, batch, r->h, r->seq.q0 + r->t, r->wide), p->Dv);
}

static void run_head(void *argument, int64_t h, int worker)
{
    const plain_job *job = argument;
    const mhai_attn_problem *p = &job->x->p;
    for (int64_t b = 0; b < p->B; b++) {
        mhai_attn_sequence seq = mhai_attn_sequence_of(p, b);
        for (int64_t t = 0; t < seq.T; t++) {
            mhai_attn_query r = query_at(job, &seq, h, t, worker);
            for (int64_t s = 0; s < r.limit.end; s++) {
                pair at = pair_at(job, &r, s);
                if (at.visible) add_pair(job, &r, s, &at, job->by_head + h * job->head_sums);
            }
        }
    }
}

static void sum_heads(const plain_job *job)
{
    const mhai_attn_problem *p = &job->x->p;
    const mhai_backward_sums *sums = &job->x->sums;
    for (int64_t h = 0; h < p->H; h++) {
        const double *own = job->by_head + h * job->head_sums;
        if (sums->scale) sums->scale[0] += own[0];
        own += 1;
        int64_t keys = sums->shaw_keys ? p->shaw_keys.shape[0] * p->D : 0;
        int64_t values = sums->shaw_values ? p->shaw_values.shape[0] * p->Dv : 0;
        for (int64_t i = 0; i < keys; i++) sums->shaw_keys[i] += own[i];
        for (int64_t i = 0; i < values; i++) sums->shaw_values[i] += own[keys + i];
    }
}

/* ---- the dense bias -------------------------------------------------------------------------- */

/* The indices along one axis that an element of the gradient sums over: all if the axis is
 * broadcast, otherwise its own. */
static mhai_attn_range taken_in(int64_t shape, int64_t index, int64_t length)
{
    return shape == 1 ? (mhai_attn_range){0, length} : (mhai_attn_range){index, index + 1};
}

static void run_bias(void *argument, int64_t item, int worker)
{
    const plain_job *job = argument;
    const mhai_attn_problem *p = &job->x->p;
    mhai_backward_bias bias = mhai_backward_bias_of(job->x);
    int64_t index[4];
    for (int i = 3; i >= 0; i--) index[i] = item % bias.shape[i], item /= bias.shape[i];
    mhai_attn_range batches = taken_in(bias.shape[0], index[0], p->q.shape[0]);
    mhai_attn_range heads = taken_in(bias.shape[1], index[1], p->H);
    mhai_attn_range rows = taken_in(bias.shape[2], index[2], p->q.shape[2]);
    mhai_attn_range keys = taken_in(bias.shape[3], index[3], p->S);
    double sum = 0;
    for (int64_t b = batches.begin; b < batches.end; b++)
        for (int64_t row = rows.begin; row < rows.end; row++) {
            int64_t t, rows_before = p->query_starts ? 0 : b * p->T;
            mhai_attn_sequence seq = mhai_attn_sequence_of_row(p, rows_before + row, &t);
            for (int64_t h = heads.begin; h < heads.end; h++)
                for (int64_t s = keys.begin; s < keys.end; s++) {
                    const float *q;
                    pair at = pair_of_key(job, &seq, h, t, s, worker, &q);
                    if (at.visible) sum += at.ds;
                }
        }
    int64_t at = 0;
    for (int i = 0; i < 4; i++) at += index[i] * bias.stride[i];
    mhai_backward_write(job->x, (float *)job->x->bias.data + at, sum);
}

/* ---- the call -------------------------------------------------------------------------------- */

/* Number of sums per head that are later summed over heads: scale and Shaw's tables. */
static mha_status head_sums(const mhai_backward_problem *x, int64_t *count)
{
    const mhai_attn_problem *p = &x->p;
    int64_t keys = 0, values = 0, all;
    *count = 0;
    if (!mhai_backward_has_sums(x)) return MHA_OK;
    if ((x->shaw_keys.data && !mhai_mul_i64(p->shaw_keys.shape[0], p->D, &keys)) ||
        (x->shaw_values.data && !mhai_mul_i64(p->shaw_values.shape[0], p->Dv, &values)) ||
        !mhai_add_i64(keys, values, &all) || !mhai_add_i64(all, 1, count) ||
        !mhai_mul_i64(*count, p->H, &all) || all > INT64_MAX / 16)
        return mha_fail(MHA_ERR_SIZE, "gradients: a Shaw table for each head overflows");
    return MHA_OK;
}

static mha_status scratch_bytes(const mhai_backward_problem *x, size_t *worker, size_t *shared)
{
    int64_t doubles; /* an upper bound: rows take D + max(D, Dv) + Dv floats */
    int64_t sums;
    if (!mhai_add_i64(x->p.D, x->p.Dv, &doubles) || !mhai_mul_i64(doubles, 3, &doubles) ||
        !mhai_add_i64(doubles, x->p.S / 8 + 8, &doubles) ||
        !mhai_mul_size((size_t)doubles, sizeof(double), worker))
        return mha_fail(MHA_ERR_SIZE, "k: a row does not fit in memory");
    MHA_TRY(head_sums(x, &sums));
    *shared = mhai_backward_piece(sums * x->p.H, sizeof(double)) + 64;
    return MHA_OK;
}

static mha_status run_parameters(mha_context *context, plain_job *job)
{
    const mhai_attn_problem *p = &job->x->p;
    MHA_TRY(head_sums(job->x, &job->head_sums));
    if (job->head_sums == 0) return MHA_OK;
    int64_t sums = job->head_sums * p->H;
    MHA_TRY(mha_scratch_zeros(context, sums, sizeof(double), &job->by_head));
    mha_parallel_for(context, p->H, run_head, job);
    sum_heads(job);
    return MHA_OK;
}

/* ---- the back end ---------------------------------------------------------------------------- */

mha_status mhai_plain_plan_backward(const mha_context *context, mhai_backward_plan *plan)
{
    const mhai_attn_problem *p = &plan->x.p;
    (void)context;
    plan->account.isa = MHA_ISA_PORTABLE;
    plan->account.key_block = p->S;
    plan->account.row_block = 1;
    plan->account.work_items = p->q.shape[0] * p->q.shape[2] * p->H;
    return scratch_bytes(&plan->x, &plan->worker_bytes, &plan->shared_bytes);
}

mha_status mhai_plain_run_backward(mha_context *context, mhai_backward_plan *plan)
{
    mhai_backward_problem *x = &plan->x;
    const mhai_attn_problem *p = &x->p;
    plain_job job = {.x = x, .worker_bytes = plan->worker_bytes};
    MHA_TRY(mha_scratch_alloc(context, plan->threads, job.worker_bytes, &job.memory));
    if (x->weight_sums) {
        mha_parallel_for(context, p->q.shape[0] * p->q.shape[2] * p->H, run_weights, &job);
        mhai_backward_join_weights(x);
    }
    MHA_TRY(run_parameters(context, &job)); /* may fail, so it runs before any output is written */
    if (x->q.data) mha_parallel_for(context, p->q.shape[0] * p->q.shape[2] * p->H, run_query, &job);
    if (x->k.data || x->v.data)
        mha_parallel_for(context, p->k.shape[0] * p->k.shape[2] * p->Hk, run_key, &job);
    if (x->bias.data) {
        mhai_backward_bias bias = mhai_backward_bias_of(x);
        mha_parallel_for(context, bias.shape[0] * bias.shape[1] * bias.shape[2] * bias.shape[3],
                         run_bias, &job);
    }
    return MHA_OK;
}
