/* Layers that use the keys and values of an earlier one, with sizes and inputs of their own: heads match
 * simple loops. Steps, batches, windows and threads change no bit. Gradients are slopes. Descriptions are
 * checked. */
#include "support/expect.h"
#include "support/rng.h"
#include "support/shared_context.h"
#include "support/small_model.h"
#include "support/suite.h"

#include <multihead/component.h>
#include <multihead/transformer.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { L = 5, B = 2, T = 37, V = 23, H = 4, KV = 2, E = 16, D = 6, WIDE = 10, P = 3 };

#define LAYER .struct_size = sizeof(mha_layer_desc)
#define NORMS MHA_LAYER_QK_NORM | MHA_LAYER_V_NORM | MHA_LAYER_OUTPUT_SCALE
/* Layer 3 uses the keys of layer 0, layer 4 those of layer 1. */
static const mha_layer_desc layers[L] = {
    {LAYER, .flags = NORMS | MHA_LAYER_WINDOW, .left_keys = 8, .rope_pairs = 1, .input_dim = P},
    {LAYER, .flags = NORMS, .head_dim = WIDE, .rope_pairs = 2, .ff_dim = 9, .softcap = 3},
    {LAYER, .flags = MHA_LAYER_QK_NORM, .rope_pairs = 3, .rope_factor = 2},
    {LAYER, .flags = NORMS | MHA_LAYER_WINDOW, .left_keys = 8, .kv_back = 3, .ff_dim = 24},
    {LAYER, .flags = NORMS | MHA_LAYER_OUTPUT_GATE, .scale = 0.5f, .head_dim = WIDE, .kv_back = 3,
     .rope_pairs = 2, .input_dim = P}};

static mha_transformer_desc describe(const mha_layer_desc *of)
{
    return (mha_transformer_desc){.struct_size = sizeof(mha_transformer_desc),
                                  .flags = MHA_TRANSFORMER_CAUSAL | MHA_TRANSFORMER_QKV_BIAS |
                                           MHA_TRANSFORMER_BRANCH_NORM,
                                  .vocab_size = V,
                                  .max_length = T,
                                  .embed_dim = E,
                                  .num_layers = L,
                                  .num_heads = H,
                                  .kv_heads = KV,
                                  .head_dim = D,
                                  .ff_dim = 12,
                                  .norm = MHA_NORM_RMS,
                                  .positions = MHA_ENCODING_ROTARY,
                                  .feed_forward = MHA_FEED_FORWARD_GEGLU_TANH,
                                  .layers = of,
                                  .embed_scale = 4};
}

static mha_transformer *make(mha_context *context)
{
    const mha_transformer_desc d = describe(layers);
    mha_transformer *t = normal_transformer(context, rng_make(5, 0), 0.25f, &d);
    for (int64_t i = 0; i < mha_transformer_parameters(t); i++) {
        mha_parameter p;
        expect_ok(mha_transformer_parameter(t, i, &p));
        if (p.kind == MHA_PARAMETER_CONSTANT) mha_transformer_data(t)[p.offset] = 0.75f;
        for (int64_t k = 0; k < p.count && p.kind == MHA_PARAMETER_NORM; k++)
            mha_transformer_data(t)[p.offset + k] += 1;
    }
    expect_ok(mha_transformer_update(context, t));
    return t;
}

static mha_tensor floats(float *data, int64_t n, int64_t width)
{
    return mha_tensor_contiguous(data, MHA_F32, 3, (const int64_t[]){B, n, width});
}

static void forward(mha_context *context, mha_transformer *t, const mha_tensor *tokens, float *to)
{
    mha_transformer_input input = MHA_INIT(mha_transformer_input);
    const mha_tensor all = floats(to, T, V);
    input.tokens = tokens;
    expect_ok(mha_transformer_forward(context, t, &input, NULL, &all, NULL, NULL));
}

