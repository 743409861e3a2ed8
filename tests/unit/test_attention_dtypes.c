/* f16 and bf16 inputs and outputs of attention must be bit-identical to widening the inputs
 * exactly, computing in f32, and rounding o once to nearest. This holds on every path and
 * instruction set, for any descriptor, mixture of types and strides, and also for caches and linear
 * attention. The default is a sample; MHA_TEST_LONG=1 tests 5,000 descriptors. */
#include "reference/half_reference.h"
#include "support/expect.h"
#include "support/kinds.h"
#include "support/machines.h"
#include "support/shared_context.h"
#include "support/suite.h"

#include <multihead/cache.h>
#include <multihead/linear_attention.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const mha_dtype halves[] = {MHA_F16, MHA_BF16};

/* ---- tensors in two types -------------------------------------------------------------------- */

static double element(const mha_tensor *x, const int64_t *index)
{
    const void *at = guarded_element(x, index);
    return x->dtype == MHA_F32 ? (double)*(const float *)at
                               : half_value(x->dtype, *(const uint16_t *)at);
}

static void set_element(const mha_tensor *x, const int64_t *index, double value)
{
    void *at = guarded_element(x, index);
    if (x->dtype == MHA_F32)
        *(float *)at = (float)value;
    else
        *(uint16_t *)at = half_nearest(x->dtype, value);
}

static void copy(const mha_tensor *from, const mha_tensor *to)
{
    int64_t index[MHA_MAX_DIMS] = {0};
    if (guarded_is_empty(from)) return;
    do set_element(to, index, element(from, index));
    while (guarded_next(from, index));
}

/* The same numbers twice: in the type under test, and in f32. */
typedef struct twin {
    guarded narrow, wide;
} twin;

/* special: frequency of infinities, NaNs, zeros and subnormal numbers. */
static twin twin_of(rng *r, const mha_tensor *from, mha_dtype type, unsigned layout, double special)
{
    static const double odd[] = {(double)INFINITY, (double)-INFINITY, (double)NAN, -0.0,
                                 0x1p-24,          -0x3p-24,          0x1p-130,    0x1p-15};
    twin x = {.narrow = guarded_make(r, type, from->ndim, from->shape, layout)};
    x.wide = guarded_make(r, MHA_F32, from->ndim, from->shape, LAYOUT_CONTIGUOUS);
    int64_t index[MHA_MAX_DIMS] = {0};
    copy(from, &x.narrow.view);
    if (!guarded_is_empty(from)) do
            if (rng_chance(r, special)) set_element(&x.narrow.view, index, RNG_PICK(r, odd));
        while (guarded_next(from, index));
    copy(&x.narrow.view, &x.wide.view);
    return x;
}

static void twin_free(twin *x)
{
    guarded_free(&x->narrow);
    guarded_free(&x->wide);
}

/* Whether got equals wide, rounded to got's type. All NaNs are equal. */
static bool rounded(const mha_tensor *wide, const mha_tensor *got)
{
    int64_t index[MHA_MAX_DIMS] = {0};
    if (got->dtype == MHA_F32) return guarded_same_bits(wide, got, true);
    if (guarded_is_empty(wide)) return true;
    do {
        uint16_t bits = *(const uint16_t *)guarded_element(got, index);
        if (!half_same(got->dtype, bits, half_nearest(got->dtype, element(wide, index))))
            return false;
    } while (guarded_next(wide, index));
    return true;
}

static mha_dtype some_type(rng *r)
{
    static const mha_dtype types[] = {MHA_F32, MHA_F16, MHA_F16, MHA_BF16, MHA_BF16};
    return RNG_PICK(r, types);
}

/* ---- any descriptor -------------------------------------------------------------------------- */

typedef struct trial {
    int number;
    kinds_case c;
    twin q, k, v, bias;
    mha_dtype o_type;
} trial;

