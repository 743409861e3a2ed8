/* Attention in bf16 arithmetic. Results must be within the bound of docs/numerics.md 15 of the
 * double-precision reference of rounded inputs. They must be bit-identical on every instruction set
 * with fused multiply-adds, for tensors rounded before or by the call, any number of threads and
 * any division into calls. Also tested: values that are not finite or too large, and errors.
 *
 * The default is a sample; MHA_TEST_LONG=1 tests 5,000 descriptors. MHA_TEST_CASE=n (with
 * MHA_TEST_SEED) runs only the n-th. */
#include "reference/half_reference.h"
#include "reference/kinds_bounds.h"
#include "support/backward_call.h"
#include "support/expect.h"
#include "support/kinds.h"
#include "support/machines.h"
#include "support/plain.h"
#include "support/suite.h"
#include "support/tally.h"

#include <multihead/backward.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLE = 150, ALL = 5000 };
static const unsigned left_out = KIND_SHAW_KEYS | KIND_SHAW_VALUES;

typedef struct score_card {
    tally o, lse;
} score_card;

typedef struct trial {
    int number;
    kinds_case c;
    ref_attention a;
    const machines *all;
    score_card *cards;
    outcome got[MOST_MACHINES];
} trial;

static void fail_trial(const trial *x, int m, const char *what)
{
    fail_msg("%s: %s\n  %s\n  alone: MHA_TEST_SEED=%llu MHA_TEST_CASE=%d", x->all->each[m].name,
             what, x->c.text, (unsigned long long)rng_run_seed(), x->number);
}

static kinds_shape some_shape(rng *r)
{
    kinds_shape shape = kinds_some_shape(r);
    shape.kinds &= ~left_out;
    if (shape.D > MHA_TILED_MAX_HEAD_DIM) shape.D = MHA_TILED_MAX_HEAD_DIM;
    if (shape.Dv > MHA_TILED_MAX_HEAD_DIM) shape.Dv = MHA_TILED_MAX_HEAD_DIM;
    return shape;
}

/* ---- rounding -------------------------------------------------------------------------------- */

static float to_bf16(float x)
{
    const float nearest = (float)half_value(MHA_BF16, half_nearest(MHA_BF16, (double)x));
    const float most = (float)half_value(MHA_BF16, 0x7F7F);
    if (!isfinite(x)) return x;
    if (fabsf(x) < 0x1p-50f) return 0;
    return fabsf(nearest) > most ? copysignf(most, x) : nearest;
}

static void round_tensor(const mha_tensor *x)
{
    int64_t index[MHA_MAX_DIMS] = {0};
    if (guarded_is_empty(x)) return;
    do {
        float *at = guarded_element(x, index);
        *at = to_bf16(*at);
    } while (guarded_next(x, index));
}

/* A bf16 copy of x. */
static guarded stored_as_bf16(rng *r, const mha_tensor *x)
{
    guarded out = guarded_make(r, MHA_BF16, x->ndim, x->shape, guarded_random_layout(r, false));
    int64_t index[MHA_MAX_DIMS] = {0};
    if (guarded_is_empty(x)) return out;
    do
        *(uint16_t *)guarded_element(&out.view, index) =
            half_nearest(MHA_BF16, (double)*(const float *)guarded_element(x, index));
    while (guarded_next(x, index));
    return out;
}

/* ---- bits and bounds ------------------------------------------------------------------------- */

/* The first machine with the same kind of multiply-add, to which the results of machine m must be
 * bit-identical. */
static int first_alike(const machines *all, int m)
{
    const bool portable = all->each[m].isa == MHA_ISA_PORTABLE;
    for (int i = 0; i < m; i++)
        if ((all->each[i].isa == MHA_ISA_PORTABLE) == portable) return i;
    return m;
}

static void run_machines(trial *x, rng *r)
{
    for (int m = 0; m < x->all->count; m++) {
        const machine *each = &x->all->each[m];
        const int alike = first_alike(x->all, m);
        x->got[m] = outcome_make(r, &x->c.result, OUTCOME_O | OUTCOME_LSE,
                                 x->c.shape.plain_layout ? LAYOUT_CONTIGUOUS
                                                         : guarded_random_layout(r, false));
        if (kinds_run(each->context, &x->c, MHA_PATH_TILED, &x->got[m]) != MHA_OK)
            fail_trial(x, m, mha_error_detail());
        if (!outcome_intact(&x->got[m])) fail_trial(x, m, "wrote between elements");
        if (!outcome_same(&x->got[m], &x->got[alike], true))
            fail_trial(x, m, "not the bits of the first");
    }
}

