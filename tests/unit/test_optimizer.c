/* Steps of AdamW and SGD, compared with the formulas in double within bounds of the roundings; the
 * gradient's norm, the schedule, bits and misuse. */
#include "support/expect.h"
#include "support/machines.h"
#include "support/rng.h"
#include "support/suite.h"
#include "support/tally.h"

#include <multihead/optimizer.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double u = 0x1p-24;
enum { COUNT = 9000 }; /* three pieces, the last one partial */

static float *numbers(rng *r, double factor, bool positive)
{
    float *x = malloc(COUNT * sizeof *x);
    assert_non_null(x);
    for (int i = 0; i < COUNT; i++) {
        float value = (float)((double)rng_normal(r) * factor);
        x[i] = positive ? fabsf(value) : value;
    }
    return x;
}

static float *copy_of(const float *x)
{
    float *copy = malloc(COUNT * sizeof *copy);
    assert_non_null(copy);
    return memcpy(copy, x, COUNT * sizeof *copy);
}

static mha_adamw some_adamw(rng *r)
{
    return (mha_adamw){.struct_size = sizeof(mha_adamw),
                       .learning_rate = rng_uniform(r) * 0.1,
                       .beta1 = 0.8 + 0.15 * rng_uniform(r),
                       .beta2 = 0.9 + 0.0999 * rng_uniform(r),
                       .epsilon = rng_chance(r, 0.3) ? 0 : 1e-6,
                       .weight_decay = rng_chance(r, 0.5) ? 0 : 0.1,
                       .gradient_scale = rng_chance(r, 0.5) ? 0 : rng_uniform(r),
                       .step = rng_between(r, 1, 5000)};
}

/* g has 2 roundings (scale and product), so the error of m is at most 4 u of each term, and the
 * error of v at most 7 u. The root halves the error; with its factor and the addition, the
 * divisor's error is at most 7 u. Rate, product and quotient add 4 u, 1 - rate decay adds 2 u, and
 * the difference 1 u. */
static void adamw(void)
{
    tally t = {.name = "AdamW"};
    for (int i = 0; i < rng_cases(20, 300); i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)i);
        mha_adamw s = some_adamw(&r);
        float *p = numbers(&r, 1, false), *g = numbers(&r, 0.1, false);
        float *m = numbers(&r, 0.1, false), *v = numbers(&r, 0.01, true);
        float *p0 = copy_of(p), *m0 = copy_of(m), *v0 = copy_of(v);
        float *rates = numbers(&r, 1, true);
        if (rng_chance(&r, 0.5)) s.rates = rates;
        expect_ok(mha_adamw_step(machines_context(3, i), &s, COUNT, p, g, m, v));
        double scale = s.gradient_scale == 0 ? 1 : s.gradient_scale;
        double epsilon = s.epsilon == 0 ? 1e-8 : s.epsilon;
        double first = 1 - pow(s.beta1, (double)s.step), second = 1 - pow(s.beta2, (double)s.step);
        for (int k = 0; k < COUNT; k++) {
            double gk = (double)g[k] * scale, old_m = s.beta1 * (double)m0[k];
            double new_m = old_m + (1 - s.beta1) * gk;
            double size_m = fabs(old_m) + (1 - s.beta1) * fabs(gk);
            double new_v = s.beta2 * (double)v0[k] + (1 - s.beta2) * gk * gk;
            double divisor = sqrt(new_v / second) + epsilon;
            double move = s.learning_rate / first * new_m / divisor;
            double kept = (double)p0[k] * (1 - s.learning_rate * s.weight_decay);
            double bound = 11 * u * fabs(move) +
                           4 * u * size_m * s.learning_rate / first / divisor + 3 * u * fabs(kept) +
                           u * fabs(kept - move);
            double exact = kept - move, rate = s.rates ? (double)rates[k] : 1;
            if (s.rates) { /* the difference, its product and the sum are rounded */
                exact = (double)p0[k] + rate * (exact - (double)p0[k]);
                bound = rate * (bound + u * fabs(move)) +
                        2 * u * rate * fabs(kept - (double)p0[k]) + 3 * u * rate * fabs(move) +
                        u * fabs(exact) + 2 * u * rate * fabs(kept);
            }
            if (!tally_compare(&t, (double)m[k], new_m, 4 * u * size_m) ||
                !tally_compare(&t, (double)v[k], new_v, 7 * u * new_v) ||
                !tally_compare(&t, (double)p[k], exact, bound))
                fail_msg("case %d, parameter %d: p %g m %g v %g", i, k, (double)p[k], (double)m[k],
                         (double)v[k]);
        }
        free(p), free(g), free(m), free(v), free(p0), free(m0), free(v0), free(rates);
    }
    tally_judge(&t);
}

