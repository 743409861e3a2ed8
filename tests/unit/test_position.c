/* Positions: rotary embedding, encodings, slopes, buckets and norms, compared with the formulas
 * within the bounds of multihead/position.h; their bits, errors and memory. */
#include "reference/position_reference.h"
#include "support/expect.h"
#include "support/failing_alloc.h"
#include "support/guarded.h"
#include "support/shared_context.h"
#include "support/suite.h"
#include "support/tally.h"

#include <multihead/position.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_B = 4 };

static unsigned any_layout(rng *r, bool input)
{
    return guarded_random_layout(r, input) | (rng_chance(r, 0.4) ? LAYOUT_LAST : 0);
}

static double value_at(const mha_tensor *x, const int64_t *index)
{
    return (double)*(const float *)guarded_element(x, index);
}

/* Copies x's numbers to y, which has the same shape. */
static void copy(const mha_tensor *x, const mha_tensor *y)
{
    int64_t index[MHA_MAX_DIMS] = {0};
    if (guarded_is_empty(x)) return;
    do *(float *)guarded_element(y, index) = *(const float *)guarded_element(x, index);
    while (guarded_next(x, index));
}

/* ---- rotary embedding ------------------------------------------------------------------------ */

typedef struct rope_case {
    mha_rope_desc desc;
    guarded x, y, ids, cosines, sines;
    int64_t starts[MAX_B];
    bool has_ids, has_tables;
    char text[200];
} rope_case;

static int64_t any_position(rng *r, int64_t rows)
{
    if (rows > 0) return rng_between(r, 0, rows - 1);
    static const int64_t reach[] = {8, 5000, 10000000};
    int64_t most = RNG_PICK(r, reach);
    return rng_between(r, rng_chance(r, 0.3) ? -most : 0, most);
}

/* Chooses positions in one of the four ways. If rows > 0, all positions are in 0 .. rows-1, and
 * rows >= 2 T. */
static void choose_positions(rng *r, rope_case *c, int64_t B, int64_t T, int64_t rows)
{
    mha_positions *p = &c->desc.positions;
    int64_t most_start = rows > 0 ? rows - T + 1 : 0;
    switch (rng_between(r, 0, 3)) {
    case 0: p->start = any_position(r, most_start); break;
    case 1:
        for (int64_t b = 0; b < B; b++) c->starts[b] = any_position(r, most_start);
        p->starts = c->starts;
        break;
    case 2: {
        int64_t shape[2] = {rng_chance(r, 0.5) ? 1 : B, rng_chance(r, 0.2) ? 1 : T};
        int ndim = rng_chance(r, 0.3) ? 1 : 2;
        c->ids = guarded_make(r, MHA_I64, ndim, shape + 2 - ndim, LAYOUT_PAD | LAYOUT_LAST);
        int64_t index[MHA_MAX_DIMS] = {0};
        if (!guarded_is_empty(&c->ids.view)) do
                *(int64_t *)guarded_element(&c->ids.view, index) = any_position(r, rows);
            while (guarded_next(&c->ids.view, index));
        p->ids = &c->ids.view;
        c->has_ids = true;
        break;
    }
    default: break;
    }
}

static void choose_tables(rng *r, rope_case *c, int64_t B, int64_t T, int64_t pairs)
{
    int64_t rows = 2 * T + 3;
    bool by_token = rng_chance(r, 0.4);
    int64_t token[3] = {rng_chance(r, 0.5) ? 1 : B, rng_chance(r, 0.3) ? 1 : T, pairs};
    const int64_t *shape = by_token ? token : (int64_t[]){rows, pairs};
    c->cosines = guarded_filled(r, by_token ? 3 : 2, shape, any_layout(r, true), 1);
    c->sines = guarded_filled(r, by_token ? 3 : 2, shape, any_layout(r, true), 1);
    c->desc.cos_table = &c->cosines.view;
    c->desc.sin_table = &c->sines.view;
    c->has_tables = true;
    if (!by_token) choose_positions(r, c, B, T, rows);
}

/* The case must not be copied afterwards, because desc points into it. */
static void rope_case_make(rope_case *c, rng *r)
{
    static const int64_t sizes[] = {1, 2, 3, 4, 6, 8, 20, 64, 65, 128, 130, 600};
    static const double bases[] = {0, 0, 10000, 1, 500000, 1e6, 2.5};
    static const double factors[] = {0, 0, 1, 2, 4, 0.3, 8.5};
    *c = (rope_case){.desc = {.struct_size = sizeof c->desc}};
    int64_t shape[4] = {rng_between(r, 0, MAX_B), rng_between(r, 0, 5), rng_between(r, 0, 40),
                        RNG_PICK(r, sizes)};
    for (int i = 0; i < 3; i++)
        if (shape[i] == 0 && rng_chance(r, 0.9)) shape[i] = 1;
    int64_t D = shape[3], rotary = D;
    if (D % 2 != 0 || rng_chance(r, 0.3)) rotary = 2 * rng_between(r, D > 1 ? 1 : 0, D / 2);
    if (rotary == 0) rotary = shape[3] = D = 2;
    c->desc.rotary_dim = rotary == D && rng_chance(r, 0.5) ? 0 : rotary;
    c->desc.pairing = rng_chance(r, 0.5) ? MHA_ROPE_HALVES : MHA_ROPE_INTERLEAVED;
    c->desc.flags = rng_chance(r, 0.4) ? MHA_ROPE_INVERSE : 0;
    if (rng_chance(r, 0.3)) {
        choose_tables(r, c, shape[0], shape[2], rotary / 2);
    } else {
        c->desc.base = RNG_PICK(r, bases);
        c->desc.factor = RNG_PICK(r, factors);
        choose_positions(r, c, shape[0], shape[2], 0);
    }
    c->x = guarded_filled(r, 4, shape, any_layout(r, true), 1);
    c->y = guarded_make(r, MHA_F32, 4, shape, any_layout(r, false));
    snprintf(c->text, sizeof c->text,
             "B%lld H%lld T%lld D%lld rotary %lld pairing %d flags %u base %g factor %g%s%s",
             (long long)shape[0], (long long)shape[1], (long long)shape[2], (long long)D,
             (long long)rotary, (int)c->desc.pairing, (unsigned)c->desc.flags, c->desc.base,
             c->desc.factor, c->has_tables ? " tables" : "", c->has_ids ? " ids" : "");
}

