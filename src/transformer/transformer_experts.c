/* Feed-forward layers of routed experts. Tokens are grouped by expert, so that each matrix is read
 * once for all tokens of a call. The outputs of a token's experts are added in ascending order of
 * experts, so the result does not depend on other tokens. */
#include "transformer/transformer_call.h"

#include "base/checked.h"
#include "base/math.h"
#include "base/need.h"
#include "nn/matmul.h"

#include <math.h>
#include <string.h>

/* ---- descriptions ---------------------------------------------------------------------------- */

mha_status mhai_experts_check(const mha_transformer_desc *d, mha_experts_desc *x)
{
    static const mha_experts_desc none;
    const uint32_t known = MHA_EXPERTS_GROUP_PAIRS * 2 - 1;
    if (x->count == 0 && memcmp(x, &none, sizeof none) == 0) return MHA_OK;
    if (x->ff_dim == 0) x->ff_dim = d->ff_dim;
    if (x->scale == 0) x->scale = 1;
    if (x->groups == 0) x->groups = 1;
    if (x->groups_used == 0) x->groups_used = 1;
    MHA_TRY(mhai_check_flags("mha_experts_desc", x->flags, known));
    if (x->count < 1 || x->count > MHA_EXPERTS_MOST || x->used < 1 || x->used > x->count)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_experts_desc: %lld of %lld experts are used; expected 1..%d experts, "
                        "and at least one of them used",
                        (long long)x->used, (long long)x->count, MHA_EXPERTS_MOST);
    const int64_t each = x->count / x->groups, least = x->flags & MHA_EXPERTS_GROUP_PAIRS ? 2 : 1;
    if (x->count % x->groups != 0 || (x->groups > 1 && each < least) ||
        x->groups_used > x->groups || x->used > each * x->groups_used)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_experts_desc: groups is %d, groups_used %d; expected a divisor of the "
                        "%lld experts, at least %lld in each group, and %lld or more in the groups "
                        "used",
                        (int)x->groups, (int)x->groups_used, (long long)x->count, (long long)least,
                        (long long)x->used);
    if (x->ff_dim < 1 || x->ff_dim > INT32_MAX || x->shared_dim < 0 || x->shared_dim > INT32_MAX)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_experts_desc: ff_dim is %lld, shared_dim %lld; expected 1..%d and "
                        "0..%d",
                        (long long)x->ff_dim, (long long)x->shared_dim, INT32_MAX, INT32_MAX);
    if (!(x->scale > 0) || isinf(x->scale) || !(x->sum_epsilon >= 0) || isinf(x->sum_epsilon))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_experts_desc: scale is %g, sum_epsilon %g; expected finite numbers, "
                        "above 0 and 0 or more",
                        (double)x->scale, (double)x->sum_epsilon);
    if (x->flags & MHA_EXPERTS_BIAS && (x->shared_dim || x->flags & MHA_EXPERTS_SHARED_GATE))
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "mha_experts_desc: experts with MHA_EXPERTS_BIAS have no shared expert");
    if (d->ff_dim > 0 && mha_feed_forward_gated(d->feed_forward) &&
        !(d->flags & (MHA_TRANSFORMER_BIAS | MHA_TRANSFORMER_FF_BIAS)))
        return MHA_OK;
    return mha_fail(MHA_ERR_UNSUPPORTED, "mha_experts_desc: experts need a gated feed_forward "
                                         "without biases, and an ff_dim of the transformer");
}

mha_status mhai_transformer_dense(const char *function, const mha_transformer *t)
{
    for (int64_t i = 0; i < t->desc.num_layers; i++)
        if (mhai_transformer_experts(&t->desc, i))
            return mha_fail(MHA_ERR_UNSUPPORTED,
                            "%s: layer %lld has routed experts; only transformers without them are "
                            "supported",
                            function, (long long)i);
    return MHA_OK;
}

/* ---- routing --------------------------------------------------------------------------------- */

/* A layer of a call in progress. */
typedef struct layer_job {
    const mhai_call *c;
    const mhai_place_layer *place;
    const mhai_kept_layer *kept;
    const mha_experts_desc *x;
    const float *score_bias; /* NULL: 0 */
    float *y;
    const int64_t *rows; /* indices in chosen of an expert's tokens */
    int64_t E;
} layer_job;

