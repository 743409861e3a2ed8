/* A whole transformer: its table of parameters; the gradient of every parameter, compared with
 * differences of the loss along random directions; bits that do not depend on threads; learning;
 * and misuse. tests/python/test_training_torch.py compares numbers with PyTorch. */
#include "support/expect.h"
#include "support/failing_alloc.h"
#include "support/layers.h"
#include "support/machines.h"
#include "support/rng.h"
#include "support/small_model.h"
#include "support/stored.h"
#include "support/suite.h"

#include <multihead/component.h>
#include <multihead/optimizer.h>
#include <multihead/transformer.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TOKENS = 64, MOST_MEMORY = 64, MOST_VOCAB = 24, MOST_WIDTH = 24 };

/* A random transformer and a batch for it. */
typedef struct example {
    mha_transformer *t;
    mha_activations *a;
    mha_transformer_input input;
    mha_transformer_desc desc;
    int64_t B, T, S, lengths[4], memory_lengths[4];
    int32_t ids[MOST_TOKENS], types[MOST_TOKENS], targets[MOST_TOKENS];
    float memory_data[MOST_MEMORY * MOST_WIDTH], gate_data[64], cross_gate_data[64];
    float output_data[MOST_TOKENS * MOST_VOCAB], gradient_data[MOST_TOKENS * MOST_VOCAB];
    mha_tensor tokens, token_types, target, memory, gates, cross_gates, output, gradient;
} example;

/* Gated heads and other mixers, some in layers without a feed-forward part. */
static void draw_mixers(rng *r, mha_transformer_desc *d, mha_layer_desc *layers, int64_t *heads)
{
    const uint32_t others = MHA_TRANSFORMER_CROSS | MHA_TRANSFORMER_PARALLEL;
    const bool causal = d->flags & MHA_TRANSFORMER_CAUSAL && !(d->flags & others);
    const int64_t kv = d->kv_heads ? d->kv_heads : d->num_heads;
    for (int64_t i = 0; i < d->num_layers; i++) {
        const double kind = causal ? rng_uniform(r) : 0;
        mha_layer_desc *l = &layers[i];
        const bool alone = d->ff_dim && !(d->flags & others) && rng_chance(r, 0.2);
        const uint32_t flags = alone ? MHA_LAYER_NO_FEED_FORWARD : 0;
        heads[i] = d->num_heads;
        heads[d->num_layers + i] = kv;
        if (kind < 0.4) {
            l->flags |= MHA_LAYER_OUTPUT_GATE | flags;
            continue;
        }
        const bool recurrent = kind < 0.8 && d->norm == MHA_NORM_RMS;
        const bool delta = recurrent && rng_chance(r, 0.5);
        *l = (mha_layer_desc){.struct_size = sizeof *l,
                              .flags = flags,
                              .mixer = !recurrent ? MHA_MIXER_SHORT_CONVOLUTION
                                       : delta    ? MHA_MIXER_GATED_DELTA
                                                  : MHA_MIXER_STATE_SPACE,
                              .conv_kernel = (int32_t)rng_between(r, 1, 5),
                              .key_dim = recurrent ? rng_between(r, 1, 9) : 0,
                              .value_dim = recurrent ? rng_between(r, 1, 9) : 0,
                              .strength_scale = delta && rng_chance(r, 0.5) ? 1.5f : 0,
                              .head_norm_epsilon = delta && rng_chance(r, 0.5) ? 0.1f : 0,
                              .gate_rank = delta && rng_chance(r, 0.5) ? rng_between(r, 1, 5) : 0};
        if (!recurrent) heads[i] = heads[d->num_layers + i] = 0;
    }
    d->layers = layers;
    d->layer_heads = heads;
    d->layer_kv_heads = heads + d->num_layers;
}

static mha_transformer_desc some_desc(rng *r, bool mixed)
{
    static mha_layer_desc layers[3];
    static int64_t heads[6];
    static float factors[2 * LAYERS_PAIRS];
    mha_transformer_desc d = {.struct_size = sizeof d,
                              .vocab_size = rng_between(r, 5, MOST_VOCAB),
                              .max_length = 16,
                              .num_layers = rng_between(r, 1, 3),
                              .num_heads = rng_chance(r, 0.5) ? 2 : 4,
                              .ff_dim = rng_chance(r, 0.2) ? 0 : rng_between(r, 1, 20)};
    d.embed_dim = d.num_heads * (rng_chance(r, 0.5) ? 2 : 6);
    if (rng_chance(r, 0.3)) d.head_dim = 4;
    if (rng_chance(r, 0.4)) d.kv_heads = d.num_heads / 2;
    d.norm = (mha_norm)rng_between(r, 0, 2);
    d.positions = (mha_position_encoding)rng_between(r, 0, 3);
    d.feed_forward = (mha_feed_forward)rng_between(r, 0, 6);
    if (d.feed_forward == MHA_FEED_FORWARD_RELU)
        d.feed_forward = MHA_FEED_FORWARD_GELU; /* smooth */
    if (rng_chance(r, 0.1)) d.feed_forward = MHA_FEED_FORWARD_SILU;
    if (rng_chance(r, 0.5)) d.flags |= MHA_TRANSFORMER_CAUSAL;
    if (rng_chance(r, 0.3)) d.flags |= MHA_TRANSFORMER_CROSS;
    if (rng_chance(r, 0.3)) d.flags |= MHA_TRANSFORMER_TIED;
    if (rng_chance(r, 0.3)) d.flags |= MHA_TRANSFORMER_LOGIT_BIAS;
    if (rng_chance(r, 0.2))
        d.flags = (d.flags | MHA_TRANSFORMER_NO_OUTPUT) & ~(uint32_t)MHA_TRANSFORMER_LOGIT_BIAS;
    if (d.flags & MHA_TRANSFORMER_CROSS && rng_chance(r, 0.4)) d.cross_scale = 1.3f;
    blocks_draw(r, &d);
    if (d.norm && rng_chance(r, 0.3)) d.flags |= MHA_TRANSFORMER_EMBEDDING_NORM;
    if (d.flags & MHA_TRANSFORMER_CROSS && rng_chance(r, 0.5)) d.memory_dim = 6;
    if (rng_chance(r, 0.3)) d.type_count = rng_between(r, 1, 3);
    if (!(d.flags & MHA_TRANSFORMER_TIED) && d.positions != MHA_ENCODING_SINUSOIDAL &&
        rng_chance(r, 0.3))
        d.token_dim = rng_between(r, 1, 9);
    if (rng_chance(r, 0.3)) d.embed_scale = 2.5f;
    if (rng_chance(r, 0.3)) d.residual_scale = 0.6f;
    if (rng_chance(r, 0.3)) d.logit_scale = 0.7f;
    if (!(d.flags & MHA_TRANSFORMER_NO_OUTPUT) && rng_chance(r, 0.3)) d.logit_softcap = 3;
    if (d.positions == MHA_ENCODING_LEARNED && !(d.flags & MHA_TRANSFORMER_CAUSAL)) {
        if (rng_chance(r, 0.7)) d.flags |= MHA_TRANSFORMER_PADDING;
        if (d.flags & MHA_TRANSFORMER_PADDING)
            d.padding_token = (int32_t)rng_between(r, 0, d.vocab_size - 1);
    }
    factors_draw(r, factors);
    if (rng_chance(r, 0.5)) d.rope_factors = factors;
    layers_draw(r, &d, layers);
    if (rng_chance(r, 0.6)) d.layers = layers;
    if (mixed) draw_mixers(r, &d, layers, heads);
    return d;
}

static void fill(rng *r, float *x, int64_t count, double factor)
{
    for (int64_t i = 0; i < count; i++) x[i] = (float)((double)rng_normal(r) * factor);
}

static void make_batch(example *e, rng *r)
{
    const mha_transformer_desc *d = &e->desc;
    e->B = rng_between(r, 1, 4);
    e->T = rng_between(r, 1, 12);
    if (d->rope_factors && rng_chance(r, 0.5))
        e->T = rng_between(r, LAYERS_BORDER, LAYERS_BORDER + 1);
    e->S = d->flags & MHA_TRANSFORMER_CROSS ? rng_between(r, 1, 9) : 0;
    for (int64_t b = 0; b < e->B; b++) {
        e->lengths[b] = rng_between(r, 1, e->T);
        e->memory_lengths[b] = rng_between(r, 0, e->S);
        for (int64_t i = 0; i < e->T; i++) {
            e->ids[b * e->T + i] = (int32_t)rng_between(r, 0, d->vocab_size - 1);
            e->types[b * e->T + i] =
                d->type_count ? (int32_t)rng_between(r, 0, d->type_count - 1) : 0;
            e->targets[b * e->T + i] =
                i < e->lengths[b] ? (int32_t)rng_between(r, 0, d->vocab_size - 1) : -1;
        }
    }
    fill(r, e->memory_data, MOST_MEMORY * MOST_WIDTH, 1);
    fill(r, e->gate_data, 64, 1);
    fill(r, e->cross_gate_data, 64, 1);
    const int64_t width = d->flags & MHA_TRANSFORMER_NO_OUTPUT ? d->embed_dim : d->vocab_size;
    const int64_t rows = e->B * e->T;
    e->tokens = mha_tensor_contiguous(e->ids, MHA_I32, 2, (int64_t[]){e->B, e->T});
    e->token_types = mha_tensor_contiguous(e->types, MHA_I32, 2, (int64_t[]){e->B, e->T});
    e->target = mha_tensor_contiguous(e->targets, MHA_I32, 1, &rows);
    e->memory =
        mha_tensor_contiguous(e->memory_data, MHA_F32, 3, (int64_t[]){e->B, e->S, d->memory_dim});
    const int64_t gates[] = {d->num_layers, d->num_heads};
    e->gates = mha_tensor_contiguous(e->gate_data, MHA_F32, 2, gates);
    e->cross_gates = mha_tensor_contiguous(e->cross_gate_data, MHA_F32, 2, gates);
    const int64_t shape[] = {e->B, e->T, width};
    e->output = mha_tensor_contiguous(e->output_data, MHA_F32, 3, shape);
    e->gradient = mha_tensor_contiguous(e->gradient_data, MHA_F32, 3, shape);
}

static example *example_make_of(mha_context *context, rng *r, bool mixed)
{
    example *e = calloc(1, sizeof *e);
    assert_non_null(e);
    e->desc = some_desc(r, mixed);
    e->t = random_transformer(context, r, &e->desc);
    make_batch(e, r);
    e->input = (mha_transformer_input){.struct_size = sizeof e->input, .tokens = &e->tokens};
    if (rng_chance(r, 0.7)) e->input.lengths = e->lengths;
    if (rng_chance(r, 0.4)) e->input.gates = &e->gates;
    if (e->desc.type_count && rng_chance(r, 0.8)) e->input.token_types = &e->token_types;
    if (rng_chance(r, 0.3)) e->input.dropout = 0.3f, e->input.dropout_seed = rng_next(r);
    const bool cross = e->desc.flags & MHA_TRANSFORMER_CROSS;
    if (cross) e->input.memory = &e->memory;
    if (cross && rng_chance(r, 0.5)) e->input.memory_lengths = e->memory_lengths;
    if (cross && rng_chance(r, 0.5)) e->input.cross_gates = &e->cross_gates;
    expect_ok(mha_activations_create(context, e->t, MOST_TOKENS, cross ? MOST_MEMORY : 0, &e->a));
    return e;
}

static example *example_make(mha_context *context, rng *r)
{
    return example_make_of(context, r, false);
}

static void example_free(example *e)
{
    mha_activations_destroy(e->a);
    mha_transformer_destroy(e->t);
    free(e);
}

/* Cross-entropy or, without an output layer, half of the sum of squares of the rows that count. */
static double loss_of(mha_context *context, example *e)
{
    const int64_t rows = e->B * e->T, width = e->output.shape[2];
    double loss = 0;
    if (mha_transformer_forward(context, e->t, &e->input, e->a, &e->output, NULL, NULL) != MHA_OK)
        fail_msg("%s", mha_error_detail());
    if (e->desc.flags & MHA_TRANSFORMER_NO_OUTPUT) {
        for (int64_t i = 0; i < rows * width; i++) {
            float x = e->targets[i / width] < 0 ? 0 : e->output_data[i];
            e->gradient_data[i] = x;
            loss += 0.5 * (double)x * (double)x;
        }
        return loss;
    }
    mha_tensor logits = mha_tensor_contiguous(e->output_data, MHA_F32, 2, (int64_t[]){rows, width});
    mha_tensor gradient =
        mha_tensor_contiguous(e->gradient_data, MHA_F32, 2, (int64_t[]){rows, width});
    expect_ok(mha_cross_entropy(context, &logits, &e->target, NULL, &loss, NULL, &gradient));
    return loss;
}

