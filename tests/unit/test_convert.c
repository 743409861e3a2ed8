/* mha_tensor_convert: every f16 and bf16 number, every midpoint between neighbours, and random
 * numbers are compared with the definitions in double; then shapes, strides and misuse. */
#include "reference/half_reference.h"
#include "support/expect.h"
#include "support/guarded.h"
#include "support/suite.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATTERNS = 65536 };

static const mha_dtype halves[] = {MHA_F16, MHA_BF16};

static mha_tensor row_of(void *data, mha_dtype type, int64_t n)
{
    return mha_tensor_contiguous(data, type, 1, &n);
}

static void convert(void *in, mha_dtype from, void *out, mha_dtype to, int64_t n)
{
    const mha_tensor x = row_of(in, from, n), y = row_of(out, to, n);
    expect_ok(mha_tensor_convert(&x, &y));
}

static void *room_for(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    assert_non_null(memory);
    return memory;
}

/* ---- every pattern --------------------------------------------------------------------------- */

static void every_pattern_widens_exactly_and_comes_back(void)
{
    uint16_t *in = room_for(PATTERNS, sizeof *in), *back = room_for(PATTERNS, sizeof *back);
    float *single = room_for(PATTERNS, sizeof *single);
    double *wide = room_for(PATTERNS, sizeof *wide);
    for (int i = 0; i < PATTERNS; i++) in[i] = (uint16_t)i;
    for (int t = 0; t < 2; t++) {
        convert(in, halves[t], single, MHA_F32, PATTERNS);
        convert(in, halves[t], wide, MHA_F64, PATTERNS);
        for (int i = 0; i < PATTERNS; i++) {
            double exact = half_value(halves[t], in[i]);
            if (isnan(exact)) {
                assert_true(isnan(single[i]) && isnan(wide[i]));
                continue;
            }
            float expected = (float)exact;
            assert_memory_equal(&single[i], &expected, sizeof expected);
            assert_memory_equal(&wide[i], &exact, sizeof exact);
        }
        convert(single, MHA_F32, back, halves[t], PATTERNS);
        for (int i = 0; i < PATTERNS; i++) assert_true(half_same(halves[t], back[i], in[i]));
        convert(wide, MHA_F64, back, halves[t], PATTERNS);
        for (int i = 0; i < PATTERNS; i++) assert_true(half_same(halves[t], back[i], in[i]));
    }
    free(in);
    free(back);
    free(single);
    free(wide);
}

/* ---- rounding -------------------------------------------------------------------------------- */

static void expect_f32(mha_dtype type, const float *x, uint16_t *room, int n)
{
    convert((void *)(uintptr_t)x, MHA_F32, room, type, n);
    for (int i = 0; i < n; i++)
        if (!half_same(type, room[i], half_nearest(type, (double)x[i])))
            fail_msg("%s of f32 %a is %04x, expected %04x", mha_dtype_name(type), (double)x[i],
                     room[i], half_nearest(type, (double)x[i]));
}

static void expect_f64(mha_dtype type, const double *x, uint16_t *room, int n)
{
    convert((void *)(uintptr_t)x, MHA_F64, room, type, n);
    for (int i = 0; i < n; i++)
        if (!half_same(type, room[i], half_nearest(type, x[i])))
            fail_msg("%s of f64 %a is %04x, expected %04x", mha_dtype_name(type), x[i], room[i],
                     half_nearest(type, x[i]));
}

/* Midpoints (exact in f32 and double) and adjacent numbers. Adjacent numbers in double are so close
 * that conversion through f32 would round twice. */
static void midpoints_go_to_even(void)
{
    uint16_t room[6];
    for (int t = 0; t < 2; t++) {
        uint16_t infinity = half_nearest(halves[t], (double)INFINITY);
        for (uint16_t i = 0; i < infinity; i++) {
            double low = half_value(halves[t], i);
            double step = i + 1 < infinity ? half_value(halves[t], (uint16_t)(i + 1)) - low
                                           : low - half_value(halves[t], (uint16_t)(i - 1));
            double middle = low + step / 2;
            float m = (float)middle;
            assert_true((double)m == middle);
            assert_int_equal(half_nearest(halves[t], middle), i + (i & 1));
            float x[6] = {m, nextafterf(m, 0), nextafterf(m, INFINITY)};
            double y[6] = {middle, nextafter(middle, 0), nextafter(middle, (double)INFINITY)};
            for (int j = 0; j < 3; j++) x[3 + j] = -x[j], y[3 + j] = -y[j];
            expect_f32(halves[t], x, room, 6);
            expect_f64(halves[t], y, room, 6);
        }
    }
}