static void to_scores(const mha_experts_desc *x, float *s)
{
    double sum = 0;
    float most = s[0];
    for (int64_t i = 0; i < x->count && x->flags & MHA_EXPERTS_SIGMOID; i++)
        s[i] = (float)mhai_sigmoid((double)s[i]);
    if (x->flags & MHA_EXPERTS_SIGMOID) return;
    for (int64_t i = 1; i < x->count; i++) most = s[i] > most ? s[i] : most;
    for (int64_t i = 0; i < x->count; i++) {
        const double e = mhai_exp((double)s[i] - (double)most);
        s[i] = (float)e;
        sum += e;
    }
    for (int64_t i = 0; i < x->count; i++) s[i] = (float)((double)s[i] / sum);
}

static double key_of(const layer_job *job, const float *s, int64_t i)
{
    return (double)s[i] + (job->score_bias ? (double)job->score_bias[i] : 0);
}

/* The score of the group of experts that begins with this one: its largest key, or the sum of its
 * two largest. */
static double group_score(const layer_job *job, const float *s, int64_t first)
{
    const int64_t each = job->x->count / job->x->groups;
    double most = key_of(job, s, first), next = -INFINITY;
    for (int64_t i = first + 1; i < first + each; i++) {
        const double key = key_of(job, s, i);
        next = fmax(next, fmin(key, most));
        most = fmax(most, key);
    }
    return job->x->flags & MHA_EXPERTS_GROUP_PAIRS ? most + next : most;
}

/* Whether fewer than groups_used groups have a larger score than that of expert i; the first of equal
 * ones wins. */
static bool eligible(const layer_job *job, const float *s, int64_t i)
{
    const int64_t each = job->x->count / job->x->groups, own = i / each;
    int64_t better = 0;
    if (job->x->groups_used == job->x->groups) return true;
    const double score = group_score(job, s, own * each);
    for (int64_t g = 0; g < job->x->groups; g++) {
        const double other = group_score(job, s, g * each);
        better += g < own ? other >= score : other > score;
    }
    return better < job->x->groups_used;
}

/* Choose the experts with the largest keys. During the search they are sorted by key, afterwards by
 * index. */
static void choose(const layer_job *job, const float *s, int32_t *chosen)
{
    const int64_t used = job->x->used, each = job->x->count / job->x->groups;
    int64_t n = 0;
    for (int64_t i = 0; i < job->x->count; i++) {
        const double key = key_of(job, s, i);
        if (i % each == 0 && !eligible(job, s, i)) {
            i += each - 1;
            continue;
        }
        if (n == used && !(key > key_of(job, s, chosen[n - 1]))) continue;
        int64_t at = n < used ? n++ : n - 1;
        for (; at > 0 && key > key_of(job, s, chosen[at - 1]); at--) chosen[at] = chosen[at - 1];
        chosen[at] = (int32_t)i;
    }
    for (int64_t k = 1; k < used; k++) {
        const int32_t expert = chosen[k];
        int64_t at = k;
        for (; at > 0 && chosen[at - 1] > expert; at--) chosen[at] = chosen[at - 1];
        chosen[at] = expert;
    }
}

static void route_row(void *argument, int64_t row, int worker)
{
    const layer_job *job = argument;
    const mha_experts_desc *x = job->x;
    const mhai_kept_experts *kept = &job->kept->experts;
    const int64_t width = job->place->router.outputs;
    float *s = kept->scores + row * width, *weights = kept->weights + row * x->used;
    int32_t *chosen = kept->chosen + row * x->used;
    double sum = 0;
    (void)worker;
    to_scores(x, s);
    if (width > x->count) s[x->count] = (float)mhai_sigmoid((double)s[x->count]);
    choose(job, s, chosen);
    for (int64_t k = 0; k < x->used; k++) sum += (double)s[chosen[k]];
    const double divisor = x->flags & MHA_EXPERTS_NORMALISED ? sum + (double)x->sum_epsilon : 1;
    for (int64_t k = 0; k < x->used; k++)
        weights[k] = (float)((double)s[chosen[k]] / divisor * (double)x->scale);
}

/* ---- experts --------------------------------------------------------------------------------- */

/* Multiply by a matrix of one expert. It is read in place and never packed. */
static mha_status multiply(const layer_job *job, int64_t parameter, const float *bias,
                           const float *from, int64_t rows, int64_t inputs, int64_t outputs,
                           float *to)
{
    const mha_transformer *t = job->c->t;
    const mhai_rows source = {.read = mhai_transformer_read_matrix,
                              .read_coded = mhai_transformer_read_coded,
                              .stored = mhai_transformer_find_rows,
                              .user = t,
                              .at = parameter,
                              .compute = t->source.compute};
    const mhai_matmul product = {.rows = rows,
                                 .inner = inputs,
                                 .cols = outputs,
                                 .a = from,
                                 .a_stride = inputs,
                                 .bias = bias,
                                 .c = to,
                                 .c_stride = outputs};
    return mhai_matmul_run_rows(job->c->context, &product, &source);
}