/* Rounding by the call must equal bf16 storage. */
static void check_stored(trial *x, rng *r)
{
    guarded q = stored_as_bf16(r, &x->c.q.view), k = stored_as_bf16(r, &x->c.k.view);
    guarded v = stored_as_bf16(r, &x->c.v.view);
    for (int m = 0; m < x->all->count; m++) {
        const machine *each = &x->all->each[m];
        outcome again = outcome_make(r, &x->c.result, OUTCOME_O | OUTCOME_LSE, LAYOUT_CONTIGUOUS);
        if (kinds_run(each->context, &x->c, MHA_PATH_TILED, &again) != MHA_OK)
            fail_trial(x, m, mha_error_detail());
        if (!outcome_same(&again, &x->got[m], true)) fail_trial(x, m, "rounded: not the same bits");
        if (outcome_run(each->context, &x->c.desc, &q.view, &k.view, &v.view, &again) != MHA_OK)
            fail_trial(x, m, mha_error_detail());
        if (!outcome_same(&again, &x->got[m], true)) fail_trial(x, m, "bf16: not the same bits");
        outcome_free(&again);
    }
    guarded_free(&q), guarded_free(&k), guarded_free(&v);
}

static void check_row(void *user, int64_t b, int64_t h, int64_t t, kinds_row *row, bound_row *bound)
{
    const trial *x = user;
    kinds_attention_row(&x->a, b, h, t, row);
    for (int m = 0; m < x->all->count; m++) {
        if (first_alike(x->all, m) != m) continue;
        const bound_arith arith = bound_arith_bf16(&x->a, x->all->each[m].isa);
        const float *o = kinds_at(&x->got[m].o.view, &x->a, b, h, t);
        const double lse = (double)*kinds_at(&x->got[m].lse.view, &x->a, b, h, t);
        kinds_bound_row(&x->a, &arith, b, h, t, row, bound);
        char what[200];
        if (!tally_compare(&x->cards[m].lse, lse, row->lse, bound->lse)) {
            snprintf(what, sizeof what, "lse %.9g, exact %.9g, bound %.3g", lse, row->lse,
                     bound->lse);
            fail_trial(x, m, what);
        }
        for (int64_t d = 0; d < row->value_dim; d++) {
            if (tally_compare(&x->cards[m].o, (double)o[d], row->o[d], bound->o[d])) continue;
            snprintf(what, sizeof what, "o %.9g, exact %.9g, error %.3g, bound %.3g", (double)o[d],
                     row->o[d], fabs((double)o[d] - row->o[d]), bound->o[d]);
            fail_trial(x, m, what);
        }
    }
}

static void trial_make(trial *x, rng *r, int number, const machines *all)
{
    const kinds_shape shape = some_shape(r);
    *x = (trial){.number = number, .all = all};
    kinds_make(&x->c, r, &shape);
    x->c.desc.compute = MHA_COMPUTE_BF16;
    x->a = kinds_reference(&x->c);
}

static void trial_free(trial *x)
{
    for (int m = 0; m < x->all->count; m++) outcome_free(&x->got[m]);
    kinds_free(&x->c);
}

static void round_inputs(const trial *x)
{
    round_tensor(&x->c.q.view);
    round_tensor(&x->c.k.view);
    round_tensor(&x->c.v.view);
}

static void against_reference(void)
{
    machines all = machines_tiled();
    score_card cards[MOST_MACHINES] = {0};
    int i, end;
    const bool whole = rng_range(SAMPLE, ALL, &i, &end);
    for (; i < end; i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)i);
        trial x;
        trial_make(&x, &r, i, &all);
        run_machines(&x, &r);
        round_inputs(&x);
        check_stored(&x, &r);
        x.cards = cards;
        kinds_check_rows(&x.c, &r, 5e4, check_row, &x);
        trial_free(&x);
    }
    for (int m = 0; m < all.count && whole; m++) {
        if (first_alike(&all, m) != m) continue;
        const bool portable = all.each[m].isa == MHA_ISA_PORTABLE;
        cards[m].o.name = portable ? "portable, o" : "fused, o";
        cards[m].lse.name = portable ? "portable, lse" : "fused, lse";
        tally_judge(&cards[m].o);
        tally_judge(&cards[m].lse);
    }
}

