/* Short convolutions and their gradients are compared with sums in double within the header's
 * bound. They must be bit-identical for every division into calls and number of threads. Also
 * tested: in-place calls and misuse. */
#include "support/expect.h"
#include "support/guarded.h"
#include "support/shared_context.h"
#include "support/suite.h"
#include "support/tally.h"

#include <multihead/nn.h>

#include <math.h>

typedef struct trial {
    int64_t B, T, C, K;
    guarded x, weight, bias, state;
    bool has_bias, silu;
} trial;

static trial trial_make(rng *r)
{
    trial c = {.B = rng_between(r, 1, 3),
               .T = rng_between(r, 0, 12),
               .C = rng_between(r, 1, 140),
               .K = rng_chance(r, 0.5) ? 4 : rng_between(r, 1, 9),
               .has_bias = rng_chance(r, 0.5),
               .silu = rng_chance(r, 0.5)};
    c.x = guarded_filled(r, 3, (int64_t[]){c.B, c.T, c.C}, LAYOUT_PAD, 1);
    c.weight = guarded_filled(r, 2, (int64_t[]){c.C, c.K}, LAYOUT_PAD, 1);
    c.bias = guarded_filled(r, 1, &c.C, LAYOUT_CONTIGUOUS, 1);
    c.state = guarded_filled(r, 3, (int64_t[]){c.B, c.K - 1, c.C}, LAYOUT_PAD, 1);
    return c;
}

static void trial_free(trial *c)
{
    guarded *all[] = {&c->x, &c->weight, &c->bias, &c->state};
    for (int i = 0; i < 4; i++) guarded_free(all[i]);
}

static void run(mha_context *context, const trial *c, const mha_tensor *x, const mha_tensor *state,
                const mha_tensor *y)
{
    expect_ok(mha_short_convolution(context, c->silu ? MHA_CONVOLUTION_SILU : 0, x, &c->weight.view,
                                    c->has_bias ? &c->bias.view : NULL, state, y));
}

static double at(const guarded *g, int64_t b, int64_t t, int64_t c)
{
    return (double)*(float *)guarded_element(&g->view, (int64_t[]){b, t, c});
}

static tally errors = {.name = "short convolutions"};

/* Input t of a channel; the state precedes the input. */
static double input_at(const trial *c, bool state, int64_t b, int64_t t, int64_t channel)
{
    if (t >= 0) return at(&c->x, b, t, channel);
    return state ? at(&c->state, b, t + c->K - 1, channel) : 0;
}

static void check_element(const trial *c, bool state, const guarded *y, const int64_t *i)
{
    const double u = 0x1p-24;
    double z = c->has_bias ? (double)*(float *)guarded_element(&c->bias.view, &i[2]) : 0;
    double size = fabs(z);
    for (int64_t k = 0; k < c->K; k++) {
        const double term =
            (double)*(float *)guarded_element(&c->weight.view, (int64_t[]){i[2], k}) *
            input_at(c, state, i[0], i[1] - c->K + 1 + k, i[2]);
        z += term;
        size += fabs(term);
    }
    double exact = z, bound = (double)(c->K + 1) * u * size;
    if (c->silu) { /* its slope is below 1.1 */
        exact = z / (1 + exp(-z));
        bound = 1.1 * bound + (1.4 * fabs(z) + 9) * u * fabs(exact) + 0x1p-125 * fabs(z);
    }
    assert_true(tally_compare(&errors, at(y, i[0], i[1], i[2]), exact, bound));
}