typedef struct gradients {
    float *parameters, memory[MOST_MEMORY * MOST_WIDTH], gates[64], cross_gates[64];
} gradients;

static double backward(mha_context *context, example *e, gradients *g)
{
    memset(g, 0, sizeof *g);
    g->parameters = calloc((size_t)mha_transformer_size(e->t), sizeof(float));
    assert_non_null(g->parameters);
    double loss = loss_of(context, e);
    mha_tensor memory = e->memory, gates = e->gates, cross_gates = e->cross_gates;
    memory.data = g->memory, gates.data = g->gates, cross_gates.data = g->cross_gates;
    const mha_transformer_gradients out = {.struct_size = sizeof out,
                                           .parameters = g->parameters,
                                           .memory = e->input.memory ? &memory : NULL,
                                           .gates = e->input.gates ? &gates : NULL,
                                           .cross_gates =
                                               e->input.cross_gates ? &cross_gates : NULL};
    if (mha_transformer_backward(context, e->t, &e->input, e->a, &e->gradient, &out) != MHA_OK)
        fail_msg("%s", mha_error_detail());
    return loss;
}

/* Gradients of an example, and of two whose parameters differ in their last bits: where a softmax
 * has saturated, the roundings of p (x - delta) exceed the slope. */
enum { GRADIENTS = 3 };

static void backward_all(mha_context *context, example *e, rng *r, gradients g[GRADIENTS])
{
    const int64_t size = mha_transformer_size(e->t);
    float *x = mha_transformer_data(e->t), *start = malloc((size_t)size * sizeof *start);
    assert_non_null(start);
    memcpy(start, x, (size_t)size * sizeof *start);
    backward(context, e, &g[0]);
    for (int i = 1; i < GRADIENTS; i++) {
        for (int64_t k = 0; k < size; k++)
            x[k] = start[k] * (1 + 0x1p-22f * (float)rng_between(r, -1, 1));
        expect_ok(mha_transformer_update(context, e->t));
        backward(context, e, &g[i]);
    }
    memcpy(x, start, (size_t)size * sizeof *start);
    expect_ok(mha_transformer_update(context, e->t));
    free(start);
}

/* A central difference of the loss along a unit direction. */
static double difference(mha_context *context, example *e, float *x, const float *start,
                         const double *direction, int64_t count, double h, double *scale)
{
    double loss[2];
    for (int sign = 0; sign < 2; sign++) {
        for (int64_t i = 0; i < count; i++)
            x[i] = (float)((double)start[i] + (sign ? h : -h) * direction[i]);
        expect_ok(mha_transformer_update(context, e->t));
        loss[sign] = loss_of(context, e);
        *scale = fmax(*scale, fabs(loss[sign]));
    }
    return (loss[1] - loss[0]) / (2 * h);
}

/* Estimates the slope of the loss along a random direction of some numbers x for three h:
 * differences at h and 2 h cancel the h^2 term of their error (Richardson). The disagreement of the
 * three estimates the roundings of the loss (f32, amplified by norms of small variance) and its
 * higher derivatives; the tolerance adds 4e-7 of the loss, a fraction of the slope, and twice the
 * change of the slope in the last bits. Most examples are well-conditioned, so a wrong gradient is
 * detected relative to the slope. If the loss exceeds 1e7, no norm has limited the stream, and
 * roundings of scores in the millions change weights completely: differences are then meaningless. */
static void check_slope(mha_context *context, example *e, rng *r, const char *name, float *x,
                        const float *const gradient[GRADIENTS], int64_t count, double *worst,
                        int *tame)
{
    double *direction = malloc((size_t)count * sizeof *direction);
    float *start = malloc((size_t)count * sizeof *start);
    assert_true(direction && start);
    memcpy(start, x, (size_t)count * sizeof *start);
    double norm = 0, slope = 0, change = 0, scale = 0;
    for (int64_t i = 0; i < count; i++) {
        direction[i] = (double)rng_normal(r);
        norm += direction[i] * direction[i];
    }
    for (int64_t i = 0; i < count; i++) {
        direction[i] /= sqrt(norm);
        slope += (double)gradient[0][i] * direction[i];
    }
    for (int other = 1; other < GRADIENTS; other++) {
        double sum = 0;
        for (int64_t i = 0; i < count; i++) sum += (double)gradient[other][i] * direction[i];
        change = fmax(change, fabs(sum - slope));
    }
    const double widest = 4e-3;
    double low = INFINITY, high = -INFINITY;
    for (double h = widest; h > widest / 5; h /= 2) {
        double near = difference(context, e, x, start, direction, count, h, &scale);
        double far = difference(context, e, x, start, direction, count, 2 * h, &scale);
        low = fmin(low, (4 * near - far) / 3);
        high = fmax(high, (4 * near - far) / 3);
    }
    memcpy(x, start, (size_t)count * sizeof *start);
    expect_ok(mha_transformer_update(context, e->t));
    double numeric = (low + high) / 2;
    double bound =
        4e-7 * (1 + scale) / widest + 1e-3 * fabs(slope) + 1.5 * (high - low) + 2 * change;
    const bool judged = scale <= 1e7;
    if (judged) *worst = fmax(*worst, fabs(numeric - slope) / bound);
    *tame += judged && high - low + change < 0.02 * fabs(slope);
    if (judged && fabs(numeric - slope) > bound)
        fail_msg("%s: slope %.6g by differences, %.6g by gradients (bound %.2g)", name, numeric,
                 slope, bound);
    free(direction), free(start);
}

static void check_example(mha_context *context, example *e, rng *r, double *worst, int *tame)
{
    gradients g[GRADIENTS];
    backward_all(context, e, r, g);
#define EACH(of) ((const float *const[]){g[0].of, g[1].of, g[2].of})
    for (int64_t i = 0; i < mha_transformer_parameters(e->t); i++) {
        mha_parameter p;
        expect_ok(mha_transformer_parameter(e->t, i, &p));
        for (int64_t k = 0; p.kind == MHA_PARAMETER_CONSTANT && k < p.count; k++)
            assert_true(g[0].parameters[p.offset + k] == 0);
        if (p.kind == MHA_PARAMETER_CONSTANT) continue;
        check_slope(context, e, r, p.name, mha_transformer_data(e->t) + p.offset,
                    EACH(parameters + p.offset), p.count, worst, tame);
    }
    const int64_t heads = e->desc.num_layers * e->desc.num_heads;
    if (e->input.gates)
        check_slope(context, e, r, "gates", e->gate_data, EACH(gates), heads, worst, tame);
    if (e->input.cross_gates)
        check_slope(context, e, r, "cross gates", e->cross_gate_data, EACH(cross_gates), heads,
                    worst, tame);
    if (e->input.memory)
        check_slope(context, e, r, "memory", e->memory_data, EACH(memory),
                    e->B * e->S * e->desc.memory_dim, worst, tame);
#undef EACH
    for (int i = 0; i < GRADIENTS; i++) free(g[i].parameters);
}

static void check_slopes(bool mixed)
{
    double worst = 0;
    int tame = 0;
    for (int i = 0; i < rng_cases(mixed ? 8 : 16, 400); i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)i + (mixed ? 1 << 16 : 0));
        mha_context *context = machines_context(2, i);
        example *e = example_make_of(context, &r, mixed);
        check_example(context, e, &r, &worst, &tame);
        example_free(e);
    }
    printf("  largest difference of slopes / bound %.3f, %d slopes known to 2 %%\n", worst, tame);
    if (rng_whole_sample()) assert_true(worst > 0.01 && tame > 50);
}

static void gradients_are_slopes(void)
{
    check_slopes(false);
}

static void gradients_of_other_mixers_are_slopes(void)
{
    check_slopes(true);
}

static bool has_ranks(const mha_transformer_desc *d)
{
    bool found = false;
    for (int64_t i = 0; d->layers && i < d->num_layers; i++) found |= d->layers[i].gate_rank > 0;
    return found;
}

/* Few random examples have such a layer. */
static void gradients_of_kimi_delta_attention_are_slopes(void)
{
    double worst = 0;
    int tame = 0;
    for (int i = 0, found = 0; found < rng_cases(2, 50); i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)i + (1 << 17));
        mha_context *context = machines_context(2, found);
        example *e = example_make_of(context, &r, true);
        if (has_ranks(&e->desc)) {
            check_example(context, e, &r, &worst, &tame);
            found++;
        }
        example_free(e);
    }
    printf("  largest difference of slopes / bound %.3f, %d slopes known to 2 %%\n", worst, tame);
}

/* The bits are the same with 1, 2 and 8 threads, and rows beyond a length (padding) change
 * nothing. */
static void threads_and_padding_change_no_bit(void)
{
    for (int i = 0; i < 12; i++) {
        gradients g[3];
        double loss[3];
        int64_t size = 0;
        for (int j = 0; j < 3; j++) {
            machines all = machines_make(j == 0 ? 1 : j == 1 ? 2 : 8);
            rng r = rng_make(rng_run_seed(), 500 + (uint64_t)i);
            example *e = example_make_of(all.each[0].context, &r, i % 2);
            e->input.lengths = e->lengths;
            if (j == 2) /* different tokens in the padding */
                for (int64_t k = 0; k < e->B * e->T; k++)
                    if (e->targets[k] < 0) e->ids[k] = 0;
            size = mha_transformer_size(e->t);
            loss[j] = backward(all.each[0].context, e, &g[j]);
            assert_true(loss[j] == loss[0]);
            assert_memory_equal(g[j].gates, g[0].gates, sizeof g[0].gates);
            assert_memory_equal(g[j].memory, g[0].memory, sizeof g[0].memory);
            for (int64_t k = 0; k < size; k++)
                assert_true(g[j].parameters[k] == g[0].parameters[k]);
            example_free(e);
        }
        for (int j = 0; j < 3; j++) free(g[j].parameters);
    }
}

/* A tiny model learns to repeat its own token: its loss falls to less than a tenth. */
static void learns(void)
{
    machines all = machines_make(2);
    mha_context *context = all.each[all.count > 2 ? 2 : 0].context;
    const mha_transformer_desc desc = {.struct_size = sizeof desc,
                                       .flags = MHA_TRANSFORMER_CAUSAL,
                                       .vocab_size = 10,
                                       .max_length = 16,
                                       .embed_dim = 16,
                                       .num_layers = 2,
                                       .num_heads = 2,
                                       .ff_dim = 32,
                                       .norm = MHA_NORM_RMS,
                                       .positions = MHA_ENCODING_ROTARY,
                                       .feed_forward = MHA_FEED_FORWARD_SWIGLU};
    rng r = rng_make(7, 0);
    example *e = calloc(1, sizeof *e);
    assert_non_null(e);
    expect_ok(mha_transformer_create(context, &desc, &e->t));
    mha_transformer_describe(e->t, &e->desc);
    const mha_transformer_init init = {.struct_size = sizeof init, .seed = 3};
    expect_ok(mha_transformer_initialise(context, e->t, &init));
    expect_ok(mha_activations_create(context, e->t, MOST_TOKENS, 0, &e->a));
    const int64_t size = mha_transformer_size(e->t);
    float *m = calloc((size_t)size, sizeof *m), *v = calloc((size_t)size, sizeof *v);
    double first = 0, last = 0;
    for (int64_t step = 1; step <= 150; step++) {
        make_batch(e, &r);
        e->input = (mha_transformer_input){.struct_size = sizeof e->input, .tokens = &e->tokens};
        memcpy(e->targets, e->ids, sizeof e->targets);
        gradients g;
        last = backward(context, e, &g);
        if (first == 0) first = last;
        const mha_adamw s = {.struct_size = sizeof s, .learning_rate = 1e-2, .step = step};
        expect_ok(
            mha_adamw_step(context, &s, size, mha_transformer_data(e->t), g.parameters, m, v));
        expect_ok(mha_transformer_update(context, e->t));
        free(g.parameters);
    }
    printf("  loss %.3f, after 150 steps %.3f\n", first, last);
    assert_true(first > 1.5 && last < 0.1 * first);
    free(m), free(v);
    example_free(e);
}