static void gather_row(void *argument, int64_t i, int worker)
{
    const layer_job *job = argument;
    const int64_t token = job->rows[i] / job->x->used;
    (void)worker;
    memcpy(job->kept->experts.in + i * job->E, job->kept->ff.in + token * job->E,
           (size_t)job->E * sizeof(float));
}

static void add_row(void *argument, int64_t i, int worker)
{
    const layer_job *job = argument;
    const float weight = job->kept->experts.weights[job->rows[i]];
    const float *from = job->kept->experts.out + i * job->E;
    float *to = job->y + job->rows[i] / job->x->used * job->E;
    (void)worker;
    for (int64_t e = 0; e < job->E; e++) to[e] += weight * from[e];
}

/* The biases [2 F + E] of an expert: of gate and up, then of down. NULL if it has none. */
static const float *biases_of(const layer_job *job, int64_t expert)
{
    if (!(job->x->flags & MHA_EXPERTS_BIAS)) return NULL;
    return mhai_transformer_numbers(job->c->t, job->place->expert_biases) +
           expert * (2 * job->x->ff_dim + job->E);
}

static mha_status run_expert(layer_job *job, int64_t expert, int64_t count)
{
    const int64_t F = job->x->ff_dim, at = job->place->experts + 3 * expert;
    const mhai_kept_layer *kept = job->kept;
    const float *bias = biases_of(job, expert);
    mha_parallel_for(job->c->context, count, gather_row, job);
    MHA_TRY(multiply(job, at, bias, kept->experts.in, count, job->E, 2 * F, kept->up));
    MHA_TRY(mhai_call_gated(job->c, count, F, kept->up, kept->act));
    MHA_TRY(multiply(job, at + 2, bias ? bias + 2 * F : NULL, kept->act, count, F, job->E,
                     kept->experts.out));
    mha_parallel_for(job->c->context, count, add_row, job);
    return MHA_OK;
}

/* Write the shared expert's output, or 0. */
static mha_status run_shared(const layer_job *job)
{
    const int64_t rows = mhai_tokens(job->c->a), F = job->x->shared_dim;
    const int64_t width = job->place->router.outputs, count = job->x->count;
    const mhai_kept_layer *kept = job->kept;
    if (F == 0) {
        memset(job->y, 0, (size_t)(rows * job->E) * sizeof *job->y);
        return MHA_OK;
    }
    MHA_TRY(mhai_call_project(job->c, &job->place->up, MHA_ACTIVATION_NONE, kept->ff.in, rows,
                              kept->up));
    MHA_TRY(mhai_call_gated(job->c, rows, F, kept->up, kept->act));
    MHA_TRY(
        mhai_call_project(job->c, &job->place->down, MHA_ACTIVATION_NONE, kept->act, rows, job->y));
    for (int64_t i = 0; i < rows * job->E && width > count; i++)
        job->y[i] *= kept->experts.scores[i / job->E * width + count];
    return MHA_OK;
}

mha_status mhai_experts_run(const mhai_call *c, int64_t layer, float *y)
{
    const int64_t rows = mhai_tokens(c->a);
    layer_job job = {.c = c,
                     .place = &c->t->layers[layer],
                     .kept = &c->a->layers[layer],
                     .x = mhai_transformer_experts(&c->t->desc, layer),
                     .y = y,
                     .E = c->t->desc.embed_dim};
    const mhai_kept_experts *kept = &job.kept->experts;
    if (job.x->flags & MHA_EXPERTS_SCORE_BIAS)
        job.score_bias = mhai_transformer_numbers(c->t, job.place->score_bias);
    job.rows = kept->rows;
    MHA_TRY(mhai_call_project(c, &job.place->router, MHA_ACTIVATION_NONE, job.kept->ff.in, rows,
                              kept->scores));
    mha_parallel_for(c->context, rows, route_row, &job);
    MHA_TRY(run_shared(&job));
    for (int64_t expert = 0; expert < job.x->count; expert++) {
        int64_t count = 0;
        for (int64_t i = 0; i < rows * job.x->used; i++)
            if (kept->chosen[i] == expert) kept->rows[count++] = i;
        if (count > 0) MHA_TRY(run_expert(&job, expert, count));
    }
    return MHA_OK;
}