static void fail_trial(const trial *x, const machine *m, const char *what)
{
    fail_msg("%s: %s\n  %s\n  q %s k %s v %s o %s bias %s; alone: MHA_TEST_SEED=%llu "
             "MHA_TEST_CASE=%d",
             m->name, what, x->c.text, mha_dtype_name(x->q.narrow.view.dtype),
             mha_dtype_name(x->k.narrow.view.dtype), mha_dtype_name(x->v.narrow.view.dtype),
             mha_dtype_name(x->o_type),
             x->c.desc.bias ? mha_dtype_name(x->bias.narrow.view.dtype) : "none",
             (unsigned long long)rng_run_seed(), x->number);
}

static void draw(trial *x, rng *r, const kinds_shape *shape)
{
    static const double often[] = {0, 0, 0.001, 0.02};
    kinds_make(&x->c, r, shape);
    bool plain = x->c.shape.plain_layout;
    const mha_tensor *from[] = {&x->c.q.view, &x->c.k.view, &x->c.v.view};
    twin *to[] = {&x->q, &x->k, &x->v};
    for (int i = 0; i < 3; i++)
        *to[i] =
            twin_of(r, from[i], some_type(r),
                    plain ? LAYOUT_CONTIGUOUS : guarded_random_layout(r, true), RNG_PICK(r, often));
    x->o_type = some_type(r);
    unsigned layout =
        plain ? LAYOUT_CONTIGUOUS : LAYOUT_PAD | (rng_chance(r, 0.5) ? LAYOUT_LAST : 0);
    if (x->c.desc.bias) x->bias = twin_of(r, x->c.desc.bias, some_type(r), layout, 0.01);
}

static void forget(trial *x)
{
    twin_free(&x->q);
    twin_free(&x->k);
    twin_free(&x->v);
    if (x->c.desc.bias) twin_free(&x->bias);
    kinds_free(&x->c);
}

static mha_status run(mha_context *context, const trial *x, mha_path path, bool narrow,
                      outcome *result)
{
    mha_attention_desc desc = x->c.desc;
    desc.path = path;
    if (desc.bias) desc.bias = narrow ? &x->bias.narrow.view : &x->bias.wide.view;
    return outcome_run(context, &desc, narrow ? &x->q.narrow.view : &x->q.wide.view,
                       narrow ? &x->k.narrow.view : &x->k.wide.view,
                       narrow ? &x->v.narrow.view : &x->v.wide.view, result);
}

/* Compute in f32 with one thread, and in the types under test with several threads. */
static void compare(const trial *x, rng *r, const machine *one, const machine *several)
{
    outcome wide = outcome_make(r, &x->c.result, OUTCOME_ALL, LAYOUT_CONTIGUOUS);
    unsigned layout = x->c.shape.plain_layout ? LAYOUT_CONTIGUOUS : guarded_random_layout(r, false);
    outcome got = outcome_make(r, &x->c.result, OUTCOME_ALL, layout);
    guarded_free(&got.o);
    got.o = guarded_make(r, x->o_type, 4, wide.o.view.shape, layout);
    if (run(one->context, x, one->path, false, &wide) != MHA_OK ||
        run(several->context, x, one->path, true, &got) != MHA_OK)
        fail_trial(x, one, mha_error_detail());
    if (!outcome_intact(&got)) fail_trial(x, one, "wrote between elements");
    if (!guarded_same_bits(&wide.lse.view, &got.lse.view, true)) fail_trial(x, one, "lse differs");
    if (!guarded_same_bits(&wide.p.view, &got.p.view, true)) fail_trial(x, one, "p differs");
    if (!rounded(&wide.o.view, &got.o.view)) fail_trial(x, one, "o is not the f32 o rounded");
    outcome_free(&wide);
    outcome_free(&got);
}

static void run_trial(int number, const machines *one, const machines *several, int64_t head_dim)
{
    rng r = rng_make(rng_run_seed(), (uint64_t)number);
    trial x = {.number = number};
    kinds_shape shape = kinds_some_shape(&r);
    if (head_dim) shape.D = head_dim, shape.Dv = rng_between(&r, 1, 80);
    draw(&x, &r, &shape);
    for (int m = 0; m < one->count; m++) compare(&x, &r, &one->each[m], &several->each[m]);
    forget(&x);
}

