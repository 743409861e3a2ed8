/* Dropout of a whole transformer in training: rates 0, 1 and between. Different steps and layers
 * drop different weights, and a step with dropout has no effect on later ones. */
#include "support/expect.h"
#include "support/machines.h"
#include "support/rng.h"
#include "support/suite.h"

#include <multihead/transformer.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { B = 3, T = 9, S = 6, V = 11, MOST_LAYERS = 3, HEADS = 2, WIDTH = 8 };

/* A random transformer, a batch, and memory for outputs. */
typedef struct example {
    mha_transformer *t;
    mha_activations *a;
    mha_transformer_desc desc;
    mha_transformer_input input;
    int32_t ids[B * T];
    int64_t lengths[B];
    float memory_data[B * S * WIDTH], gate_data[MOST_LAYERS * HEADS], out_data[B * T * V];
    mha_tensor tokens, memory, gates, out;
} example;

static example *example_make(mha_context *context, rng *r)
{
    example *e = calloc(1, sizeof *e);
    assert_non_null(e);
    e->desc = (mha_transformer_desc){.struct_size = sizeof e->desc,
                                     .flags = rng_chance(r, 0.5) ? MHA_TRANSFORMER_CAUSAL : 0,
                                     .vocab_size = V,
                                     .max_length = T,
                                     .embed_dim = WIDTH,
                                     .num_layers = rng_between(r, 1, MOST_LAYERS),
                                     .num_heads = HEADS,
                                     .ff_dim = rng_chance(r, 0.5) ? 12 : 0,
                                     .norm = (mha_norm)rng_between(r, 0, 2),
                                     .positions = (mha_position_encoding)rng_between(r, 0, 3)};
    if (rng_chance(r, 0.5)) e->desc.flags |= MHA_TRANSFORMER_BIAS;
    if (rng_chance(r, 0.4)) e->desc.flags |= MHA_TRANSFORMER_CROSS;
    if (e->desc.norm && rng_chance(r, 0.4)) e->desc.flags |= MHA_TRANSFORMER_POST_NORM;
    const mha_transformer_init init = {.struct_size = sizeof init, .seed = rng_next(r)};
    const bool cross = e->desc.flags & MHA_TRANSFORMER_CROSS;
    expect_ok(mha_transformer_create(context, &e->desc, &e->t));
    expect_ok(mha_transformer_initialise(context, e->t, &init));
    expect_ok(mha_activations_create(context, e->t, B * T, cross ? B * S : 0, &e->a));
    for (int i = 0; i < B * T; i++) e->ids[i] = (int32_t)rng_between(r, 0, V - 1);
    for (int b = 0; b < B; b++) e->lengths[b] = rng_between(r, 1, T);
    for (int i = 0; i < B * S * WIDTH; i++) e->memory_data[i] = rng_normal(r);
    e->tokens = mha_tensor_contiguous(e->ids, MHA_I32, 2, (int64_t[]){B, T});
    e->memory = mha_tensor_contiguous(e->memory_data, MHA_F32, 3, (int64_t[]){B, S, WIDTH});
    e->gates = mha_tensor_contiguous(e->gate_data, MHA_F32, 2,
                                     (int64_t[]){e->desc.num_layers, HEADS}); /* all 0 */
    e->out = mha_tensor_contiguous(e->out_data, MHA_F32, 3, (int64_t[]){B, T, V});
    e->input = (mha_transformer_input){.struct_size = sizeof e->input,
                                       .tokens = &e->tokens,
                                       .lengths = e->lengths,
                                       .memory = cross ? &e->memory : NULL};
    return e;
}

static void example_free(example *e)
{
    mha_activations_destroy(e->a);
    mha_transformer_destroy(e->t);
    free(e);
}