static void rope_case_free(rope_case *c)
{
    guarded_free(&c->x);
    guarded_free(&c->y);
    if (c->has_ids) guarded_free(&c->ids);
    if (c->has_tables) {
        guarded_free(&c->cosines);
        guarded_free(&c->sines);
    }
}

static void rope_compare(const rope_case *c, tally *t)
{
    int64_t i[MHA_MAX_DIMS] = {0};
    if (guarded_is_empty(&c->y.view)) return;
    do {
        ref_bounded want = ref_rope(&c->desc, &c->x.view, i);
        double got = value_at(&c->y.view, i);
        if (!tally_compare(t, got, want.exact, want.bound))
            fail_msg("%s: y[%lld,%lld,%lld,%lld] is %.9g, exact %.17g, bound %.3g", c->text,
                     (long long)i[0], (long long)i[1], (long long)i[2], (long long)i[3], got,
                     want.exact, want.bound);
    } while (guarded_next(&c->y.view, i));
}

/* Random problems match the formula. Calls in place, threads and strides give the same bits. */
static void test_rope(void)
{
    tally t = {.name = "rotary embedding"};
    mha_context *one = context_with(1), *three = context_with(3);
    int cases = rng_cases(200, 6000);
    for (int n = 0; n < cases; n++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)n);
        rope_case c;
        rope_case_make(&c, &r);
        expect_ok(mha_rope_apply(one, &c.desc, &c.x.view, &c.y.view));
        assert_true(guarded_gaps_intact(&c.y));
        rope_compare(&c, &t);
        guarded z = guarded_make(&r, MHA_F32, 4, c.x.view.shape, any_layout(&r, false));
        copy(&c.x.view, &z.view);
        expect_ok(mha_rope_apply(three, &c.desc, &z.view, &z.view));
        if (!guarded_same_bits(&c.y.view, &z.view, false)) fail_msg("%s: in place", c.text);
        assert_true(guarded_gaps_intact(&z));
        guarded_free(&z);
        rope_case_free(&c);
    }
    tally_judge(&t);
}

/* The inverse rotation restores vectors, and scores depend only on the distance. */
static void check_turns(mha_context *context, mha_rope_pairing pairing, rng *r)
{
    enum { D = 64, FAR = 4000000 };
    float x[2][D], y[2][D];
    double squares[2] = {0}, dot[2] = {0};
    for (int d = 0; d < 2 * D; d++) {
        x[d / D][d % D] = rng_normal(r);
        squares[d / D] += pow((double)x[d / D][d % D], 2);
    }
    const int64_t shape[4] = {1, 1, 2, D};
    mha_tensor from = mha_tensor_contiguous(x, MHA_F32, 4, shape);
    mha_tensor to = mha_tensor_contiguous(y, MHA_F32, 4, shape);
    /* The error of a vector of length 1: u for the rounding, plus the error of the angle. */
    const double u = 0x1p-24, error = u + 2 * (15.0 * FAR + 600) * 0x1p-53;
    for (int place = 0; place < 2; place++) {
        int64_t positions[2] = {place * FAR, place * FAR + 37};
        mha_tensor ids = mha_tensor_contiguous(positions, MHA_I64, 1, shape + 2);
        mha_rope_desc desc = {
            .struct_size = sizeof desc, .pairing = pairing, .positions = {.ids = &ids}};
        expect_ok(mha_rope_apply(context, &desc, &from, &to));
        for (int d = 0; d < D; d++) dot[place] += (double)y[0][d] * (double)y[1][d];
        desc.flags = MHA_ROPE_INVERSE;
        expect_ok(mha_rope_apply(context, &desc, &to, &to));
        for (int n = 0; n < 2 * D; n++) {
            int d = n % D, mate = pairing == MHA_ROPE_HALVES ? (d + D / 2) % D : d ^ 1;
            double radius = hypot((double)x[n / D][d], (double)x[n / D][mate]);
            if (fabs((double)y[n / D][d] - (double)x[n / D][d]) > 2.01 * error * radius)
                fail_msg("there and back: element %d is %.9g, was %.9g", n, (double)y[n / D][d],
                         (double)x[n / D][d]);
        }
    }
    if (fabs(dot[0] - dot[1]) > 4.01 * error * sqrt(squares[0] * squares[1]))
        fail_msg("distance 37: %.9g near 0, %.9g near 4 million", dot[0], dot[1]);
}

static void test_rope_properties(void)
{
    mha_context *context = context_with(1);
    for (int n = 0; n < 100; n++) {
        rng r = rng_make(rng_run_seed(), 1000000 + (uint64_t)n);
        check_turns(context, n % 2 ? MHA_ROPE_HALVES : MHA_ROPE_INTERLEAVED, &r);
    }
}