/* ---- non-finite and too large values --------------------------------------------------------- */

/* Rows are NaN as in f32 arithmetic. With a value that is not finite, o is also NaN. */
static void not_finite(void)
{
    static const float odd[] = {INFINITY, -INFINITY, NAN};
    machines all = machines_tiled();
    for (int i = 0; i < rng_cases(60, 1000); i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)(100000 + i));
        trial x;
        trial_make(&x, &r, i, &all);
        x.c.desc.dropout =
            0; /* it may omit values that are not finite, or weights that are too small */
        guarded_sprinkle(&r, &x.c.q.view, 0.002, odd, 3);
        guarded_sprinkle(&r, &x.c.k.view, rng_chance(&r, 0.5) ? 0.0005 : 0, odd, 3);
        guarded_sprinkle(&r, &x.c.v.view, rng_chance(&r, 0.5) ? 0.002 : 0, odd, 3);
        round_inputs(&x);
        run_machines(&x, &r);
        outcome f32 = outcome_make(&r, &x.c.result, OUTCOME_O | OUTCOME_LSE, LAYOUT_CONTIGUOUS);
        x.c.desc.compute = MHA_COMPUTE_F32;
        expect_ok(kinds_run(all.each[0].context, &x.c, MHA_PATH_TILED, &f32));
        const mha_tensor *got[] = {&x.got[0].o.view, &x.got[0].lse.view};
        const mha_tensor *expected[] = {&f32.o.view, &f32.lse.view};
        for (int j = 0; j < 2; j++) {
            int64_t index[MHA_MAX_DIMS] = {0};
            if (guarded_is_empty(got[j])) continue;
            do {
                const float y = *(const float *)guarded_element(got[j], index);
                const float z = *(const float *)guarded_element(expected[j], index);
                if (isfinite(y) != isfinite(z))
                    fail_trial(&x, 0, j ? "lse: not finite elsewhere" : "o: not finite elsewhere");
            } while (guarded_next(got[j], index));
        }
        outcome_free(&f32);
        trial_free(&x);
    }
}

/* Numbers from the whole range: no crash, the same bits, and no NaN without cause. */
static void hostile_numbers(void)
{
    static const float odd[] = {INFINITY,  NAN,       1e38f,      -1e38f,      3.4e38f,  -3.4e38f,
                                0x1p126f,  0x1p59f,   0x1.FFp58f, -0x1.FEp58f, 1e20f,    -0.0f,
                                0.0f,      1e-45f,    1e-40f,     0x1p-50f,    0x1p-51f, 0x1.8p-50f,
                                -0x1p-49f, 0x1p-126f, 1e-30f,     0x1.01p-50f};
    machines all = machines_tiled();
    for (int i = 0; i < rng_cases(60, 1000); i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)(200000 + i));
        trial x;
        trial_make(&x, &r, i, &all);
        const double chance = rng_chance(&r, 0.3) ? 1 : 0.01;
        /* 2: no infinities or NaNs; 11: only small numbers */
        const int first = rng_chance(&r, 0.5) ? 2 : 11;
        const int count = (int)(sizeof odd / sizeof odd[0]) - first;
        guarded_sprinkle(&r, &x.c.q.view, chance, odd + first, count);
        guarded_sprinkle(&r, &x.c.k.view, chance, odd + first, count);
        guarded_sprinkle(&r, &x.c.v.view, chance, odd + first, count);
        run_machines(&x, &r);
        int64_t index[MHA_MAX_DIMS] = {0};
        if (first == 11 && !guarded_is_empty(&x.got[0].o.view)) do
                if (!isfinite(*(const float *)guarded_element(&x.got[0].o.view, index)))
                    fail_trial(&x, 0, "small numbers made something that is not finite");
            while (guarded_next(&x.got[0].o.view, index));
        trial_free(&x);
    }
}

/* ---- plain calls ------------------------------------------------------------------------------- */

/* A key counts as not finite or too large even if its remainder would overflow to the -inf of
 * hidden keys. Values may have no elements. */