static void sgd(void)
{
    tally t = {.name = "SGD"};
    for (int i = 0; i < 20; i++) {
        rng r = rng_make(rng_run_seed(), 500 + (uint64_t)i);
        mha_sgd s = {.struct_size = sizeof s,
                     .learning_rate = rng_uniform(&r),
                     .momentum = rng_chance(&r, 0.5) ? 0.9 : 0,
                     .weight_decay = rng_chance(&r, 0.5) ? 0.1 : 0,
                     .gradient_scale = rng_chance(&r, 0.5) ? 0.5 : 0};
        float *p = numbers(&r, 1, false), *g = numbers(&r, 1, false), *v = numbers(&r, 1, false);
        float *p0 = copy_of(p), *v0 = copy_of(v);
        expect_ok(mha_sgd_step(machines_context(3, i), &s, COUNT, p, g, v));
        double scale = s.gradient_scale == 0 ? 1 : s.gradient_scale;
        for (int k = 0; k < COUNT; k++) {
            double gk = (double)g[k] * scale + s.weight_decay * (double)p0[k];
            double size = fabs((double)g[k] * scale) + s.weight_decay * fabs((double)p0[k]);
            double velocity = s.momentum * (double)v0[k] + gk;
            size += s.momentum * fabs((double)v0[k]);
            double exact = (double)p0[k] - s.learning_rate * velocity;
            double bound = 7 * u * s.learning_rate * size + u * fabs(exact);
            if (!tally_compare(&t, (double)p[k], exact, bound)) fail_msg("parameter %d", k);
            assert_true(s.momentum > 0 || v[k] == v0[k]);
        }
        free(p), free(g), free(v), free(p0), free(v0);
    }
    tally_judge(&t);
}

/* Steps and norms are bit-identical for any number of threads, and a step in two parts equals a
 * single step. */
static void threads_and_parts_change_no_bit(void)
{
    float *p[3], *m[3], *v[3];
    double norm[3];
    for (int j = 0; j < 3; j++) {
        machines all = machines_make(j == 0 ? 1 : j == 1 ? 2 : 8);
        mha_context *context = all.each[0].context;
        rng r = rng_make(rng_run_seed(), 900);
        mha_adamw s = some_adamw(&r);
        float *g = numbers(&r, 1, false);
        p[j] = numbers(&r, 1, false), m[j] = numbers(&r, 1, false), v[j] = numbers(&r, 1, true);
        int64_t part = j == 2 ? 4100 : COUNT;
        expect_ok(mha_adamw_step(context, &s, part, p[j], g, m[j], v[j]));
        expect_ok(mha_adamw_step(context, &s, COUNT - part, p[j] + part, g + part, m[j] + part,
                                 v[j] + part));
        expect_ok(mha_gradient_norm(context, COUNT, g, &norm[j]));
        double sum = 0;
        for (int k = 0; k < COUNT; k++) sum += (double)g[k] * (double)g[k];
        assert_true(fabs(norm[j] - sqrt(sum)) < 1e-12 * sqrt(sum));
        assert_true(norm[j] == norm[0]);
        assert_memory_equal(p[j], p[0], COUNT * sizeof(float));
        assert_memory_equal(m[j], m[0], COUNT * sizeof(float));
        free(g);
    }
    for (int j = 0; j < 3; j++) free(p[j]), free(m[j]), free(v[j]);
}