static void test_rope_by_hand(void)
{
    mha_context *context = context_with(1);
    const int64_t shape[4] = {1, 1, 2, 4};
    /* Position 0 changes nothing. At position 1, the angles are 1 and 1/100. */
    float x[8] = {1, 2, 3, 4, 1, 2, 3, 4}, y[8];
    double c0 = cos(1.0), s0 = sin(1.0), c1 = cos(0.01), s1 = sin(0.01);
    const double interleaved[4] = {c0 - 2 * s0, s0 + 2 * c0, 3 * c1 - 4 * s1, 3 * s1 + 4 * c1};
    const double halves[4] = {c0 - 3 * s0, 2 * c1 - 4 * s1, s0 + 3 * c0, 2 * s1 + 4 * c1};
    mha_tensor from = mha_tensor_contiguous(x, MHA_F32, 4, shape);
    mha_tensor to = mha_tensor_contiguous(y, MHA_F32, 4, shape);
    expect_ok(mha_rope_apply(context, NULL, &from, &to));
    for (int d = 0; d < 4; d++) {
        assert_true(y[d] == x[d]);
        assert_true(y[4 + d] == (float)interleaved[d]);
    }
    mha_rope_desc desc = {.struct_size = sizeof desc, .pairing = MHA_ROPE_HALVES};
    expect_ok(mha_rope_apply(context, &desc, &from, &to));
    for (int d = 0; d < 4; d++) assert_true(y[4 + d] == (float)halves[d]);
    /* Only the first two elements are rotated, by half of position 2. */
    desc = (mha_rope_desc){
        .struct_size = sizeof desc, .rotary_dim = 2, .factor = 2, .positions = {.start = 1}};
    expect_ok(mha_rope_apply(context, &desc, &from, &to));
    assert_true(y[4] == (float)interleaved[0] && y[5] == (float)interleaved[1]);
    assert_true(y[6] == 3 && y[7] == 4);
}

/* Non-finite numbers affect only their pair, or their vector if it is normalised. */
static void test_non_finite(void)
{
    enum { T = 3, D = 8 };
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    mha_context *context = context_with(1);
    const int64_t shape[4] = {1, 1, T, D};
    for (int pairing = 0; pairing < 2; pairing++)
        for (int n = 0; n < 3; n++) {
            float x[T * D], clean[T * D], y[T * D];
            for (int i = 0; i < T * D; i++) x[i] = (float)(i % 5) - 1.5f;
            mha_tensor from = mha_tensor_contiguous(x, MHA_F32, 4, shape);
            mha_tensor to = mha_tensor_contiguous(y, MHA_F32, 4, shape);
            mha_tensor without = mha_tensor_contiguous(clean, MHA_F32, 4, shape);
            mha_rope_desc desc = {.struct_size = sizeof desc, .pairing = (mha_rope_pairing)pairing};
            expect_ok(mha_rope_apply(context, &desc, &from, &without));
            x[D + 2] = bad[n];
            expect_ok(mha_rope_apply(context, &desc, &from, &to));
            int mate = pairing == MHA_ROPE_HALVES ? 6 : 3;
            for (int i = 0; i < T * D; i++) {
                bool hit = i == D + 2 || i == D + mate;
                assert_true(hit ? !isfinite(y[i]) : y[i] == clean[i]);
            }
            expect_ok(mha_qk_norm(context, MHA_QK_NORM_RMS, 1e-6f, &from, NULL, &to));
            for (int i = 0; i < T * D; i++)
                assert_true(isfinite(y[i]) || (i / D == 1 && isnan(y[i])));
            assert_true(isnan(y[D + 2]));
        }
}

/* ---- encodings ------------------------------------------------------------------------------- */

static void test_sinusoid(void)
{
    static const int64_t widths[] = {1, 2, 3, 7, 64, 255, 256, 257, 512, 600};
    static const int64_t starts[] = {0, 0, 1, -20, 4000, 3000000};
    tally t = {.name = "sinusoidal encoding"};
    mha_context *one = context_with(1), *three = context_with(3);
    for (int n = 0; n < (rng_long_run() ? 500 : 60); n++) {
        rng r = rng_make(rng_run_seed(), 2000000 + (uint64_t)n);
        int64_t shape[2] = {rng_between(&r, 0, 50), RNG_PICK(&r, widths)};
        int64_t start = RNG_PICK(&r, starts), i[MHA_MAX_DIMS] = {0};
        guarded g = guarded_make(&r, MHA_F32, 2, shape, any_layout(&r, false));
        guarded z = guarded_make(&r, MHA_F32, 2, shape, LAYOUT_CONTIGUOUS);
        expect_ok(mha_sinusoidal_encoding(one, start, &g.view));
        expect_ok(mha_sinusoidal_encoding(three, start, &z.view));
        assert_true(guarded_gaps_intact(&g));
        assert_true(guarded_same_bits(&g.view, &z.view, false));
        if (!guarded_is_empty(&g.view)) do {
                ref_bounded want = ref_sinusoid(start + i[0], i[1], shape[1]);
                double got = value_at(&g.view, i);
                if (!tally_compare(&t, got, want.exact, want.bound))
                    fail_msg("E %lld: row %lld, column %lld is %.9g, exact %.17g",
                             (long long)shape[1], (long long)(start + i[0]), (long long)i[1], got,
                             want.exact);
            } while (guarded_next(&g.view, i));
        guarded_free(&g);
        guarded_free(&z);
    }
    tally_judge(&t);
    float row[5]; /* the first row, by hand; an odd width ends with a sine */
    mha_tensor first = mha_tensor_contiguous(row, MHA_F32, 2, (int64_t[]){1, 5});
    expect_ok(mha_sinusoidal_encoding(one, 0, &first));
    for (int e = 0; e < 5; e++) assert_true(row[e] == (float)(e % 2));
}

