/* Keys to which every query attends regardless of masks: a learned key (bias_k, bias_v) and a key
 * of zeros.
 *
 * They have no position, so nothing is added to their scores. The learned key's score is
 * softcap(scale q bias_k); the score of the key of zeros is 0. The key of zeros adds exp(0) to the
 * denominator and nothing to the sum of values. A sink of logit 0 does the same, so the key becomes
 * a sink. The learned key is merged into the results of attention without it, by their log-sum-exp:
 *
 *   lse' = log(exp(lse) + exp(score))     p' = p exp(lse - lse')     o' = o exp(lse - lse') + ...
 *
 * Keys, values and masks are not copied for them, and every kind of mask is supported. */
#include "base/checked.h"
#include "base/context.h"
#include "base/math.h"
#include "base/philox.h"
#include "base/tensor.h"
#include "module/module_parts.h"

#include <multihead/component.h>

#include <math.h>

enum { BLOCK_ROWS = 16 };

int64_t mhai_module_extra_keys(const mha_module *module)
{
    uint32_t flags = module->desc.flags;
    return !!(flags & MHA_MODULE_BIAS_KV) + !!(flags & MHA_MODULE_ZERO_ATTN);
}

/* ---- before attention ---------------------------------------------------------------------- */

static double log_sum(double a, double b) /* log(exp(a) + exp(b)); NaN if either is */
{
    double most = a > b ? a : b, least = a > b ? b : a;
    return most == -INFINITY ? most : most + mhai_log1p(mhai_exp(least - most));
}

/* Add the key with score 0 to the sinks of the call. */
static mha_status add_zero_key(mhai_forward *f)
{
    const int64_t heads = f->module->desc.num_heads;
    const mha_tensor *given = f->at.desc.sink_logits;
    float *sinks;
    MHA_TRY(mhai_module_take(f, heads, sizeof(float), &sinks));
    if (given && !f->measuring)
        MHA_TRY(mhai_tensor_check("sink_logits", given, MHA_F32, 1, &heads));
    for (int64_t h = 0; h < heads && !f->measuring; h++) {
        double sink =
            given ? (double)((const float *)given->data)[h * given->stride[0]] : -INFINITY;
        sinks[h] = (float)log_sum(sink, 0);
    }
    f->sinks = mha_tensor_contiguous(sinks, MHA_F32, 1, &heads);
    f->at.desc.sink_logits = &f->sinks;
    return MHA_OK;
}

mha_status mhai_module_extra_prepare(mhai_forward *f)
{
    const mha_module_desc *d = &f->module->desc;
    if (d->flags & MHA_MODULE_SINKS) {
        f->sinks = mha_tensor_contiguous(f->module->vector[MHAI_SINKS], MHA_F32, 1, &d->num_heads);
        f->at.desc.sink_logits = &f->sinks;
    }
    if (d->flags & MHA_MODULE_ZERO_ATTN) MHA_TRY(add_zero_key(f));
    if (f->extra == 0 || f->at.outputs.lse) return MHA_OK;
    if (!(d->flags & MHA_MODULE_BIAS_KV) && !f->probabilities.ndim) return MHA_OK;
    int64_t rows, count;
    void *memory;
    if (!mhai_mul_i64(f->B, d->num_heads, &rows) || !mhai_mul_i64(rows, f->T, &count))
        return mha_fail(MHA_ERR_SIZE, "lse: the number of elements overflows 64 bits");
    MHA_TRY(mhai_module_take(f, count, sizeof(float), &memory));
    f->lse = mha_tensor_contiguous(memory, MHA_F32, 3, (int64_t[]){f->B, d->num_heads, f->T});
    f->at.outputs.lse = &f->lse;
    return MHA_OK;
}

/* ---- after attention ------------------------------------------------------------------------- */

/* softcap(scale q bias_k); NaN if it is not finite. */
double mhai_module_learned_score(const mhai_forward *f, const mhai_module_row *r)
{
    const mha_module_desc *d = &f->module->desc;
    const float *q = mhai_module_row_of(&f->at.q, r), *k = f->module->vector[MHAI_BIAS_K];
    k += r->h / (d->num_heads / d->kv_heads) * d->head_dim;
    double scale = (double)f->at.desc.scale, cap = (double)f->at.desc.softcap, score = 0;
    if (scale == 0 && !(f->at.desc.flags & MHA_ATTENTION_SCALE_GIVEN))
        scale = 1 / sqrt((double)d->head_dim);
    for (int64_t i = 0; i < d->head_dim; i++) score += (double)q[i] * (double)k[i];
    score *= scale;
    if (!isfinite(score)) return NAN;
    return cap > 0 ? cap * mhai_tanh(score / cap) : score;
}

/* The dropout factor of the learned key's weight. Its key index is always 2^34 - 1, the largest
 * that dropout supports. */
