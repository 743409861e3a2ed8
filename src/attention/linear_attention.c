/* Linear attention with a running state. Keys are added to S and z one by one. A query reads S and
 * z once all keys that it sees have been added.
 *
 * S is stored in panels (kernels.h): [F][32] for each 32 columns of the values. The matrix kernel
 * therefore serves both to add a key, phi(k) v^T (F rows, one input), and to multiply queries by S
 * (one row per query head, F inputs). On all instruction sets, the product of a key is rounded
 * before it is added. Sums have a fixed order: keys one by one for S and z, features in order for
 * o. Results therefore do not depend on the division of keys into calls, of rows into strips, or of
 * heads among threads. */
#include "attention/feature_map.h"
#include "attention/linear_problem.h"

#include "base/checked.h"
#include "base/context.h"
#include "base/convert.h"
#include "base/need.h"
#include "base/tensor.h"

#include <multihead/component.h>

#include <math.h>
#include <string.h>

enum { BLOCK = 64 }; /* rows whose features are computed at a time */

/* ---- checks -------------------------------------------------------------------------------- */

static mha_status check_desc(const mha_linear_attention_desc *d)
{
    const uint32_t known = MHA_LINEAR_ATTENTION_CAUSAL;
    MHA_TRY(mhai_check_flags("mha_linear_attention_desc", d->flags, known));
    if (!(d->flags & MHA_LINEAR_ATTENTION_CAUSAL) && (d->q_offset != 0 || d->q_offsets))
        return mha_fail(MHA_ERR_ARGUMENT, "mha_linear_attention_desc: q_offset requires causal; "
                                          "set the flag MHA_LINEAR_ATTENTION_CAUSAL");
    MHA_TRY(
        mhai_check_range("mha_linear_attention_desc: feature_dim", d->feature_dim, 0, INT32_MAX));
    if (!d->feature_map && (d->feature_dim != 0 || d->feature_map_user))
        return mha_fail(
            MHA_ERR_ARGUMENT,
            "mha_linear_attention_desc: feature_dim and feature_map_user require a feature_map");
    return MHA_OK;
}

/* Check shapes, lengths, offsets and ragged batches, as in attention. */
static mha_status check_shapes(const mha_linear_attention_desc *d, const mha_tensor *q,
                               const mha_tensor *k, const mha_tensor *v, const mha_tensor *o,
                               mhai_attn_problem *problem)
{
    const mha_attention_desc like = {
        .struct_size = sizeof like,
        .flags = d->flags & MHA_LINEAR_ATTENTION_CAUSAL ? MHA_ATTENTION_CAUSAL : 0,
        .q_offset = d->q_offset,
        .q_offsets = d->q_offsets,
        .key_lengths = d->key_lengths,
        .query_starts = d->query_starts,
        .key_starts = d->key_starts,
        .sequences = d->sequences};
    return mhai_attn_check(&like, q, k, v, o, NULL, true, NULL, problem);
}

static mha_status check_state(const char *name, const mha_tensor *given,
                              const mhai_linear_problem *p, int ndim, mha_tensor *state)
{
    const int64_t shape[4] = {p->a.B, p->a.Hk, p->F, p->a.Dv};
    if (!given) return MHA_OK;
    MHA_TRY(mhai_tensor_check(name, given, MHA_F32, ndim, shape));
    MHA_TRY(mhai_tensor_check_last(name, given));
    *state = *given;
    return MHA_OK;
}

static mha_status check_state_output(const char *name, const mha_tensor *output,
                                     const mhai_linear_problem *p, const mha_tensor *own_input,
                                     const mha_tensor *other_input)
{
    const mhai_attn_problem *a = &p->a;
    if (output->ndim == 0) return MHA_OK;
    MHA_TRY(mhai_tensor_check_output(name, output));
    MHA_TRY(mhai_tensor_check_disjoint(name, output, "q", &a->q));
    MHA_TRY(mhai_tensor_check_disjoint(name, output, "k", &a->k));
    MHA_TRY(mhai_tensor_check_disjoint(name, output, "v", &a->v));
    MHA_TRY(mhai_tensor_check_disjoint(name, output, "o", &a->o));
    MHA_TRY(mhai_tensor_check_disjoint(name, output, "the other state", other_input));
    if (mhai_tensor_same(output, own_input)) return MHA_OK;
    return mhai_tensor_check_disjoint(name, output, "the state before", own_input);
}