static const float *vector(const mha_tensor *x, int b, int h, int row)
{
    return (const float *)x->data + b * x->stride[0] + h * x->stride[1] + row * x->stride[2];
}

/* The output of a head at a row, from the view's queries, keys and values. Numbers are of order 1. */
static void compare_head(const mha_layer_desc *l, const mha_layer_view *view, int b, int h, int row)
{
    const int size = l->head_dim ? WIDE : D, group = h / (H / KV);
    const int first =
        l->flags & MHA_LAYER_WINDOW && row > l->left_keys ? row - (int)l->left_keys : 0;
    const double scale = l->scale > 0 ? (double)l->scale : 1 / sqrt(size);
    const float *q = vector(&view->q, b, h, row), *y = vector(&view->heads, b, h, row);
    double sum = 0, wanted[WIDE] = {0};
    for (int j = first; j <= row; j++) {
        const float *k = vector(&view->k, b, group, j), *v = vector(&view->v, b, group, j);
        double score = 0;
        for (int i = 0; i < size; i++) score += scale * (double)q[i] * (double)k[i];
        if (l->softcap > 0) score = (double)l->softcap * tanh(score / (double)l->softcap);
        sum += exp(score);
        for (int i = 0; i < size; i++) wanted[i] += exp(score) * (double)v[i];
    }
    for (int i = 0; i < size && !(l->flags & MHA_LAYER_OUTPUT_GATE); i++)
        assert_true(fabs((double)y[i] - wanted[i] / sum) < 1e-5 * (1 + fabs(wanted[i] / sum)));
}

static void heads_are_plain_loops(void)
{
    mha_context *context = context_with(1);
    static float logits[B * T * V];
    static int32_t ids[B * T];
    mha_transformer *t = make(context);
    mha_activations *a = NULL;
    mha_layer_view views[L];
    mha_transformer_input input = MHA_INIT(mha_transformer_input);
    const mha_tensor tokens = fixed_tokens(ids, B, T, V), all = floats(logits, T, V);
    input.tokens = &tokens;
    expect_ok(mha_activations_create(context, t, B * T, 0, &a));
    expect_ok(mha_transformer_forward(context, t, &input, a, &all, NULL, NULL));
    for (int layer = 0; layer < L; layer++) {
        views[layer] = (mha_layer_view){.struct_size = sizeof views[layer]};
        expect_ok(mha_activations_layer(a, layer, MHA_PART_SELF_ATTENTION, &views[layer]));
        for (int i = 0; i < B * H * T; i++)
            compare_head(&layers[layer], &views[layer], i / H / T, i / T % H, i % T);
        for (int i = 0; i < KV * T && layers[layer].flags & MHA_LAYER_V_NORM; i++) {
            const float *v = vector(&views[layer].v, 1, i / T, i % T);
            double squares = 0;
            const int size = layers[layer].head_dim ? WIDE : D;
            for (int k = 0; k < size; k++) squares += (double)v[k] * (double)v[k];
            assert_true(fabs(squares / size - 1) < 1e-3);
        }
    }
    for (int layer = 3; layer < L; layer++)
        assert_true(views[layer].k.data == views[layer - 3].k.data &&
                    views[layer].v.data == views[layer - 3].v.data);
    mha_activations_destroy(a);
    mha_transformer_destroy(t);
}