/* The output with a rate and a seed. It is copied because the next call overwrites it. */
static void run(mha_context *context, example *e, float rate, uint64_t seed, float out[B * T * V])
{
    e->input.dropout = rate;
    e->input.dropout_seed = seed;
    if (mha_transformer_forward(context, e->t, &e->input, e->a, &e->out, NULL, NULL) != MHA_OK)
        fail_msg("%s", mha_error_detail());
    memcpy(out, e->out_data, sizeof e->out_data);
}

/* Rate 0 is bit-identical to no dropout for any seed, also after a step with dropout; equal seeds
 * drop the same weights, and different seeds drop different ones. */
static void seeds_decide_what_is_dropped(void)
{
    machines all = machines_make(2);
    for (int i = 0; i < rng_cases(20, 400); i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)i);
        mha_context *context = all.each[i % all.count].context;
        example *e = example_make(context, &r);
        static float none[B * T * V], zero[B * T * V], some[2][B * T * V], other[B * T * V];
        e->lengths[0] = T;
        run(context, e, 0, 0, none);
        run(context, e, 0.5f, 7, some[0]);
        run(context, e, 0.5f, 7, some[1]);
        run(context, e, 0.5f, 8, other);
        run(context, e, 0, rng_next(&r), zero);
        assert_memory_equal(none, zero, sizeof none);
        assert_memory_equal(some[0], some[1], sizeof none);
        /* At least 2 heads x 45 weights, each kept with probability 1/2: equal with probability 2^-90. */
        assert_memory_not_equal(some[0], other, sizeof none);
        assert_memory_not_equal(some[0], none, sizeof none);
        example_free(e);
    }
}

/* Rate 1 drops all weights: attention adds the same values as with every head disabled, and every
 * gradient is finite; those of queries, keys and values are 0. */
static void rate_one(void)
{
    for (int i = 0; i < rng_cases(20, 400); i++) {
        rng r = rng_make(rng_run_seed(), 1000 + (uint64_t)i);
        mha_context *context = machines_context(2, i);
        example *e = example_make(context, &r);
        static float off[B * T * V], one[B * T * V];
        e->input.gates = &e->gates;
        e->input.cross_gates = e->input.memory ? &e->gates : NULL;
        run(context, e, 0, 0, off);
        e->input.gates = e->input.cross_gates = NULL;
        run(context, e, 1, 5, one);
        for (int k = 0; k < B * T * V; k++) assert_true(off[k] == one[k]);
        const int64_t size = mha_transformer_size(e->t);
        float *g = calloc((size_t)size, sizeof *g);
        assert_non_null(g);
        const mha_transformer_gradients out = {.struct_size = sizeof out, .parameters = g};
        expect_ok(mha_transformer_backward(context, e->t, &e->input, e->a, &e->out, &out));
        for (int64_t k = 0; k < size; k++) assert_true(isfinite(g[k]));
        for (int64_t n = 0; n < mha_transformer_parameters(e->t); n++) {
            mha_parameter p;
            expect_ok(mha_transformer_parameter(e->t, n, &p));
            if (!strstr(p.name, ".q_proj.") && !strstr(p.name, ".k_proj.") &&
                !strstr(p.name, ".v_proj."))
                continue;
            for (int64_t k = 0; k < p.count; k++) assert_true(g[p.offset + k] == 0);
        }
        free(g);
        example_free(e);
    }
}

/* ---- the rate ------------------------------------------------------------------------------ */

enum { LONG = 64, MANY = 8 };

/* One layer with queries of 0, and with values, embeddings and W_o of 1: with n keys, output - 1 =
 * kept / (n (1 - rate)). */