/* Names and offsets of a Llama-style decoder's parameters. */
static void parameters_have_names_and_places(void)
{
    const mha_transformer_desc desc = {.struct_size = sizeof desc,
                                       .flags = MHA_TRANSFORMER_CAUSAL,
                                       .vocab_size = 131,
                                       .max_length = 48,
                                       .embed_dim = 64,
                                       .num_layers = 2,
                                       .num_heads = 4,
                                       .ff_dim = 128,
                                       .norm = MHA_NORM_RMS,
                                       .positions = MHA_ENCODING_ROTARY,
                                       .feed_forward = MHA_FEED_FORWARD_SWIGLU};
    static const char *const names[] = {
        "embed_tokens.weight",
        "layers.0.self_attn_norm.weight",
        "layers.0.self_attn.q_proj.weight",
        "layers.0.self_attn.k_proj.weight",
        "layers.0.self_attn.v_proj.weight",
        "layers.0.self_attn.o_proj.weight",
        "layers.0.mlp_norm.weight",
        "layers.0.mlp.gate_proj.weight",
        "layers.0.mlp.up_proj.weight",
        "layers.0.mlp.down_proj.weight",
    };
    mha_transformer *t;
    expect_ok(mha_transformer_create(machines_context(1, 0), &desc, &t));
    mha_parameter p;
    int64_t at = 0;
    for (int64_t i = 0; i < mha_transformer_parameters(t); i++) {
        expect_ok(mha_transformer_parameter(t, i, &p));
        if (i < 10) assert_string_equal(p.name, names[i]);
        assert_int_equal(p.offset, at);
        assert_int_equal(p.count, p.ndim == 2 ? p.shape[0] * p.shape[1] : p.shape[0]);
        at += p.count;
    }
    assert_string_equal(p.name, "lm_head.weight");
    assert_int_equal(at, mha_transformer_size(t));
    /* 2 x 131 x 64 for the words, 2 layers of 4 x 64^2 + 3 x 64 x 128 and 2 norms, 1 norm. */
    assert_int_equal(at, 2 * 131 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64);
    expect_error(mha_transformer_parameter(t, 99, &p), MHA_ERR_ARGUMENT, "no parameter 99");
    mha_transformer_destroy(t);
}

/* The same seed gives the same numbers, and their standard deviations are the documented ones. */
static void seeds_give_the_same_beginning(void)
{
    mha_transformer_desc desc = {.struct_size = sizeof desc,
                                 .vocab_size = 200,
                                 .max_length = 20,
                                 .embed_dim = 64,
                                 .num_layers = 2,
                                 .num_heads = 4,
                                 .ff_dim = 128,
                                 .norm = MHA_NORM_LAYER};
    mha_transformer *t[2];
    for (int i = 0; i < 2; i++) {
        expect_ok(mha_transformer_create(machines_context(1, 0), &desc, &t[i]));
        const mha_transformer_init init = {
            .struct_size = sizeof init, .seed = 5, .head_grade = 0.3};
        expect_ok(mha_transformer_initialise(machines_context(1, 0), t[i], &init));
    }
    assert_memory_equal(mha_transformer_data(t[0]), mha_transformer_data(t[1]),
                        (size_t)mha_transformer_size(t[0]) * sizeof(float));
    for (int64_t i = 0; i < mha_transformer_parameters(t[0]); i++) {
        mha_parameter p;
        expect_ok(mha_transformer_parameter(t[0], i, &p));
        const float *x = mha_transformer_data(t[0]) + p.offset;
        bool graded = strstr(p.name, "v_proj") || strstr(p.name, "o_proj");
        if (p.kind != MHA_PARAMETER_MATRIX) continue;
        double squares = 0, wanted = 1 / sqrt((double)p.shape[1]);
        if (strstr(p.name, "o_proj") || strstr(p.name, "down_proj")) wanted /= 2; /* 4 writers */
        int64_t count = 0;
        for (int64_t k = 0; k < p.count; k++) {
            bool first_head = strstr(p.name, "o_proj") ? k % p.shape[1] < 16 : k < 16 * p.shape[1];
            if (graded && !first_head) continue;
            squares += (double)x[k] * (double)x[k];
            count++;
        }
        double deviation = sqrt(squares / (double)count); /* 4 sigma of 1 / sqrt(2 count) */
        assert_true(fabs(deviation / wanted - 1) < 4 / sqrt(2 * (double)count));
        if (strstr(p.name, "v_proj")) { /* the second head is 0.3 of the first */
            double second = 0;
            for (int64_t k = 16 * p.shape[1]; k < 32 * p.shape[1]; k++)
                second += (double)x[k] * (double)x[k];
            assert_true(fabs(sqrt(second / 1024) / wanted / 0.3 - 1) < 4 / sqrt(2048.0));
        }
    }
    mha_transformer_destroy(t[0]);
    mha_transformer_destroy(t[1]);
}

/* A parameter of a layer, or NULL if there is none. */
static const float *numbers_of(const example *e, int64_t layer, const char *name, const char *kind)
{
    char text[64];
    mha_parameter p;
    snprintf(text, sizeof text, "%s.%s", name, kind);
    if (mha_transformer_find(e->t, layer, text, &p) != MHA_OK) return NULL;
    return mha_transformer_data(e->t) + p.offset;
}

static bool branches(const example *e, int64_t layer)
{
    return e->desc.layers && e->desc.layers[layer].flags & MHA_LAYER_BRANCH_NORM;
}

/* Normalises y. The error e of its elements grows by the slopes of the norm, at most 3 |w| / sigma,
 * plus roundings. */
static double through_norm(const example *e, int64_t layer, const char *name, double *y,
                           double error)
{
    const int64_t E = e->desc.embed_dim;
    const float *w = numbers_of(e, layer, name, "weight"), *b = numbers_of(e, layer, name, "bias");
    double mean = 0, square = 0, most = 0;
    assert_non_null(w);
    for (int64_t c = 0; e->desc.norm == MHA_NORM_LAYER && c < E; c++) mean += y[c] / (double)E;
    for (int64_t c = 0; c < E; c++) square += (y[c] - mean) * (y[c] - mean) / (double)E;
    const double sigma = sqrt(square + (double)e->desc.norm_epsilon);
    for (int64_t c = 0; c < E; c++) {
        y[c] = (y[c] - mean) / sigma * (double)w[c] + (b ? (double)b[c] : 0);
        most = fmax(most, fabs((double)w[c]) * 3 * error / sigma + ldexp(fabs(y[c]), -22));
    }
    return most;
}

/* Checks that sum = stream + r (W in + b) for every row, with the residual scale r, up to the
 * roundings of f32 sums of `inputs` terms, of the last two additions and of the scale. With branch
 * norms, the norm of the branch is added. */
static void check_sum(const example *e, int64_t layer, mha_layer_part part, const mha_tensor *in,
                      const mha_layer_view *view)
{
    static const char *const names[] = {"self_attn.o_proj", "cross_attn.o_proj", "mlp.down_proj"};
    static const char *const posts[] = {"self_attn_post_norm", "cross_attn_post_norm",
                                        "mlp_post_norm"};
    const float *weight = numbers_of(e, layer, names[part], "weight");
    const float *bias = numbers_of(e, layer, names[part], "bias");
    const int64_t E = e->desc.embed_dim, inputs = in->shape[2];
    const double scale = e->desc.residual_scale == 0 ? 1 : (double)e->desc.residual_scale;
    const uint32_t own =
        part == MHA_PART_FEED_FORWARD ? MHA_TRANSFORMER_FF_BIAS : MHA_TRANSFORMER_OUT_BIAS;
    assert_int_equal(bias != NULL, (e->desc.flags & (MHA_TRANSFORMER_BIAS | own)) != 0);
    for (int64_t row = 0; row < e->B * e->T; row++) {
        double y[MOST_WIDTH], error[MOST_WIDTH], most = 0;
        const float *x = (const float *)view->stream.data + row * E;
        for (int64_t c = 0; c < E; c++) {
            double size = fabs(y[c] = bias ? (double)bias[c] : 0);
            for (int64_t i = 0; i < inputs; i++) {
                const double term = (double)weight[c * inputs + i] *
                                    (double)((const float *)in->data)[row * inputs + i];
                y[c] += term;
                size += fabs(term);
            }
            error[c] = ldexp((double)(inputs + 4) * size, -24) * 1.01;
            most = fmax(most, error[c]);
        }
        const bool branch = e->desc.flags & MHA_TRANSFORMER_BRANCH_NORM || branches(e, layer);
        if (branch) most = through_norm(e, layer, posts[part], y, most);
        for (int64_t c = 0; c < E; c++) {
            const double got = (double)((const float *)view->sum.data)[row * E + c];
            assert_true(fabs(got - ((double)x[c] + scale * y[c])) <=
                        scale * (branch ? most : error[c]) +
                            ldexp((double)(inputs + 3) * fabs((double)x[c]), -24) * 1.01);
        }
    }
}

/* Parameters of a layer's self-attention as a tensor. */
static mha_tensor parameter_of(const example *e, int64_t layer, const char *name)
{
    mha_parameter p;
    char text[64];
    snprintf(text, sizeof text, "self_attn.%s", name);
    if (mha_transformer_find(e->t, layer, text, &p) != MHA_OK) fail_msg("%s", mha_error_detail());
    return mha_tensor_contiguous(mha_transformer_data(e->t) + p.offset, MHA_F32, p.ndim, p.shape);
}

/* A descriptor for a layer's description, and its tensors. */
typedef struct described {
    mha_attention_desc desc;
    mha_tensor gates, sinks, slopes, t5;
} described;

static void describe_self(const example *e, int64_t layer, described *d)
{
    const mha_layer_desc *l = e->desc.layers ? &e->desc.layers[layer] : NULL;
    const bool causal = e->desc.flags & MHA_TRANSFORMER_CAUSAL;
    if (causal) d->desc.flags = MHA_ATTENTION_CAUSAL;
    if (!l) return;
    if (l->flags & MHA_LAYER_SCALE_GIVEN) d->desc.flags |= MHA_ATTENTION_SCALE_GIVEN;
    if (l->flags & MHA_LAYER_WINDOW) d->desc.flags |= MHA_ATTENTION_WINDOW;
    d->desc.scale = l->scale, d->desc.softcap = l->softcap;
    d->desc.left_keys = l->left_keys, d->desc.right_keys = l->right_keys;
    d->desc.sink_keys = l->sink_keys;
    if (l->flags & MHA_LAYER_SINKS) {
        d->sinks = parameter_of(e, layer, "sinks");
        d->desc.sink_logits = &d->sinks;
    }
    if (l->flags & MHA_LAYER_ALIBI) {
        d->slopes = parameter_of(e, layer, "alibi_slopes");
        d->desc.alibi_slopes = &d->slopes;
    }
    if (l->t5_buckets) {
        d->t5 = parameter_of(e, layer, "relative_attention_bias.weight");
        d->desc.t5_table = &d->t5;
        d->desc.t5_max_distance = l->t5_max_distance;
        if (causal) d->desc.flags |= MHA_ATTENTION_T5_ONE_SIDED;
    }
}

/* Recomputes attention of the viewed q, k and v: the bits are the same with a descriptor built here
 * and with the view's. */
static void check_heads(mha_context *context, const example *e, int64_t layer, bool cross,
                        const mha_layer_view *view)
{
    const mha_tensor *all_gates = cross ? e->input.cross_gates : e->input.gates;
    const int64_t H = view->q.shape[1], D = view->q.shape[3];
    float lse_data[MOST_TOKENS * 4], heads_data[MOST_TOKENS * 32];
    mha_tensor lse = view->lse, heads = view->heads;
    lse.data = lse_data, heads.data = heads_data;
    described own = {.desc = {.struct_size = sizeof own.desc}};
    if (cross) own.desc.scale = e->desc.cross_scale;
    if (!cross) describe_self(e, layer, &own);
    if (all_gates)
        own.gates = mha_tensor_contiguous((float *)all_gates->data + layer * H, MHA_F32, 1, &H);
    for (int i = 0; i < 2; i++) {
        mha_attention_desc desc = i == 0 ? own.desc : view->attention;
        desc.key_lengths = cross ? e->input.memory_lengths : e->input.lengths;
        if (all_gates) desc.gates = &own.gates;
        const mha_attention_outputs outputs = {.struct_size = sizeof outputs, .lse = &lse};
        if (mha_attention_forward(context, &desc, &view->q, &view->k, &view->v, &heads, &outputs) !=
            MHA_OK)
            fail_msg("%s", mha_error_detail());
        const size_t rows = (size_t)(e->B * e->T * H);
        assert_memory_equal(heads_data, view->heads.data, rows * (size_t)D * sizeof(float));
        assert_memory_equal(lse_data, view->lse.data, rows * sizeof(float));
    }
    assert_ptr_equal(view->concatenated.data, view->heads.data);
}