static mha_status check_states(const mha_linear_attention_desc *d,
                               const mha_linear_attention_outputs *wanted, mhai_linear_problem *p)
{
    if (!d->state_s != !d->state_z)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_linear_attention_desc: set both state_s and state_z, or neither");
    MHA_TRY(check_state("desc.state_s", d->state_s, p, 4, &p->s_before));
    MHA_TRY(check_state("desc.state_z", d->state_z, p, 3, &p->z_before));
    MHA_TRY(check_state("outputs.state_s", wanted->state_s, p, 4, &p->s_after));
    MHA_TRY(check_state("outputs.state_z", wanted->state_z, p, 3, &p->z_after));
    MHA_TRY(mhai_tensor_check_disjoint("o", &p->a.o, "desc.state_s", &p->s_before));
    MHA_TRY(mhai_tensor_check_disjoint("o", &p->a.o, "desc.state_z", &p->z_before));
    MHA_TRY(check_state_output("outputs.state_s", &p->s_after, p, &p->s_before, &p->z_before));
    MHA_TRY(check_state_output("outputs.state_z", &p->z_after, p, &p->z_before, &p->s_before));
    return mhai_tensor_check_disjoint("outputs.state_s", &p->s_after, "outputs.state_z",
                                      &p->z_after);
}

mha_status mhai_linear_check(const mha_linear_attention_desc *desc, const mha_tensor *q,
                             const mha_tensor *k, const mha_tensor *v, const mha_tensor *o,
                             const mha_linear_attention_outputs *outputs, mhai_linear_problem *p)
{
    mha_linear_attention_desc d;
    mha_linear_attention_outputs wanted;
    MHA_TRY(mhai_struct_copy("mha_linear_attention_desc", &d, sizeof d, sizeof d, desc));
    MHA_TRY(mhai_struct_copy("mha_linear_attention_outputs", &wanted, sizeof wanted, sizeof wanted,
                             outputs));
    MHA_TRY(mhai_check_reserved("mha_linear_attention_outputs", wanted.reserved));
    MHA_TRY(check_desc(&d));
    MHA_TRY(check_shapes(&d, q, k, v, o, &p->a));
    p->F = d.feature_dim ? d.feature_dim : p->a.D;
    p->map = d.feature_map ? d.feature_map : mhai_feature_map_elu;
    p->map_user = d.feature_map_user;
    return check_states(&d, &wanted, p);
}

/* ---- memory -------------------------------------------------------------------------------- */

/* Sums over the keys so far. */
typedef struct state {
    float *s; /* panels [Dv/32][F][32] */
    float *z; /* [F] */
} state;

/* Memory of a worker, excluding states. */
typedef struct workspace {
    float *rows;         /* [BLOCK][D] copies of keys or queries */
    float *key_features; /* [BLOCK][F] */
    float *features;     /* of queries: [group][BLOCK][F] (causal) or [BLOCK][F] */
    float *value;        /* [Dv], padded with zeros */
    float *sums;         /* phi(q) S, [group or BLOCK][Dv padded] */
} workspace;

typedef struct linear_job {
    const mhai_linear_problem *p;
    const mhai_kernels *kernels;
    int64_t padded; /* Dv rounded up to panels */
    int64_t query_rows, sum_rows;
    int64_t state_floats, work_floats;
    float *states;  /* one per worker if causal, otherwise one per key/value head */
    float *work;    /* one per worker */
    int64_t blocks; /* query blocks of the longest sequence; only if not causal */
} linear_job;

/* Round up to 16 floats (64 bytes) to keep the parts aligned. */
static bool add_floats(int64_t *total, int64_t a, int64_t b)
{
    int64_t product;
    if (!mhai_mul_i64(a, b, &product) || product > INT64_MAX / 2) return false;
    return mhai_add_i64(*total, mhai_round_up(product, 16), total);
}

static mha_status size_job(linear_job *job)
{
    const mhai_linear_problem *p = job->p;
    const mhai_attn_problem *a = &p->a;
    int64_t s = 0, w = 0;
    bool fits = a->Dv < INT64_MAX - MHAI_PANEL;
    job->padded = fits ? mhai_round_up(a->Dv, MHAI_PANEL) : 0;
    job->query_rows = a->causal ? a->group * BLOCK : BLOCK; /* with T = 0, q may have no heads */
    job->sum_rows = a->causal ? a->group : BLOCK;
    fits = fits && a->group < INT64_MAX / BLOCK && add_floats(&s, job->padded, p->F) &&
           add_floats(&s, p->F, 1) && add_floats(&w, BLOCK, a->D) && add_floats(&w, BLOCK, p->F) &&
           add_floats(&w, job->query_rows, p->F) && add_floats(&w, job->padded, 1) &&
           add_floats(&w, job->sum_rows, job->padded);
    if (!fits)
        return mha_fail(MHA_ERR_SIZE, "a state of %lld features by %lld values does not fit",
                        (long long)p->F, (long long)a->Dv);
    job->state_floats = s;
    job->work_floats = w;
    job->blocks = mhai_ceil_div(a->T, BLOCK);
    return MHA_OK;
}

