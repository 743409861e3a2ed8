/* Exact sums of doubles: the sum is exact in any order, and rounded once. */
#include "support/rng.h"
#include "support/suite.h"

#include "analysis/exact_sum.h"

enum { TERMS = 200 };

static double sum_of(const double *terms, int count)
{
    mhai_exact sum = {{0}};
    for (int i = 0; i < count; i++) mhai_exact_add(&sum, terms[i]);
    return mhai_exact_value(&sum);
}

/* Doubles of magnitude 2^-75 .. 2^90 and both signs. */
static double some(rng *r)
{
    const double size =
        ldexp(1 + (double)(rng_next(r) >> 12) * 0x1p-52, (int)rng_between(r, -75, 90));
    return rng_chance(r, 0.5) ? size : -size;
}

static void test_one_term(void)
{
    rng r = rng_make(rng_run_seed(), 1);
    assert_true(sum_of(NULL, 0) == 0 && sum_of((double[]){0}, 1) == 0);
    for (int i = 0; i < 2000; i++) {
        const double term = some(&r);
        assert_true(sum_of(&term, 1) == term);
    }
    assert_true(sum_of((double[]){0x1p-128}, 1) == 0x1p-128);
    assert_true(sum_of((double[]){0x1.8p-128}, 1) == 0x1p-128); /* truncated */
    assert_true(sum_of((double[]){0x1p-1074}, 1) == 0);
}

/* All terms and their negatives, shuffled, except one. */
static void test_nothing_is_lost(void)
{
    for (int n = 0; n < 50; n++) {
        rng r = rng_make(rng_run_seed(), 100 + (uint64_t)n);
        double terms[2 * TERMS];
        for (int i = 0; i < TERMS; i++) terms[2 * i] = some(&r), terms[2 * i + 1] = -terms[2 * i];
        const double left = terms[0];
        terms[1] = 0;
        for (int i = 2 * TERMS - 1; i > 0; i--) {
            const int other = (int)rng_between(&r, 0, i);
            const double kept = terms[i];
            terms[i] = terms[other];
            terms[other] = kept;
        }
        mhai_exact parts[2] = {{{0}}, {{0}}};
        for (int i = 0; i < 2 * TERMS; i++) mhai_exact_add(&parts[i % 3 == 0], terms[i]);
        mhai_exact_join(&parts[0], &parts[1]);
        assert_true(mhai_exact_value(&parts[0]) == left && sum_of(terms, 2 * TERMS) == left);
    }
}

static void test_rounds_to_even(void)
{
    for (int sign = -1; sign <= 1; sign += 2)
        for (int e = -70; e <= 40; e++) {
            const double unit = ldexp(sign, e), big = unit * 0x1p53;
            assert_true(sum_of((double[]){big, unit}, 2) == big);
            assert_true(sum_of((double[]){big, unit, unit * 0x1p-50}, 3) == big + 2 * unit);
            assert_true(sum_of((double[]){big, unit, unit * -0x1p-50}, 3) == big);
            assert_true(sum_of((double[]){big, 2 * unit, unit}, 3) == big + 4 * unit);
            assert_true(sum_of((double[]){big, unit, unit, unit, unit}, 5) == big + 4 * unit);
        }
}

RUN_TESTS(TEST(test_one_term), TEST(test_nothing_is_lost), TEST(test_rounds_to_even))