static void any_descriptor(void)
{
    machines one = machines_make(1), several = machines_make(3);
    int i, end;
    rng_range(300, 5000, &i, &end);
    for (; i < end; i++) run_trial(i, &one, &several, 0);
}

/* Rows end anywhere in a register; an unreadable page follows the last element. */
static void any_head_size(void)
{
    machines one = machines_make(1), several = machines_make(2);
    for (int64_t d = 1; d <= 49; d++) run_trial(2000000 + (int)d, &one, &several, d);
}

/* ---- outputs on request ---------------------------------------------------------------------- */

enum { WISHES = 8, TOP = 3 };

/* All outputs, including o, except lse and p. */
static void ask_for_all(mha_context *context, const trial *x, mha_path path, mha_score_stage stage,
                        bool narrow, const mha_tensor *o, guarded all[WISHES])
{
    const mha_attention_outputs outputs = {.struct_size = sizeof outputs,
                                           .scores = &all[0].view,
                                           .score_stage = stage,
                                           .average_probabilities = &all[1].view,
                                           .column_sums = &all[2].view,
                                           .entropy = &all[3].view,
                                           .largest_weight = &all[4].view,
                                           .largest_key = &all[5].view,
                                           .top_keys = &all[6].view,
                                           .top_weights = &all[7].view};
    mha_attention_desc desc = x->c.desc;
    desc.path = path;
    if (desc.bias) desc.bias = narrow ? &x->bias.narrow.view : &x->bias.wide.view;
    if (mha_attention_forward(context, &desc, narrow ? &x->q.narrow.view : &x->q.wide.view,
                              narrow ? &x->k.narrow.view : &x->k.wide.view,
                              narrow ? &x->v.narrow.view : &x->v.wide.view, o, &outputs) != MHA_OK)
        fail_msg("%s: %s", x->c.text, mha_error_detail());
}

static void compare_outputs(const trial *x, rng *r, const machine *m)
{
    const problem_shape *n = &x->c.result;
    const int64_t shapes[WISHES][4] = {{n->B, n->H, n->T, n->S}, {n->B, n->T, n->S},
                                       {n->B, n->H, n->S},       {n->B, n->H, n->T},
                                       {n->B, n->H, n->T},       {n->B, n->H, n->T},
                                       {n->B, n->H, n->T, TOP},  {n->B, n->H, n->T, TOP}};
    const mha_score_stage stage = (mha_score_stage)rng_between(r, 0, 2);
    const int64_t o_shape[] = {n->B, n->H, n->T, n->Dv};
    guarded o[2], all[2][WISHES];
    for (int narrow = 0; narrow < 2; narrow++) {
        o[narrow] = guarded_make(r, narrow ? x->o_type : MHA_F32, 4, o_shape, LAYOUT_PAD);
        for (int i = 0; i < WISHES; i++) {
            int ndim = i == 0 || i >= 6 ? 4 : 3;
            mha_dtype type = i == 5 || i == 6 ? MHA_I64 : MHA_F32;
            all[narrow][i] = guarded_make(r, type, ndim, shapes[i], LAYOUT_PAD);
        }
        ask_for_all(m->context, x, m->path, stage, narrow, &o[narrow].view, all[narrow]);
    }
    if (!rounded(&o[0].view, &o[1].view)) fail_trial(x, m, "o is not the f32 o rounded");
    for (int i = 0; i < WISHES; i++)
        if (!guarded_same_bits(&all[0][i].view, &all[1][i].view, true))
            fail_trial(x, m, "an output on request differs");
    for (int narrow = 0; narrow < 2; narrow++) {
        guarded_free(&o[narrow]);
        for (int i = 0; i < WISHES; i++) guarded_free(&all[narrow][i]);
    }
}