static void test_add_positions(void)
{
    mha_context *one = context_with(1), *three = context_with(3);
    for (int n = 0; n < (rng_long_run() ? 2000 : 150); n++) {
        rng r = rng_make(rng_run_seed(), 3000000 + (uint64_t)n);
        int64_t shape[3] = {rng_between(&r, 0, MAX_B), rng_between(&r, 0, 40),
                            rng_between(&r, 0, 70)};
        int64_t rows = 2 * shape[1] + 3, i[MHA_MAX_DIMS] = {0};
        rope_case c = {.has_ids = false};
        choose_positions(&r, &c, shape[0], shape[1], rows);
        const mha_positions *positions = rng_chance(&r, 0.9) ? &c.desc.positions : NULL;
        guarded x = guarded_filled(&r, 3, shape, any_layout(&r, true), 1);
        guarded table = guarded_filled(&r, 2, (int64_t[]){rows, shape[2]}, any_layout(&r, true), 1);
        guarded y = guarded_make(&r, MHA_F32, 3, shape, any_layout(&r, false));
        guarded z = guarded_make(&r, MHA_F32, 3, shape, any_layout(&r, false));
        expect_ok(mha_add_positions(three, positions, &x.view, &table.view, &y.view));
        copy(&x.view, &z.view);
        expect_ok(mha_add_positions(one, positions, &z.view, &table.view, &z.view));
        assert_true(guarded_gaps_intact(&y) && guarded_gaps_intact(&z));
        assert_true(guarded_same_bits(&y.view, &z.view, false));
        if (!guarded_is_empty(&y.view)) do {
                int64_t at[2] = {ref_position(positions, i[0], i[1]), i[2]};
                float want = (float)(value_at(&x.view, i) + value_at(&table.view, at));
                assert_true(*(float *)guarded_element(&y.view, i) == want);
            } while (guarded_next(&y.view, i));
        guarded *all[] = {&x, &table, &y, &z};
        for (int k = 0; k < 4; k++) guarded_free(all[k]);
        if (c.has_ids) guarded_free(&c.ids);
    }
}

/* ---- slopes and buckets ---------------------------------------------------------------------- */

static void test_alibi_slopes(void)
{
    float slopes[129];
    for (int64_t heads = 1; heads <= 128; heads++) {
        slopes[heads] = -1;
        expect_ok(mha_alibi_slopes(heads, slopes));
        assert_true(slopes[heads] == -1);
        for (int64_t h = 0; h < heads; h++) {
            double want = ref_alibi_slope(h, heads);
            /* The recursion multiplies up to 128 times in double. */
            if (fabs((double)slopes[h] - want) > want * (0x1p-24 + 200 * 0x1p-53))
                fail_msg("head %lld of %lld: %.9g, want %.17g", (long long)h, (long long)heads,
                         (double)slopes[h], want);
        }
    }
    /* The slopes of the paper: 1/2 .. 1/256 for 8 heads. */
    expect_ok(mha_alibi_slopes(8, slopes));
    for (int h = 0; h < 8; h++) assert_true(slopes[h] == ldexpf(1, -(h + 1)));
    expect_ok(mha_alibi_slopes(12, slopes));
    static const double tail[4] = {0.70710678118654752, 0.35355339059327376, 0.17677669529663688,
                                   0.08838834764831844};
    for (int h = 0; h < 4; h++) assert_true(slopes[8 + h] == (float)tail[h]);
}

static int64_t bucket_of(int64_t relative, int64_t buckets, int64_t max_distance, bool one_sided)
{
    int64_t bucket = -1;
    expect_ok(mha_t5_bucket(relative, buckets, max_distance, one_sided, &bucket));
    assert_in_range(bucket, 0, buckets - 1);
    return bucket;
}

/* The smallest distance of each bucket, for 32 buckets and 128. */
static void test_t5_buckets(void)
{
    static const int64_t side[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91};
    static const int64_t causal[32] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10,
                                       11, 12, 13, 14, 15, 16, 19, 21, 24, 27, 31,
                                       35, 40, 46, 52, 59, 67, 77, 87, 99, 113};
    for (int64_t distance = 0; distance <= 1000; distance++) {
        int64_t n = 15, m = 31;
        while (side[n] > distance) n--;
        while (causal[m] > distance) m--;
        assert_int_equal(bucket_of(-distance, 32, 0, false), n);
        assert_int_equal(bucket_of(distance, 32, 128, false), distance > 0 ? 16 + n : 0);
        assert_int_equal(bucket_of(-distance, 32, 128, true), m);
        assert_int_equal(bucket_of(distance, 32, 0, true), 0);
    }
    assert_int_equal(bucket_of(INT64_MIN, 32, 128, false), 15);
    assert_int_equal(bucket_of(INT64_MAX, 32, 128, false), 31);
    assert_int_equal(bucket_of(INT64_MIN, 32, 128, true), 31);
    assert_int_equal(bucket_of(INT64_MIN, 2, INT64_MAX, true), 1);
    assert_int_equal(bucket_of(INT64_MAX, 4, INT64_MAX, false), 3);
}

/* ---- norms ----------------------------------------------------------------------------------- */

static void norm_compare(mha_qk_norm_kind kind, float epsilon, const guarded *x,
                         const mha_tensor *weight, const guarded *y, tally *t)
{
    int64_t i[MHA_MAX_DIMS] = {0};
    if (guarded_is_empty(&y->view)) return;
    do {
        ref_bounded want = ref_qk_norm(kind, (double)epsilon, &x->view, weight, i);
        double got = value_at(&y->view, i);
        if (!tally_compare(t, got, want.exact, want.bound))
            fail_msg("kind %d epsilon %g: y[%lld,%lld,%lld,%lld] is %.9g, exact %.17g", (int)kind,
                     (double)epsilon, (long long)i[0], (long long)i[1], (long long)i[2],
                     (long long)i[3], got, want.exact);
    } while (guarded_next(&y->view, i));
}

