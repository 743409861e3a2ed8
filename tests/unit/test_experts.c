/* Transformers with routed experts: routing and outputs match simple loops in double. Steps,
 * batches and threads change no bit. Backward passes and pruning are rejected. */
#include "support/expect.h"
#include "support/rng.h"
#include "support/shared_context.h"
#include "support/small_model.h"
#include "support/suite.h"

#include <multihead/maps.h>
#include <multihead/training.h>
#include <multihead/transformer.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { L = 5, B = 2, T = 40, V = 23, H = 4, E = 16, F = 24, MOST = 7 };

#define NORMED \
    .struct_size = sizeof(mha_layer_desc), .flags = MHA_LAYER_QK_NORM | MHA_LAYER_QK_NORM_ROW
static const mha_layer_desc layers[L] = {
    {NORMED, .experts = {.count = MOST,
                         .used = 2,
                         .ff_dim = 10,
                         .shared_dim = 12,
                         .flags = MHA_EXPERTS_NORMALISED | MHA_EXPERTS_SHARED_GATE}},
    {NORMED},
    {NORMED,
     .experts = {.count = 5,
                 .used = 3,
                 .scale = 1.5f,
                 .sum_epsilon = 0.25f,
                 .flags = MHA_EXPERTS_SIGMOID | MHA_EXPERTS_NORMALISED | MHA_EXPERTS_SCORE_BIAS}},
    {NORMED,
     .experts = {.count = 6, .used = 3, .groups = 3, .groups_used = 2, .flags = MHA_EXPERTS_BIAS}},
    {NORMED, .experts = {.count = 6,
                         .used = 2,
                         .groups = 3,
                         .groups_used = 1,
                         .flags = MHA_EXPERTS_SIGMOID | MHA_EXPERTS_GROUP_PAIRS}}};

static mha_transformer *make_typed(mha_context *context, int64_t types)
{
    const mha_transformer_desc d = {.struct_size = sizeof d,
                                    .flags = MHA_TRANSFORMER_CAUSAL,
                                    .vocab_size = V,
                                    .max_length = T,
                                    .embed_dim = E,
                                    .num_layers = L,
                                    .num_heads = H,
                                    .kv_heads = 2,
                                    .ff_dim = F,
                                    .norm = MHA_NORM_RMS,
                                    .positions = MHA_ENCODING_ROTARY,
                                    .feed_forward = MHA_FEED_FORWARD_SWIGLU,
                                    .type_count = types,
                                    .layers = layers};
    return normal_transformer(context, rng_make(5, 0), 0.5f, &d);
}

static mha_transformer *make(mha_context *context)
{
    return make_typed(context, 0);
}

static mha_tensor floats(float *data, int64_t n, int64_t width)
{
    return mha_tensor_contiguous(data, MHA_F32, 3, (const int64_t[]){B, n, width});
}

/* ---- simple loops ---------------------------------------------------------------------------- */

static const float *numbers(mha_transformer *t, int64_t layer, const char *name)
{
    mha_parameter p;
    expect_ok(mha_transformer_find(t, layer, name, &p));
    return mha_transformer_data(t) + p.offset;
}

/* 0 if the layer has no such parameter. */
static double bias_at(mha_transformer *t, int64_t layer, const char *prefix, const char *part,
                      int64_t i)
{
    char name[64];
    snprintf(name, sizeof name, "%s%s.bias", prefix, part);
    mha_parameter p;
    if (!(layers[layer].experts.flags & MHA_EXPERTS_BIAS)) return 0;
    expect_ok(mha_transformer_find(t, layer, name, &p));
    return (double)mha_transformer_data(t)[p.offset + i];
}

static double dot(const float *w, const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)w[i] * x[i];
    return sum;
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* y += factor times a gated feed-forward layer of x. */
static void add_layer(mha_transformer *t, int64_t layer, const char *prefix, int64_t width,
                      const double *x, double factor, double *y)
{
    char name[64];
    double hidden[F];
    const float *w[3];
    static const char *const parts[] = {"gate", "up", "down"};
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s.%s_proj.weight", prefix, parts[i]);
        w[i] = numbers(t, layer, name);
    }
    for (int64_t f = 0; f < width; f++) {
        const double gate = dot(w[0] + f * E, x, E) + bias_at(t, layer, prefix, ".gate_proj", f);
        hidden[f] = gate * sigmoid(gate) *
                    (dot(w[1] + f * E, x, E) + bias_at(t, layer, prefix, ".up_proj", f));
    }
    for (int64_t e = 0; e < E; e++)
        y[e] += factor *
                (dot(w[2] + e * width, hidden, width) + bias_at(t, layer, prefix, ".down_proj", e));
}