static float *take(float **at, int64_t floats)
{
    float *part = *at;
    *at += mhai_round_up(floats, 16);
    return part;
}

static workspace workspace_of(const linear_job *job, int worker)
{
    float *at = job->work + worker * job->work_floats;
    workspace w = {0};
    w.rows = take(&at, BLOCK * job->p->a.D);
    w.key_features = take(&at, BLOCK * job->p->F);
    w.features = take(&at, job->query_rows * job->p->F);
    w.value = take(&at, job->padded);
    w.sums = take(&at, job->sum_rows * job->padded);
    return w;
}

static state state_of(const linear_job *job, int64_t index)
{
    float *memory = job->states + index * job->state_floats;
    return (state){memory, memory + mhai_round_up(job->padded * job->p->F, 16)};
}

/* ---- the state ----------------------------------------------------------------------------- */

/* Row i of the caller's S, and the caller's z. */
static float *state_sums(const mha_tensor *z, int64_t b, int64_t hk)
{
    return (float *)z->data + b * z->stride[0] + hk * z->stride[1];
}

static int64_t panel_columns(const linear_job *job, int64_t panel)
{
    return mhai_min_i64(MHAI_PANEL, job->p->a.Dv - panel * MHAI_PANEL);
}

static void load_state(const linear_job *job, int64_t b, int64_t hk, const state *to)
{
    const mhai_linear_problem *p = job->p;
    memset(to->s, 0, (size_t)(job->padded * p->F) * sizeof(float));
    memset(to->z, 0, (size_t)p->F * sizeof(float));
    if (p->s_before.ndim == 0) return;
    for (int64_t panel = 0; panel * MHAI_PANEL < p->a.Dv; panel++)
        for (int64_t i = 0; i < p->F; i++)
            memcpy(to->s + (panel * p->F + i) * MHAI_PANEL,
                   mhai_attn_row(&p->s_before, b, hk, i) + panel * MHAI_PANEL,
                   (size_t)panel_columns(job, panel) * sizeof(float));
    memcpy(to->z, state_sums(&p->z_before, b, hk), (size_t)p->F * sizeof(float));
}

static void save_state(const linear_job *job, int64_t b, int64_t hk, const state *from)
{
    const mhai_linear_problem *p = job->p;
    for (int64_t panel = 0; p->s_after.ndim && panel * MHAI_PANEL < p->a.Dv; panel++)
        for (int64_t i = 0; i < p->F; i++)
            memcpy(mhai_attn_row(&p->s_after, b, hk, i) + panel * MHAI_PANEL,
                   from->s + (panel * p->F + i) * MHAI_PANEL,
                   (size_t)panel_columns(job, panel) * sizeof(float));
    if (p->z_after.ndim)
        memcpy(state_sums(&p->z_after, b, hk), from->z, (size_t)p->F * sizeof(float));
}

/* ---- keys ---------------------------------------------------------------------------------- */

/* Compute the features of rows t .. t+count-1 of head h of q or k. */
static void map_rows(const linear_job *job, const workspace *w, const mha_tensor *x, int64_t batch,
                     int64_t h, int64_t t, int64_t count, float *features)
{
    const mhai_linear_problem *p = job->p;
    for (int64_t r = 0; r < count; r++)
        mhai_widen(x->dtype, mhai_attn_data(x, batch, h, t + r), p->a.D, w->rows + r * p->a.D);
    p->map(p->map_user, w->rows, count, p->a.D, features, p->F);
}

/* S += phi(k) v^T and z += phi(k). */
static void join_key(const linear_job *job, const workspace *w, const state *sums,
                     const float *features, const void *value)
{
    const int64_t F = job->p->F, strip = job->kernels->tile_rows;
    for (int64_t i = 0; i < F; i++) sums->z[i] += features[i];
    mhai_widen(job->p->a.v.dtype, value, job->p->a.Dv, w->value);
    for (int64_t c = 0; c < job->padded; c += MHAI_PANEL)
        for (int64_t i = 0; i < F; i += strip)
            job->kernels->gemm_strip(&(mhai_gemm){.rows = (int)mhai_min_i64(strip, F - i),
                                                  .inner = 1,
                                                  .panels = 1,
                                                  .cols = MHAI_PANEL,
                                                  .x = features + i,
                                                  .x_stride = 1,
                                                  .w = w->value + c,
                                                  .out = sums->s + c * F + i * MHAI_PANEL,
                                                  .out_stride = MHAI_PANEL});
}