static void test_qk_norm(void)
{
    static const double factors[] = {1, 1, 1e-3, 1e-20, 1e-40, 1e18, 1e37, 0};
    static const float epsilons[] = {0, 1e-6f, 1e-5f, 1e-12f, 3};
    tally t = {.name = "norm of queries and keys"};
    mha_context *one = context_with(1), *three = context_with(3);
    for (int n = 0; n < rng_cases(150, 5000); n++) {
        rng r = rng_make(rng_run_seed(), 4000000 + (uint64_t)n);
        int64_t shape[4] = {rng_between(&r, 0, 3), rng_between(&r, 1, 5), rng_between(&r, 0, 30),
                            rng_between(&r, 0, 130)};
        mha_qk_norm_kind kind = rng_chance(&r, 0.5) ? MHA_QK_NORM_L2 : MHA_QK_NORM_RMS;
        float epsilon = RNG_PICK(&r, epsilons);
        int weighted = (int)rng_between(&r, 0, 2); /* the dimensions of weight */
        guarded x = guarded_filled(&r, 4, shape, any_layout(&r, true), RNG_PICK(&r, factors));
        int64_t weight_shape[2] = {shape[1], shape[3]};
        guarded w = guarded_filled(&r, 2, weight_shape, any_layout(&r, true), 1);
        mha_tensor vector = {w.view.data, MHA_F32, 1, {shape[3]}, {w.view.stride[1]}};
        const mha_tensor *weight = weighted == 0 ? NULL : weighted == 1 ? &vector : &w.view;
        guarded y = guarded_make(&r, MHA_F32, 4, shape, any_layout(&r, false));
        guarded z = guarded_make(&r, MHA_F32, 4, shape, any_layout(&r, false));
        expect_ok(mha_qk_norm(three, kind, epsilon, &x.view, weight, &y.view));
        copy(&x.view, &z.view);
        expect_ok(mha_qk_norm(one, kind, epsilon, &z.view, weight, &z.view));
        assert_true(guarded_gaps_intact(&y) && guarded_gaps_intact(&z));
        assert_true(guarded_same_bits(&y.view, &z.view, false));
        norm_compare(kind, epsilon, &x, weight, &y, &t);
        guarded *all[] = {&x, &w, &y, &z};
        for (int k = 0; k < 4; k++) guarded_free(all[k]);
    }
    tally_judge(&t);
}

/* ---- errors ---------------------------------------------------------------------------------- */

enum { B = 2, H = 3, T = 4, D = 8, P = 6, MEMORY = 4096 };

/* Valid arguments of all functions; each case makes one invalid. All tensors are in one block of
 * memory, which a failing call must not change. */
typedef struct call {
    mha_context *context;
    mha_rope_desc rope;
    mha_positions positions;
    mha_tensor x, y, ids, cosines, sines, weight, embedded, table, out;
    const mha_tensor *x_at, *y_at, *table_at;
    mha_qk_norm_kind kind;
    float epsilon;
    int64_t start, starts[B];
    float memory[MEMORY];
    int64_t places[B * T];
} call;

static call call_make(mha_context *context)
{
    call c = {.context = context, .rope = {.struct_size = sizeof c.rope}, .epsilon = 1e-6f};
    for (int i = 0; i < MEMORY; i++) c.memory[i] = (float)(i % 7) - 3;
    for (int i = 0; i < B * T; i++) c.places[i] = i % P;
    return c;
}

static void call_point(call *c)
{
    const int64_t heads[4] = {B, H, T, D}, pairs[2] = {P, D / 2}, tokens[2] = {B, T};
    const int64_t embedded[3] = {B, T, D}, table[2] = {P, D};
    float *m = c->memory;
    c->x = mha_tensor_contiguous(m, MHA_F32, 4, heads);
    c->y = mha_tensor_contiguous(m + 512, MHA_F32, 4, heads);
    c->cosines = mha_tensor_contiguous(m + 1024, MHA_F32, 2, pairs);
    c->sines = mha_tensor_contiguous(m + 1536, MHA_F32, 2, pairs);
    c->weight = mha_tensor_contiguous(m + 2048, MHA_F32, 1, heads + 3);
    c->embedded = mha_tensor_contiguous(m + 2560, MHA_F32, 3, embedded);
    c->table = mha_tensor_contiguous(m + 3072, MHA_F32, 2, table);
    c->out = mha_tensor_contiguous(m + 3584, MHA_F32, 3, embedded);
    c->ids = mha_tensor_contiguous(c->places, MHA_I64, 2, tokens);
    c->x_at = &c->x;
    c->y_at = &c->y;
    c->table_at = &c->table;
}

static mha_status call_rope(call *c)
{
    return mha_rope_apply(c->context, &c->rope, c->x_at, c->y_at);
}

static mha_status call_norm(call *c)
{
    return mha_qk_norm(c->context, c->kind, c->epsilon, c->x_at, &c->weight, c->y_at);
}

static mha_status call_add(call *c)
{
    return mha_add_positions(c->context, &c->positions, &c->embedded, c->table_at, &c->out);
}

static mha_status call_sinusoid(call *c)
{
    return mha_sinusoidal_encoding(c->context, c->start, c->table_at);
}

/* Cases; each makes one change. */
#define SPOIL(name, ...) SPOILER(call *c, name, __VA_ARGS__)
#define TABLES (c->rope.cos_table = &c->cosines, c->rope.sin_table = &c->sines)
#define TOKEN_TABLES                                                                               \
    (TABLES, c->cosines.ndim = c->sines.ndim = 3, c->cosines.shape[0] = c->sines.shape[0] = 1,     \
     c->cosines.shape[1] = c->sines.shape[1] = T, c->cosines.shape[2] = c->sines.shape[2] = D / 2, \
     c->cosines.stride[1] = c->sines.stride[1] = D / 2,                                            \
     c->cosines.stride[2] = c->sines.stride[2] = 1)
