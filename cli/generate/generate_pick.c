/* Choosing a token: temperature, top k, top p, min p, in the order of transformers. */
#include "generate/generate.h"

#include "common/random.h"

#include <multihead/component.h>

#include <math.h>
#include <stdlib.h>

/* A number from 0 on below 1 by seed and step. */
static double uniform(uint64_t seed, uint64_t step)
{
    random_source r = {seed * UINT64_C(0xD1342543DE82EF95) + step * UINT64_C(0x9E3779B97F4A7C15)};
    return random_part(&r);
}

/* Most likely first; the lower id among equals. */
static int by_weight(const void *a, const void *b)
{
    const generate_candidate *x = a, *y = b;
    if (x->weight > y->weight) return -1;
    if (x->weight < y->weight) return 1;
    return (x->id > y->id) - (x->id < y->id);
}

/* The first of `kept` sorted candidates whose weights pass the draw. */
static int32_t draw(const generate_candidate *work, int64_t kept, double at)
{
    double sum = 0;
    for (int64_t i = 0; i < kept; i++) {
        sum += work[i].weight;
        if (at < sum) return work[i].id;
    }
    return work[kept - 1].id;
}

bool generate_pick(const generate_how *how, uint64_t step, const float *logits, int64_t count,
                   generate_candidate *work, int32_t *id)
{
    int64_t best = 0, kept = how->top_k > 0 && how->top_k < count ? how->top_k : count;
    for (int64_t i = 0; i < count; i++) {
        if (!isfinite(logits[i])) return false;
        if (logits[i] > logits[best]) best = i;
        work[i] = (generate_candidate){.weight = (double)logits[i], .id = (int32_t)i};
    }
    *id = (int32_t)best;
    if (how->temperature <= 0) return true;
    qsort(work, (size_t)count, sizeof *work, by_weight);
    const double most = work[0].weight;
    double all = 0, sum = 0;
    for (int64_t i = 0; i < kept; i++) {
        work[i].weight = mha_exp((work[i].weight - most) / how->temperature);
        all += work[i].weight;
    }
    int64_t last = 0;
    while (last < kept && (last == 0 || sum < how->top_p * all)) sum += work[last++].weight;
    while (how->min_p > 0 && last > 1 && work[last - 1].weight < how->min_p * work[0].weight)
        sum -= work[--last].weight;
    *id = draw(work, last, uniform(how->seed, step) * sum);
    return true;
}