static void outputs_on_request(void)
{
    machines all = machines_make(2);
    for (int i = rng_cases(60, 1000); i > 0; i--) {
        rng r = rng_make(rng_run_seed(), 5000000 + (uint64_t)i);
        kinds_shape shape = kinds_some_shape(&r);
        shape.kinds &= ~(unsigned)KIND_RAGGED;
        trial x = {.number = i};
        draw(&x, &r, &shape);
        for (int m = 0; m < all.count; m++) compare_outputs(&x, &r, &all.each[m]);
        forget(&x);
    }
}

/* ---- every number ---------------------------------------------------------------------------- */

enum { SIDE = 256, PATTERNS = SIDE * SIDE };

static void forward(const machine *m, const mha_attention_desc *given, const mha_tensor *q,
                    const mha_tensor *k, const mha_tensor *v, const mha_tensor *o,
                    const mha_attention_outputs *outputs)
{
    mha_attention_desc desc = given ? *given : (mha_attention_desc){0};
    desc.struct_size = sizeof desc;
    desc.path = m->path;
    if (mha_attention_forward(m->context, &desc, q, k, v, o, outputs) != MHA_OK)
        fail_msg("%s: %s", m->name, mha_error_detail());
}

static const int64_t value_shape[] = {SIDE, 1, 1, SIDE}, point_shape[] = {SIDE, 1, 1, 1};

/* With one key o equals v. Tests every bit pattern of v in every position of a register. */
static void every_value_arrives(void)
{
    machines all = machines_make(1);
    static uint16_t in[PATTERNS];
    static float out[PATTERNS], zero[SIDE];
    const mha_tensor point = mha_tensor_contiguous(zero, MHA_F32, 4, point_shape);
    const mha_tensor o = mha_tensor_contiguous(out, MHA_F32, 4, value_shape);
    for (int i = 0; i < PATTERNS; i++) in[i] = (uint16_t)i;
    for (int m = 0; m < all.count; m++)
        for (int t = 0; t < 2; t++) {
            const mha_tensor v = mha_tensor_contiguous(in, halves[t], 4, value_shape);
            forward(&all.each[m], NULL, &point, &point, &v, &o, NULL);
            for (int i = 0; i < PATTERNS; i++) {
                double exact = half_value(halves[t], in[i]);
                if (isfinite(exact) ? (double)out[i] != exact : isfinite(out[i]) != 0)
                    fail_msg("%s: %s %04x arrives as %a", all.each[m].name,
                             mha_dtype_name(halves[t]), (unsigned)in[i], (double)out[i]);
            }
        }
}

/* The same for the output: midpoints between neighbours in f16 or bf16, and the adjacent
 * numbers. */
static void every_midpoint_is_rounded(void)
{
    machines all = machines_make(1);
    static uint16_t out[PATTERNS];
    static float in[PATTERNS], zero[SIDE];
    const mha_tensor point = mha_tensor_contiguous(zero, MHA_F32, 4, point_shape);
    const mha_tensor v = mha_tensor_contiguous(in, MHA_F32, 4, value_shape);
    for (int side = -1; side <= 1; side++)
        for (int t = 0; t < 2; t++) {
            const mha_tensor o = mha_tensor_contiguous(out, halves[t], 4, value_shape);
            for (int i = 0; i < PATTERNS; i++) {
                double low = half_value(halves[t], (uint16_t)i),
                       high = half_value(halves[t], (uint16_t)(i + 1));
                bool inner = isfinite(low) && isfinite(high);
                in[i] = inner ? (float)(low + (high - low) / 2) : (float)(low * (1 + 0x1p-10));
                if (side != 0) in[i] = nextafterf(in[i], side < 0 ? -INFINITY : INFINITY);
                if (!isfinite(in[i])) in[i] = 0;
            }
            for (int m = 0; m < all.count; m++) {
                forward(&all.each[m], NULL, &point, &point, &v, &o, NULL);
                for (int i = 0; i < PATTERNS; i++) {
                    uint16_t expected = half_nearest(halves[t], (double)(in[i] + 0.0f));
                    if (out[i] != expected)
                        fail_msg("%s: %a leaves as %s %04x, not %04x", all.each[m].name,
                                 (double)in[i], mha_dtype_name(halves[t]), (unsigned)out[i],
                                 (unsigned)expected);
                }
            }
        }
}