SPOIL(nothing, (void)c)
SPOIL(null_context, c->context = NULL)
SPOIL(null_x, c->x_at = NULL)
SPOIL(null_y, c->y_at = NULL)
SPOIL(null_table, c->table_at = NULL)
SPOIL(x_dtype, c->x.dtype = MHA_F64)
SPOIL(y_dtype, c->y.dtype = MHA_F16)
SPOIL(x_ndim, c->x.ndim = 3)
SPOIL(y_ndim, c->y.ndim = -1)
SPOIL(y_shape, c->y.shape[2] = T + 1)
SPOIL(x_negative, c->x.shape[2] = -4)
SPOIL(y_repeats, c->y.stride[1] = 0)
SPOIL(y_interleaves, c->y.stride[2] = D - 1)
SPOIL(y_misaligned, c->y.data = (char *)c->y.data + 1)
SPOIL(x_far, c->x.stride[0] = INT64_MAX / 2)
SPOIL(y_in_x, c->y.data = c->memory + 4)
SPOIL(y_turns_x, (c->y.data = c->memory, c->y.stride[1] = D, c->y.stride[2] = H * D))
SPOIL(small_struct, c->rope.struct_size = 8)
SPOIL(no_struct_size, c->rope.struct_size = 0)
SPOIL(unknown_flag, c->rope.flags = 2)
SPOIL(reserved_set, c->rope.reserved = 1)
SPOIL(bad_pairing, c->rope.pairing = (mha_rope_pairing)2)
SPOIL(odd_rotary, c->rope.rotary_dim = 5)
SPOIL(odd_head, c->x.shape[3] = c->y.shape[3] = 7)
SPOIL(wide_rotary, c->rope.rotary_dim = 10)
SPOIL(negative_rotary, c->rope.rotary_dim = -2)
SPOIL(negative_factor, c->rope.factor = -2)
SPOIL(nan_factor, c->rope.factor = NAN)
SPOIL(infinite_factor, c->rope.factor = INFINITY)
SPOIL(tiny_factor, c->rope.factor = 1e-300)
SPOIL(negative_base, c->rope.base = -10000)
SPOIL(small_base, c->rope.base = 0.5)
SPOIL(nan_base, c->rope.base = NAN)
SPOIL(two_positions, (c->rope.positions.start = 1, c->rope.positions.ids = &c->ids))
SPOIL(other_positions, (c->rope.positions.starts = c->starts, c->rope.positions.ids = &c->ids))
SPOIL(last_start, c->rope.positions.start = INT64_MAX - T + 2)
SPOIL(last_starts, (c->starts[1] = INT64_MAX, c->rope.positions.starts = c->starts))
SPOIL(ids_dtype, (c->rope.positions.ids = &c->ids, c->ids.dtype = MHA_I32))
SPOIL(ids_ndim, (c->rope.positions.ids = &c->ids, c->ids.ndim = 3))
SPOIL(ids_shape, (c->rope.positions.ids = &c->ids, c->ids.shape[1] = T - 1))
SPOIL(ids_null, (c->rope.positions.ids = &c->ids, c->ids.data = NULL))
SPOIL(ids_in_y, (c->rope.positions.ids = &c->ids, c->ids.data = c->y.data))
SPOIL(one_table, c->rope.cos_table = &c->cosines)
SPOIL(other_table, c->rope.sin_table = &c->sines)
SPOIL(tables_and_base, (TABLES, c->rope.base = 10000))
SPOIL(tables_and_factor, (TABLES, c->rope.factor = 2))
SPOIL(table_width, (TABLES, c->rope.rotary_dim = 4))
SPOIL(table_rows, (TABLES, c->sines.shape[0] = P - 1))
SPOIL(table_dtype, (TABLES, c->sines.dtype = MHA_F64))
SPOIL(table_ndim, (TABLES, c->cosines.ndim = 1))
SPOIL(tables_differ, (TOKEN_TABLES, c->sines.ndim = 2, c->sines.shape[1] = D / 2))
SPOIL(token_table_length, (TOKEN_TABLES, c->cosines.shape[1] = T - 1))
SPOIL(token_table_start, (TOKEN_TABLES, c->rope.positions.start = 1))
SPOIL(table_in_y, (TABLES, c->sines.data = c->y.data))
SPOIL(beyond_table, (TABLES, c->rope.positions.start = P - T + 1))
SPOIL(before_table, (TABLES, c->rope.positions.start = -1))
SPOIL(id_beyond, (TABLES, c->rope.positions.ids = &c->ids, c->places[5] = P))
SPOIL(bad_kind, c->kind = (mha_qk_norm_kind)2)
SPOIL(negative_epsilon, c->epsilon = -1e-6f)
SPOIL(nan_epsilon, c->epsilon = NAN)
SPOIL(infinite_epsilon, c->epsilon = INFINITY)
SPOIL(weight_length, c->weight.shape[0] = D - 1)
SPOIL(weight_ndim, c->weight.ndim = 3)
SPOIL(weight_in_y, c->weight.data = c->y.data)
SPOIL(code_width, c->table.shape[1] = D - 1)
SPOIL(code_repeats, c->table.stride[0] = 0)
SPOIL(code_in_out, c->table.data = c->out.data)
SPOIL(code_ndim, c->table.ndim = 1)
SPOIL(code_short, c->table.shape[0] = T - 1)
SPOIL(start_beyond, c->positions.start = P)
SPOIL(starts_before, (c->starts[1] = -1, c->positions.starts = c->starts))
SPOIL(first_row_late, c->start = INT64_MAX)
SPOIL(out_in_embedded, c->out.data = (float *)c->embedded.data + 8)

typedef struct error_case {
    mha_status (*run)(call *c);
    void (*spoil)(call *c);
    mha_status status;
    const char *text;
} error_case;