static void ends_of_the_range(void)
{
    uint16_t room[2];
    const float f16_ends[] = {65519.996f, 65520.0f};
    convert((void *)(uintptr_t)f16_ends, MHA_F32, room, MHA_F16, 2);
    assert_int_equal(room[0], 0x7BFF); /* 65504 */
    assert_int_equal(room[1], 0x7C00);
    const float bf16_ends[] = {0x1.FEFFFEp+127f, 0x1.FFp+127f};
    convert((void *)(uintptr_t)bf16_ends, MHA_F32, room, MHA_BF16, 2);
    assert_int_equal(room[0], 0x7F7F);
    assert_int_equal(room[1], 0x7F80);
    const double far[] = {1e300, -1e-300};
    float single[2];
    convert((void *)(uintptr_t)far, MHA_F64, room, MHA_F16, 2);
    assert_int_equal(room[0], 0x7C00);
    assert_int_equal(room[1], 0x8000);
    convert((void *)(uintptr_t)far, MHA_F64, room, MHA_BF16, 2);
    assert_int_equal(room[0], 0x7F80);
    assert_int_equal(room[1], 0x8000);
    convert((void *)(uintptr_t)far, MHA_F64, single, MHA_F32, 2);
    assert_true(isinf(single[0]) && single[1] == 0 && signbit(single[1]));
}

static void any_number_rounds_to_the_nearest(void)
{
    enum { AT_ONCE = 1000 };
    rng r = rng_make(rng_run_seed(), 1);
    float x[AT_ONCE];
    double y[AT_ONCE];
    uint16_t room[AT_ONCE];
    for (int i = rng_cases(500, 50000); i > 0; i--) {
        for (int j = 0; j < AT_ONCE; j++) {
            uint32_t bits = (uint32_t)(rng_next(&r) >> 32);
            memcpy(&x[j], &bits, sizeof bits);
            uint64_t wide = rng_next(&r);
            memcpy(&y[j], &wide, sizeof wide);
            if (j % 2) y[j] = ldexp((double)rng_normal(&r), (int)rng_between(&r, -160, 140));
        }
        for (int t = 0; t < 2; t++) {
            expect_f32(halves[t], x, room, AT_ONCE);
            expect_f64(halves[t], y, room, AT_ONCE);
        }
    }
}

/* ---- tensors --------------------------------------------------------------------------------- */

static double element(const mha_tensor *x, const int64_t *index)
{
    const void *at = guarded_element(x, index);
    if (x->dtype == MHA_F32) return (double)*(const float *)at;
    if (x->dtype == MHA_F64) return *(const double *)at;
    return half_value(x->dtype, *(const uint16_t *)at);
}

/* Small multiples of 1/8, exact in every type. */
static void fill(rng *r, const mha_tensor *x)
{
    int64_t index[MHA_MAX_DIMS] = {0};
    if (guarded_is_empty(x)) return;
    do {
        double value = (double)rng_between(r, -100, 100) / 8;
        void *at = guarded_element(x, index);
        if (x->dtype == MHA_F32) *(float *)at = (float)value;
        if (x->dtype == MHA_F64) *(double *)at = value;
        if (x->dtype == MHA_F16 || x->dtype == MHA_BF16)
            *(uint16_t *)at = half_nearest(x->dtype, value);
    } while (guarded_next(x, index));
}