/* With both kinds of caches: whole and windows, which cannot go back. */
static void steps_forks_and_rollbacks_change_no_bit(void)
{
    mha_context *one = context_with(1), *several = context_with(3);
    static float whole[B * T * V], part[B * T * V];
    static int32_t ids[B * T];
    mha_transformer *t = make(one);
    const mha_tensor tokens = fixed_tokens(ids, B, T, V);
    forward(one, t, &tokens, whole);
    rng r = rng_make(rng_run_seed(), 1);
    for (int kind = 0; kind < 4; kind++) {
        const bool windows = kind % 2;
        const mha_decoder_desc desc = {.struct_size = sizeof desc,
                                       .flags = windows ? MHA_DECODER_WINDOWS : 0,
                                       .batch = B,
                                       .page_size = kind < 2 ? 0 : 16,
                                       .pages = kind < 2 ? 0 : 8};
        mha_decoder *decoder = NULL;
        bool forked = windows;
        expect_ok(mha_decoder_create(several, t, &desc, &decoder));
        for (int64_t at = 0, n; at < T; at += n) {
            n = rng_between(&r, 1, T - at);
            mha_tensor step = tokens;
            step.data = ids + at;
            step.shape[1] = n;
            const mha_tensor out = floats(part, n, V);
            expect_ok(mha_decoder_step(several, decoder, &step, &out));
            for (int b = 0; b < B; b++)
                assert_memory_equal(part + b * n * V,
                                    whole + ((forked && !windows ? 1 : b) * T + at) * V,
                                    (size_t)(n * V) * sizeof(float));
            if (at + n < T || forked) continue;
            const int64_t back = rng_between(&r, 1, T - 1);
            forked = true;
            memcpy(ids, ids + T, sizeof ids / 2); /* both continue as sequence 1 */
            expect_ok(mha_decoder_fork(decoder, 1, 0, back));
            expect_ok(mha_decoder_truncate(decoder, back));
            at = back - n;
        }
        fixed_tokens(ids, B, T, V);
        mha_decoder_destroy(decoder);
    }
    mha_transformer_destroy(t);
}

static void keys_are_cached_once(void)
{
    mha_context *context = context_with(1);
    mha_layer_desc own[L];
    mha_transformer_desc d = describe(own);
    mha_decoder_sizes sizes = MHA_INIT(mha_decoder_sizes), alone = sizes;
    mha_transformer *t = make(context), *other = NULL;
    mha_decoder *decoder = NULL;
    memcpy(own, layers, sizeof own);
    own[3].kv_back = own[4].kv_back = 0;
    expect_ok(mha_transformer_create(context, &d, &other));
    expect_ok(mha_decoder_count(t, NULL, &sizes));
    expect_ok(mha_decoder_count(other, NULL, &alone));
    /* T = 37 rows in runs of 16 */
    const int64_t each = 48 * KV * 2 * (int64_t)sizeof(float);
    assert_true(alone.total_bytes - alone.table_bytes == each * (3 * D + 2 * WIDE));
    assert_true(sizes.total_bytes - sizes.table_bytes == each * (2 * D + WIDE));
    const mha_decoder_desc streams = {
        .struct_size = sizeof streams, .flags = MHA_DECODER_STREAMING, .window = 8, .sink_keys = 2};
    expect_error(mha_decoder_create(context, t, &streams, &decoder), MHA_ERR_UNSUPPORTED,
                 "layer 3 uses those of layer 0");
    mha_transformer_destroy(other);
    mha_transformer_destroy(t);
}

/* A call may begin with any layer whose later layers use no earlier keys. */
static void calls_begin_with_a_layer(void)
{
    mha_context *context = context_with(1);
    static float whole[B * T * V], part[B * T * V], stream[B * T * E], values[B * T * D];
    static int32_t ids[B * T];
    mha_transformer *t = make(context);
    mha_activations *a = NULL;
    mha_layer_view view = MHA_INIT(mha_layer_view);
    mha_transformer_input input = MHA_INIT(mha_transformer_input);
    const mha_tensor tokens = fixed_tokens(ids, B, T, V), all = floats(whole, T, V),
                     again = floats(part, T, V), given = floats(stream, T, E),
                     replaced = floats(values, T, D);
    input.tokens = &tokens;
    expect_ok(mha_activations_create(context, t, B * T, 0, &a));
    expect_ok(mha_transformer_forward(context, t, &input, a, &all, NULL, NULL));
    expect_ok(mha_activations_layer(a, 0, MHA_PART_SELF_ATTENTION, &view));
    memcpy(stream, view.stream.data, sizeof stream);
    input.stream = &given;
    expect_ok(mha_transformer_forward(context, t, &input, NULL, &again, NULL, NULL));
    assert_memory_equal(part, whole, sizeof whole);
    for (input.first_layer = 1; input.first_layer < L; input.first_layer++)
        expect_error(mha_transformer_forward(context, t, &input, NULL, &again, NULL, NULL),
                     MHA_ERR_UNSUPPORTED, "begin with layer 0");
    const mha_head_patch patch = {
        .struct_size = sizeof patch, .part = MHA_PATCH_VALUE, .layer = 3, .values = &replaced};
    input.first_layer = 0;
    input.patches = &patch;
    input.patch_count = 1;
    expect_error(mha_transformer_forward(context, t, &input, NULL, &again, NULL, NULL),
                 MHA_ERR_UNSUPPORTED, "layer 3 uses the keys and values of layer 0; patch them");
    mha_activations_destroy(a);
    mha_transformer_destroy(t);
}