/* The frequency of pair i by the formulas of transformer.h, of long sequences too. */
static double scaled_frequency(const example *e, const mha_layer_desc *l, int64_t i, bool longer)
{
    const int64_t half = l->rotary_dim / 2;
    const double n = (double)l->rope_original_length, tau = 2 * 3.141592653589793;
    const double low = (double)l->rope_low, high = (double)l->rope_high;
    const double s = (double)l->rope_factor, base = (double)l->rope_base;
    const double f = pow(base, -(double)i / (double)half), turns = n * f / tau;
    if (l->rope_scaling == MHA_ROPE_SCALING_LONG)
        return f / (double)e->desc.rope_factors[longer ? half + i : i];
    double slow = fmin(1, fmax(0, (high - turns) / (high - low)));
    if (l->rope_scaling == MHA_ROPE_SCALING_YARN) {
        /* the pair i with this many turns: n base^(-i / half) / tau = turns */
        const double last = (double)(2 * half - 1);
        const bool exact = l->flags & MHA_LAYER_ROPE_EXACT_RAMP;
        const double first = (double)half * log(n / tau / high) / log(base);
        const double end = (double)half * log(n / tau / low) / log(base);
        const double from = fmin(last, fmax(0, exact ? first : floor(first)));
        const double to = fmin(last, fmax(0, exact ? end : ceil(end)));
        slow = fmin(1, fmax(0, ((double)i - from) / (to > from ? to - from : 0.001)));
    }
    return f * (1 - slow) + f / s * slow;
}

static bool has_amplitude(const mha_layer_desc *l)
{
    return l && l->rope_scaling >= MHA_ROPE_SCALING_YARN;
}

/* The frequencies of short sequences, and 16 rows of cosines and sines, then those of long ones. */
static void scale_rotation(const example *e, const mha_layer_desc *l, mha_rope_desc *rope,
                           double *frequencies, float angles[2][32 * 12], mha_tensor *cosines,
                           mha_tensor *sines)
{
    const int64_t half = l->rotary_dim / 2;
    const double size = has_amplitude(l) ? (double)l->rope_amplitude : 1;
    for (int64_t i = 0; i < half; i++) {
        frequencies[i] = scaled_frequency(e, l, i, false);
        for (int64_t t = 0; t < 32; t++) {
            const double angle = (double)(t % 16) * scaled_frequency(e, l, i, t >= 16);
            angles[0][t * half + i] = (float)(size * cos(angle));
            angles[1][t * half + i] = (float)(size * sin(angle));
        }
    }
    *cosines = mha_tensor_contiguous(angles[0], MHA_F32, 2, (int64_t[]){32, half});
    *sines = mha_tensor_contiguous(angles[1], MHA_F32, 2, (int64_t[]){32, half});
    rope->base = rope->factor = 0;
    rope->cos_table = cosines;
    rope->sin_table = sines;
}

/* The transformer's report of a layer's rotation. */
static void check_rotation(const example *e, int64_t layer, bool rotates, const mha_layer_desc *l,
                           const mha_rope_desc *rope, const double *frequencies)
{
    double got[12];
    mha_layer_rotation r = {.struct_size = sizeof r, .frequencies = got};
    expect_ok(mha_transformer_rotation(e->t, layer, &r));
    assert_int_equal(r.rotary_dim, !rotates ? 0 : l ? l->rotary_dim : e->desc.head_dim);
    if (!rotates) return;
    assert_int_equal(r.pairing, rope->pairing);
    assert_true(r.amplitude == (has_amplitude(l) ? (double)l->rope_amplitude : 1));
    for (int64_t i = 0; i < r.rotary_dim / 2; i++) {
        const double base = (double)(l ? l->rope_base : e->desc.rope_base);
        const double plain = pow(base, -(double)(2 * i) / (double)r.rotary_dim);
        const double f =
            l && l->rope_scaling ? frequencies[i] : plain / (l ? (double)l->rope_factor : 1);
        assert_true(fabs(got[i] / f - 1) < 0x1p-40); /* includes the rounding of the test */
    }
}

/* q or k: the projection of the layer's input, normalised and rotated by the public operators. The transformer rotates
 * with cosines and sines rounded to f32: an error of 3 2^-24 (|x| + |y|). */
static void check_position(mha_context *context, const example *e, int64_t layer, const char *name,
                           const mha_layer_view *view, const mha_tensor *got)
{
    const mha_layer_desc *l = e->desc.layers ? &e->desc.layers[layer] : NULL;
    const bool norms = l && l->flags & MHA_LAYER_QK_NORM;
    char text[32];
    snprintf(text, sizeof text, "%s_proj.weight", name);
    const mha_tensor weight = parameter_of(e, layer, text);
    mha_tensor bias, x, y, norm;
    mha_linear *linear = NULL;
    float data[MOST_TOKENS * 24];
    const int64_t rows = e->B * e->T, H = got->shape[1], D = got->shape[3];
    const bool biased = e->desc.flags & (MHA_TRANSFORMER_BIAS | MHA_TRANSFORMER_QKV_BIAS);
    if (biased) {
        snprintf(text, sizeof text, "%s_proj.bias", name);
        bias = parameter_of(e, layer, text);
    }
    expect_ok(mha_linear_create(context, &weight, biased ? &bias : NULL, &linear));
    x = mha_tensor_contiguous(view->input.data, MHA_F32, 2, (int64_t[]){rows, e->desc.embed_dim});
    y = mha_tensor_contiguous(data, MHA_F32, 2, (int64_t[]){rows, H * D});
    expect_ok(mha_linear_forward(context, linear, MHA_ACTIVATION_NONE, &x, &y));
    mha_linear_destroy(linear);
    y = mha_tensor_bthd(data, e->B, e->T, H, D);
    snprintf(text, sizeof text, "%s_norm.weight", name);
    if (norms) norm = parameter_of(e, layer, text);
    if (norms) expect_ok(mha_qk_norm(context, l->qk_norm, l->qk_norm_epsilon, &y, &norm, &y));
    const bool rotates =
        e->desc.positions == MHA_ENCODING_ROTARY && !(l && l->flags & MHA_LAYER_NO_ROPE);
    mha_tensor cosines, sines;
    float angles[2][32 * 12];
    int64_t starts[4] = {0};
    mha_rope_desc rope = {.struct_size = sizeof rope,
                          .pairing = l && l->flags & MHA_LAYER_ROPE_INTERLEAVED
                                         ? MHA_ROPE_INTERLEAVED
                                         : MHA_ROPE_HALVES,
                          .rotary_dim = l ? l->rotary_dim : 0,
                          .base = l ? (double)l->rope_base : 0,
                          .factor = l ? (double)l->rope_factor : 0,
                          .positions = {.starts = starts}};
    double frequencies[12];
    for (int64_t b = 0; b < e->B && l && l->rope_scaling == MHA_ROPE_SCALING_LONG; b++)
        if ((e->input.lengths ? e->lengths[b] : e->T) > l->rope_original_length) starts[b] = 16;
    if (rotates && l && l->rope_scaling)
        scale_rotation(e, l, &rope, frequencies, angles, &cosines, &sines);
    check_rotation(e, layer, rotates, l, &rope, frequencies);
    if (rotates) expect_ok(mha_rope_apply(context, &rope, &y, &y));
    for (int64_t i = 0; i < rows * H; i++) {
        const int64_t h = i % H, row = i / H;
        const float *want = data + i * D;
        const float *seen = (const float *)got->data + row / e->T * got->stride[0] +
                            h * got->stride[1] + row % e->T * got->stride[2];
        double square = 0; /* rotations preserve it */
        for (int64_t d = 0; d < D; d++) square += (double)want[d] * (double)want[d];
        for (int64_t d = 0; d < D; d++)
            if (fabs((double)seen[d] - (double)want[d]) > (rotates ? ldexp(sqrt(square), -21) : 0))
                fail_msg("layer %d, %s[%d,%d,%d]: %.9g, expected %.9g", (int)layer, name, (int)row,
                         (int)h, (int)d, (double)seen[d], (double)want[d]);
    }
}

static bool projects(const example *e)
{
    return e->desc.token_dim > 0 && e->desc.token_dim != e->desc.embed_dim;
}

/* Checks that embeddings are the sum of the tables' rows, rounded once to f32. */
static void check_embedded(const example *e, const mha_tensor *embedded)
{
    const float *data = mha_transformer_data(e->t);
    const int64_t E = e->desc.embed_dim;
    mha_parameter tokens, positions, types, project;
    expect_ok(mha_transformer_find(e->t, -1, "embed_tokens.weight", &tokens));
    assert_int_equal(mha_transformer_find(e->t, -1, "embed_proj.weight", &project) == MHA_OK,
                     projects(e));
    if (projects(e)) return;
    const bool learned = e->desc.positions == MHA_ENCODING_LEARNED;
    const bool padding = e->desc.flags & MHA_TRANSFORMER_PADDING;
    if (e->desc.positions == MHA_ENCODING_SINUSOIDAL) return;
    assert_int_equal(mha_transformer_find(e->t, -1, "embed_positions.weight", &positions) == MHA_OK,
                     learned);
    assert_int_equal(mha_transformer_find(e->t, -1, "embed_types.weight", &types) == MHA_OK,
                     e->desc.type_count > 0);
    for (int64_t i = 0; i < e->B * e->T * E; i++) {
        const int64_t row = i / E, type = e->input.token_types ? e->types[row] : 0;
        double sum = (double)(e->desc.embed_scale * data[tokens.offset + e->ids[row] * E + i % E]);
        int64_t position = row % e->T; /* with padding: 1 + the number of earlier tokens, or 0 */
        if (padding) {
            position = 1;
            for (int64_t k = row - row % e->T; k < row; k++)
                position += e->ids[k] != e->desc.padding_token;
            if (e->ids[row] == e->desc.padding_token) position = 0;
        }
        if (learned) sum += (double)data[positions.offset + position * E + i % E];
        if (e->desc.type_count) sum += (double)data[types.offset + type * E + i % E];
        assert_true(((const float *)embedded->data)[i] == (float)sum);
    }
}