/* The state of a walk over the keys of one head in a sequence. */
typedef struct walk {
    mhai_attn_sequence seq;
    int64_t hk;
    int64_t next;   /* the next key to add */
    int64_t mapped; /* end of the keys whose features are computed; they start
                     * at a multiple of BLOCK */
} walk;

static void join_keys(const linear_job *job, const workspace *w, const state *sums, walk *at,
                      int64_t end)
{
    const mhai_attn_problem *a = &job->p->a;
    for (; at->next < end; at->next++) {
        if (at->next == at->mapped) {
            int64_t count = mhai_min_i64(BLOCK, at->seq.S - at->next);
            map_rows(job, w, &a->k, at->seq.batch, at->hk, at->seq.k0 + at->next, count,
                     w->key_features);
            at->mapped += count;
        }
        join_key(job, w, sums, w->key_features + at->next % BLOCK * job->p->F,
                 mhai_attn_data(&a->v, at->seq.batch, at->hk, at->seq.k0 + at->next));
    }
}

/* ---- queries ------------------------------------------------------------------------------- */

/* phi(q) . z with sixteen partial sums, which are then added pairwise. */
static float normalizer(const float *features, const float *z, int64_t n)
{
    float lane[16] = {0};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++) lane[j] += features[i + j] * z[i + j];
    for (int j = 0; i + j < n; j++) lane[j] += features[i + j] * z[i + j];
    for (int half = 8; half > 0; half /= 2)
        for (int j = 0; j < half; j++) lane[j] += lane[j + half];
    return lane[0];
}

static bool all_zero(const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (x[i] != 0) return false; /* NaN is not 0 */
    return true;
}

/* Divide a row in place and write it to o. */
static void write_row(const linear_job *job, const state *sums, const float *features, float *row,
                      void *out)
{
    const int64_t F = job->p->F, Dv = job->p->a.Dv;
    float total = normalizer(features, sums->z, F);
    /* NaN in the features of a query that sees no key has no effect. */
    if (isnan(total) && all_zero(sums->z, F)) total = 0;
    for (int64_t d = 0; d < Dv; d++) row[d] = total == 0 ? 0.0f : row[d] / total;
    mhai_narrow(job->p->a.o.dtype, out, row, Dv);
}

/* Compute the results of some query rows. Row r has its features at r * stride, and its result goes
 * to out + r * out_stride. */
static void compute_rows(const linear_job *job, const workspace *w, const state *sums,
                         const float *features, int64_t stride, int64_t rows, void *out,
                         int64_t out_stride)
{
    const int64_t step = out_stride * (int64_t)mha_dtype_size(job->p->a.o.dtype);
    const int64_t F = job->p->F, strip = job->kernels->tile_rows;
    for (int64_t r = 0; r < rows; r += strip)
        for (int64_t i = 0; i < F && job->padded > 0; i += MHAI_GEMM_BLOCK)
            job->kernels->gemm_strip(&(mhai_gemm){.rows = (int)mhai_min_i64(strip, rows - r),
                                                  .inner = mhai_min_i64(MHAI_GEMM_BLOCK, F - i),
                                                  .panels = job->padded / MHAI_PANEL,
                                                  .cols = job->padded,
                                                  .x = features + r * stride + i,
                                                  .x_stride = stride,
                                                  .w = sums->s + i * MHAI_PANEL,
                                                  .panel_stride = F * MHAI_PANEL,
                                                  .first = i == 0,
                                                  .out = w->sums + r * job->padded,
                                                  .out_stride = job->padded});
    for (int64_t r = 0; r < rows; r++)
        write_row(job, sums, features + r * stride, w->sums + r * job->padded,
                  (char *)out + r * step);
}

/* ---- the call ------------------------------------------------------------------------------ */