static double dropout_factor(const mhai_forward *f, const mhai_module_row *r)
{
    const double dropout = (double)f->at.desc.dropout;
    const uint64_t seed = f->at.desc.dropout_seed;
    uint32_t word[4];
    if (dropout <= 0) return 1;
    mhai_dropout_words(word, (uint32_t[]){(uint32_t)seed, (uint32_t)(seed >> 32)},
                       (uint32_t)r->sequence, (uint32_t)(f->at.desc.first_head + r->h),
                       (uint32_t)r->query, UINT32_MAX);
    return (double)word[3] < dropout * 4294967296.0 ? 0 : 1 / (1 - dropout);
}

static double gate_of(const mhai_forward *f, const mhai_module_row *r)
{
    const mha_tensor *gates = f->at.desc.gates;
    const int64_t index[2] = {r->sequence, r->h};
    int64_t at = 0;
    for (int i = 0; gates && i < gates->ndim; i++)
        if (gates->shape[i] > 1) at += index[2 - gates->ndim + i] * gates->stride[i];
    return gates ? (double)((const float *)gates->data)[at] : 1;
}

double mhai_module_learned_factor(const mhai_forward *f, const mhai_module_row *r)
{
    return gate_of(f, r) * dropout_factor(f, r);
}

/* o' = keep o + weight gate dropout bias_v. */
static void merge_value(const mhai_forward *f, const mhai_module_row *r, double keep, double weight)
{
    const mha_module_desc *d = &f->module->desc;
    const float *v = f->module->vector[MHAI_BIAS_V];
    v += r->h / (d->num_heads / d->kv_heads) * d->value_head_dim;
    float *o = mhai_module_row_of(&f->at.heads, r);
    weight *= mhai_module_learned_factor(f, r);
    for (int64_t i = 0; i < d->value_head_dim; i++)
        o[i] = (float)((double)o[i] * keep + weight * (double)v[i]) + 0.0f; /* no -0, as in
                                                                             * attention */
}

/* Set p' = keep p, and the additional columns. Masked keys stay 0, even in a row of NaNs. */
static void merge_probabilities(const mhai_forward *f, const mhai_module_row *r, double keep,
                                double weight, double lse)
{
    const uint32_t flags = f->module->desc.flags;
    float *p = mhai_module_row_of(&f->probabilities, r);
    for (int64_t s = 0; s < f->columns && keep != 1; s++)
        if (p[s] != 0) p[s] = (float)((double)p[s] * keep);
    p += f->columns;
    if (flags & MHA_MODULE_BIAS_KV) *p++ = (float)weight;
    if (flags & MHA_MODULE_ZERO_ATTN) *p = (float)mhai_exp(-lse);
}

static void merge_row(const mhai_forward *f, const mhai_module_row *r)
{
    const mha_tensor *x = f->at.outputs.lse;
    float *at = (float *)x->data + r->b * x->stride[0] + r->h * x->stride[1] + r->t * x->stride[2];
    double old = (double)*at, lse = old, keep = 1, weight = 0;
    if (f->module->desc.flags & MHA_MODULE_BIAS_KV) {
        double score = mhai_module_learned_score(f, r);
        lse = log_sum(old, score);
        keep = mhai_exp(old - lse);
        weight = mhai_exp(score - lse);
        merge_value(f, r, keep, weight);
    }
    if (f->probabilities.ndim) merge_probabilities(f, r, keep, weight, lse);
    *at = (float)lse;
}

mhai_module_row mhai_module_row_at(const mhai_forward *f, int64_t i)
{
    const int64_t *starts = f->at.desc.query_starts;
    mhai_module_row r = {.b = i / f->T, .t = i % f->T};
    r.sequence = r.b, r.query = r.t;
    if (starts) {
        while (r.t >= starts[r.sequence + 1]) r.sequence++;
        r.query -= starts[r.sequence];
    }
    return r;
}

static void merge_block(void *argument, int64_t block, int worker)
{
    const mhai_forward *f = argument;
    (void)worker;
    const int64_t end = mhai_min_i64(f->B * f->T, (block + 1) * BLOCK_ROWS);
    for (int64_t i = block * BLOCK_ROWS; i < end; i++) {
        mhai_module_row r = mhai_module_row_at(f, i);
        for (r.h = 0; r.h < f->module->desc.num_heads; r.h++) merge_row(f, &r);
    }
}

void mhai_module_extra_merge(mhai_forward *f)
{
    if (f->extra == 0 || !f->at.outputs.lse) return;
    if (!f->probabilities.ndim && !(f->module->desc.flags & MHA_MODULE_BIAS_KV)) return;
    mha_parallel_for(f->context, mhai_ceil_div(f->B * f->T, BLOCK_ROWS), merge_block, f);
}