static void outputs_and_states_are_within_the_bound(void)
{
    mha_context *context = context_with(2);
    for (int n = 0; n < 60; n++) {
        rng r = rng_make(rng_run_seed(), 0xC0 + (uint64_t)n);
        trial c = trial_make(&r);
        const bool with = rng_chance(&r, 0.6);
        guarded y = guarded_make(&r, MHA_F32, 3, c.x.view.shape, LAYOUT_PAD);
        guarded kept = guarded_make(&r, MHA_F32, 3, c.state.view.shape, LAYOUT_PAD);
        int64_t i[3] = {0};
        trial before = c;
        if (!guarded_is_empty(&kept.view)) do
                *(float *)guarded_element(&kept.view, i) =
                    *(float *)guarded_element(&c.state.view, i);
            while (guarded_next(&kept.view, i));
        run(context, &c, &c.x.view, with ? &kept.view : NULL, &y.view);
        int64_t k[3] = {0};
        if (!guarded_is_empty(&y.view)) do
                check_element(&before, with, &y, k);
            while (guarded_next(&y.view, k));
        int64_t s[3] = {0};
        if (with && !guarded_is_empty(&kept.view)) do
                assert_true(at(&kept, s[0], s[1], s[2]) ==
                            input_at(&before, true, s[0], s[1] + c.T - c.K + 1, s[2]));
            while (guarded_next(&kept.view, s));
        assert_true(guarded_gaps_intact(&y) && guarded_gaps_intact(&kept));
        guarded_free(&y);
        guarded_free(&kept);
        trial_free(&c);
    }
    tally_judge(&errors);
}

static void parts_threads_and_places_change_no_bit(void)
{
    mha_context *one = context_with(1), *several = context_with(3);
    for (int n = 0; n < 40; n++) {
        rng r = rng_make(rng_run_seed(), 0xC100 + (uint64_t)n);
        trial c = trial_make(&r);
        guarded whole = guarded_make(&r, MHA_F32, 3, c.x.view.shape, LAYOUT_PAD);
        run(one, &c, &c.x.view, NULL, &whole.view);
        guarded_fill(&r, &c.state.view, 0);
        for (int64_t t = 0, count; t < c.T; t += count) { /* in place */
            count = rng_between(&r, 1, c.T - t);
            const mha_tensor part = guarded_slice(&c.x.view, 1, t, count);
            run(several, &c, &part, &c.state.view, &part);
        }
        assert_true(guarded_same_bits(&whole.view, &c.x.view, false));
        guarded_free(&whole);
        trial_free(&c);
    }
}

/* ---- gradients ------------------------------------------------------------------------------- */

static double weight_at(const trial *c, int64_t channel, int64_t k)
{
    return (double)*(float *)guarded_element(&c->weight.view, (int64_t[]){channel, k});
}

/* dz of a row in double, and a bound of the library's error. The slope of silu' is below 0.5, and
 * its kernel has errors of some units of its factors. */
static double dz_at(const trial *c, const guarded *dy, const int64_t *i, double *error)
{
    const double u = 0x1p-24, d = at(dy, i[0], i[1], i[2]);
    double z = c->has_bias ? (double)*(float *)guarded_element(&c->bias.view, &i[2]) : 0;
    double size = fabs(z);
    *error = 0;
    if (i[1] >= c->T) return 0;
    if (!c->silu) return d;
    for (int64_t k = 0; k < c->K; k++) {
        const double term =
            weight_at(c, i[2], k) * input_at(c, false, i[0], i[1] - c->K + 1 + k, i[2]);
        z += term;
        size += fabs(term);
    }
    const double s = 1 / (1 + exp(-z));
    *error = fabs(d) * u * (0.5 * (double)(c->K + 1) * size + 2 * fabs(z) + 20);
    return d * s * (1 + z * (1 - s));
}

static tally rows = {.name = "gradients of inputs"}, sums = {.name = "gradients of weights"};

static void check_dx(const trial *c, const guarded *dy, const guarded *dx, const int64_t *i)
{
    const double u = 0x1p-24;
    double exact = 0, bound = 0;
    for (int64_t k = 0; k < c->K; k++) {
        const int64_t from[] = {i[0], i[1] + c->K - 1 - k, i[2]};
        double error = 0;
        if (from[1] >= c->T) continue;
        const double dz = dz_at(c, dy, from, &error), w = weight_at(c, i[2], k);
        exact += w * dz;
        bound += fabs(w) * (error + (double)(c->K + 1) * u * fabs(dz));
    }
    assert_true(tally_compare(&rows, at(dx, i[0], i[1], i[2]), exact, bound));
}