static void any_shape_and_strides(void)
{
    static const mha_dtype types[] = {MHA_F32, MHA_F64, MHA_F16, MHA_BF16};
    rng r = rng_make(rng_run_seed(), 2);
    for (int i = rng_cases(1000, 100000); i > 0; i--) {
        int ndim = (int)rng_between(&r, 0, 4);
        int64_t shape[4], index[MHA_MAX_DIMS] = {0};
        for (int j = 0; j < ndim; j++) shape[j] = rng_between(&r, rng_chance(&r, 0.1) ? 0 : 1, 7);
        unsigned in = guarded_random_layout(&r, true), out = guarded_random_layout(&r, false);
        if (ndim < 3) in &= ~(unsigned)LAYOUT_SWAP, out &= ~(unsigned)LAYOUT_SWAP;
        if (rng_chance(&r, 0.3)) in |= LAYOUT_LAST;
        if (rng_chance(&r, 0.3)) out |= LAYOUT_LAST;
        guarded x = guarded_make(&r, RNG_PICK(&r, types), ndim, shape, in);
        guarded y = guarded_make(&r, RNG_PICK(&r, types), ndim, shape, out);
        fill(&r, &x.view);
        guarded_snapshot(&x);
        expect_ok(mha_tensor_convert(&x.view, &y.view));
        assert_true(guarded_unchanged(&x) && guarded_gaps_intact(&y));
        if (!guarded_is_empty(&x.view)) do
                assert_true(element(&x.view, index) == element(&y.view, index));
            while (guarded_next(&x.view, index));
        guarded_free(&x);
        guarded_free(&y);
    }
}

/* ---- misuse ---------------------------------------------------------------------------------- */

/* The stride of an axis of length 1 is never used, as sanitizers confirm. */
static void strides_that_lead_nowhere(void)
{
    float x = 1.5f, y = 0;
    mha_tensor in = mha_tensor_contiguous(&x, MHA_F32, 2, (int64_t[]){1, 1}), out = in;
    out.data = &y;
    for (int turn = 0; turn < 2; turn++) {
        in.stride[0] = in.stride[1] = (turn ? 1 : -1) * (INT64_C(1) << 57);
        out.stride[0] = out.stride[1] = -in.stride[0];
        y = 0;
        expect_ok(mha_tensor_convert(&in, &out));
        assert_true(y == x);
    }
}

static void misuse_is_refused(void)
{
    float a[8] = {0};
    uint16_t b[8], before[8];
    memset(b, 0xA5, sizeof b);
    memcpy(before, b, sizeof b);
    struct {
        mha_tensor in, out;
    } x = {row_of(a, MHA_F32, 8), row_of(b, MHA_F16, 8)};
#define REFUSE(status, part, ...) \
    expect_spoiled(x, mha_tensor_convert(&x.in, &x.out), status, part, __VA_ARGS__)
    expect_error(mha_tensor_convert(NULL, &x.out), MHA_ERR_NULL, "in");
    expect_error(mha_tensor_convert(&x.in, NULL), MHA_ERR_NULL, "out");
    REFUSE(MHA_ERR_DTYPE, "in: dtype is i32", x.in.dtype = MHA_I32);
    REFUSE(MHA_ERR_DTYPE, "out: dtype is u8", x.out.dtype = MHA_U8);
    REFUSE(MHA_ERR_SHAPE, "7, expected 8", x.out.shape[0] = 7);
    REFUSE(MHA_ERR_SHAPE, "2 dimensions",
           x.out = mha_tensor_contiguous(b, MHA_F16, 2, (int64_t[]){2, 4}));
    REFUSE(MHA_ERR_SHAPE, "-1 dimensions", x.in.ndim = -1);
    REFUSE(MHA_ERR_SHAPE, "-3", x.in.shape[0] = -3);
    REFUSE(MHA_ERR_STRIDE, "share memory", x.out.stride[0] = 0);
    REFUSE(MHA_ERR_STRIDE, "aligned", x.out = row_of((char *)b + 1, MHA_F16, 7), x.in.shape[0] = 7);
    REFUSE(MHA_ERR_OVERLAP, "out overlaps in", x.out = row_of(a, MHA_BF16, 8));
    REFUSE(MHA_ERR_SIZE, "address space", x.in.stride[0] = INT64_MAX / 2);
    REFUSE(MHA_ERR_NULL, "in: data", x.in.data = NULL);
#undef REFUSE
    assert_memory_equal(b, before, sizeof b);
}

RUN_TESTS(TEST(every_pattern_widens_exactly_and_comes_back), TEST(midpoints_go_to_even),
          TEST(ends_of_the_range), TEST(any_number_rounds_to_the_nearest),
          TEST(any_shape_and_strides), TEST(strides_that_lead_nowhere), TEST(misuse_is_refused))