static mha_transformer *counting(mha_context *context)
{
    const mha_transformer_desc desc = {.struct_size = sizeof desc,
                                       .flags = MHA_TRANSFORMER_NO_OUTPUT,
                                       .vocab_size = 1,
                                       .max_length = LONG,
                                       .embed_dim = HEADS,
                                       .num_layers = 1,
                                       .num_heads = HEADS};
    mha_transformer *t;
    expect_ok(mha_transformer_create(context, &desc, &t));
    for (int64_t n = 0; n < mha_transformer_parameters(t); n++) {
        mha_parameter p;
        expect_ok(mha_transformer_parameter(t, n, &p));
        float *x = mha_transformer_data(t) + p.offset;
        if (p.kind == MHA_PARAMETER_EMBEDDING)
            for (int64_t k = 0; k < p.count; k++) x[k] = 1;
        if (strstr(p.name, "v_proj")) x[0] = x[2] = 1;
        if (strstr(p.name, "o_proj")) x[0] = x[3] = 1;
    }
    expect_ok(mha_transformer_update(context, t));
    return t;
}

/* The number of kept weights of MANY x LONG rows of HEADS heads with LONG keys. */
static int64_t count_kept(mha_context *context, mha_transformer *t, mha_activations *a, float rate,
                          uint64_t seed)
{
    static int32_t ids[MANY * LONG];
    static float data[MANY * LONG * HEADS];
    const mha_tensor tokens = mha_tensor_contiguous(ids, MHA_I32, 2, (int64_t[]){MANY, LONG});
    const mha_tensor out = mha_tensor_contiguous(data, MHA_F32, 3, (int64_t[]){MANY, LONG, HEADS});
    const mha_transformer_input input = {
        .struct_size = sizeof input, .tokens = &tokens, .dropout = rate, .dropout_seed = seed};
    int64_t kept = 0;
    expect_ok(mha_transformer_forward(context, t, &input, a, &out, NULL, NULL));
    for (int i = 0; i < MANY * LONG * HEADS; i++) {
        const double count = ((double)data[i] - 1) * LONG * (1 - (double)rate);
        assert_true(fabs(count - round(count)) < 0.01); /* whole for a correct scale */
        kept += (int64_t)round(count);
    }
    return kept;
}

/* N independent draws: by Hoeffding's inequality, the kept fraction differs from 1 - rate by more than t with
 * probability at most 2 exp(-2 N t^2). t is chosen so that this is 1e-12. */
static void rates(void)
{
    static const float list[] = {0.05f, 0.1f, 0.25f, 0.5f, 0.75f, 0.9f};
    machines all = machines_make(2);
    const double N = (double)MANY * LONG * HEADS * LONG, t = sqrt(log(2e12) / (2 * N));
    rng r = rng_make(rng_run_seed(), 2000);
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        mha_context *context = all.each[i % (size_t)all.count].context;
        mha_transformer *net = counting(context);
        mha_activations *a;
        expect_ok(mha_activations_create(context, net, MANY * LONG, 0, &a));
        const double part = (double)count_kept(context, net, a, list[i], rng_next(&r)) / N;
        printf("  rate %.2f: kept %.4f, off by %.4f of at most %.4f\n", (double)list[i], part,
               fabs(part - (1 - (double)list[i])), t);
        assert_true(fabs(part - (1 - (double)list[i])) <= t);
        assert_int_equal(count_kept(context, net, a, 0, 1), (int64_t)N);
        mha_activations_destroy(a);
        mha_transformer_destroy(net);
    }
}

/* Invalid rates. */
static void misuse_is_refused(void)
{
    rng r = rng_make(rng_run_seed(), 3000);
    example *e = example_make(machines_context(1, 0), &r);
    static const float bad[] = {-0.1f, 1.5f, NAN, INFINITY};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        e->input.dropout = bad[i];
        assert_int_equal(mha_transformer_forward(machines_context(1, 0), e->t, &e->input, e->a,
                                                 &e->out, NULL, NULL),
                         MHA_ERR_ARGUMENT);
        assert_non_null(strstr(mha_error_detail(), "dropout"));
    }
    example_free(e);
}

RUN_TESTS(TEST(seeds_decide_what_is_dropped), TEST(rate_one), TEST(rates), TEST(misuse_is_refused))