static void check_views(mha_context *context, example *e)
{
    mha_stream_view ends = {.struct_size = sizeof ends};
    expect_ok(mha_activations_stream(e->a, &ends));
    const void *stream = ends.first.data, *input = NULL;
    check_embedded(e, &ends.embedded);
    const bool post = e->desc.flags & MHA_TRANSFORMER_POST_NORM;
    const bool pre = e->desc.norm && !post;
    const bool reads_norms = pre && !(e->desc.flags & MHA_TRANSFORMER_NO_INPUT_NORM);
    const int64_t layers = e->desc.num_layers;
    for (int64_t i = 0; i < 3 * layers; i++) {
        const mha_layer_part part = (mha_layer_part)(i % 3);
        const bool bare = part == MHA_PART_SELF_ATTENTION && e->desc.layers &&
                          e->desc.layers[i / 3].flags & MHA_LAYER_NO_ATTENTION_NORM;
        const bool normed = reads_norms && !branches(e, i / 3) && !bare;
        mha_layer_view view = {.struct_size = sizeof view};
        if ((part == MHA_PART_CROSS_ATTENTION && !(e->desc.flags & MHA_TRANSFORMER_CROSS)) ||
            (part == MHA_PART_FEED_FORWARD && e->desc.ff_dim == 0)) {
            assert_int_equal(mha_activations_layer(e->a, i / 3, part, &view), MHA_ERR_ARGUMENT);
            continue;
        }
        expect_ok(mha_activations_layer(e->a, i / 3, part, &view));
        assert_ptr_equal(view.stream.data, stream);
        const bool apart =
            part == MHA_PART_FEED_FORWARD && e->desc.flags & MHA_TRANSFORMER_PARALLEL;
        assert_int_equal(view.input.data != view.stream.data, normed || apart);
        assert_int_equal(view.sum.data != view.next.data, post);
        stream = view.next.data;
        if (part == MHA_PART_FEED_FORWARD && e->desc.flags & MHA_TRANSFORMER_ONE_NORM)
            assert_ptr_equal(view.input.data, input);
        input = view.input.data;
        if (part == MHA_PART_FEED_FORWARD) {
            assert_null(view.q.data);
            check_sum(e, i / 3, part, &view.hidden, &view);
            continue;
        }
        const bool cross = part == MHA_PART_CROSS_ATTENTION;
        assert_null(view.hidden.data);
        check_heads(context, e, i / 3, cross, &view);
        if (!cross) check_position(context, e, i / 3, "q", &view, &view.q);
        if (!cross) check_position(context, e, i / 3, "k", &view, &view.k);
        check_sum(e, i / 3, part, &view.concatenated, &view);
    }
    assert_ptr_equal(ends.last.data, stream);
    assert_int_equal(ends.normed.data != ends.last.data, pre);
    assert_int_equal(ends.embedded.data != ends.first.data,
                     e->desc.flags & MHA_TRANSFORMER_EMBEDDING_NORM && !projects(e));
    if (e->desc.flags & MHA_TRANSFORMER_NO_OUTPUT)
        assert_memory_equal(ends.normed.data, e->output_data,
                            (size_t)(e->B * e->T * e->desc.embed_dim) * sizeof(float));
}

static void check_view_errors(const example *e)
{
    mha_layer_view view = {.struct_size = sizeof view};
    mha_parameter p;
    expect_error(mha_activations_layer(e->a, e->desc.num_layers, 0, &view), MHA_ERR_ARGUMENT,
                 "no layer");
    expect_error(mha_activations_layer(e->a, 0, (mha_layer_part)3, &view), MHA_ERR_ARGUMENT,
                 "no part 3");
    view.struct_size = 8;
    expect_error(mha_activations_layer(e->a, 0, 0, &view), MHA_ERR_ARGUMENT, "struct_size");
    expect_error(mha_activations_stream(e->a, NULL), MHA_ERR_NULL, "view");
    expect_error(mha_transformer_find(e->t, 0, "self_attn.x_proj.weight", &p), MHA_ERR_ARGUMENT,
                 "no parameter layers.0.self_attn.x_proj.weight");
}

/* Activations equal the formula, for self-attention, cross-attention and the other layers. */
static void views(void)
{
    for (int i = 0; i < rng_cases(60, 600); i++) {
        rng r = rng_make(rng_run_seed(), 900 + (uint64_t)i);
        mha_context *context = machines_context(2, i);
        example *e = example_make(context, &r);
        mha_layer_view view = {.struct_size = sizeof view};
        mha_stream_view ends = {.struct_size = sizeof ends};
        e->input.dropout = 0;
        assert_int_equal(mha_activations_layer(e->a, 0, MHA_PART_SELF_ATTENTION, &view),
                         MHA_ERR_ARGUMENT);
        assert_int_equal(mha_activations_stream(e->a, &ends), MHA_ERR_ARGUMENT);
        loss_of(context, e);
        check_views(context, e);
        if (i == 0) check_view_errors(e);
        example_free(e);
    }
}

/* A call without activations and a call with all activations. */
typedef struct passing {
    const example *e; /* its activations have the batch */
    mha_attention_outputs outputs[3];
    const mha_attention_outputs *wanted[3];
    mha_tensor probabilities[3], average[3];
    float probability_data[3][4 * 4 * 12 * 12], average_data[3][4 * 12 * 12];
    int64_t called, stop_at; /* stop_at -1: never */
    mha_status status;
} passing;

static void expect_same_floats(const mha_tensor *a, const mha_tensor *b)
{
    assert_int_equal(a->ndim, b->ndim);
    int64_t index[4] = {0}, count = a->data != NULL;
    assert_int_equal(count, b->data != NULL);
    for (int i = 0; i < a->ndim; i++) {
        assert_int_equal(a->shape[i], b->shape[i]);
        count *= a->shape[i];
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t rest = i, at = 0, at_b = 0;
        for (int k = a->ndim - 1; k >= 0; k--) {
            index[k] = rest % a->shape[k];
            rest /= a->shape[k];
            at += index[k] * a->stride[k];
            at_b += index[k] * b->stride[k];
        }
        assert_memory_equal((const float *)a->data + at, (const float *)b->data + at_b, 4);
    }
}

static mha_status see_layer(void *user, const mha_activations *activations, int64_t layer)
{
    passing *p = user;
    assert_int_equal(layer, p->called++);
    for (mha_layer_part part = 0; part < 3; part++) {
        mha_layer_view kept = {.struct_size = sizeof kept}, seen = {.struct_size = sizeof seen};
        const mha_status status = mha_activations_layer(p->e->a, layer, part, &kept);
        assert_int_equal(mha_activations_layer(activations, layer, part, &seen), status);
        if (status != MHA_OK) continue;
        if (p->e->desc.flags & MHA_TRANSFORMER_POST_NORM)
            assert_null(seen.sum.data);
        else
            expect_same_floats(&seen.sum, &kept.sum);
        const mha_tensor *all[][2] = {
            {&seen.stream, &kept.stream}, {&seen.input, &kept.input}, {&seen.next, &kept.next},
            {&seen.q, &kept.q},           {&seen.k, &kept.k},         {&seen.v, &kept.v},
            {&seen.lse, &kept.lse},       {&seen.heads, &kept.heads}, {&seen.hidden, &kept.hidden}};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            expect_same_floats(all[i][0], all[i][1]);
    }
    mha_stream_view ends = {.struct_size = sizeof ends};
    mha_layer_view other = {.struct_size = sizeof other};
    assert_int_equal(mha_activations_stream(activations, &ends), MHA_ERR_ARGUMENT);
    assert_int_equal(mha_activations_layer(activations, !layer, 0, &other), MHA_ERR_ARGUMENT);
    return layer == p->stop_at ? p->status : MHA_OK;
}

static void want_of_layers(passing *p, const example *e)
{
    const int64_t map[] = {e->B, e->desc.num_heads, e->T, e->T}, mean[] = {e->B, e->T, e->T};
    for (int l = 0; l < e->desc.num_layers; l++) {
        p->probabilities[l] = mha_tensor_contiguous(p->probability_data[l], MHA_F32, 4, map);
        p->average[l] = mha_tensor_contiguous(p->average_data[l], MHA_F32, 3, mean);
        p->outputs[l] = (mha_attention_outputs){.struct_size = sizeof p->outputs[l],
                                                .probabilities = &p->probabilities[l],
                                                .average_probabilities = &p->average[l]};
        p->wanted[l] = l == 1 ? NULL : &p->outputs[l];
    }
}

/* A call without activations is bit-identical to a call with all activations, in the output, the
 * requested data of each layer, and every view passed to after_layer. after_layer can end a
 * call. */
static void keeps_nothing(void)
{
    for (int i = 0; i < rng_cases(60, 600); i++) {
        rng r = rng_make(rng_run_seed(), 1700 + (uint64_t)i);
        mha_context *context = machines_context(2, i);
        example *e = example_make(context, &r);
        const mha_transformer_desc *d = &e->desc;
        const int64_t shape[] = {d->num_layers, e->B, d->num_heads, e->T, e->T};
        const size_t map = (size_t)(e->B * d->num_heads * e->T * e->T);
        float *wanted = calloc((size_t)d->num_layers * map, sizeof *wanted);
        const mha_tensor maps = mha_tensor_contiguous(wanted, MHA_F32, 5, shape);
        passing p = {.e = e, .stop_at = -1, .status = MHA_ERR_NOMEM};
        float first[MOST_TOKENS * MOST_VOCAB];
        assert_non_null(wanted);
        expect_ok(mha_transformer_forward(context, e->t, &e->input, e->a, &e->output, &maps, NULL));
        memcpy(first, e->output_data, sizeof first);
        memset(e->output_data, 0, sizeof e->output_data);
        want_of_layers(&p, e);
        e->input.outputs = p.wanted;
        e->input.after_layer = see_layer;
        e->input.after_layer_user = &p;
        const mha_scratch_mark mark = mha_scratch_top(context);
        if (mha_transformer_forward(context, e->t, &e->input, NULL, &e->output, NULL, NULL) !=
            MHA_OK)
            fail_msg("%s", mha_error_detail());
        const mha_scratch_mark top = mha_scratch_top(context);
        assert_true(top.block == mark.block && top.used == mark.used);
        assert_int_equal(p.called, d->num_layers);
        const int64_t width = e->output.shape[2];
        assert_memory_equal(first, e->output_data, (size_t)(e->B * e->T * width) * sizeof(float));
        for (int64_t l = 0; l < d->num_layers; l += 2)
            assert_memory_equal(p.probability_data[l], wanted + (size_t)l * map,
                                map * sizeof(float));
        for (int64_t stop = 0; stop < d->num_layers; stop++) {
            p.called = 0;
            p.stop_at = stop;
            assert_int_equal(
                mha_transformer_forward(context, e->t, &e->input, NULL, &e->output, NULL, NULL),
                MHA_ERR_NOMEM);
            assert_int_equal(p.called, stop + 1);
        }
        free(wanted);
        example_free(e);
    }
}

static const mha_transformer_desc small = {.struct_size = sizeof small,
                                           .vocab_size = 9,
                                           .max_length = 8,
                                           .embed_dim = 12,
                                           .num_layers = 1,
                                           .num_heads = 2,
                                           .ff_dim = 5};

static void create_errors(void)
{
    mha_context *x = machines_context(1, 0);
    mha_transformer_desc d = small;
    mha_transformer *t = NULL;
    mha_activations *a = NULL;
#define ROW(...) expect_spoiled(d, mha_transformer_create(x, &d, &t), __VA_ARGS__)
    expect_error(mha_transformer_create(NULL, &d, &t), MHA_ERR_NULL, "context");
    ROW(MHA_ERR_SHAPE, "12 is not a multiple", d.num_heads = 5);
    ROW(MHA_ERR_ARGUMENT, "num_layers is 0", d.num_layers = 0);
    ROW(MHA_ERR_UNSUPPORTED, "0x80000000", d.flags = 1u << 31);
    ROW(MHA_ERR_UNSUPPORTED, "padding_token 1", d.padding_token = 1);
    ROW(MHA_ERR_ARGUMENT, "padding_token is 0, expected", d.flags = MHA_TRANSFORMER_PADDING);
    ROW(MHA_ERR_ARGUMENT, "padding_token is 0, expected", d.positions = MHA_ENCODING_LEARNED,
        d.flags = MHA_TRANSFORMER_PADDING | MHA_TRANSFORMER_CAUSAL);
    ROW(MHA_ERR_ARGUMENT, "padding_token is -1, expected", d.positions = MHA_ENCODING_LEARNED,
        d.flags = MHA_TRANSFORMER_PADDING, d.padding_token = -1);
    ROW(MHA_ERR_ARGUMENT, "padding_token is 9", d.positions = MHA_ENCODING_LEARNED,
        d.flags = MHA_TRANSFORMER_PADDING, d.padding_token = 9, d.vocab_size = 9);
    ROW(MHA_ERR_ARGUMENT, "need a norm", d.flags = MHA_TRANSFORMER_POST_NORM);
    ROW(MHA_ERR_ARGUMENT, "need a norm", d.flags = MHA_TRANSFORMER_BRANCH_NORM);
    ROW(MHA_ERR_ARGUMENT, "exclude each other", d.norm = MHA_NORM_RMS,
        d.flags = MHA_TRANSFORMER_POST_NORM | MHA_TRANSFORMER_BRANCH_NORM);
    ROW(MHA_ERR_ARGUMENT, "only with MHA_TRANSFORMER_BRANCH_NORM",
        d.flags = MHA_TRANSFORMER_NO_INPUT_NORM);
    ROW(MHA_ERR_ARGUMENT, "only with MHA_NORM_LAYER", d.norm = MHA_NORM_RMS,
        d.flags = MHA_TRANSFORMER_NO_NORM_BIAS);
    ROW(MHA_ERR_ARGUMENT, "only with MHA_TRANSFORMER_PARALLEL and a norm", d.norm = MHA_NORM_RMS,
        d.flags = MHA_TRANSFORMER_ONE_NORM);
    ROW(MHA_ERR_ARGUMENT, "only with MHA_TRANSFORMER_PARALLEL and a norm", d.ff_dim = 4,
        d.flags = MHA_TRANSFORMER_ONE_NORM | MHA_TRANSFORMER_PARALLEL);
    ROW(MHA_ERR_ARGUMENT, "parallel blocks", d.flags = MHA_TRANSFORMER_PARALLEL, d.ff_dim = 0);
    ROW(MHA_ERR_ARGUMENT, "parallel blocks", d.ff_dim = 4,
        d.flags = MHA_TRANSFORMER_PARALLEL | MHA_TRANSFORMER_CROSS);
    ROW(MHA_ERR_ARGUMENT, "embed_scale is nan", d.embed_scale = NAN);
    ROW(MHA_ERR_ARGUMENT, "logit_softcap is -1", d.logit_softcap = -1);
    ROW(MHA_ERR_ARGUMENT, "no logits", d.logit_softcap = 1, d.flags = MHA_TRANSFORMER_NO_OUTPUT);
    ROW(MHA_ERR_SHAPE, "even", d.head_dim = 3, d.positions = MHA_ENCODING_ROTARY);
    ROW(MHA_ERR_ARGUMENT, "memory_dim", d.memory_dim = 3);
    ROW(MHA_ERR_ARGUMENT, "cross_scale is 2", d.cross_scale = 2);
    ROW(MHA_ERR_ARGUMENT, "cross_scale is inf", d.cross_scale = INFINITY,
        d.flags = MHA_TRANSFORMER_CROSS);
    ROW(MHA_ERR_ARGUMENT, "no logits",
        d.flags = MHA_TRANSFORMER_LOGIT_BIAS | MHA_TRANSFORMER_NO_OUTPUT);
    ROW(MHA_ERR_SIZE, "do not fit", d.vocab_size = d.num_layers = INT32_MAX,
        d.embed_dim = INT32_MAX - 1);
#undef ROW
    assert_null(t);
    expect_ok(mha_transformer_create(x, &d, &t));
    expect_error(mha_activations_create(x, t, 0, 0, &a), MHA_ERR_ARGUMENT, "max_tokens is 0");
    expect_error(mha_activations_create(x, t, 8, 8, &a), MHA_ERR_ARGUMENT, "no cross-attention");
    assert_null(a);
    mha_transformer_destroy(t);
}

