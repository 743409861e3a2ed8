/* Linear attention backward, with two running states in double. A forward walk over queries with
 * state S computes dq. A backward walk over keys computes dk and dv. Its state R sums the queries'
 * terms of the gradients. One thread processes each key/value head. */
#include "attention/attn_row.h"
#include "attention/feature_map.h"
#include "attention/linear_problem.h"
#include "base/checked.h"
#include "base/context.h"
#include "base/need.h"
#include "base/tensor.h"

#include <multihead/backward.h>
#include <multihead/component.h>

#include <math.h>
#include <string.h>

typedef struct linear_back {
    mhai_linear_problem p;    /* o is o_gradient */
    mha_tensor q, k, v, s, z; /* gradients; data NULL: not requested */
    bool accumulate;
    mha_feature_map_gradient_fn map_gradient;
    double *rows; /* [batch, H, rows of q][2]: 1 / m and g . o; 0, 0 if m is 0 */
    unsigned char *memory;
    size_t worker_bytes;
} linear_back;

/* Memory of one worker. */
typedef struct workspace {
    double *s, *z; /* [F][Dv], [F]: S and z, then R and r */
    double *sums;  /* [max(F, Dv)] */
    float *features, *feature_gradients, *row, *row_gradients, *g; /* [F] twice, [D] twice, [Dv] */
    float *value;                                                  /* [Dv] */
} workspace;

/* ---- checks ---------------------------------------------------------------------------------- */

static mha_status check_gradient(const char *name, const mha_tensor *given, const mha_tensor *input,
                                 const linear_back *x, mha_tensor *wanted)
{
    const mhai_attn_problem *a = &x->p.a;
    const mha_tensor *inputs[] = {&a->q, &a->k, &a->v, &a->o, &x->p.s_before, &x->p.z_before};
    static const char *const names[] = {"q",           "k", "v", "o_gradient", "desc.state_s",
                                        "desc.state_z"};
    if (!given) return MHA_OK;
    if (input->ndim == 0)
        return mha_fail(MHA_ERR_ARGUMENT, "%s: is requested, but the descriptor has no state",
                        name);
    MHA_TRY(mhai_tensor_check(name, given, MHA_F32, input->ndim, input->shape));
    MHA_TRY(mhai_tensor_check_last(name, given));
    MHA_TRY(mhai_tensor_check_output(name, given));
    for (int i = 0; i < 6; i++)
        MHA_TRY(mhai_tensor_check_disjoint(name, given, names[i], inputs[i]));
    *wanted = *given;
    return MHA_OK;
}

static mha_status check_gradients(const mha_linear_attention_gradients *gradients, linear_back *x)
{
    const mhai_attn_problem *a = &x->p.a;
    const mha_tensor *made[] = {&x->q, &x->k, &x->v, &x->s, &x->z};
    static const char *const names[] = {"gradients.q", "gradients.k", "gradients.v",
                                        "gradients.state_s", "gradients.state_z"};
    MHA_TRY(mhai_check_flags("mha_linear_attention_gradients", gradients->flags,
                             MHA_GRADIENTS_ACCUMULATE));
    x->accumulate = gradients->flags & MHA_GRADIENTS_ACCUMULATE;
    x->map_gradient = gradients->feature_map_gradient;
    if (x->p.map != mhai_feature_map_elu && !x->map_gradient)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "gradients.feature_map_gradient: is NULL; a feature_map requires it");
    MHA_TRY(check_gradient(names[0], gradients->q, &a->q, x, &x->q));
    MHA_TRY(check_gradient(names[1], gradients->k, &a->k, x, &x->k));
    MHA_TRY(check_gradient(names[2], gradients->v, &a->v, x, &x->v));
    MHA_TRY(check_gradient(names[3], gradients->state_s, &x->p.s_before, x, &x->s));
    MHA_TRY(check_gradient(names[4], gradients->state_z, &x->p.z_before, x, &x->z));
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < i; j++)
            MHA_TRY(mhai_tensor_check_disjoint(names[i], made[i], names[j], made[j]));
    return MHA_OK;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static workspace workspace_of(const linear_back *x, int worker)
{
    const int64_t F = x->p.F, D = x->p.a.D, Dv = x->p.a.Dv;
    mhai_carver c = {x->memory + (size_t)worker * x->worker_bytes, 0};
    workspace w = {.s = mhai_carve(&c, F * Dv, sizeof(double))};
    w.z = mhai_carve(&c, F, sizeof(double));
    w.sums = mhai_carve(&c, mhai_max_i64(F, Dv), sizeof(double));
    w.features = mhai_carve(&c, F, sizeof(float));
    w.feature_gradients = mhai_carve(&c, F, sizeof(float));
    w.row = mhai_carve(&c, D, sizeof(float));
    w.row_gradients = mhai_carve(&c, D, sizeof(float));
    w.g = mhai_carve(&c, Dv, sizeof(float));
    w.value = mhai_carve(&c, Dv, sizeof(float));
    return w;
}