/* Every bit pattern as a query and as a key. With a window of one key, lse is the pair's score. */
static void every_score_is_that_of_f32(void)
{
    machines all = machines_make(1);
    static uint16_t in[PATTERNS];
    static float wide[PATTERNS], ones[PATTERNS], o[PATTERNS], lse[2][PATTERNS];
    const int64_t shape[] = {SIDE, 1, SIDE, 1};
    const mha_attention_desc desc = {.flags = MHA_ATTENTION_WINDOW};
    const mha_tensor one = mha_tensor_contiguous(ones, MHA_F32, 4, shape);
    const mha_tensor out = mha_tensor_contiguous(o, MHA_F32, 4, shape);
    for (int i = 0; i < PATTERNS; i++) in[i] = (uint16_t)i, ones[i] = 1;
    for (int m = 0; m < all.count; m++)
        for (int t = 0; t < 2; t++)
            for (int as_key = 0; as_key < 2; as_key++) {
                for (int i = 0; i < PATTERNS; i++) wide[i] = (float)half_value(halves[t], in[i]);
                for (int narrow = 0; narrow < 2; narrow++) {
                    const mha_tensor x = narrow ? mha_tensor_contiguous(in, halves[t], 4, shape)
                                                : mha_tensor_contiguous(wide, MHA_F32, 4, shape);
                    const mha_tensor log_sum =
                        mha_tensor_contiguous(lse[narrow], MHA_F32, 3, shape);
                    const mha_attention_outputs outputs = {.struct_size = sizeof outputs,
                                                           .lse = &log_sum};
                    forward(&all.each[m], &desc, as_key ? &one : &x, as_key ? &x : &one, &one, &out,
                            &outputs);
                }
                for (int i = 0; i < PATTERNS; i++)
                    if (memcmp(&lse[0][i], &lse[1][i], sizeof(float)) != 0 &&
                        !(isnan(lse[0][i]) && isnan(lse[1][i])))
                        fail_msg("%s: %s %04x scores %a, not %a", all.each[m].name,
                                 mha_dtype_name(halves[t]), (unsigned)in[i], (double)lse[1][i],
                                 (double)lse[0][i]);
            }
}

/* ---- scratch --------------------------------------------------------------------------------- */

/* The memory of a call does not depend on the types, because no tensor is widened completely. */
static void no_copy_of_a_tensor(void)
{
    machines all = machines_make(1);
    for (int m = 0; m < all.count; m++) {
        size_t bytes[3];
        for (int t = 0; t < 3; t++) {
            mha_dtype type = t < 2 ? halves[t] : MHA_F32;
            const mha_tensor x = mha_tensor_contiguous(NULL, type, 4, (int64_t[]){3, 2, 5000, 64});
            const mha_attention_desc desc = {.struct_size = sizeof desc, .path = all.each[m].path};
            mha_attention_plan plan;
            expect_ok(
                mha_attention_explain(all.each[m].context, &desc, &x, &x, &x, &x, NULL, &plan));
            bytes[t] = plan.scratch_bytes;
            assert_true(plan.bytes == 4.0 * 3 * 2 * 5000 * 64 * (double)mha_dtype_size(type));
        }
        assert_true(bytes[0] == bytes[2] && bytes[1] == bytes[2]);
        assert_true(bytes[0] < 4u * 3 * 2 * 5000 * 64);
    }
}

/* ---- caches and linear attention ------------------------------------------------------------- */