/* A self-contained call on two sequences of four tokens. */
typedef struct call {
    mha_transformer_input in;
    mha_tensor tokens, output, gates, map, first;
    mha_attention_outputs lse, over, too;
    const mha_attention_outputs *list;
    int64_t lengths[2], counts[16];
    int32_t ids[16];
    float out[16 * 9];
} call;

static void call_make(call *c)
{
    *c = (call){.in = {.struct_size = sizeof c->in, .tokens = &c->tokens}, .counts = {4, 4}};
    c->tokens = mha_tensor_contiguous(c->ids, MHA_I32, 2, (int64_t[]){2, 4});
    c->output = mha_tensor_contiguous(c->out, MHA_F32, 3, (int64_t[]){2, 4, 9});
    c->gates = mha_tensor_contiguous(c->out, MHA_F32, 2, (int64_t[]){1, 2});
    c->map = mha_tensor_contiguous(c->out, MHA_F32, 4, (int64_t[]){2, 2, 4, 4});
    c->first = mha_tensor_contiguous(c->counts, MHA_F32, 3, (int64_t[]){2, 2, 4});
    c->lse = (mha_attention_outputs){.struct_size = sizeof c->lse, .lse = &c->output};
    c->over = (mha_attention_outputs){.struct_size = sizeof c->over, .probabilities = &c->map};
    c->too = (mha_attention_outputs){.struct_size = sizeof c->too, .first_token = &c->first};
}

static void forward_errors(void)
{
    mha_context *x = machines_context(1, 0);
    mha_transformer_desc d = small;
    mha_transformer *t = NULL;
    mha_activations *a = NULL;
    float gradient[1000] = {0};
    const mha_transformer_gradients g = {.struct_size = sizeof g, .parameters = gradient};
    call c;
    call_make(&c);
    expect_ok(mha_transformer_create(x, &d, &t));
    expect_ok(mha_activations_create(x, t, 12, 0, &a));
#define FORWARD(a) mha_transformer_forward(x, t, &c.in, a, &c.output, NULL, NULL)
#define BACKWARD mha_transformer_backward(x, t, &c.in, a, &c.output, &g)
#define ROW(...) expect_spoiled(c, FORWARD(a), __VA_ARGS__)
    expect_error(BACKWARD, MHA_ERR_ARGUMENT, "forward() first");
    expect_ok(FORWARD(a));
    expect_ok(BACKWARD);
    ROW(MHA_ERR_ARGUMENT, "tokens[1,1] is 9, expected 0..8", c.ids[5] = 9);
    expect_spoiled(c, BACKWARD, MHA_ERR_ARGUMENT, "another", c.ids[5] = 9);
    ROW(MHA_ERR_ARGUMENT, "lengths[1] is 5, expected 0..4", c.lengths[0] = 4, c.lengths[1] = 5,
        c.in.lengths = c.lengths);
    ROW(MHA_ERR_ARGUMENT, "dropout", c.in.dropout = 2);
    ROW(MHA_ERR_SHAPE, "gates", c.in.gates = &c.output);
    ROW(MHA_ERR_ARGUMENT, "no cross-attention", c.in.memory = &c.output);
    ROW(MHA_ERR_SHAPE, "output", c.output.shape[2] = 8);
    ROW(MHA_ERR_ARGUMENT, "no types of tokens", c.in.token_types = &c.tokens);
    ROW(MHA_ERR_ARGUMENT, "outputs of layer 0: lse", c.list = &c.lse, c.in.outputs = &c.list);
    ROW(MHA_ERR_OVERLAP, "an output of layer 0 overlaps output", c.list = &c.over,
        c.in.outputs = &c.list);
    ROW(MHA_ERR_OVERLAP, "an output of layer 0 overlaps lengths", c.list = &c.too,
        c.in.outputs = &c.list, c.in.lengths = c.counts);
    ROW(MHA_ERR_OVERLAP, "output overlaps gates", c.in.gates = &c.gates);
    ROW(MHA_ERR_ARGUMENT, "9 in a sequence, this transformer takes at most 8",
        c.tokens = mha_tensor_contiguous(c.ids, MHA_I32, 2, (int64_t[]){1, 9}));
    ROW(MHA_ERR_SIZE, "created for 12 tokens",
        c.tokens = mha_tensor_contiguous(c.ids, MHA_I32, 2, (int64_t[]){2, 8}));
    mha_activations_destroy(a);
    mha_transformer_destroy(t);
    d.type_count = 2;
    expect_ok(mha_transformer_create(x, &d, &t));
    expect_spoiled(c, FORWARD(NULL), MHA_ERR_ARGUMENT, "token_types[1,2] is 2, expected 0..1",
                   c.ids[6] = 2, c.in.token_types = &c.tokens);
#undef ROW
#undef BACKWARD
#undef FORWARD
    mha_transformer_destroy(t);
}

/* Invalid descriptions of layers: each error names the layer. */
static void layers_are_checked(void)
{
    mha_context *x = machines_context(1, 0);
    const struct {
        mha_layer_desc layer;
        mha_status status;
        const char *words;
    } wrong[] = {
        {{.flags = 1u << 19}, MHA_ERR_UNSUPPORTED, "layer 1: mha_layer_desc: flags 0x80000"},
        {{.flags = MHA_LAYER_NO_ATTENTION_NORM},
         MHA_ERR_ARGUMENT,
         "MHA_LAYER_NO_ATTENTION_NORM: only in a transformer with pre-norm"},
        {{.strength_scale = 1}, MHA_ERR_ARGUMENT, "only with a mixer"},
        {{.flags = MHA_LAYER_BRANCH_NORM}, MHA_ERR_ARGUMENT, "only in a transformer with pre-norm"},
        {{.flags = MHA_LAYER_QK_NORM_ROW}, MHA_ERR_ARGUMENT, "only with MHA_LAYER_QK_NORM"},
        {{.experts = {.count = 4, .used = 5}},
         MHA_ERR_ARGUMENT,
         "mha_experts_desc: 5 of 4 experts"},
        {{.experts = {.used = 1}}, MHA_ERR_ARGUMENT, "1 of 0 experts are used"},
        {{.experts = {.count = 1 << 17, .used = 1}}, MHA_ERR_ARGUMENT, "expected 1..65536 experts"},
        {{.experts = {.count = 4, .used = 1, .flags = 64}}, MHA_ERR_UNSUPPORTED, "flags 0x40"},
        {{.experts = {.count = 4, .used = 1, .ff_dim = 8, .scale = -1}},
         MHA_ERR_ARGUMENT,
         "scale is -1"},
        {{.experts = {.count = 4, .used = 1, .ff_dim = 8}},
         MHA_ERR_UNSUPPORTED,
         "experts need a gated feed_forward"},
        {{.left_keys = 1}, MHA_ERR_ARGUMENT, "only with MHA_LAYER_WINDOW"},
        {{.sink_keys = 1}, MHA_ERR_ARGUMENT, "only with MHA_LAYER_WINDOW"},
        {{.flags = MHA_LAYER_WINDOW, .left_keys = -2}, MHA_ERR_ARGUMENT, "layer 1: window"},
        {{.flags = MHA_LAYER_WINDOW, .right_keys = 1}, MHA_ERR_ARGUMENT, "layer 1: window"},
        {{.qk_norm_epsilon = 1e-3f}, MHA_ERR_ARGUMENT, "only with MHA_LAYER_QK_NORM"},
        {{.flags = MHA_LAYER_QK_NORM, .qk_norm_epsilon = -1}, MHA_ERR_ARGUMENT, "epsilon is -1"},
        {{.flags = MHA_LAYER_QK_NORM, .qk_norm = 7}, MHA_ERR_ARGUMENT, "kind is 7"},
        {{.softcap = -1}, MHA_ERR_ARGUMENT, "layer 1: softcap is -1"},
        {{.scale = NAN}, MHA_ERR_ARGUMENT, "scale is nan"},
        {{.t5_max_distance = 9}, MHA_ERR_ARGUMENT, "only with t5_buckets"},
        {{.t5_buckets = 1}, MHA_ERR_SHAPE, "layer 1: t5_table: 1 buckets"},
        {{.t5_buckets = -1}, MHA_ERR_ARGUMENT, "t5_buckets is -1"},
        {{.t5_buckets = (int64_t)1 << 32}, MHA_ERR_ARGUMENT, "t5_buckets is 4294967296"},
        {{.rotary_dim = 3}, MHA_ERR_ARGUMENT, "rotary_dim is 3"},
        {{.rotary_dim = 6}, MHA_ERR_ARGUMENT, "rotary_dim is 6"},
        {{.rope_base = 0.5f}, MHA_ERR_ARGUMENT, "base is 0.5"},
        {{.rope_factor = -1}, MHA_ERR_ARGUMENT, "factor is -1"},
        {{.flags = MHA_LAYER_NO_ROPE | MHA_LAYER_ROPE_INTERLEAVED},
         MHA_ERR_ARGUMENT,
         "only with a"},
        {{.flags = MHA_LAYER_NO_ROPE, .rotary_dim = 2}, MHA_ERR_ARGUMENT, "only with a layer"},
        {{.rope_low = 2}, MHA_ERR_ARGUMENT, "only with MHA_ROPE_SCALING_LLAMA3"},
        {{.rope_scaling = MHA_ROPE_SCALING_LLAMA3, .rope_original_length = 4, .rope_amplitude = 1},
         MHA_ERR_ARGUMENT,
         "only with MHA_ROPE_SCALING_YARN"},
        {{.rope_scaling = (mha_rope_scaling)4}, MHA_ERR_ARGUMENT, "rope_scaling is 4"},
        {{.rope_scaling = MHA_ROPE_SCALING_LONG, .rope_original_length = 4, .rope_high = 2},
         MHA_ERR_ARGUMENT,
         "rope_low and rope_high: only with"},
        {{.rope_scaling = MHA_ROPE_SCALING_LONG, .rope_original_length = 4, .rope_factor = 2},
         MHA_ERR_ARGUMENT,
         "rope_factor 2"},
        {{.flags = MHA_LAYER_ROPE_EXACT_RAMP}, MHA_ERR_ARGUMENT, "MHA_LAYER_ROPE_EXACT_RAMP: only"},
        {{.rope_scaling = MHA_ROPE_SCALING_YARN}, MHA_ERR_ARGUMENT, "rope_original_length is 0"},
        {{.rope_scaling = MHA_ROPE_SCALING_LLAMA3, .rope_original_length = 4, .rope_low = 5},
         MHA_ERR_ARGUMENT,
         "rope_low 5"},
        {{.rope_scaling = MHA_ROPE_SCALING_LLAMA3, .rope_original_length = 4, .rope_low = 4},
         MHA_ERR_ARGUMENT,
         "rope_low 4"},
        {{.rope_scaling = MHA_ROPE_SCALING_YARN, .rope_original_length = 4, .rope_low = 33},
         MHA_ERR_ARGUMENT,
         "rope_low 33"},
        {{.rope_scaling = MHA_ROPE_SCALING_LLAMA3, .rope_original_length = 4, .rope_factor = 1e-7f},
         MHA_ERR_ARGUMENT,
         "rope_factor 1e-07"},
    };
    mha_layer_desc layers[2] = {{.struct_size = sizeof layers[0]}};
    mha_transformer_desc d = {.struct_size = sizeof d,
                              .flags = MHA_TRANSFORMER_CAUSAL,
                              .vocab_size = 5,
                              .max_length = 8,
                              .embed_dim = 8,
                              .num_layers = 2,
                              .num_heads = 2,
                              .positions = MHA_ENCODING_ROTARY,
                              .layers = layers};
    mha_transformer *t = NULL;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        layers[1] = wrong[i].layer;
        layers[1].struct_size = sizeof layers[1];
        expect_error(mha_transformer_create(x, &d, &t), wrong[i].status, wrong[i].words);
        d.layer_heads = (const int64_t[]){2, 0}; /* has a layer without heads */
        assert_int_not_equal(mha_transformer_create(x, &d, &t), MHA_OK);
        assert_non_null(strstr(mha_error_detail(), "layer 1: "));
        d.layer_heads = NULL;
    }
    layers[1] = (mha_layer_desc){.struct_size = sizeof layers[1],
                                 .rope_scaling = MHA_ROPE_SCALING_LONG,
                                 .rope_original_length = 4};
    expect_error(mha_transformer_create(x, &d, &t), MHA_ERR_NULL, "rope_factors is NULL");
    layers[1] = (mha_layer_desc){.struct_size = 8};
    expect_error(mha_transformer_create(x, &d, &t), MHA_ERR_ARGUMENT, "layer 1: mha_layer_desc");
    layers[1].struct_size = sizeof layers[1] + 8; /* would end after the array */
    expect_error(mha_transformer_create(x, &d, &t), MHA_ERR_ARGUMENT, "that of layer 0");
    layers[1] = (mha_layer_desc){.struct_size = sizeof layers[1], .flags = MHA_LAYER_NO_ROPE};
    d.positions = MHA_ENCODING_LEARNED;
    expect_error(mha_transformer_create(x, &d, &t), MHA_ERR_ARGUMENT,
                 "only with MHA_ENCODING_ROTARY");
}

