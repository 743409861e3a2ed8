/* Statistics over texts: means with confidence intervals, and the choice of
 * heads to measure exactly. */
#include "base/need.h"
#include "base/split_mix.h"

#include <multihead/ablation.h>
#include <multihead/component.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { REPLICATES = 2000, LEAST_REPLICATES = 40 }; /* 40: the outermost ones are 2.5 % each */

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Compute and sort the means of `replicates` bootstrap samples of `count` values. */
static void draw_means(const double *values, int64_t count, int64_t replicates, uint64_t seed,
                       double *means)
{
    uint64_t state = seed;
    for (int64_t i = 0; i < replicates; i++) {
        double sum = 0;
        for (int64_t k = 0; k < count; k++) /* the modulo bias is at most count / 2^64 */
            sum += values[mhai_split_mix(&state) % (uint64_t)count];
        means[i] = sum / (double)count;
    }
    qsort(means, (size_t)replicates, sizeof *means, by_value);
}

static void find_interval(const double *values, int64_t replicates, uint64_t seed, double *means,
                          mha_effect_interval *found)
{
    double sum = 0;
    for (int64_t k = 0; k < found->texts; k++) sum += values[k];
    if (found->texts > 0) found->mean = sum / (double)found->texts;
    if (found->texts < 2) return;
    draw_means(values, found->texts, replicates, seed, means);
    const int64_t out = (replicates - 1) / 40; /* 2.5 % at each end */
    found->low = means[out];
    found->high = means[replicates - 1 - out];
}

mha_status mha_effect_bootstrap(mha_context *context, const double *values, int64_t count,
                                int64_t stride, int64_t replicates, uint64_t seed,
                                mha_effect_interval *interval)
{
    mha_effect_interval found = {NAN, NAN, NAN, 0};
    double *kept, *room;
    MHA_NEED("mha_effect_bootstrap", context, values, interval);
    if (replicates == 0) replicates = REPLICATES;
    if (count < 1 || stride < 1 || replicates < LEAST_REPLICATES)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_effect_bootstrap: count %lld, stride %lld, replicates %lld; expected "
                        "1 or more, 1 or more, %d or more",
                        (long long)count, (long long)stride, (long long)replicates,
                        LEAST_REPLICATES);
    const mha_scratch_mark mark = mha_scratch_top(context);
    mha_status status = mha_scratch_alloc(context, count, sizeof *kept, &kept);
    if (!status) status = mha_scratch_alloc(context, replicates, sizeof *room, &room);
    if (!status) {
        for (int64_t i = 0; i < count; i++)
            if (!isnan(values[i * stride])) kept[found.texts++] = values[i * stride];
        find_interval(kept, replicates, seed, room, &found);
        *interval = found;
    }
    return mha_scratch_end(context, mark, status);
}

/* The unselected head with the largest absolute effect; -1: none. */
static int64_t largest(const double *effects, int64_t heads, int64_t measures, int64_t measure,
                       const int64_t *chosen, int64_t made)
{
    int64_t best = -1;
    for (int64_t h = 0; h < heads; h++) {
        const double size = fabs(effects[h * measures + measure]);
        bool taken = !(size > 0);
        for (int64_t k = 0; k < made && !taken; k++) taken = chosen[k] == h;
        if (!taken && (best < 0 || size > fabs(effects[best * measures + measure]))) best = h;
    }
    return best;
}

mha_status mha_effect_best(const double *effects, int64_t heads, int64_t measures, int64_t wanted,
                           int64_t *chosen, int64_t *made)
{
    MHA_NEED("mha_effect_best", effects, chosen, made);
    if (heads < 0 || wanted < 0 || measures < 1)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_effect_best: %lld heads, %lld measures, %lld wanted; expected 0, 1 "
                        "and 0 or more",
                        (long long)heads, (long long)measures, (long long)wanted);
    int64_t count = 0, empty = 0;
    for (int64_t m = 0; count < wanted && empty < measures; m = (m + 1) % measures) {
        const int64_t head = largest(effects, heads, measures, m, chosen, count);
        if (head >= 0) chosen[count++] = head;
        empty = head >= 0 ? 0 : empty + 1;
    }
    *made = count;
    return MHA_OK;
}
