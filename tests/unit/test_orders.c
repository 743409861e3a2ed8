/* The orders of summation that docs/numerics.md promises: scores, sums over values, and linear
 * layers have exactly these bits. A change of an order changes every user's bits, so it must not
 * happen by accident. Each expectation is computed in f32 with fmaf(), or with two roundings in
 * portable C. */
#define _DEFAULT_SOURCE /* setenv */
#include "support/expect.h"
#include "support/guarded.h"
#include "support/machines.h"
#include "support/suite.h"

#include <multihead/attention.h>
#include <multihead/nn.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static float multiply_add(mha_isa isa, float a, float b, float c)
{
    if (isa != MHA_ISA_PORTABLE) return fmaf(a, b, c);
    volatile float product = a * b; /* rounded separately */
    return product + c;
}

static guarded numbers(rng *r, int ndim, const int64_t *shape)
{
    return guarded_filled(r, ndim, shape, LAYOUT_CONTIGUOUS, 1);
}

/* With one key, lse is its score, which is stored as m in units of log2 e. */
static void scores_are_added_in_one_order(void)
{
    machines all = machines_make(1);
    for (int64_t D = 1; D <= 256; D += 5) {
        rng r = rng_make(rng_run_seed(), (uint64_t)D);
        const int64_t shape[] = {1, 1, 1, D};
        guarded q = numbers(&r, 4, shape), k = numbers(&r, 4, shape);
        const float *a = q.view.data, *b = k.view.data;
        for (int i = 0; i < all.count; i++) {
            const machine *m = &all.each[i];
            if (m->path == MHA_PATH_PLAIN) continue;
            float o[256], lse = 0, score = 0;
            mha_tensor out = mha_tensor_contiguous(o, MHA_F32, 4, shape);
            mha_tensor lse_out = mha_tensor_contiguous(&lse, MHA_F32, 3, shape);
            const mha_attention_outputs outputs = {.struct_size = sizeof outputs, .lse = &lse_out};
            const mha_attention_desc desc = {.struct_size = sizeof desc, .scale = 0.37f};
            expect_ok(mha_attention_forward(m->context, &desc, &q.view, &k.view, &k.view, &out,
                                            &outputs));
            float factor = (float)((double)0.37f * 1.4426950408889634);
            for (int64_t d = 0; d < D; d++) {
                volatile float scaled = a[d] * factor;
                score = multiply_add(m->isa, scaled, b[d], score);
            }
            float expected = (float)((double)score * 0.6931471805599453);
            if (lse != expected)
                fail_msg("%s: D %lld: lse %a, expected %a", m->name, (long long)D, (double)lse,
                         (double)expected);
        }
        guarded_free(&q);
        guarded_free(&k);
    }
}

/* With scale 0 every weight is 1 before the division, and every rescaling is by 1. */
static void values_are_added_in_one_order(void)
{
    static const int64_t lengths[] = {1, 2, 17, 511, 512, 513, 1300, 3000};
    enum { DV = 37 };
    machines all = machines_make(1);
    for (size_t n = 0; n < sizeof lengths / sizeof lengths[0]; n++) {
        const int64_t S = lengths[n], k_shape[] = {1, 1, S, 1}, v_shape[] = {1, 1, S, DV};
        rng r = rng_make(rng_run_seed(), 1000 + n);
        guarded k = numbers(&r, 4, k_shape), v = numbers(&r, 4, v_shape);
        const float *values = v.view.data;
        float query = 1, o[DV];
        mha_tensor q = mha_tensor_contiguous(&query, MHA_F32, 4, (int64_t[]){1, 1, 1, 1});
        mha_tensor out = mha_tensor_contiguous(o, MHA_F32, 4, (int64_t[]){1, 1, 1, DV});
        const mha_attention_desc desc = {.struct_size = sizeof desc,
                                         .flags = MHA_ATTENTION_SCALE_GIVEN};
        for (int i = 0; i < all.count; i++) {
            if (all.each[i].path == MHA_PATH_PLAIN) continue;
            expect_ok(mha_attention_forward(all.each[i].context, &desc, &q, &k.view, &v.view, &out,
                                            NULL));
            for (int64_t d = 0; d < DV; d++) {
                float total = 0, block = 0;
                for (int64_t s = 0; s < S; s++) {
                    block += values[s * DV + d];
                    if (s % 512 != 511 && s != S - 1) continue;
                    total += block;
                    block = 0;
                }
                assert_true(o[d] == total / (float)S);
            }
        }
        guarded_free(&k);
        guarded_free(&v);
    }
}

/* Every element of x W^T + b is the same chain for every division of the product, which depends on
 * the number of rows, the size of L2 and memory. */
static void linear_layer(mha_context *context, rng *r, int64_t M, int64_t N, int64_t K)
{
    guarded x = numbers(r, 2, (int64_t[]){M, K}), w = numbers(r, 2, (int64_t[]){N, K});
    guarded b = numbers(r, 1, &N), y = numbers(r, 2, (int64_t[]){M, N});
    const float *in = x.view.data, *weight = w.view.data, *bias = b.view.data;
    mha_linear *linear;
    expect_ok(mha_linear_create(context, &w.view, &b.view, &linear));
    expect_ok(mha_linear_forward(context, linear, MHA_ACTIVATION_NONE, &x.view, &y.view));
    for (int64_t e = 0; e < M * N; e++) {
        float total = bias[e % N], block = 0;
        for (int64_t k = 0; k < K; k++) {
            block = multiply_add(mha_context_isa(context), in[e / N * K + k], weight[e % N * K + k],
                                 block);
            if (k % 128 != 127 && k != K - 1) continue;
            total += block;
            block = 0;
        }
        if (((const float *)y.view.data)[e] != total)
            fail_msg("%s, L2 %lld KiB, %lld x %lld x %lld: element %lld",
                     mha_isa_name(mha_context_isa(context)),
                     (long long)(mha_context_l2(context) >> 10), (long long)M, (long long)N,
                     (long long)K, (long long)e);
    }
    mha_linear_destroy(linear);
    guarded *each[] = {&x, &w, &b, &y};
    for (int i = 0; i < 4; i++) guarded_free(each[i]);
}

static void linear_layers(void)
{
    static const int64_t inputs[] = {1, 7, 127, 128, 129, 256, 800};
    static const char *const l2_kib[] = {"1", "64", "2048"};
    for (int i = 0; i < 3; i++)
        for (int isa = MHA_ISA_PORTABLE; isa <= MHA_ISA_AMX; isa++) {
            mha_context_desc desc = {
                .struct_size = sizeof desc, .num_threads = 1, .isa = (mha_isa)isa};
            mha_context *context;
            if (!mha_isa_available(desc.isa)) continue;
            setenv("MHA_L2_KIB", l2_kib[i], 1);
            expect_ok(mha_context_create(&desc, &context));
            unsetenv("MHA_L2_KIB");
            rng r = rng_make(rng_run_seed(), (uint64_t)(2000 + i));
            for (int n = 0; n < 7; n++) linear_layer(context, &r, n % 3 + 1, 70, inputs[n]);
            for (int n = 0; n < 4; n++)
                linear_layer(context, &r, rng_between(&r, 4, 60), rng_between(&r, 33, 200),
                             rng_between(&r, 100, 400));
            mha_context_destroy(context);
        }
}

RUN_TESTS(TEST(scores_are_added_in_one_order), TEST(values_are_added_in_one_order),
          TEST(linear_layers))
