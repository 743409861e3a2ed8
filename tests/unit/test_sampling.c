/* Sampling a token: the candidates, their frequencies, the draw as a function of seed and step, and misuse. */
#include "support/expect.h"
#include "support/rng.h"
#include "support/shared_context.h"
#include "support/suite.h"

#include <multihead/sampling.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 40, DRAWS = 20000 };

/* The definition, by ranks instead of a sort: kept[i] is the probability of token i among the
 * candidates. */
static void define(const mha_sampling *s, const float *logits, int count, double *kept)
{
    double p[MOST], sum = 0, before[MOST], most = 0, left = 0;
    int rank[MOST];
    for (int i = 0; i < count; i++) {
        rank[i] = 0;
        for (int j = 0; j < count; j++)
            rank[i] += logits[j] > logits[i] || (logits[j] == logits[i] && j < i);
        const bool in = s->top_k == 0 || rank[i] < s->top_k;
        p[i] = in ? exp((double)logits[i] / s->temperature) : 0;
        sum += p[i];
    }
    for (int i = 0; i < count; i++) {
        before[i] = 0;
        for (int j = 0; j < count; j++)
            if (rank[j] < rank[i]) before[i] += p[j] / sum;
        if (p[i] / sum > most) most = p[i] / sum;
    }
    for (int i = 0; i < count; i++) {
        const double top_p = s->top_p > 0 ? s->top_p : 1;
        const bool in = before[i] < top_p && p[i] / sum >= s->min_p * most;
        kept[i] = rank[i] == 0 || in ? p[i] : 0;
        left += kept[i];
    }
    for (int i = 0; i < count; i++) kept[i] /= left;
}

/* Among DRAWS draws, the count of a token of probability p has the standard deviation sqrt(DRAWS p
 * (1 - p)). The count is beyond six deviations with a probability of 2e-9. The draws are the same
 * each time. */
static void check_counts(const mha_sampling *s, const float *logits, int count)
{
    int counts[MOST] = {0};
    double kept[MOST];
    define(s, logits, count, kept);
    for (int step = 0; step < DRAWS; step++) {
        int32_t token = -1;
        expect_ok(mha_sample_token(context_with(1), s, (uint64_t)step, logits, count, &token));
        assert_in_range(token, 0, count - 1);
        counts[token]++;
    }
    for (int i = 0; i < count; i++) {
        const double expected = DRAWS * kept[i];
        if (kept[i] == 0)
            assert_int_equal(counts[i], 0);
        else
            assert_true(fabs(counts[i] - expected) <= 6 * sqrt(expected * (1 - kept[i])) + 1);
    }
}

static void draws_have_their_probabilities(void)
{
    const float logits[] = {0.3f, 2, -1, 2, 1.7f, -3, 0.9f};
    const mha_sampling cases[] = {
        {.temperature = 1},
        {.temperature = 0.5, .seed = 7},
        {.temperature = 3, .top_k = 4},
        {.temperature = 1, .top_p = 0.6, .seed = UINT64_MAX},
        {.temperature = 1, .min_p = 0.2},
        {.temperature = 2, .top_k = 5, .top_p = 0.8, .min_p = 0.5},
        {.temperature = 1, .top_k = 1},
        {.temperature = 1, .top_p = 1e-12},
        {.temperature = 1, .min_p = 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mha_sampling s = cases[i];
        s.struct_size = sizeof s;
        check_counts(&s, logits, 7);
    }
}

static void without_temperature_the_first_largest(void)
{
    rng r = rng_make(rng_run_seed(), 0);
    for (int n = 0; n < 200; n++) {
        float logits[MOST];
        const int count = (int)rng_between(&r, 1, MOST);
        int best = 0;
        for (int i = 0; i < count; i++) logits[i] = (float)rng_between(&r, -3, 3);
        for (int i = 1; i < count; i++)
            if (logits[i] > logits[best]) best = i;
        int32_t token = -1;
        const mha_sampling s = {.struct_size = sizeof s, .seed = (uint64_t)n, .top_k = 3};
        expect_ok(mha_sample_token(context_with(1), n % 2 ? &s : NULL, 3, logits, count, &token));
        assert_int_equal(token, best);
    }
}

static void extreme_logits(void)
{
    const float logits[] = {-3e38f, 3e38f, 0};
    const mha_sampling s = {.struct_size = sizeof s, .temperature = 1};
    int32_t token = -1;
    expect_ok(mha_sample_token(context_with(1), &s, 0, logits, 3, &token));
    assert_int_equal(token, 1);
}

static void misuse_is_refused(void)
{
    float logits[] = {1, 2};
    int32_t token = 99;
    mha_context *context = context_with(1);
    mha_sampling s = {.struct_size = sizeof s, .temperature = 1};
#define CALL mha_sample_token(context, &s, 0, logits, 2, &token)
    expect_spoiled(s, CALL, MHA_ERR_ARGUMENT, "temperature", s.temperature = -1);
    expect_spoiled(s, CALL, MHA_ERR_ARGUMENT, "temperature", s.temperature = NAN);
    expect_spoiled(s, CALL, MHA_ERR_ARGUMENT, "temperature", s.temperature = INFINITY);
    expect_spoiled(s, CALL, MHA_ERR_ARGUMENT, "top_k", s.top_k = -1);
    expect_spoiled(s, CALL, MHA_ERR_ARGUMENT, "top_p", s.top_p = 1.5);
    expect_spoiled(s, CALL, MHA_ERR_ARGUMENT, "top_p", s.top_p = NAN);
    expect_spoiled(s, CALL, MHA_ERR_ARGUMENT, "min_p", s.min_p = -0.1);
    expect_spoiled(s, CALL, MHA_ERR_UNSUPPORTED, "reserved", s.reserved = 1);
    expect_spoiled(s, CALL, MHA_ERR_ARGUMENT, "struct_size", s.struct_size = 3);
    expect_spoiled(logits, CALL, MHA_ERR_NUMERIC, "logits[1]", logits[1] = NAN);
    expect_spoiled(logits, CALL, MHA_ERR_NUMERIC, "logits[0]", logits[0] = -INFINITY);
    expect_error(mha_sample_token(NULL, &s, 0, logits, 2, &token), MHA_ERR_NULL, "NULL");
    expect_error(mha_sample_token(context, &s, 0, NULL, 2, &token), MHA_ERR_NULL, "NULL");
    expect_error(mha_sample_token(context, &s, 0, logits, 2, NULL), MHA_ERR_NULL, "NULL");
    expect_error(mha_sample_token(context, &s, 0, logits, 0, &token), MHA_ERR_ARGUMENT, "count");
    expect_error(mha_sample_token(context, &s, 0, logits, INT64_C(1) << 31, &token),
                 MHA_ERR_ARGUMENT, "count");
    assert_int_equal(token, 99);
#undef CALL
}

RUN_TESTS(TEST(draws_have_their_probabilities), TEST(without_temperature_the_first_largest),
          TEST(extreme_logits), TEST(misuse_is_refused))