static void one_query(void)
{
    machines all = machines_tiled();
    rng r = rng_make(1, 600000);
    plain x = plain_make(&r, 1, 1, 1, 40, 2);
    round_tensor(&x.Q), round_tensor(&x.K), round_tensor(&x.V);
    const mha_attention_desc desc = {
        .struct_size = sizeof desc, .compute = MHA_COMPUTE_BF16, .scale = 0x1p20f};
    uint16_t stored[2 * 40] = {0};
    const float odd[] = {NAN, INFINITY, 0x1p59f, 3e38f};
    x.q[0] = 1, x.q[1] = 0x1p58f;
    memset(x.k, 0, sizeof stored * 2);
    x.k[1] = -0x1p58f;
    for (int m = 0; m < all.count; m++) {
        plain y = x;
        for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
            x.k[0] = odd[i];
            plain_run(all.each[m].context, &desc, &x);
            assert_true(isnan(x.o[0]) && isnan(x.lse[0]));
        }
        x.k[0] = 0;
        plain_run(all.each[m].context, &desc, &x);
        assert_true(isfinite(x.o[0]) && isfinite(x.lse[0]));
        y.K = mha_tensor_contiguous(stored, MHA_BF16, 4, (int64_t[]){1, 1, 40, 2});
        y.V = mha_tensor_contiguous(NULL, MHA_BF16, 4, (int64_t[]){1, 1, 40, 0});
        y.V.stride[2] = (int64_t)1 << 40; /* to unmapped memory */
        y.O = mha_tensor_contiguous(NULL, MHA_F32, 4, (int64_t[]){1, 1, 1, 0});
        plain_run(all.each[m].context, &desc, &y);
        assert_true(fabsf(x.lse[0] - logf(40)) < 1e-5f);
    }
    free(x.q);
}

/* Rows in two calls, and keys beyond the length changed or removed, must be bit-identical to one
 * call. */
static void division_does_not_matter(void)
{
    machines all = machines_tiled();
    for (int i = 0; i < rng_cases(8, 60); i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)(300000 + i));
        mha_context *context = all.each[i % all.count].context;
        plain x = plain_make(&r, 1, 2, rng_between(&r, 2, 90), rng_between(&r, 520, 1200),
                             rng_between(&r, 1, 70));
        round_tensor(&x.Q), round_tensor(&x.K), round_tensor(&x.V);
        const int64_t length = rng_between(&r, 1, x.S - 1), first = rng_between(&r, 1, x.T - 1);
        const size_t bytes = (size_t)(x.H * x.T * (x.D + 1)) * sizeof(float);
        mha_attention_desc desc = {.struct_size = sizeof desc,
                                   .compute = MHA_COMPUTE_BF16,
                                   .flags = MHA_ATTENTION_CAUSAL,
                                   .q_offset = rng_between(&r, 0, x.S),
                                   .key_lengths = &length};
        float *whole = malloc(bytes);
        if (!whole) abort();
        plain_run(context, &desc, &x);
        memcpy(whole, x.o, bytes);
        for (int64_t h = 0; h < x.H; h++) /* numbers that must not be read */
            for (int64_t at = (h * x.S + length) * x.D; at < (h + 1) * x.S * x.D; at++)
                x.k[at] = x.v[at] = NAN;
        plain_run(context, &desc, &x);
        assert_memory_equal(whole, x.o, bytes);
        memset(x.o, 0, bytes);
        desc.key_lengths = NULL;
        for (int part = 0; part < 2; part++) {
            plain y = x;
            const int64_t from = part ? first : 0, rows = part ? x.T - first : first;
            y.Q = guarded_slice(&x.Q, 2, from, rows);
            y.O = guarded_slice(&x.O, 2, from, rows);
            y.L = guarded_slice(&x.L, 2, from, rows);
            y.K = guarded_slice(&x.K, 2, 0, length);
            y.V = guarded_slice(&x.V, 2, 0, length);
            mha_attention_desc some = desc;
            some.q_offset = desc.q_offset + from;
            plain_run(context, &some, &y);
        }
        assert_memory_equal(whole, x.o, bytes);
        free(whole);
        free(x.q);
    }
}