/* Causal: process the keys and queries of a key/value head together. */
static void run_causal(void *argument, int64_t item, int worker)
{
    const linear_job *job = argument;
    const mhai_linear_problem *p = job->p;
    const mhai_attn_problem *a = &p->a;
    workspace w = workspace_of(job, worker);
    state sums = state_of(job, worker);
    walk at = {.seq = mhai_attn_sequence_of(a, item / a->Hk), .hk = item % a->Hk};
    int64_t b = at.seq.batch, h = at.hk * a->group;
    memset(w.value, 0, (size_t)job->padded * sizeof(float));
    load_state(job, at.seq.b, at.hk, &sums);
    for (int64_t t = 0; t < at.seq.T; t++) {
        int64_t row = at.seq.q0 + t, in_block = t % BLOCK;
        for (int64_t g = 0; in_block == 0 && g < a->group; g++)
            map_rows(job, &w, &a->q, b, h + g, row, mhai_min_i64(BLOCK, at.seq.T - t),
                     w.features + g * BLOCK * p->F);
        join_keys(job, &w, &sums, &at, mhai_attn_limit(a, &at.seq, t).end);
        compute_rows(job, &w, &sums, w.features + in_block * p->F, BLOCK * p->F, a->group,
                     mhai_attn_data(&a->o, b, h, row), a->o.stride[1]);
    }
    if (p->s_after.ndim || p->z_after.ndim) {
        join_keys(job, &w, &sums, &at, at.seq.S);
        save_state(job, at.seq.b, at.hk, &sums);
    }
}

/* Not causal, first pass: compute the state of a key/value head. */
static void run_keys(void *argument, int64_t item, int worker)
{
    const linear_job *job = argument;
    const mhai_attn_problem *a = &job->p->a;
    workspace w = workspace_of(job, worker);
    state sums = state_of(job, item);
    walk at = {.seq = mhai_attn_sequence_of(a, item / a->Hk), .hk = item % a->Hk};
    memset(w.value, 0, (size_t)job->padded * sizeof(float));
    load_state(job, at.seq.b, at.hk, &sums);
    join_keys(job, &w, &sums, &at, at.seq.S);
    save_state(job, at.seq.b, at.hk, &sums);
}

/* Not causal, second pass: process a block of queries of all heads that share a state. */
static void run_queries(void *argument, int64_t item, int worker)
{
    const linear_job *job = argument;
    const mhai_attn_problem *a = &job->p->a;
    workspace w = workspace_of(job, worker);
    int64_t head = item / job->blocks, t = item % job->blocks * BLOCK;
    state sums = state_of(job, head);
    mhai_attn_sequence seq = mhai_attn_sequence_of(a, head / a->Hk);
    int64_t count = mhai_min_i64(BLOCK, seq.T - t), first = head % a->Hk * a->group;
    for (int64_t h = first; count > 0 && h < first + a->group; h++) {
        map_rows(job, &w, &a->q, seq.batch, h, seq.q0 + t, count, w.features);
        compute_rows(job, &w, &sums, w.features, job->p->F, count,
                     mhai_attn_data(&a->o, seq.batch, h, seq.q0 + t), a->o.stride[2]);
    }
}

static mha_status run(mha_context *context, linear_job *job)
{
    const mhai_attn_problem *a = &job->p->a;
    int64_t heads = a->B * a->Hk, states = a->causal ? context->num_threads : heads, floats, items;
    if (!mhai_mul_i64(states, job->state_floats, &floats) ||
        !mhai_mul_i64(heads, job->blocks, &items))
        return mha_fail(MHA_ERR_SIZE, "%lld states of %lld floats overflow 64 bits",
                        (long long)states, (long long)job->state_floats);
    MHA_TRY(mha_scratch_alloc(context, floats, sizeof(float), &job->states));
    if (!mhai_mul_i64(context->num_threads, job->work_floats, &floats))
        return mha_fail(MHA_ERR_SIZE, "scratch for %d threads overflows", context->num_threads);
    MHA_TRY(mha_scratch_alloc(context, floats, sizeof(float), &job->work));
    mha_parallel_for(context, heads, a->causal ? run_causal : run_keys, job);
    if (!a->causal) mha_parallel_for(context, items, run_queries, job);
    return MHA_OK;
}

mha_status mha_linear_attention_forward(mha_context *context, const mha_linear_attention_desc *desc,
                                        const mha_tensor *q, const mha_tensor *k,
                                        const mha_tensor *v, const mha_tensor *o,
                                        const mha_linear_attention_outputs *outputs)
{
    if (!context) return mha_fail(MHA_ERR_NULL, "mha_linear_attention_forward: context is NULL");
    mhai_linear_problem problem = {0};
    MHA_TRY(mhai_linear_check(desc, q, k, v, o, outputs, &problem));
    linear_job job = {.p = &problem, .kernels = mhai_kernels_for(context->isa)};
    MHA_TRY(size_job(&job));
    mha_scratch_mark mark = mha_scratch_top(context);
    return mha_scratch_end(context, mark, run(context, &job));
}
