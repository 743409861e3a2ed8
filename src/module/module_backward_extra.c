/* The gradients of the learned key, bias_k and bias_v, to which every query attends.
 *
 * The backward call of attention used lse and heads with the learned key, so its gradients of the
 * other keys are final. This file adds the learned key's own terms, by the same formulas
 * (backward.h):
 *
 *   w = mhai_exp(score - lse)     ds = w (factor sum g v - delta)       dx = ds (1 - tanh^2) scale
 *   delta = sum g o - dlse
 *   dq += dx k               dk += dx q                            dv += w factor g
 *
 * A work item is a key/value head. Rows are added in order, so the order of the sums is fixed. */
#include "base/checked.h"
#include "base/math.h"
#include "module/module_parts.h"

#include <multihead/component.h>

#include <math.h>
#include <string.h>

typedef struct extra_job {
    const mhai_forward *f;
    const mha_tensor *dheads, *dlse, *dq;
    double scale;
    double *sums; /* [Hk][D + Dv] */
} extra_job;

static double dot(const float *a, const float *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

static void add_row(const extra_job *job, const mhai_module_row *r, int64_t kv_head, double *sums)
{
    const mhai_forward *f = job->f;
    const mha_module_desc *d = &f->module->desc;
    const float *k = f->module->vector[MHAI_BIAS_K] + kv_head * d->head_dim;
    const float *v = f->module->vector[MHAI_BIAS_V] + kv_head * d->value_head_dim;
    const float *q = mhai_module_row_of(&f->at.q, r), *o = mhai_module_row_of(&f->at.heads, r);
    const float *g = mhai_module_row_of(job->dheads, r);
    float *dq = mhai_module_row_of(job->dq, r);
    const double lse = (double)*mhai_module_row_of(&f->lse, r), cap = (double)f->at.desc.softcap;
    const double score = mhai_module_learned_score(f, r);
    const double weight = mhai_exp(score - lse), factor = mhai_module_learned_factor(f, r);
    double delta = dot(g, o, d->value_head_dim);
    if (job->dlse) delta -= (double)*mhai_module_row_of(job->dlse, r);
    double dx = weight * (factor * dot(g, v, d->value_head_dim) - delta);
    if (cap > 0) dx *= 1 - score / cap * (score / cap);
    dx *= job->scale;
    for (int64_t i = 0; i < d->head_dim; i++) {
        dq[i] = (float)((double)dq[i] + dx * (double)k[i]);
        sums[i] += dx * (double)q[i];
    }
    for (int64_t i = 0; i < d->value_head_dim; i++)
        sums[d->head_dim + i] += weight * factor * (double)g[i];
}

static void run_head(void *argument, int64_t kv_head, int worker)
{
    const extra_job *job = argument;
    const mha_module_desc *d = &job->f->module->desc;
    const int64_t group = d->num_heads / d->kv_heads, width = d->head_dim + d->value_head_dim;
    double *sums = job->sums + kv_head * width;
    (void)worker;
    memset(sums, 0, (size_t)width * sizeof(double));
    for (int64_t i = 0; i < job->f->B * job->f->T; i++) {
        mhai_module_row r = mhai_module_row_at(job->f, i);
        for (r.h = kv_head * group; r.h < (kv_head + 1) * group; r.h++)
            add_row(job, &r, kv_head, sums);
    }
}

mha_status mhai_module_extra_backward(mhai_forward *f, const mha_tensor *dheads,
                                      const mha_tensor *dlse, const mha_tensor *dq, float *bias_k,
                                      float *bias_v)
{
    const mha_module_desc *d = &f->module->desc;
    const int64_t width = d->head_dim + d->value_head_dim;
    void *memory;
    if (!(d->flags & MHA_MODULE_BIAS_KV)) return MHA_OK;
    mha_scratch_mark mark = mha_scratch_top(f->context);
    MHA_TRY(mha_scratch_alloc(f->context, d->kv_heads * width, sizeof(double), &memory));
    extra_job job = {f, dheads, dlse, dq, (double)f->at.desc.scale, memory};
    if (job.scale == 0 && !(f->at.desc.flags & MHA_ATTENTION_SCALE_GIVEN))
        job.scale = 1 / sqrt((double)d->head_dim);
    mha_parallel_for(f->context, d->kv_heads, run_head, &job);
    for (int64_t h = 0; h < d->kv_heads; h++) {
        const double *sums = job.sums + h * width;
        for (int64_t i = 0; bias_k && i < d->head_dim; i++)
            bias_k[h * d->head_dim + i] = (float)((double)bias_k[h * d->head_dim + i] + sums[i]);
        for (int64_t i = 0; bias_v && i < d->value_head_dim; i++)
            bias_v[h * d->value_head_dim + i] =
                (float)((double)bias_v[h * d->value_head_dim + i] + sums[d->head_dim + i]);
    }
    mha_scratch_release(f->context, mark);
    return MHA_OK;
}