/* The figures of attention.h and docs/numerics.md 15. */
static void accuracy(void)
{
    machines all = machines_tiled();
    rng r = rng_make(1, 400000);
    plain x = plain_make(&r, 1, 2, 128, 2048, 64);
    round_tensor(&x.Q), round_tensor(&x.K), round_tensor(&x.V);
    const int64_t n = x.H * x.T * x.D;
    mha_attention_desc desc = {.struct_size = sizeof desc, .path = MHA_PATH_PLAIN};
    float *exact = malloc((size_t)n * sizeof *exact);
    double apart = 0, size = 0;
    if (!exact) abort();
    plain_run(all.each[0].context, &desc, &x);
    memcpy(exact, x.o, (size_t)n * sizeof *exact);
    desc.path = MHA_PATH_AUTO;
    desc.compute = MHA_COMPUTE_BF16;
    plain_run(all.each[0].context, &desc, &x);
    for (int64_t i = 0; i < n; i++) {
        apart += (double)(x.o[i] - exact[i]) * (double)(x.o[i] - exact[i]);
        size += (double)exact[i] * (double)exact[i];
    }
    print_message("relative error, L2: %.3g\n", sqrt(apart / size));
    assert_true(sqrt(apart / size) < 3e-3);
    assert_true(sqrt(apart / size) > 1e-5); /* weights are rounded */
    free(exact);
    free(x.q);
}

static void refusals(void)
{
    machines all = machines_tiled();
    mha_context *context = all.each[0].context;
    rng r = rng_make(1, 500000);
    plain x = plain_make(&r, 1, 1, 4, 8, 8);
    round_tensor(&x.Q), round_tensor(&x.K), round_tensor(&x.V);
    float table[3 * 8] = {0}, p[32];
    const mha_tensor shaw = mha_tensor_contiguous(table, MHA_F32, 2, (int64_t[]){3, 8});
    const mha_tensor P = mha_tensor_contiguous(p, MHA_F32, 4, (int64_t[]){1, 1, 4, 8});
    const mha_attention_outputs weights = {.struct_size = sizeof weights, .probabilities = &P};
    const mha_attention_desc plain_path = {.struct_size = sizeof plain_path,
                                           .path = MHA_PATH_PLAIN,
                                           .compute = MHA_COMPUTE_BF16},
                             bf16 = {.struct_size = sizeof bf16, .compute = MHA_COMPUTE_BF16},
                             relative = {.struct_size = sizeof relative,
                                         .compute = MHA_COMPUTE_BF16,
                                         .shaw_keys = &shaw},
                             int8 = {.struct_size = sizeof int8, .compute = MHA_COMPUTE_INT8},
                             unknown = {.struct_size = sizeof unknown, .compute = (mha_compute)4};
    const struct {
        const mha_attention_desc *desc;
        const mha_attention_outputs *outputs;
        mha_status status;
        const char *detail;
    } cases[] = {
        {&plain_path, NULL, MHA_ERR_UNSUPPORTED, "plain"},
        {&relative, NULL, MHA_ERR_UNSUPPORTED, "Shaw"},
        {&bf16, &weights, MHA_ERR_UNSUPPORTED, "outputs"},
        {&int8, NULL, MHA_ERR_ARGUMENT, "compute is 1 (int8), expected 0 (f32) or 2 (bf16)"},
        {&unknown, NULL, MHA_ERR_ARGUMENT, "compute is 4"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(
            mha_attention_forward(context, cases[i].desc, &x.Q, &x.K, &x.V, &x.O, cases[i].outputs),
            cases[i].status);
        assert_non_null(strstr(mha_error_detail(), cases[i].detail));
    }
    mha_attention_plan plan;
    expect_ok(mha_attention_explain(context, &bf16, &x.Q, &x.K, &x.V, NULL, NULL, &plan));
    assert_true(plan.compute == MHA_COMPUTE_BF16 && plan.path == MHA_PATH_TILED);
    const mha_attention_gradients gradients = {
        .struct_size = sizeof gradients, .q = &x.Q, .k = &x.K, .v = &x.V};
    assert_int_equal(mha_attention_backward(context, BACKWARD_CALL(&bf16, &x.Q, &x.K, &x.V, &x.O,
                                                                   &x.L, &x.O, &gradients)),
                     MHA_ERR_UNSUPPORTED);
    assert_non_null(strstr(mha_error_detail(), "bf16 has no backward"));
    free(x.q);
}

RUN_TESTS(TEST(against_reference), TEST(not_finite), TEST(hostile_numbers), TEST(one_query),
          TEST(division_does_not_matter), TEST(accuracy), TEST(refusals))