static const error_case errors[] = {
    {call_rope, nothing, MHA_OK, ""},
    {call_norm, nothing, MHA_OK, ""},
    {call_add, nothing, MHA_OK, ""},
    {call_sinusoid, nothing, MHA_OK, ""},
    {call_rope, null_context, MHA_ERR_NULL, "mha_rope_apply: context"},
    {call_rope, null_x, MHA_ERR_NULL, "x: is NULL"},
    {call_rope, null_y, MHA_ERR_NULL, "y: is NULL"},
    {call_rope, x_dtype, MHA_ERR_DTYPE, "x: dtype is f64"},
    {call_rope, y_dtype, MHA_ERR_DTYPE, "y: dtype is f16"},
    {call_rope, x_ndim, MHA_ERR_SHAPE, "x: has 3 dimensions"},
    {call_rope, y_ndim, MHA_ERR_SHAPE, "y: has -1 dimensions"},
    {call_rope, y_shape, MHA_ERR_SHAPE, "y: dim 2 is 5, expected 4"},
    {call_rope, x_negative, MHA_ERR_SHAPE, "x: dim 2 is -4"},
    {call_rope, y_repeats, MHA_ERR_STRIDE, "share memory"},
    {call_rope, y_interleaves, MHA_ERR_STRIDE, "share memory"},
    {call_rope, y_misaligned, MHA_ERR_STRIDE, "y: data is not aligned"},
    {call_rope, x_far, MHA_ERR_SIZE, "x: dim 0, 2 at a stride of"},
    {call_rope, y_in_x, MHA_ERR_OVERLAP, "y overlaps x"},
    {call_rope, y_turns_x, MHA_ERR_OVERLAP, "y overlaps x"},
    {call_rope, small_struct, MHA_ERR_ARGUMENT, "struct_size is 8"},
    {call_rope, no_struct_size, MHA_ERR_ARGUMENT, "struct_size is 0"},
    {call_rope, unknown_flag, MHA_ERR_UNSUPPORTED, "flags 0x2"},
    {call_rope, reserved_set, MHA_ERR_UNSUPPORTED, "reserved is 1"},
    {call_rope, bad_pairing, MHA_ERR_ARGUMENT, "pairing is 2"},
    {call_rope, odd_rotary, MHA_ERR_ARGUMENT, "rotary_dim is 5, expected an even"},
    {call_rope, odd_head, MHA_ERR_ARGUMENT, "rotary_dim is 7 (the head size)"},
    {call_rope, wide_rotary, MHA_ERR_ARGUMENT,
     "rotary_dim is 10, expected an even number of at "
     "most the head size 8"},
    {call_rope, negative_rotary, MHA_ERR_ARGUMENT, "rotary_dim is -2"},
    {call_rope, negative_factor, MHA_ERR_ARGUMENT, "factor is -2"},
    {call_rope, nan_factor, MHA_ERR_ARGUMENT, "factor is "},
    {call_rope, infinite_factor, MHA_ERR_ARGUMENT, "factor is inf"},
    {call_rope, tiny_factor, MHA_ERR_ARGUMENT, "factor is 1e-300"},
    {call_rope, negative_base, MHA_ERR_ARGUMENT, "base is -10000"},
    {call_rope, small_base, MHA_ERR_ARGUMENT, "base is 0.5"},
    {call_rope, nan_base, MHA_ERR_ARGUMENT, "base is "},
    {call_rope, two_positions, MHA_ERR_ARGUMENT, "set at most one of start, starts and ids"},
    {call_rope, other_positions, MHA_ERR_ARGUMENT, "set at most one of start, starts and ids"},
    {call_rope, last_start, MHA_ERR_SIZE, "and 4 tokens overflow"},
    {call_rope, last_starts, MHA_ERR_SIZE, "start 9223372036854775807"},
    {call_rope, ids_dtype, MHA_ERR_DTYPE, "positions: dtype is i32, expected i64"},
    {call_rope, ids_ndim, MHA_ERR_SHAPE, "positions: has 3 dimensions"},
    {call_rope, ids_shape, MHA_ERR_SHAPE, "positions: dim 1 is 3, it must be 1 or 4"},
    {call_rope, ids_null, MHA_ERR_NULL, "positions: data is NULL"},
    {call_rope, ids_in_y, MHA_ERR_OVERLAP, "y overlaps positions"},
    {call_rope, one_table, MHA_ERR_NULL, "sin_table is NULL"},
    {call_rope, other_table, MHA_ERR_NULL, "cos_table is NULL"},
    {call_rope, tables_and_base, MHA_ERR_ARGUMENT, "tables replace base and factor"},
    {call_rope, tables_and_factor, MHA_ERR_ARGUMENT, "tables replace base and factor"},
    {call_rope, table_width, MHA_ERR_SHAPE, "cos_table: dim 1 is 4, expected 2"},
    {call_rope, table_rows, MHA_ERR_SHAPE, "cos_table has 6 rows, sin_table 5"},
    {call_rope, table_dtype, MHA_ERR_DTYPE, "sin_table: dtype is f64"},
    {call_rope, table_ndim, MHA_ERR_SHAPE, "cos_table: has 1 dimensions"},
    {call_rope, tables_differ, MHA_ERR_SHAPE, "cos_table has 3 dimensions, sin_table 2"},
    {call_rope, token_table_length, MHA_ERR_SHAPE, "cos_table: dim 1 is 3, it must be 1 or 4"},
    {call_rope, token_table_start, MHA_ERR_ARGUMENT, "leave positions zero"},
    {call_rope, table_in_y, MHA_ERR_OVERLAP, "y overlaps sin_table"},
    {call_rope, beyond_table, MHA_ERR_ARGUMENT,
     "token 3 of sequence 0 is at position 6, the table has rows for 0 to 5"},
    {call_rope, before_table, MHA_ERR_ARGUMENT, "token 0 of sequence 0 is at position -1"},
    {call_rope, id_beyond, MHA_ERR_ARGUMENT, "token 1 of sequence 1 is at position 6"},
    {call_norm, null_context, MHA_ERR_NULL, "mha_qk_norm: context"},
    {call_norm, null_x, MHA_ERR_NULL, "x: is NULL"},
    {call_norm, y_shape, MHA_ERR_SHAPE, "y: dim 2 is 5"},
    {call_norm, y_repeats, MHA_ERR_STRIDE, "share memory"},
    {call_norm, y_in_x, MHA_ERR_OVERLAP, "y overlaps x"},
    {call_norm, bad_kind, MHA_ERR_ARGUMENT, "kind is 2"},
    {call_norm, negative_epsilon, MHA_ERR_ARGUMENT, "epsilon is -1e-06"},
    {call_norm, nan_epsilon, MHA_ERR_ARGUMENT, "epsilon is "},
    {call_norm, infinite_epsilon, MHA_ERR_ARGUMENT, "epsilon is inf"},
    {call_norm, weight_length, MHA_ERR_SHAPE, "weight: dim 0 is 7, expected 8"},
    {call_norm, weight_ndim, MHA_ERR_SHAPE, "weight: has 3 dimensions"},
    {call_norm, weight_in_y, MHA_ERR_OVERLAP, "y overlaps weight"},
    {call_add, null_context, MHA_ERR_NULL, "mha_add_positions: context"},
    {call_add, null_table, MHA_ERR_NULL, "table: is NULL"},
    {call_add, code_width, MHA_ERR_SHAPE, "table: dim 1 is 7, expected 8"},
    {call_add, code_in_out, MHA_ERR_OVERLAP, "y overlaps table"},
    {call_add, code_short, MHA_ERR_ARGUMENT, "token 3 of sequence 0 is at position 3"},
    {call_add, start_beyond, MHA_ERR_ARGUMENT, "is at position 6, the table has rows for 0 to 5"},
    {call_add, starts_before, MHA_ERR_ARGUMENT, "token 0 of sequence 1 is at position -1"},
    {call_add, out_in_embedded, MHA_ERR_OVERLAP, "y overlaps x"},
    {call_sinusoid, null_context, MHA_ERR_NULL, "mha_sinusoidal_encoding: context"},
    {call_sinusoid, null_table, MHA_ERR_NULL, "table: is NULL"},
    {call_sinusoid, code_ndim, MHA_ERR_SHAPE, "table: has 1 dimensions"},
    {call_sinusoid, code_repeats, MHA_ERR_STRIDE, "share memory"},
    {call_sinusoid, first_row_late, MHA_ERR_SIZE, "and 6 rows overflow"},
};