static mha_status size_workspace(const linear_back *x, size_t *bytes)
{
    const int64_t limit = INT64_MAX / 256;
    const int64_t F = x->p.F, D = x->p.a.D, Dv = x->p.a.Dv;
    int64_t state;
    if (!mhai_mul_i64(F, Dv, &state) || state > limit || F > limit || D > limit || Dv > limit)
        return mha_fail(MHA_ERR_SIZE, "a state of %lld features by %lld values does not fit",
                        (long long)F, (long long)Dv);
    *bytes = (size_t)(state + 2 * F + Dv) * sizeof(double) +
             (size_t)(2 * F + 2 * D + 2 * Dv) * sizeof(float) + (size_t)9 * 64;
    *bytes = (*bytes + 63) / 64 * 64;
    return MHA_OK;
}

/* Compute the features of a row of q or k. The row is read in place, or converted in w->row. */
static const float *map_row(const linear_back *x, const workspace *w, const mha_tensor *from,
                            int64_t batch, int64_t h, int64_t t)
{
    const float *row = mhai_attn_read(from, batch, h, t, w->row);
    x->p.map(x->p.map_user, row, 1, x->p.a.D, w->features, x->p.F);
    return row;
}

static void write(const linear_back *x, float *out, double sum)
{
    *out = (float)(x->accumulate ? (double)*out + sum : sum) + 0.0f;
}

/* Write the gradient of a row of q or k, from the gradient of its features in w->sums. */
static void write_mapped(const linear_back *x, const workspace *w, const float *row,
                         const mha_tensor *out, int64_t batch, int64_t h, int64_t t)
{
    const int64_t D = x->p.a.D;
    float *to = mhai_attn_row(out, batch, h, t);
    if (!x->map_gradient) {
        for (int64_t d = 0; d < D; d++) {
            double slope = row[d] > 0 ? 1 : row[d] < -87.0f ? 0 : (double)w->features[d];
            write(x, to + d, slope * w->sums[d]);
        }
        return;
    }
    for (int64_t i = 0; i < x->p.F; i++) w->feature_gradients[i] = (float)w->sums[i];
    x->map_gradient(x->p.map_user, row, 1, D, w->feature_gradients, x->p.F, w->row_gradients);
    for (int64_t d = 0; d < D; d++) write(x, to + d, (double)w->row_gradients[d]);
}

/* ---- queries --------------------------------------------------------------------------------- */

static void load_state(const linear_back *x, int64_t b, int64_t hk, const workspace *w)
{
    const int64_t F = x->p.F, Dv = x->p.a.Dv;
    const mha_tensor *s = &x->p.s_before, *z = &x->p.z_before;
    memset(w->s, 0, (size_t)(F * Dv) * sizeof(double));
    memset(w->z, 0, (size_t)F * sizeof(double));
    for (int64_t i = 0; s->ndim && i < F; i++) {
        const float *row = mhai_attn_row(s, b, hk, i);
        for (int64_t d = 0; d < Dv; d++) w->s[i * Dv + d] = (double)row[d];
        w->z[i] = (double)((const float *)z->data)[b * z->stride[0] + hk * z->stride[1] + i];
    }
}

static void join_key(const linear_back *x, const workspace *w, const mhai_attn_sequence *seq,
                     int64_t hk, int64_t s)
{
    const int64_t F = x->p.F, Dv = x->p.a.Dv;
    map_row(x, w, &x->p.a.k, seq->batch, hk, seq->k0 + s);
    const float *v = mhai_attn_read(&x->p.a.v, seq->batch, hk, seq->k0 + s, w->value);
    for (int64_t i = 0; i < F; i++) {
        w->z[i] += (double)w->features[i];
        for (int64_t d = 0; d < Dv; d++) w->s[i * Dv + d] += (double)w->features[i] * (double)v[d];
    }
}

