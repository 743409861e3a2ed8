/* Sampling of the next token: temperature, top-k, top-p, min-p (sampling.h). */
#include "base/need.h"
#include "base/split_mix.h"

#include <multihead/component.h>
#include <multihead/sampling.h>

#include <math.h>
#include <stdlib.h>

/* A candidate token; weight is its logit, then exp(logit - largest). */
typedef struct candidate {
    double weight;
    int32_t token;
} candidate;

/* A number in [0, 1) that depends only on seed and step. */
static double uniform(uint64_t seed, uint64_t step)
{
    uint64_t state = seed * UINT64_C(0xD1342543DE82EF95) + step * UINT64_C(0x9E3779B97F4A7C15);
    return (double)(mhai_split_mix(&state) >> 11) * 0x1p-53;
}

/* Highest weight first; ties go to the lower token. */
static int by_weight(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->weight > y->weight) return -1;
    if (x->weight < y->weight) return 1;
    return (x->token > y->token) - (x->token < y->token);
}

/* The first of `kept` sorted candidates at which the cumulative weight exceeds the draw. */
static int32_t draw(const candidate *all, int64_t kept, double at)
{
    double sum = 0;
    for (int64_t i = 0; i < kept; i++) {
        sum += all[i].weight;
        if (at < sum) return all[i].token;
    }
    return all[kept - 1].token;
}

static int32_t sample(const mha_sampling *how, uint64_t step, const float *logits, int64_t count,
                      candidate *all)
{
    int64_t kept = how->top_k > 0 && how->top_k < count ? how->top_k : count, last = 0;
    double total = 0, sum = 0;
    for (int64_t i = 0; i < count; i++)
        all[i] = (candidate){.weight = (double)logits[i], .token = (int32_t)i};
    qsort(all, (size_t)count, sizeof *all, by_weight);
    const double most = all[0].weight;
    for (int64_t i = 0; i < kept; i++) {
        all[i].weight = mha_exp((all[i].weight - most) / how->temperature);
        total += all[i].weight;
    }
    while (last < kept && (last == 0 || sum < how->top_p * total)) sum += all[last++].weight;
    while (last > 1 && all[last - 1].weight < how->min_p * all[0].weight) sum -= all[--last].weight;
    return draw(all, last, uniform(how->seed, step) * sum);
}

static mha_status find_largest(const float *logits, int64_t count, int32_t *best)
{
    int64_t at = 0;
    for (int64_t i = 0; i < count; i++) {
        if (!isfinite(logits[i]))
            return mha_fail(MHA_ERR_NUMERIC, "logits[%lld] is not finite", (long long)i);
        if (logits[i] > logits[at]) at = i;
    }
    *best = (int32_t)at;
    return MHA_OK;
}

static mha_status check(mha_sampling *how)
{
    MHA_TRY(mhai_check_reserved("mha_sampling", how->reserved));
    if (!(how->temperature >= 0) || !isfinite(how->temperature))
        return mha_fail(MHA_ERR_ARGUMENT, "temperature is %g; expected a finite number from 0",
                        how->temperature);
    if (how->top_k < 0)
        return mha_fail(MHA_ERR_ARGUMENT, "top_k is %lld; expected a number from 0 (all)",
                        (long long)how->top_k);
    if (!(how->top_p >= 0 && how->top_p <= 1) || !(how->min_p >= 0 && how->min_p <= 1))
        return mha_fail(MHA_ERR_ARGUMENT, "top_p is %g, min_p %g; expected 0 to 1", how->top_p,
                        how->min_p);
    if (how->top_p == 0) how->top_p = 1;
    return MHA_OK;
}

mha_status mha_sample_token(mha_context *context, const mha_sampling *sampling, uint64_t step,
                            const float *logits, int64_t count, int32_t *token)
{
    mha_sampling how = {.struct_size = sizeof how};
    void *room;
    int32_t best = 0;
    MHA_NEED("mha_sample_token", context, logits, token);
    if (count < 1 || count > INT32_MAX)
        return mha_fail(MHA_ERR_ARGUMENT, "count is %lld; expected 1 to 2147483647",
                        (long long)count);
    if (sampling) MHA_TRY(mhai_struct_copy("mha_sampling", &how, sizeof how, sizeof how, sampling));
    MHA_TRY(check(&how));
    MHA_TRY(find_largest(logits, count, &best));
    if (how.temperature > 0) {
        const mha_scratch_mark mark = mha_scratch_top(context);
        MHA_TRY(mha_scratch_alloc(context, count, sizeof(candidate), &room));
        best = sample(&how, step, logits, count, room);
        mha_scratch_release(context, mark);
    }
    *token = best;
    return MHA_OK;
}