static twin normal_twin(rng *r, int64_t a, int64_t b, int64_t c, int64_t d, double special)
{
    guarded g = guarded_make(r, MHA_F32, 4, (int64_t[]){a, b, c, d}, LAYOUT_CONTIGUOUS);
    int64_t index[MHA_MAX_DIMS] = {0};
    do set_element(&g.view, index, (double)rng_normal(r));
    while (guarded_next(&g.view, index));
    twin x = twin_of(r, &g.view, some_type(r), guarded_random_layout(r, true), special);
    guarded_free(&g);
    return x;
}

static void cache_takes_them(void)
{
    rng r = rng_make(rng_run_seed(), 3000000);
    mha_context *context = context_with(0);
    for (int i = 0; i < 40; i++) {
        int64_t n = rng_between(&r, 1, 20), D = rng_between(&r, 1, 40), Dv = rng_between(&r, 1, 40);
        twin q = normal_twin(&r, 2, 4, n, D, 0), k = normal_twin(&r, 2, 2, n, D, 0.01),
             v = normal_twin(&r, 2, 2, n, Dv, 0.01);
        const int64_t shape[] = {2, 4, n, Dv};
        guarded o[2] = {guarded_make(&r, MHA_F32, 4, shape, LAYOUT_CONTIGUOUS),
                        guarded_make(&r, some_type(&r), 4, shape, LAYOUT_PAD)};
        const mha_attention_desc desc = {.struct_size = sizeof desc, .flags = MHA_ATTENTION_CAUSAL};
        const mha_kv_cache_desc like = {.struct_size = sizeof like,
                                        .batch = 2,
                                        .kv_heads = 2,
                                        .capacity = 2 * n,
                                        .head_dim = D,
                                        .value_head_dim = Dv};
        for (int narrow = 0; narrow < 2; narrow++) {
            mha_kv_cache *cache;
            const mha_tensor *x[] = {narrow ? &k.narrow.view : &k.wide.view,
                                     narrow ? &v.narrow.view : &v.wide.view,
                                     narrow ? &q.narrow.view : &q.wide.view};
            expect_ok(mha_kv_cache_create(context, &like, &cache));
            expect_ok(mha_kv_cache_append(cache, x[0], x[1], NULL));
            expect_ok(mha_kv_cache_append(cache, x[0], x[1], (int64_t[]){n / 2, n}));
            expect_ok(mha_kv_cache_attention(context, cache, &desc, x[2], &o[narrow].view, NULL));
            mha_kv_cache_destroy(cache);
        }
        assert_true(guarded_gaps_intact(&o[1]));
        assert_true(rounded(&o[0].view, &o[1].view));
        twin_free(&q);
        twin_free(&k);
        twin_free(&v);
        guarded_free(&o[0]);
        guarded_free(&o[1]);
    }
}

static void linear_attention_takes_them(void)
{
    rng r = rng_make(rng_run_seed(), 4000000);
    mha_context *context = context_with(0);
    for (int i = 0; i < 60; i++) {
        int64_t T = rng_between(&r, 1, 80), D = rng_between(&r, 1, 40), Dv = rng_between(&r, 1, 40);
        twin q = normal_twin(&r, 2, 4, T, D, 0.001), k = normal_twin(&r, 2, 2, T, D, 0.001),
             v = normal_twin(&r, 2, 2, T, Dv, 0.001);
        const int64_t shape[] = {2, 4, T, Dv};
        guarded o[2] = {
            guarded_make(&r, MHA_F32, 4, shape, LAYOUT_CONTIGUOUS),
            guarded_make(&r, some_type(&r), 4, shape, guarded_random_layout(&r, false))};
        const mha_linear_attention_desc desc = {.struct_size = sizeof desc,
                                                .flags = i % 2 ? MHA_LINEAR_ATTENTION_CAUSAL : 0};
        for (int narrow = 0; narrow < 2; narrow++)
            expect_ok(mha_linear_attention_forward(
                context, &desc, narrow ? &q.narrow.view : &q.wide.view,
                narrow ? &k.narrow.view : &k.wide.view, narrow ? &v.narrow.view : &v.wide.view,
                &o[narrow].view, NULL));
        assert_true(guarded_gaps_intact(&o[1]));
        assert_true(rounded(&o[0].view, &o[1].view));
        twin_free(&q);
        twin_free(&k);
        twin_free(&v);
        guarded_free(&o[0]);
        guarded_free(&o[1]);
    }
}