/* Check a gradient, which begins as `before`. k < 0: the gradient of the bias. */
static void check_sum(const trial *c, const guarded *dy, int64_t channel, int64_t k, double got,
                      double before)
{
    const double u = 0x1p-24;
    double exact = before, bound = 0;
    for (int64_t b = 0; b < c->B; b++)
        for (int64_t t = 0; t < c->T; t++) {
            double error;
            const double dz = dz_at(c, dy, (int64_t[]){b, t, channel}, &error);
            const double x = k < 0 ? 1 : input_at(c, false, b, t - c->K + 1 + k, channel);
            exact += x * dz;
            bound += fabs(x) * error;
        }
    assert_true(tally_compare(&sums, got, exact, bound + 1.01 * u * fabs(exact)));
}

static void gradients_are_within_their_bounds(void)
{
    mha_context *contexts[] = {context_with(1), context_with(3)};
    for (int n = 0; n < 50; n++) {
        rng r = rng_make(rng_run_seed(), 0xC200 + (uint64_t)n);
        trial c = trial_make(&r);
        guarded dy = guarded_filled(&r, 3, c.x.view.shape, LAYOUT_PAD, 1);
        guarded dx[2], dweight[2], dbias[2];
        for (int j = 0; j < 2; j++) { /* the second call is in place */
            dx[j] = guarded_make(&r, MHA_F32, 3, c.x.view.shape, LAYOUT_PAD);
            dweight[j] = guarded_make(&r, MHA_F32, 2, c.weight.view.shape, LAYOUT_PAD);
            dbias[j] = guarded_make(&r, MHA_F32, 1, &c.C, LAYOUT_CONTIGUOUS);
            int64_t i[3] = {0}, k[2] = {0};
            if (!guarded_is_empty(&dx[j].view)) do
                    *(float *)guarded_element(&dx[j].view, i) =
                        j ? (float)at(&dy, i[0], i[1], i[2]) : NAN;
                while (guarded_next(&dx[j].view, i));
            do *(float *)guarded_element(&dweight[j].view, k) = 0.5f;
            while (guarded_next(&dweight[j].view, k));
            for (int64_t channel = 0; channel < c.C; channel++)
                *(float *)guarded_element(&dbias[j].view, &channel) = -0.25f;
            const mha_convolution_gradients call = {.struct_size = sizeof call,
                                                    .flags = c.silu ? MHA_CONVOLUTION_SILU : 0,
                                                    .x = &c.x.view,
                                                    .weight = &c.weight.view,
                                                    .bias = c.has_bias ? &c.bias.view : NULL,
                                                    .dy = j ? &dx[j].view : &dy.view,
                                                    .dx = &dx[j].view,
                                                    .dweight = &dweight[j].view,
                                                    .dbias = c.has_bias ? &dbias[j].view : NULL};
            expect_ok(mha_short_convolution_backward(contexts[j], &call));
            assert_true(guarded_gaps_intact(&dx[j]) && guarded_gaps_intact(&dweight[j]));
        }
        int64_t i[3] = {0};
        if (!guarded_is_empty(&dx[0].view)) do
                check_dx(&c, &dy, &dx[0], i);
            while (guarded_next(&dx[0].view, i));
        for (int64_t channel = 0; channel < c.C; channel++) {
            for (int64_t k = 0; k < c.K; k++)
                check_sum(
                    &c, &dy, channel, k,
                    (double)*(float *)guarded_element(&dweight[0].view, (int64_t[]){channel, k}),
                    0.5);
            if (c.has_bias)
                check_sum(&c, &dy, channel, -1,
                          (double)*(float *)guarded_element(&dbias[0].view, &channel), -0.25);
        }
        assert_true(guarded_same_bits(&dx[0].view, &dx[1].view, false));
        assert_true(guarded_same_bits(&dweight[0].view, &dweight[1].view, false));
        assert_true(guarded_same_bits(&dbias[0].view, &dbias[1].view, false));
        for (int j = 0; j < 2; j++)
            guarded_free(&dx[j]), guarded_free(&dweight[j]), guarded_free(&dbias[j]);
        guarded_free(&dy);
        trial_free(&c);
    }
    tally_judge(&rows);
    tally_judge(&sums);
}