/* Close the experts of the open group with the smallest score. */
static void close_group(const mha_experts_desc *d, const double *s, const float *bias, bool *closed)
{
    const int64_t each = d->count / d->groups;
    int64_t worst = -1;
    double least = 0;
    for (int64_t g = 0; g < d->groups; g++) {
        double score = -10, key[MOST];
        for (int64_t i = 0; i < each; i++)
            key[i] = s[g * each + i] + (bias ? (double)bias[g * each + i] : 0);
        for (int64_t i = 0; i < each; i++) score = fmax(score, key[i]);
        if (d->flags & MHA_EXPERTS_GROUP_PAIRS) score = -10;
        for (int64_t i = 0; d->flags & MHA_EXPERTS_GROUP_PAIRS && i < each; i++)
            for (int64_t k = 0; k < i; k++) score = fmax(score, key[i] + key[k]);
        if (!closed[g * each] && (worst < 0 || score <= least)) worst = g, least = score;
    }
    for (int64_t i = 0; i < each; i++) closed[worst * each + i] = true;
}

/* The scores of a layer's experts, and its chosen experts. */
static void route(mha_transformer *t, int64_t layer, const double *x, double *s, bool *chosen)
{
    const mha_experts_desc *d = &layers[layer].experts;
    const bool squash = d->flags & MHA_EXPERTS_SIGMOID;
    const float *router = numbers(t, layer, "mlp.router.weight"), *bias = NULL;
    double sum = 0;
    if (d->flags & MHA_EXPERTS_SCORE_BIAS) bias = numbers(t, layer, "mlp.score_bias");
    for (int64_t i = 0; i < d->count; i++) {
        const double logit = dot(router + i * E, x, E) + bias_at(t, layer, "mlp.router", "", i);
        s[i] = squash ? sigmoid(logit) : exp(logit);
        sum += s[i];
    }
    for (int64_t i = 0; i < d->count && !squash; i++) s[i] /= sum;
    bool closed[MOST] = {false};
    for (int64_t g = 0; d->groups && g < d->groups - d->groups_used; g++)
        close_group(d, s, bias, closed);
    memset(chosen, 0, MOST * sizeof *chosen);
    for (int64_t k = 0; k < d->used; k++) {
        int64_t best = -1;
        for (int64_t i = 0; i < d->count; i++)
            if (!chosen[i] && !closed[i] &&
                (best < 0 ||
                 s[i] + (bias ? (double)bias[i] : 0) > s[best] + (bias ? (double)bias[best] : 0)))
                best = i;
        chosen[best] = true;
    }
}

/* The output of a layer for x, and the weights of its experts. */
static void run_plain(mha_transformer *t, int64_t layer, const double *x, double *weights,
                      bool *chosen, double *y)
{
    const mha_experts_desc *d = &layers[layer].experts;
    double s[MOST], sum = (double)d->sum_epsilon;
    route(t, layer, x, s, chosen);
    for (int64_t i = 0; i < d->count; i++) sum += chosen[i] ? s[i] : 0;
    if (!(d->flags & MHA_EXPERTS_NORMALISED)) sum = 1;
    for (int64_t e = 0; e < E; e++) y[e] = 0;
    if (d->shared_dim > 0)
        add_layer(t, layer, "mlp.shared_expert", d->shared_dim, x,
                  sigmoid(dot(numbers(t, layer, "mlp.shared_expert_gate.weight"), x, E)), y);
    for (int64_t i = 0; i < d->count; i++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "mlp.experts.%d", (int)i);
        weights[i] = s[i] / sum * (d->scale > 0 ? (double)d->scale : 1);
        if (chosen[i]) add_layer(t, layer, prefix, d->ff_dim > 0 ? d->ff_dim : F, x, weights[i], y);
    }
}