/* ---- misuse ---------------------------------------------------------------------------------- */

static void other_types_are_refused(void)
{
    static double memory[5][64];
    static const char *const names[] = {"q", "k", "v", "o", "bias"};
    static const mha_dtype wrong[] = {MHA_F64, MHA_I32, MHA_U8, (mha_dtype)77};
    const int64_t shape[] = {1, 1, 4, 4};
    mha_context *context = context_with(0);
    for (size_t w = 0; w < sizeof wrong / sizeof wrong[0]; w++)
        for (int i = 0; i < 5; i++) {
            mha_tensor x[5];
            char start[80];
            for (int j = 0; j < 5; j++)
                x[j] = mha_tensor_contiguous(memory[j], j == i ? wrong[w] : MHA_F16, 4, shape);
            const mha_attention_desc desc = {.struct_size = sizeof desc, .bias = &x[4]};
            assert_int_equal(
                mha_attention_forward(context, &desc, &x[0], &x[1], &x[2], &x[3], NULL),
                MHA_ERR_DTYPE);
            snprintf(start, sizeof start, "%s: dtype is %s, expected f32, f16 or bf16", names[i],
                     mha_dtype_name(wrong[w]));
            assert_string_equal(mha_error_detail(), start);
        }
}

/* Results computed in f32 are returned in f32. */
static void other_outputs_stay_f32(void)
{
    static uint16_t memory[5][64];
    const int64_t shape[] = {1, 1, 4, 4};
    mha_context *context = context_with(0);
    mha_tensor x[5];
    for (int j = 0; j < 5; j++) x[j] = mha_tensor_contiguous(memory[j], MHA_BF16, 4, shape);
    const mha_attention_outputs outputs = {.struct_size = sizeof outputs, .probabilities = &x[4]};
    assert_int_equal(mha_attention_forward(context, NULL, &x[0], &x[1], &x[2], &x[3], &outputs),
                     MHA_ERR_DTYPE);
    assert_non_null(strstr(mha_error_detail(), "probabilities: dtype is bf16, expected f32"));
}

/* Overlap is computed in bytes, with the size of each tensor's own type. */
static void overlap_is_judged_in_bytes(void)
{
    static uint16_t memory[4][64];
    const int64_t shape[] = {1, 1, 4, 4};
    mha_context *context = context_with(0);
    mha_tensor x[4];
    for (int j = 0; j < 4; j++) x[j] = mha_tensor_contiguous(memory[j], MHA_F16, 4, shape);
    x[3].data = memory[0] + 15;
    assert_int_equal(mha_attention_forward(context, NULL, &x[0], &x[1], &x[2], &x[3], NULL),
                     MHA_ERR_OVERLAP);
    x[3].data = memory[0] + 16;
    expect_ok(mha_attention_forward(context, NULL, &x[0], &x[1], &x[2], &x[3], NULL));
    x[3].data = (char *)memory[3] + 1;
    assert_int_equal(mha_attention_forward(context, NULL, &x[0], &x[1], &x[2], &x[3], NULL),
                     MHA_ERR_STRIDE);
}

RUN_TESTS(TEST(any_descriptor), TEST(any_head_size), TEST(outputs_on_request),
          TEST(every_value_arrives), TEST(every_midpoint_is_rounded),
          TEST(every_score_is_that_of_f32), TEST(no_copy_of_a_tensor), TEST(cache_takes_them),
          TEST(linear_attention_takes_them), TEST(other_types_are_refused),
          TEST(other_outputs_stay_f32), TEST(overlap_is_judged_in_bytes))