static void gradients_are_slopes_for_any_threads(void)
{
    static float part[B * T * V];
    static int32_t ids[B * T];
    mha_context *context = context_with(1);
    mha_transformer *t = make(context);
    const mha_tensor tokens = fixed_tokens(ids, B, T, V), dlogits = floats(part, T, V);
    rng r = rng_make(8, 0);
    for (int i = 0; i < B * T * V; i++) part[i] = rng_normal(&r);
    float *gradient = loss_gradient(t, &tokens, &dlogits);
    for (int64_t i = 0; i < mha_transformer_parameters(t); i++) {
        mha_parameter p;
        expect_ok(mha_transformer_parameter(t, i, &p));
        if (p.kind == MHA_PARAMETER_CONSTANT)
            assert_true(gradient[p.offset] >= 0 && gradient[p.offset] <= 0);
        else
            expect_slope(context, t, &tokens, &dlogits, &p, &r, 1.0f / 8192, 0.02,
                         gradient + p.offset);
    }
    free(gradient);
    mha_transformer_destroy(t);
}

/* In the first layer, queries of equal tokens differ only by their rotation. */
static void rotations_leave_later_pairs(void)
{
    mha_context *context = context_with(1);
    static float logits[B * T * V];
    static int32_t ids[B * T];
    mha_transformer *t = make(context);
    mha_activations *a = NULL;
    mha_layer_view view = MHA_INIT(mha_layer_view);
    mha_transformer_input input = MHA_INIT(mha_transformer_input);
    const mha_tensor tokens = mha_tensor_contiguous(ids, MHA_I32, 2, (const int64_t[]){B, T}),
                     all = floats(logits, T, V);
    double frequencies[WIDE / 2];
    mha_layer_rotation rotation = {.struct_size = sizeof rotation, .frequencies = frequencies};
    input.tokens = &tokens;
    expect_ok(mha_transformer_rotation(t, 1, &rotation));
    assert_true(rotation.rotary_dim == WIDE && frequencies[1] < 1 && frequencies[1] > 0);
    for (int i = 2; i < WIDE / 2; i++) assert_true(!(frequencies[i] > 0 || frequencies[i] < 0));
    expect_ok(mha_activations_create(context, t, B * T, 0, &a));
    expect_ok(mha_transformer_forward(context, t, &input, a, &all, NULL, NULL));
    expect_ok(mha_activations_layer(a, 0, MHA_PART_SELF_ATTENTION, &view));
    const float *first = vector(&view.q, 0, 1, 0), *later = vector(&view.q, 0, 1, 5);
    for (int i = 0; i < D; i++)
        assert_true((memcmp(&first[i], &later[i], sizeof *first) == 0) == (i % (D / 2) > 0));
    mha_activations_destroy(a);
    mha_transformer_destroy(t);
}