/* MHA_QK_NORM_L2 supports forward calls only. Layers without settings are ignored. */
static void layers_without_gradients(void)
{
    mha_context *x = machines_context(1, 0);
    mha_layer_desc layer = {.struct_size = sizeof layer};
    mha_transformer_desc d = {.struct_size = sizeof d,
                              .flags = MHA_TRANSFORMER_NO_OUTPUT,
                              .vocab_size = 5,
                              .max_length = 8,
                              .embed_dim = 4,
                              .num_layers = 1,
                              .num_heads = 2,
                              .layers = &layer};
    mha_transformer_desc made;
    mha_transformer *t = NULL;
    mha_activations *a = NULL;
    expect_ok(mha_transformer_create(x, &d, &t));
    mha_transformer_describe(t, &made);
    assert_null(made.layers);
    mha_transformer_destroy(t);
    layer.flags = MHA_LAYER_QK_NORM, layer.qk_norm = MHA_QK_NORM_L2;
    expect_ok(mha_transformer_create(x, &d, &t));
    mha_transformer_describe(t, &made);
    assert_true(made.layers != &layer && made.layers[0].qk_norm_epsilon == 1e-12f);
    expect_ok(mha_activations_create(x, t, 3, 0, &a));
    float rows[12] = {0};
    int32_t ids[] = {1, 2, 3};
    const mha_tensor tokens = mha_tensor_contiguous(ids, MHA_I32, 2, (int64_t[]){1, 3});
    const mha_tensor output = mha_tensor_contiguous(rows, MHA_F32, 3, (int64_t[]){1, 3, 4});
    const mha_transformer_input input = {.struct_size = sizeof input, .tokens = &tokens};
    const mha_transformer_gradients out = {.struct_size = sizeof out};
    expect_ok(mha_transformer_forward(x, t, &input, a, &output, NULL, NULL));
    expect_error(mha_transformer_backward(x, t, &input, a, &output, &out), MHA_ERR_UNSUPPORTED,
                 "layer 0 has an L2 norm of queries and keys");
    mha_activations_destroy(a);
    mha_transformer_destroy(t);
}

/* ---- with a source --------------------------------------------------------------------------- */

static void expect_same_numbers(const mha_transformer *a, const mha_transformer *b)
{
    float row[2][4096];
    assert_int_equal(mha_transformer_parameters(a), mha_transformer_parameters(b));
    for (int64_t i = 0; i < mha_transformer_parameters(a); i++) {
        mha_parameter p;
        expect_ok(mha_transformer_parameter(a, i, &p));
        for (int64_t k = 0; k < p.shape[0]; k++) {
            expect_ok(mha_transformer_read(a, &p, k, 1, row[0]));
            expect_ok(mha_transformer_read(b, &p, k, 1, row[1]));
            assert_memory_equal(row[0], row[1], sizeof(float) * (size_t)(p.count / p.shape[0]));
        }
    }
}

/* Transformers without some heads, and with fewer key/value heads, from an array and from a source.
 * The source lives as long as any transformer that reads from it. */
static void expect_same_pruned(mha_context *context, const example *e, mha_transformer *other,
                               const stored *s, rng *r)
{
    float keep[64];
    mha_transformer *made[2][3] = {{NULL}};
    const int64_t shape[] = {e->desc.num_layers, e->desc.num_heads};
    const mha_tensor kept = mha_tensor_contiguous(keep, MHA_F32, 2, shape);
    for (int i = 0; i < 64; i++) keep[i] = rng_chance(r, 0.6) ? 1 : 0;
    for (int k = 0; k < 2; k++) {
        const mha_transformer *from = k ? other : e->t;
        expect_ok(mha_transformer_prune(context, from, &kept, &made[k][0]));
        expect_ok(mha_transformer_share_kv(context, from, 1, &made[k][1]));
        expect_ok(mha_transformer_copy(context, made[k][0], &made[k][2]));
        assert_true((mha_transformer_data(made[k][0]) == NULL) == (k == 1));
        assert_non_null(mha_transformer_data(made[k][2]));
    }
    mha_transformer_destroy(other);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(s->released, i == 2);
        expect_same_numbers(made[0][i], made[1][i]);
        mha_transformer_destroy(made[0][i]);
        mha_transformer_destroy(made[1][i]);
    }
}

/* Forward with and without activations, and every gradient. */
static void expect_same_run(mha_context *context, example *e, mha_transformer *other)
{
    mha_transformer *own = e->t;
    mha_activations *kept = e->a;
    gradients g[2];
    static float outputs[3][MOST_TOKENS * MOST_VOCAB];
    const size_t bytes = (size_t)(e->B * e->T * e->output.shape[2]) * sizeof(float);
    const double loss = backward(context, e, &g[0]);
    memcpy(outputs[0], e->output_data, bytes);
    e->t = other;
    expect_ok(mha_activations_create(context, other, MOST_TOKENS, e->input.memory ? MOST_MEMORY : 0,
                                     &e->a));
    assert_true(loss == backward(context, e, &g[1]));
    assert_memory_equal(outputs[0], e->output_data, bytes);
    memset(e->output_data, 0, bytes);
    expect_ok(mha_transformer_forward(context, other, &e->input, NULL, &e->output, NULL, NULL));
    assert_memory_equal(outputs[0], e->output_data, bytes);
    assert_memory_equal(g[0].parameters, g[1].parameters,
                        (size_t)mha_transformer_size(own) * sizeof(float));
    assert_memory_equal(g[0].memory, g[1].memory, sizeof g[0].memory);
    assert_memory_equal(g[0].gates, g[1].gates, sizeof g[0].gates);
    assert_memory_equal(g[0].cross_gates, g[1].cross_gates, sizeof g[0].cross_gates);
    free(g[0].parameters);
    free(g[1].parameters);
    mha_activations_destroy(e->a);
    e->t = own;
    e->a = kept;
}

/* Numbers from a source, packed or not, are bit-identical to those in an array. */
static void sources_change_no_bit(void)
{
    for (int i = 0; i < rng_cases(40, 600); i++) {
        rng r = rng_make(rng_run_seed(), 2600 + (uint64_t)i);
        mha_context *context = machines_context(i % 3 == 0 ? 1 : i % 3 == 1 ? 2 : 8, i);
        example *e = example_make(context, &r);
        stored s;
        mha_transformer *other =
            stored_transformer(context, e->t, i % 4 == 0 ? MHA_SOURCE_PACK : 0, &s);
        expect_same_numbers(e->t, other);
        expect_same_run(context, e, other);
        expect_same_pruned(context, e, other, &s, &r);
        example_free(e);
    }
}

/* Matrices with several groups of panels and several pieces of inputs, and tokens in several blocks
 * of rows. */
static void large_matrices_from_a_source(void)
{
    enum { MOST = 150, V = 600 };
    static const struct {
        int64_t E, F, T;
    } sizes[] = {{48, 2300, 150}, {160, 1024, 113}, {1088, 40, 1}, {64, 1500, 3}};
    for (int i = 0; i < 24; i++) { /* f32, f16 and bf16 */
        if (!rng_takes(i, 2)) continue;
        rng r = rng_make(rng_run_seed(), 3300 + (uint64_t)i);
        mha_context *context = machines_context(i % 8 < 4 ? 2 : 8, i);
        const int64_t T = sizes[i % 4].T;
        const mha_transformer_desc d = {.struct_size = sizeof d,
                                        .flags = MHA_TRANSFORMER_CAUSAL | MHA_TRANSFORMER_BIAS,
                                        .vocab_size = V,
                                        .max_length = MOST,
                                        .embed_dim = sizes[i % 4].E,
                                        .num_layers = 2,
                                        .num_heads = 4,
                                        .ff_dim = sizes[i % 4].F,
                                        .norm = MHA_NORM_RMS,
                                        .positions = MHA_ENCODING_ROTARY};
        const mha_transformer_init init = {.struct_size = sizeof init, .seed = rng_next(&r)};
        mha_transformer *t = NULL;
        stored s;
        int32_t ids[MOST];
        float *out = malloc(2 * MOST * V * sizeof *out);
        assert_non_null(out);
        for (int64_t k = 0; k < T; k++) ids[k] = (int32_t)rng_between(&r, 0, V - 1);
        expect_ok(mha_transformer_create(context, &d, &t));
        expect_ok(mha_transformer_initialise(context, t, &init));
        mha_transformer *other =
            i < 8 ? stored_transformer(context, t, 0, &s)
                  : stored_as_halves(context, t, i < 16 ? MHA_F16 : MHA_BF16, &s);
        const mha_tensor tokens = mha_tensor_contiguous(ids, MHA_I32, 2, (int64_t[]){1, T});
        const mha_transformer_input input = {.struct_size = sizeof input, .tokens = &tokens};
        const mha_transformer *both[] = {t, other};
        for (int k = 0; k < 2; k++) {
            const mha_tensor y =
                mha_tensor_contiguous(out + (size_t)k * MOST * V, MHA_F32, 3, (int64_t[]){1, T, V});
            expect_ok(mha_transformer_forward(context, both[k], &input, NULL, &y, NULL, NULL));
        }
        assert_memory_equal(out, out + MOST * V, (size_t)(T * V) * sizeof *out);
        mha_transformer_destroy(other);
        mha_transformer_destroy(t);
        free(out);
    }
}