static double rate_at(const mha_schedule *s, int64_t step)
{
    double rate = -1;
    expect_ok(mha_learning_rate(s, step, &rate));
    return rate;
}

static void rates_follow_the_schedule(void)
{
    mha_schedule s = {.struct_size = sizeof s, .peak = 0.01, .warm_up = 50, .decay = 950};
    s.floor = 0.1;
    assert_true(fabs(rate_at(&s, 1) - 0.01 / 50) < 1e-16);
    assert_true(rate_at(&s, 50) == 0.01);
    for (int64_t step = 51; step <= 2000; step++) {
        double x = step < 1000 ? (double)(step - 50) / 950 : 1;
        double exact = 0.01 * (0.1 + 0.9 * (1 + cos(3.141592653589793 * x)) / 2);
        assert_true(fabs(rate_at(&s, step) - exact) < 1e-16);
    }
    s.decay = s.warm_up = 0;
    assert_true(rate_at(&s, 1) == 0.01 && rate_at(&s, INT64_MAX) == 0.01);
    double rate = 7;
    expect_error(mha_learning_rate(&s, 0, &rate), MHA_ERR_ARGUMENT, "step is 0");
    s.floor = 2;
    expect_error(mha_learning_rate(&s, 1, &rate), MHA_ERR_ARGUMENT, "floor is 2, expected 0..1");
    assert_true(rate == 7);
}

static void misuse_is_refused(void)
{
    mha_context *x = machines_context(1, 0);
    float p[4] = {1, 2, 3, 4}, g[4] = {1, 1, 1, 1}, m[4] = {0}, v[4] = {0};
    mha_adamw s = {.struct_size = sizeof s, .learning_rate = 0.1, .step = 1};
#define ROW(...) expect_spoiled(s, mha_adamw_step(x, &s, 4, p, g, m, v), __VA_ARGS__)
    expect_error(mha_adamw_step(NULL, &s, 4, p, g, m, v), MHA_ERR_NULL, "context");
    expect_error(mha_adamw_step(x, &s, 4, p, g, NULL, v), MHA_ERR_NULL, "array");
    expect_error(mha_adamw_step(x, &s, -1, p, g, m, v), MHA_ERR_ARGUMENT, "-1");
    ROW(MHA_ERR_ARGUMENT, "struct_size", s.struct_size = 3);
    ROW(MHA_ERR_ARGUMENT, "step is 0", s.step = 0);
    ROW(MHA_ERR_ARGUMENT, "learning_rate", s.learning_rate = NAN);
    ROW(MHA_ERR_ARGUMENT, "beta1", s.beta1 = 1);
    ROW(MHA_ERR_ARGUMENT, "epsilon", s.epsilon = -1);
    ROW(MHA_ERR_UNSUPPORTED, "reserved", s.reserved = 1);
#undef ROW
    mha_sgd d = {.struct_size = sizeof d, .learning_rate = 0.1, .momentum = 0.9};
    expect_error(mha_sgd_step(x, &d, 4, p, g, NULL), MHA_ERR_NULL, "velocity");
    d.momentum = -1;
    expect_error(mha_sgd_step(x, &d, 4, p, g, v), MHA_ERR_ARGUMENT, "momentum is -1");
    double norm;
    expect_error(mha_gradient_norm(x, 4, NULL, &norm), MHA_ERR_NULL, "array");
    for (int i = 0; i < 4; i++) assert_true(p[i] == (float)(i + 1) && m[i] == 0 && v[i] == 0);
}

RUN_TESTS(TEST(adamw), TEST(sgd), TEST(threads_and_parts_change_no_bit),
          TEST(rates_follow_the_schedule), TEST(misuse_is_refused))