static bool all_zero(const double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (x[i] != 0) return false; /* NaN is not 0 */
    return true;
}

static double *row_numbers(const linear_back *x, int64_t batch, int64_t h, int64_t row)
{
    return x->rows + 2 * ((batch * x->p.a.H + h) * x->p.a.q.shape[2] + row);
}

/* da = (S g - (g . o) z) / m, with g . o = sum_i a_i (S g)_i / m */
static void run_query(const linear_back *x, const workspace *w, const mhai_attn_sequence *seq,
                      int64_t h, int64_t t)
{
    const int64_t F = x->p.F, Dv = x->p.a.Dv, row = seq->q0 + t;
    const float *q = map_row(x, w, &x->p.a.q, seq->batch, h, row);
    const float *g = mhai_attn_read(&x->p.a.o, seq->batch, h, row, w->g);
    double *numbers = row_numbers(x, seq->batch, h, row), m = 0, go = 0;
    for (int64_t i = 0; i < F; i++) {
        w->sums[i] = 0;
        m += (double)w->features[i] * w->z[i];
        for (int64_t d = 0; d < Dv; d++) w->sums[i] += w->s[i * Dv + d] * (double)g[d];
        go += (double)w->features[i] * w->sums[i];
    }
    bool none = m == 0 || (isnan(m) && all_zero(w->z, F)); /* NaN from a query that sees no key */
    numbers[0] = none ? 0 : 1 / m;
    numbers[1] = none ? 0 : go / m;
    for (int64_t i = 0; i < F; i++)
        w->sums[i] = none ? 0 : (w->sums[i] - numbers[1] * w->z[i]) * numbers[0];
    if (!x->q.data) return;
    if (none) { /* write zeros, even if features are not finite */
        float *to = mhai_attn_row(&x->q, seq->batch, h, row);
        for (int64_t d = 0; d < x->p.a.D; d++) write(x, to + d, 0);
        return;
    }
    write_mapped(x, w, q, &x->q, seq->batch, h, row);
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* R += a g^T / m and r -= a (g . o) / m for query t of all heads in the group. */
static void join_query(const linear_back *x, const workspace *w, const mhai_attn_sequence *seq,
                       int64_t hk, int64_t t)
{
    const int64_t F = x->p.F, Dv = x->p.a.Dv, row = seq->q0 + t, group = x->p.a.group;
    for (int64_t h = hk * group; h < (hk + 1) * group; h++) {
        const double *numbers = row_numbers(x, seq->batch, h, row);
        if (numbers[0] == 0) continue;
        map_row(x, w, &x->p.a.q, seq->batch, h, row);
        const float *g = mhai_attn_read(&x->p.a.o, seq->batch, h, row, w->g);
        for (int64_t i = 0; i < F; i++) {
            double a = (double)w->features[i] * numbers[0];
            w->z[i] -= a * numbers[1];
            for (int64_t d = 0; d < Dv; d++) w->s[i * Dv + d] += a * (double)g[d];
        }
    }
}

static void run_key(const linear_back *x, const workspace *w, const mhai_attn_sequence *seq,
                    int64_t hk, int64_t s)
{
    const int64_t F = x->p.F, Dv = x->p.a.Dv, key = seq->k0 + s;
    const float *k = map_row(x, w, &x->p.a.k, seq->batch, hk, key);
    const float *v = mhai_attn_read(&x->p.a.v, seq->batch, hk, key, w->value);
    if (x->v.data) {
        memset(w->sums, 0, (size_t)Dv * sizeof(double));
        for (int64_t i = 0; i < F; i++)
            for (int64_t d = 0; d < Dv; d++)
                w->sums[d] += (double)w->features[i] * w->s[i * Dv + d];
        float *to = mhai_attn_row(&x->v, seq->batch, hk, key);
        for (int64_t d = 0; d < Dv; d++) write(x, to + d, w->sums[d]);
    }
    if (!x->k.data) return;
    for (int64_t i = 0; i < F; i++) {
        w->sums[i] = w->z[i];
        for (int64_t d = 0; d < Dv; d++) w->sums[i] += w->s[i * Dv + d] * (double)v[d];
    }
    write_mapped(x, w, k, &x->k, seq->batch, hk, key);
}

/* Write zero gradients of the keys that no query sees: keys after the length,
 * or after the last query. */
static void write_unseen(const linear_back *x, const mhai_attn_sequence *seq, int64_t hk, int64_t s)
{
    const mha_tensor *out[] = {&x->k, &x->v};
    for (int i = 0; i < 2; i++) {
        if (!out[i]->data) continue;
        float *to = mhai_attn_row(out[i], seq->batch, hk, seq->k0 + s);
        for (int64_t d = 0; d < out[i]->shape[3]; d++) write(x, to + d, 0);
    }
}

static void write_state(const linear_back *x, const workspace *w, int64_t b, int64_t hk)
{
    const int64_t F = x->p.F, Dv = x->p.a.Dv;
    for (int64_t i = 0; i < F; i++) {
        float *s = x->s.data ? mhai_attn_row(&x->s, b, hk, i) : NULL;
        for (int64_t d = 0; s && d < Dv; d++) write(x, s + d, w->s[i * Dv + d]);
        if (x->z.data)
            write(x, (float *)x->z.data + b * x->z.stride[0] + hk * x->z.stride[1] + i, w->z[i]);
    }
}

/* ---- the call -------------------------------------------------------------------------------- */

static void run_head(void *argument, int64_t item, int worker)
{
    const linear_back *x = argument;
    const mhai_attn_problem *a = &x->p.a;
    const int64_t b = item / a->Hk, hk = item % a->Hk;
    mhai_attn_sequence seq = mhai_attn_sequence_of(a, b);
    workspace w = workspace_of(x, worker);
    int64_t stored = a->key_starts ? a->key_starts[b + 1] - a->key_starts[b] : a->S;
    load_state(x, b, hk, &w);
    for (int64_t t = 0, s = 0; t < seq.T; t++) {
        for (int64_t end = mhai_attn_limit(a, &seq, t).end; s < end; s++)
            join_key(x, &w, &seq, hk, s);
        for (int64_t h = hk * a->group; h < (hk + 1) * a->group; h++) run_query(x, &w, &seq, h, t);
    }
    memset(w.s, 0, (size_t)(x->p.F * a->Dv) * sizeof(double));
    memset(w.z, 0, (size_t)x->p.F * sizeof(double));
    int64_t t = seq.T, seen = t > 0 ? mhai_attn_limit(a, &seq, t - 1).end : 0;
    for (int64_t s = seen; s < stored; s++) write_unseen(x, &seq, hk, s);
    for (int64_t s = seen - 1; s >= 0; s--) {
        while (t > 0 && mhai_attn_limit(a, &seq, t - 1).end > s) join_query(x, &w, &seq, hk, --t);
        run_key(x, &w, &seq, hk, s);
    }
    if (!x->s.data && !x->z.data) return;
    while (t > 0) join_query(x, &w, &seq, hk, --t);
    write_state(x, &w, b, hk);
}

static mha_status run(mha_context *context, linear_back *x)
{
    const mhai_attn_problem *a = &x->p.a;
    MHA_TRY(size_workspace(x, &x->worker_bytes));
    MHA_TRY(mha_scratch_alloc(context, a->q.shape[0] * a->H * a->q.shape[2], 2 * sizeof(double),
                              &x->rows));
    MHA_TRY(mha_scratch_alloc(context, context->num_threads, x->worker_bytes, &x->memory));
    mha_parallel_for(context, a->B * a->Hk, run_head, x);
    return MHA_OK;
}

mha_status mha_linear_attention_backward(mha_context *context,
                                         const mha_linear_attention_desc *desc, const mha_tensor *q,
                                         const mha_tensor *k, const mha_tensor *v,
                                         const mha_tensor *o_gradient,
                                         const mha_linear_attention_gradients *gradients)
{
    if (!context) return mha_fail(MHA_ERR_NULL, "mha_linear_attention_backward: context is NULL");
    if (!gradients) return mha_fail(MHA_ERR_NULL, "gradients: is NULL");
    mha_linear_attention_gradients own;
    linear_back x = {.accumulate = false};
    MHA_TRY(mhai_struct_copy("mha_linear_attention_gradients", &own, sizeof own, sizeof own,
                             gradients));
    MHA_TRY(mhai_linear_check(desc, q, k, v, o_gradient, NULL, &x.p));
    MHA_TRY(check_gradients(&own, &x));
    mha_scratch_mark mark = mha_scratch_top(context);
    return mha_scratch_end(context, mark, run(context, &x));
}