static void misuse_is_refused(void)
{
    mha_context *context = context_with(2);
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        const error_case *e = &errors[i];
        static call c;
        static float before[MEMORY];
        c = call_make(context);
        call_point(&c);
        e->spoil(&c);
        memcpy(before, c.memory, sizeof before);
        mha_status got = e->run(&c);
        if (got == MHA_OK && e->status == MHA_OK) continue;
        expect_row(i, got, e->status, e->text);
        assert_memory_equal(c.memory, before, sizeof before);
    }
}

static void test_scalar_errors(void)
{
    float slope = 7;
    int64_t bucket = 7;
    static const struct {
        int64_t buckets, max_distance;
        bool one_sided;
        const char *text;
    } bad[] = {{0, 128, true, "buckets is 0"},      {1, 128, true, "buckets is 1"},
               {2, 128, false, "buckets is 2"},     {33, 128, false, "buckets is 33"},
               {-32, 128, false, "buckets is -32"}, {32, 16, true, "max_distance is 16"},
               {32, 8, false, "max_distance is 8"}, {32, -1, false, "max_distance is -1"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(
            mha_t5_bucket(1, bad[i].buckets, bad[i].max_distance, bad[i].one_sided, &bucket),
            MHA_ERR_ARGUMENT);
        assert_non_null(strstr(mha_error_detail(), bad[i].text));
    }
    assert_int_equal(mha_t5_bucket(1, 32, 128, true, NULL), MHA_ERR_NULL);
    assert_int_equal(mha_alibi_slopes(0, &slope), MHA_ERR_ARGUMENT);
    assert_non_null(strstr(mha_error_detail(), "num_heads is 0"));
    assert_int_equal(mha_alibi_slopes(INT64_MIN, &slope), MHA_ERR_ARGUMENT);
    assert_int_equal(mha_alibi_slopes(4, NULL), MHA_ERR_NULL);
    assert_true(slope == 7 && bucket == 7);
}

/* No call allocates, and tensors without elements need no memory. */
static void no_call_allocates(void)
{
    failing_alloc allocator = failing_alloc_make();
    mha_context *context = NULL;
    expect_ok(failing_context(&allocator, 1, MHA_ISA_AUTO, &context));
    static call c;
    c = call_make(context);
    call_point(&c);
    int64_t calls = allocator.calls;
    expect_ok(call_rope(&c));
    expect_ok(call_norm(&c));
    expect_ok(call_add(&c));
    expect_ok(call_sinusoid(&c));
    assert_int_equal(allocator.calls, calls);
    mha_tensor empty = mha_tensor_contiguous(NULL, MHA_F32, 4, (int64_t[]){2, 0, INT64_MAX, 8});
    expect_ok(mha_rope_apply(context, NULL, &empty, &empty));
    expect_ok(mha_qk_norm(context, MHA_QK_NORM_L2, 0, &empty, NULL, &empty));
    mha_context_destroy(context);
    assert_int_equal(allocator.live, 0);
    assert_int_equal(allocator.mistakes, 0);
}

RUN_TESTS(TEST(test_rope), TEST(test_rope_properties), TEST(test_rope_by_hand),
          TEST(test_non_finite), TEST(test_sinusoid), TEST(test_add_positions),
          TEST(test_alibi_slopes), TEST(test_t5_buckets), TEST(test_qk_norm),
          TEST(misuse_is_refused), TEST(test_scalar_errors), TEST(no_call_allocates))