static void compare_token(mha_transformer *t, int64_t layer, const mha_layer_view *v, int64_t row)
{
    const int64_t used = layers[layer].experts.used;
    const int32_t *experts = (const int32_t *)v->experts.data + row * used;
    const float *given = (const float *)v->expert_weights.data + row * used;
    const float *stream = (const float *)v->stream.data + row * E;
    const float *sum = (const float *)v->sum.data + row * E;
    double x[E], y[E], weights[MOST];
    bool chosen[MOST];
    for (int e = 0; e < E; e++) x[e] = (double)((const float *)v->input.data)[row * E + e];
    run_plain(t, layer, x, weights, chosen, y);
    for (int64_t k = 0, i = 0; k < used; k++, i++) {
        while (!chosen[i]) i++;
        assert_int_equal(experts[k], i);
        assert_true(fabs((double)given[k] - weights[i]) < 1e-6);
    }
    for (int e = 0; e < E; e++)
        assert_true(fabs((double)sum[e] - (double)stream[e] - y[e]) <
                    1e-5 * (1 + fabs(y[e]) + fabs((double)stream[e])));
}

static void routing_and_outputs_are_plain_loops(void)
{
    mha_context *context = context_with(1);
    static float logits[B * T * V];
    static int32_t ids[B * T];
    mha_transformer *t = make(context);
    mha_activations *a = NULL;
    mha_layer_view v = MHA_INIT(mha_layer_view);
    mha_transformer_input input = MHA_INIT(mha_transformer_input);
    const mha_tensor tokens = fixed_tokens(ids, B, T, V), all = floats(logits, T, V);
    input.tokens = &tokens;
    expect_ok(mha_activations_create(context, t, B * T, 0, &a));
    expect_ok(mha_transformer_forward(context, t, &input, a, &all, NULL, NULL));
    expect_ok(mha_activations_layer(a, 1, MHA_PART_FEED_FORWARD, &v));
    assert_true(v.hidden.ndim == 3 && v.experts.ndim == 0);
    for (int64_t layer = 0; layer < L; layer++) {
        if (layers[layer].experts.count == 0) continue;
        expect_ok(mha_activations_layer(a, layer, MHA_PART_FEED_FORWARD, &v));
        assert_true(v.hidden.ndim == 0 && v.experts.shape[2] == layers[layer].experts.used);
        for (int64_t row = 0; row < B * T; row++) compare_token(t, layer, &v, row);
    }
    mha_activations_destroy(a);
    mha_transformer_destroy(t);
}

static void steps_batches_and_threads_change_no_bit(void)
{
    mha_context *one = context_with(1), *several = context_with(3);
    static float whole[B * T * V], part[B * T * V];
    static int32_t ids[B * T];
    mha_transformer *t = make(one);
    mha_transformer_input input = MHA_INIT(mha_transformer_input);
    const mha_tensor tokens = fixed_tokens(ids, B, T, V), all = floats(whole, T, V);
    mha_decoder_desc how = MHA_INIT(mha_decoder_desc);
    mha_decoder *decoder = NULL;
    input.tokens = &tokens;
    expect_ok(mha_transformer_forward(one, t, &input, NULL, &all, NULL, NULL));
    how.batch = B;
    expect_ok(mha_decoder_create(several, t, &how, &decoder));
    rng r = rng_make(rng_run_seed(), 1);
    for (int64_t at = 0, n; at < T; at += n) {
        n = rng_between(&r, 1, T - at);
        mha_tensor step = tokens;
        step.data = ids + at;
        step.shape[1] = n;
        const mha_tensor out = floats(part, n, V);
        expect_ok(mha_decoder_step(several, decoder, &step, &out));
        for (int b = 0; b < B; b++)
            assert_memory_equal(part + b * n * V, whole + (b * T + at) * V,
                                (size_t)(n * V) * sizeof(float));
    }
    mha_decoder_destroy(decoder);
    mha_transformer_destroy(t);
}