static void misuse_of_gradients_is_refused(void)
{
    mha_context *context = context_with(1);
    float x[8] = {0}, dy[8] = {0}, w[130] = {0}, out[8];
    const int64_t shape[] = {1, 4, 2};
    const mha_tensor input = mha_tensor_contiguous(x, MHA_F32, 3, shape),
                     upper = mha_tensor_contiguous(dy, MHA_F32, 3, shape),
                     lower = mha_tensor_contiguous(out, MHA_F32, 3, shape),
                     weight = mha_tensor_contiguous(w, MHA_F32, 2, (int64_t[]){2, 4}),
                     wide = mha_tensor_contiguous(w, MHA_F32, 2, (int64_t[]){2, 65}),
                     bias = mha_tensor_contiguous(w + 8, MHA_F32, 1, (int64_t[]){2});
    const mha_convolution_gradients good = {
        .struct_size = sizeof good, .x = &input, .weight = &weight, .dy = &upper, .dx = &lower};
    mha_convolution_gradients call = good;
    expect_ok(mha_short_convolution_backward(context, &call));
    call.flags = 2;
    expect_error(mha_short_convolution_backward(context, &call), MHA_ERR_UNSUPPORTED, "flags 0x2");
    call = good, call.weight = &wide;
    expect_error(mha_short_convolution_backward(context, &call), MHA_ERR_SHAPE,
                 "a kernel of 65, expected 1..64");
    call = good, call.dbias = &bias;
    expect_error(mha_short_convolution_backward(context, &call), MHA_ERR_ARGUMENT,
                 "dbias: the convolution has no bias");
    call = good, call.dx = &input;
    expect_error(mha_short_convolution_backward(context, &call), MHA_ERR_OVERLAP, "dx");
    call = good, call.dweight = &weight;
    expect_error(mha_short_convolution_backward(context, &call), MHA_ERR_OVERLAP, "dweight");
}

static void misuse_is_refused(void)
{
    mha_context *context = context_with(1);
    float x[12] = {0}, y[12], w[128] = {0}, s[12] = {0};
    const mha_tensor input = mha_tensor_contiguous(x, MHA_F32, 3, (int64_t[]){1, 4, 2});
    const mha_tensor output = mha_tensor_contiguous(y, MHA_F32, 3, (int64_t[]){1, 4, 2});
    const mha_tensor weight = mha_tensor_contiguous(w, MHA_F32, 2, (int64_t[]){2, 4});
    const mha_tensor wide = mha_tensor_contiguous(w, MHA_F32, 2, (int64_t[]){2, 65});
    const mha_tensor kept = mha_tensor_contiguous(s, MHA_F32, 3, (int64_t[]){1, 2, 2});
    mha_tensor shifted = input;
    shifted.data = x + 2;
    expect_error(mha_short_convolution(NULL, 0, &input, &weight, NULL, NULL, &output), MHA_ERR_NULL,
                 "context is NULL");
    expect_error(mha_short_convolution(context, 2, &input, &weight, NULL, NULL, &output),
                 MHA_ERR_UNSUPPORTED, "flags 0x2");
    expect_error(mha_short_convolution(context, 0, &input, &wide, NULL, NULL, &output),
                 MHA_ERR_SHAPE, "a kernel of 65, expected 1..64");
    expect_error(mha_short_convolution(context, 0, &input, &weight, NULL, &kept, &output),
                 MHA_ERR_SHAPE, "state");
    expect_error(mha_short_convolution(context, 0, &input, &weight, NULL, NULL, &shifted),
                 MHA_ERR_OVERLAP, "y");
    const mha_tensor state_of = mha_tensor_contiguous(s, MHA_F32, 3, (int64_t[]){1, 3, 2});
    const mha_tensor bias = mha_tensor_contiguous(s + 5, MHA_F32, 1, (int64_t[]){2});
    expect_error(mha_short_convolution(context, 0, &input, &weight, &bias, &state_of, &output),
                 MHA_ERR_OVERLAP, "bias");
}

RUN_TESTS(TEST(outputs_and_states_are_within_the_bound),
          TEST(parts_threads_and_places_change_no_bit), TEST(gradients_are_within_their_bounds),
          TEST(misuse_of_gradients_is_refused), TEST(misuse_is_refused))