static void descriptions_are_checked(void)
{
    static const struct {
        mha_layer_desc layer;
        mha_status status;
        const char *words;
    } wrong[] = {
        {{.kv_back = 4}, MHA_ERR_ARGUMENT, "layer 3: mha_layer_desc: kv_back is 4, expected 0..3"},
        {{.kv_back = -1}, MHA_ERR_ARGUMENT, "kv_back is -1"},
        {{.kv_back = 1}, MHA_ERR_UNSUPPORTED, "does not attend with keys of its own"},
        {{.kv_back = 2}, MHA_ERR_UNSUPPORTED, "head_dim and window"},
        {{.kv_back = 3}, MHA_ERR_UNSUPPORTED, "number of key/value heads (2, here 2)"},
        {{.head_dim = -1}, MHA_ERR_ARGUMENT, "head_dim is -1"},
        {{.head_dim = 7}, MHA_ERR_ARGUMENT, "rotary_dim is 7"},
        {{.ff_dim = -1}, MHA_ERR_ARGUMENT, "ff_dim -1"},
        {{.ff_dim = 5, .flags = MHA_LAYER_NO_FEED_FORWARD}, MHA_ERR_ARGUMENT, "ff_dim is 5"},
        {{.rope_pairs = 4}, MHA_ERR_ARGUMENT, "rope_pairs is 4, expected 0..3"},
        {{.rope_pairs = 1, .flags = MHA_LAYER_NO_ROPE}, MHA_ERR_ARGUMENT, "rope_pairs"},
        {{.input_dim = 1 << 21}, MHA_ERR_ARGUMENT, "input_dim 2097152"},
        {{.flags = MHA_LAYER_V_NORM}, MHA_ERR_ARGUMENT, "only with MHA_LAYER_QK_NORM"},
        {{.flags = MHA_LAYER_OUTPUT_SCALE | MHA_LAYER_NO_FEED_FORWARD},
         MHA_ERR_UNSUPPORTED,
         "MHA_LAYER_OUTPUT_SCALE need pre-norm"},
        {{.head_dim = 8, .latent_dim = 4, .value_dim = 4, .shared_dim = 4},
         MHA_ERR_UNSUPPORTED,
         "latent attention"}};
    mha_context *context = context_with(1);
    mha_transformer *t = NULL;
    const mha_layer_desc plain = {LAYER}, shares = {LAYER, .kv_back = 1};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        mha_layer_desc all[L] = {{LAYER, .flags = MHA_LAYER_WINDOW, .left_keys = 3},
                                 {LAYER, .head_dim = WIDE},
                                 plain,
                                 wrong[i].layer,
                                 plain};
        if (i == 2) all[2] = shares, all[1] = plain;
        all[3].struct_size = sizeof all[3];
        const mha_transformer_desc d = describe(all);
        expect_error(mha_transformer_create(context, &d, &t), wrong[i].status, wrong[i].words);
    }
    mha_transformer_desc d = describe(layers);
    d.feed_forward = MHA_FEED_FORWARD_GELU;
    expect_error(mha_transformer_create(context, &d, &t), MHA_ERR_UNSUPPORTED,
                 "a gated feed_forward");
}

static void what_is_not_supported_is_refused(void)
{
    mha_context *context = context_with(1);
    mha_transformer *t = make(context), *other = NULL;
    float keep[L * H];
    for (int i = 0; i < L * H; i++) keep[i] = 1;
    const mha_tensor kept = mha_tensor_contiguous(keep, MHA_F32, 2, (const int64_t[]){L, H});
    expect_error(mha_transformer_prune(context, t, &kept, &other), MHA_ERR_UNSUPPORTED,
                 "layer 0 has an input beside the stream");
    mha_transformer_destroy(t);
}

RUN_TESTS(TEST(heads_are_plain_loops), TEST(steps_forks_and_rollbacks_change_no_bit),
          TEST(keys_are_cached_once), TEST(calls_begin_with_a_layer),
          TEST(gradients_are_slopes_for_any_threads), TEST(rotations_leave_later_pairs),
          TEST(descriptions_are_checked), TEST(what_is_not_supported_is_refused))