/* The experts of a text are those of a forward call with its token types. */
static void routes_are_those_of_a_forward_call(void)
{
    mha_context *context = context_with(1);
    static int32_t ids[B * T], types[B * T];
    mha_transformer *t = make_typed(context, 2);
    mha_activations *a = NULL;
    mha_layer_view v = MHA_INIT(mha_layer_view);
    mha_transformer_input input = MHA_INIT(mha_transformer_input);
    mha_tensor tokens = fixed_tokens(ids, B, T, V),
               kinds = mha_tensor_contiguous(types, MHA_I32, 2, tokens.shape);
    mha_tokens text = {.struct_size = sizeof text, .count = T, .ids = ids, .types = types};
    mha_routes routes = MHA_INIT(mha_routes);
    for (int i = 0; i < T; i++) types[i] = i % 2;
    input.tokens = &tokens;
    input.token_types = &kinds;
    tokens.shape[0] = kinds.shape[0] = 1;
    expect_ok(mha_activations_create(context, t, T, 0, &a));
    expect_ok(mha_transformer_forward(context, t, &input, a, NULL, NULL, NULL));
    expect_ok(mha_routes_measure(context, t, &text, &routes));
    assert_true(routes.layers == L && routes.tokens == T && routes.layer[1].count == 0);
    for (int64_t layer = 0; layer < L; layer += 2) {
        const size_t count = (size_t)(T * layers[layer].experts.used);
        expect_ok(mha_activations_layer(a, layer, MHA_PART_FEED_FORWARD, &v));
        assert_memory_equal(routes.layer[layer].experts, v.experts.data, count * sizeof(int32_t));
        assert_memory_equal(routes.layer[layer].weights, v.expert_weights.data,
                            count * sizeof(float));
    }
    mha_routes_free(&routes);
    static const int64_t counts[] = {-1, 0, (int64_t)INT32_MAX + 1, INT64_MAX};
    for (int i = 0; i < 4; i++) {
        text.count = counts[i];
        expect_error(mha_routes_measure(context, t, &text, &routes), MHA_ERR_ARGUMENT, "count is");
    }
    mha_activations_destroy(a);
    mha_transformer_destroy(t);
}

static void what_is_not_supported_is_refused(void)
{
    static const char words[] = "layer 0 has ", experts[] = "layer 0 has routed experts";
    mha_context *context = context_with(1);
    mha_transformer *t = make(context), *other = NULL;
    mha_trainer *trainer = NULL;
    mha_trainer_desc how = MHA_INIT(mha_trainer_desc);
    mha_transformer_gradients gradients = MHA_INIT(mha_transformer_gradients);
    mha_transformer_input input = MHA_INIT(mha_transformer_input);
    mha_activations *a = NULL;
    float keep[L * H];
    for (int i = 0; i < L * H; i++) keep[i] = 1;
    const mha_tensor kept = mha_tensor_contiguous(keep, MHA_F32, 2, (const int64_t[]){L, H});
    expect_ok(mha_activations_create(context, t, B * T, 0, &a));
    expect_error(mha_transformer_backward(context, t, &input, a, NULL, &gradients),
                 MHA_ERR_UNSUPPORTED, words);
    expect_error(mha_transformer_prune(context, t, &kept, &other), MHA_ERR_UNSUPPORTED, experts);
    expect_error(mha_transformer_share_kv(context, t, 1, &other), MHA_ERR_UNSUPPORTED, experts);
    expect_error(mha_transformer_copy(context, t, &other), MHA_ERR_UNSUPPORTED, experts);
    how.max_tokens = T;
    expect_error(mha_trainer_create(context, t, NULL, &how, &trainer), MHA_ERR_UNSUPPORTED, words);
    mha_activations_destroy(a);
    mha_transformer_destroy(t);
}

static void groups_are_checked(void)
{
    static const struct {
        mha_experts_desc experts;
        const char *words;
    } wrong[] = {
        {{.count = 6, .used = 1, .groups = 4}, "groups is 4"},
        {{.count = 6, .used = 1, .groups = 3, .groups_used = 4}, "groups_used 4"},
        {{.count = 6, .used = 3, .groups = 3, .groups_used = 1}, "3 or more in the groups used"},
        {{.count = 6, .used = 1, .groups = 6, .flags = MHA_EXPERTS_GROUP_PAIRS},
         "at least 2 in each group"},
        {{.count = 6, .used = 1, .flags = MHA_EXPERTS_GROUP_PAIRS << 1}, "flags"}};
    mha_context *context = context_with(1);
    mha_transformer *t = make(context), *other = NULL;
    mha_transformer_desc d = MHA_INIT(mha_transformer_desc);
    mha_transformer_describe(t, &d);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const mha_layer_desc one = {.struct_size = sizeof one, .experts = wrong[i].experts};
        d.num_layers = 1;
        d.layers = &one;
        expect_error(mha_transformer_create(context, &d, &other),
                     i < 4 ? MHA_ERR_ARGUMENT : MHA_ERR_UNSUPPORTED, wrong[i].words);
    }
    mha_transformer_destroy(t);
}

RUN_TESTS(TEST(groups_are_checked), TEST(routing_and_outputs_are_plain_loops),
          TEST(steps_batches_and_threads_change_no_bit), TEST(routes_are_those_of_a_forward_call),
          TEST(what_is_not_supported_is_refused))