/* The whole description, also if every layer has fewer heads than the maximum. */
static void copies_are_the_same(void)
{
    mha_context *context = machines_context(1, 0);
    const int64_t heads[] = {1, 0};
    mha_transformer_desc d = small, copied;
    mha_transformer *t = NULL, *copy = NULL;
    d.num_layers = 2;
    d.head_dim = 6;
    d.layer_heads = heads;
    expect_ok(mha_transformer_create(context, &d, &t));
    expect_ok(mha_transformer_copy(context, t, &copy));
    mha_transformer_describe(t, &d);
    mha_transformer_describe(copy, &copied);
    assert_int_equal(copied.num_heads, d.num_heads);
    assert_int_equal(copied.kv_heads, d.kv_heads);
    assert_memory_equal(copied.layer_heads, d.layer_heads, sizeof heads);
    assert_memory_equal(copied.layer_kv_heads, d.layer_kv_heads, sizeof heads);
    expect_same_numbers(t, copy);
    mha_transformer_destroy(copy);
    mha_transformer_destroy(t);
}

/* Decodes one token at a time. */
static void decoding_from_a_source(void)
{
    mha_context *context = machines_context(2, 0);
    rng r = rng_make(rng_run_seed(), 3500);
    mha_transformer_desc d = small;
    d.flags = MHA_TRANSFORMER_CAUSAL;
    d.norm = MHA_NORM_LAYER;
    d.positions = MHA_ENCODING_LEARNED;
    mha_transformer *t[2] = {NULL, NULL};
    mha_decoder *decoder[2] = {NULL, NULL};
    stored s;
    const mha_transformer_init init = {.struct_size = sizeof init, .seed = 7, .position_std = 1};
    expect_ok(mha_transformer_create(context, &d, &t[0]));
    expect_ok(mha_transformer_initialise(context, t[0], &init));
    t[1] = stored_transformer(context, t[0], 0, &s);
    for (int k = 0; k < 2; k++) expect_ok(mha_decoder_create(context, t[k], NULL, &decoder[k]));
    for (int i = 0; i < 8; i++) {
        float out[2][9];
        int32_t id = (int32_t)rng_between(&r, 0, 8);
        const mha_tensor token = mha_tensor_contiguous(&id, MHA_I32, 2, (int64_t[]){1, 1});
        for (int k = 0; k < 2; k++) {
            const mha_tensor y = mha_tensor_contiguous(out[k], MHA_F32, 3, (int64_t[]){1, 1, 9});
            expect_ok(mha_decoder_step(context, decoder[k], &token, &y));
        }
        assert_memory_equal(out[0], out[1], sizeof out[0]);
    }
    for (int k = 0; k < 2; k++) mha_decoder_destroy(decoder[k]);
    mha_transformer_destroy(t[1]);
    mha_transformer_destroy(t[0]);
}

static void source_errors(void)
{
    mha_context *context = machines_context(1, 0);
    mha_transformer *t = NULL, *other = NULL;
    stored s;
    float numbers[64];
    mha_parameter p, q;
    expect_ok(mha_transformer_create(context, &small, &t));
    mha_transformer_source source = {.struct_size = sizeof source, .read = stored_read};
#define FROM(c, d, s) mha_transformer_create_from(c, d, s, &other)
    expect_error(FROM(NULL, &small, &source), MHA_ERR_NULL, "context");
    expect_error(FROM(context, NULL, &source), MHA_ERR_NULL, "desc");
    expect_error(FROM(context, &small, NULL), MHA_ERR_NULL, "source");
    expect_error(mha_transformer_create_from(context, &small, &source, NULL), MHA_ERR_NULL,
                 "transformer");
    source.read = NULL;
    expect_error(FROM(context, &small, &source), MHA_ERR_NULL, "read is NULL");
    source =
        (mha_transformer_source){.struct_size = sizeof source, .flags = 2, .read = stored_read};
    expect_error(FROM(context, &small, &source), MHA_ERR_UNSUPPORTED, "flags 0x2");
    source = (mha_transformer_source){.struct_size = 4, .read = stored_read};
    expect_error(FROM(context, &small, &source), MHA_ERR_ARGUMENT, "struct_size");
    mha_transformer_desc wrong = small;
    wrong.num_heads = 5;
    s.released = 0;
    source = (mha_transformer_source){
        .struct_size = sizeof source, .read = stored_read, .release = stored_release, .user = &s};
    expect_error(FROM(context, &wrong, &source), MHA_ERR_SHAPE, "num_heads");
    assert_int_equal(s.released, 0);
    other = stored_transformer(context, t, 0, &s);
    const mha_transformer_init init = {.struct_size = sizeof init};
    expect_error(mha_transformer_initialise(context, other, &init), MHA_ERR_UNSUPPORTED, "source");
    expect_error(mha_transformer_copy(NULL, other, &t), MHA_ERR_NULL, "context");
    expect_error(mha_transformer_copy(context, NULL, &t), MHA_ERR_NULL, "transformer");
    expect_error(mha_transformer_copy(context, other, NULL), MHA_ERR_NULL, "copy");
    expect_ok(mha_transformer_parameter(other, 0, &p));
    expect_error(mha_transformer_read(NULL, &p, 0, 1, numbers), MHA_ERR_NULL, "transformer");
    expect_error(mha_transformer_read(other, NULL, 0, 1, numbers), MHA_ERR_NULL, "parameter");
    expect_error(mha_transformer_read(other, &p, 0, 1, NULL), MHA_ERR_NULL, "to");
    expect_error(mha_transformer_read(other, &p, -1, 1, numbers), MHA_ERR_ARGUMENT, "9 rows");
    expect_error(mha_transformer_read(other, &p, 9, 1, numbers), MHA_ERR_ARGUMENT, "from 9 on");
    expect_error(mha_transformer_read(other, &p, 1, INT64_MAX, numbers), MHA_ERR_ARGUMENT, "rows");
    expect_ok(mha_transformer_read(other, &p, 9, 0, NULL));
    q = p;
    q.offset = 1;
    expect_error(mha_transformer_read(other, &q, 0, 1, numbers), MHA_ERR_ARGUMENT,
                 "not a parameter");
    q = p;
    q.offset = INT64_MAX;
    expect_error(mha_transformer_read(other, &q, 0, 1, numbers), MHA_ERR_ARGUMENT,
                 "not a parameter");
    mha_transformer_destroy(other);
    mha_transformer_destroy(t);
}

/* The source is released with the transformer, and not by a failed creation. */
static mha_status run_from_source(mha_context *context, const mha_transformer *like)
{
    mha_transformer *t = NULL;
    mha_transformer_desc d;
    stored s = {.like = like};
    int32_t ids[] = {1, 2};
    float out[2 * 9], memory[2 * 12] = {1};
    const mha_transformer_source source = {
        .struct_size = sizeof source, .read = stored_read, .release = stored_release, .user = &s};
    const mha_tensor tokens = mha_tensor_contiguous(ids, MHA_I32, 2, (int64_t[]){1, 2});
    const mha_tensor rows = mha_tensor_contiguous(memory, MHA_F32, 3, (int64_t[]){1, 2, 12});
    const mha_tensor y = mha_tensor_contiguous(out, MHA_F32, 3, (int64_t[]){1, 2, 9});
    const mha_transformer_input input = {
        .struct_size = sizeof input, .tokens = &tokens, .memory = &rows};
    mha_transformer_describe(like, &d);
    mha_status status = mha_transformer_create_from(context, &d, &source, &t);
    const bool made = status == MHA_OK;
    if (status == MHA_OK) status = mha_transformer_update(context, t);
    if (status == MHA_OK)
        status = mha_transformer_forward(context, t, &input, NULL, &y, NULL, NULL);
    float keep[] = {1, 0, 0, 1};
    const mha_tensor kept = mha_tensor_contiguous(keep, MHA_F32, 2, (int64_t[]){2, 2});
    mha_transformer *pruned = NULL, *copy = NULL;
    if (status == MHA_OK) status = mha_transformer_prune(context, t, &kept, &pruned);
    if (status == MHA_OK) status = mha_transformer_copy(context, pruned, &copy);
    mha_transformer_destroy(t);
    mha_transformer_destroy(pruned);
    mha_transformer_destroy(copy);
    assert_int_equal(s.released, made);
    return status;
}

static void failed_allocations_are_reported(void)
{
    const mha_layer_desc layers[2] = {{.struct_size = sizeof layers[0], .rope_base = 100},
                                      {.struct_size = sizeof layers[0], .t5_buckets = 8}};
    int refused = 0;
    for (int64_t n = 0;; n++) {
        failing_alloc allocator = failing_alloc_make();
        allocator.fail_at = n;
        mha_context *context = NULL;
        mha_transformer *t = NULL;
        mha_activations *a = NULL;
        const mha_transformer_desc d = {.struct_size = sizeof d,
                                        .flags = MHA_TRANSFORMER_CROSS,
                                        .vocab_size = 9,
                                        .max_length = 8,
                                        .embed_dim = 12,
                                        .num_layers = 2,
                                        .num_heads = 2,
                                        .ff_dim = 5,
                                        .positions = MHA_ENCODING_ROTARY,
                                        .layers = layers};
        mha_status status = failing_context(&allocator, 1, MHA_ISA_AUTO, &context);
        if (status == MHA_OK) status = mha_transformer_create(context, &d, &t);
        if (status == MHA_OK) status = mha_activations_create(context, t, 8, 8, &a);
        if (status == MHA_OK) status = run_from_source(context, t);
        assert_true(status == MHA_OK || status == MHA_ERR_NOMEM);
        refused += status != MHA_OK;
        mha_activations_destroy(a);
        mha_transformer_destroy(t);
        mha_context_destroy(context);
        assert_int_equal(allocator.live, 0);
        assert_int_equal(allocator.mistakes, 0);
        if (allocator.calls <= n) break;
    }
    printf("  %d refusals\n", refused);
    assert_true(refused > 20);
}

/* Matrices that write to the stream are divided by the root of the number of parts that do. */
static void initial_deviations_count_parts(void)
{
    float first[2];
    for (int i = 0; i < 2; i++) {
        mha_layer_desc layers[3];
        for (int k = 0; k < 3; k++) layers[k] = (mha_layer_desc){.struct_size = sizeof layers[k]};
        for (int k = 1; k < 3 && i; k++) layers[k].flags = MHA_LAYER_NO_FEED_FORWARD;
        const mha_transformer_desc d = {.struct_size = sizeof d,
                                        .vocab_size = 5,
                                        .max_length = 4,
                                        .embed_dim = 8,
                                        .num_layers = 3,
                                        .num_heads = 2,
                                        .ff_dim = 7,
                                        .layers = layers};
        const mha_transformer_init init = {.struct_size = sizeof init, .seed = 5};
        mha_context *context = machines_context(1, 0);
        mha_transformer *t = NULL;
        mha_parameter p;
        expect_ok(mha_transformer_create(context, &d, &t));
        expect_ok(mha_transformer_initialise(context, t, &init));
        expect_ok(mha_transformer_find(t, 0, "self_attn.o_proj.weight", &p));
        first[i] = mha_transformer_data(t)[p.offset];
        mha_transformer_destroy(t);
    }
    assert_true(fabs((double)(first[1] / first[0]) - sqrt(6.0 / 4)) < 1e-6);
}

RUN_TESTS(TEST(parameters_have_names_and_places), TEST(initial_deviations_count_parts),
          TEST(seeds_give_the_same_beginning), TEST(gradients_are_slopes),
          TEST(gradients_of_other_mixers_are_slopes),
          TEST(gradients_of_kimi_delta_attention_are_slopes),
          TEST(threads_and_padding_change_no_bit), TEST(views), TEST(learns), TEST(keeps_nothing),
          TEST(create_errors), TEST(forward_errors), TEST(layers_are_checked),
          TEST(layers_without_gradients), TEST(sources_change_no_bit),
          TEST(large_matrices_from_a_source), TEST(copies_are_the_same),
          TEST(decoding_from_a_source), TEST(source_errors), TEST(failed_allocations_are_reported))
