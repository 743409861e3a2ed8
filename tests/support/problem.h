/* Random attention problems: shapes, values, masks, layouts; and memory for results. */
#ifndef TEST_PROBLEM_H
#define TEST_PROBLEM_H

#include "support/guarded.h"

#include <multihead/attention.h>

enum { PROBLEM_MAX_BATCH = 4 };

/* Distributions of the numbers. */
typedef enum problem_values {
    VALUES_NORMAL,  /* standard normal */
    VALUES_LARGE,   /* scores of about +-1e4 */
    VALUES_TINY,    /* products and values in the subnormal range */
    VALUES_HUGE,    /* q and v near the top of the range, scores moderate */
    VALUES_EQUAL,   /* all keys equal: equal weights */
    VALUES_RISING,  /* every key block raises the maximum */
    VALUES_FALLING, /* only the first block raises the maximum */
    VALUES_PEAK,    /* one key outweighs all others */
    VALUES_SPREAD,  /* magnitudes over many decades */
    VALUES_KINDS
} problem_values;

/* Parts of the mask, which can be combined. */
enum {
    MASK_CAUSAL = 1 << 0,  /* with a random offset */
    MASK_OFFSETS = 1 << 1, /* one offset per sequence; implies MASK_CAUSAL */
    MASK_LENGTHS = 1 << 2,
    MASK_KEEP = 1 << 3,
    MASK_BIAS = 1 << 4,
    MASK_ALL = (1 << 5) - 1
};

typedef struct problem_shape {
    int64_t B, H, Hk, T, S, D, Dv;
    problem_values values;
    unsigned masks;
    bool plain_layout; /* everything contiguous */
} problem_shape;

typedef struct problem {
    problem_shape shape;
    char text[320]; /* for messages */
    mha_attention_desc desc;
    guarded q, k, v, keep, bias; /* keep, bias: used only if desc points to them */
    int64_t offsets[PROBLEM_MAX_BATCH], lengths[PROBLEM_MAX_BATCH];
} problem;

/* The problem must not be copied afterwards, because desc points into it. */
void problem_make(problem *p, rng *r, const problem_shape *shape);
void problem_free(problem *p);

/* The results of one call. Outputs that are not requested have view.ndim -1. */
typedef struct outcome {
    guarded o, lse, p;
    bool has_lse, has_p;
} outcome;

enum { OUTCOME_O = 0, OUTCOME_LSE = 1, OUTCOME_P = 2, OUTCOME_ALL = 3 };

outcome outcome_make(rng *r, const problem_shape *shape, unsigned wanted, unsigned layout);
void outcome_free(outcome *x);

mha_status outcome_run(mha_context *context, const mha_attention_desc *desc, const mha_tensor *q,
                       const mha_tensor *k, const mha_tensor *v, outcome *x);

/* Run the problem on the given path. */
mha_status problem_run(mha_context *context, const problem *p, mha_path path, outcome *x);

/* Whether gaps and guards are intact. */
bool outcome_intact(const outcome *x);

/* Whether all common outputs have the same bits. All NaNs are equal if nan_alike. */
bool outcome_same(const outcome *a, const outcome *b, bool nan_alike);

#endif
