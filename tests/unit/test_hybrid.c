/* Transformers whose layers are gated delta nets or short convolutions, or have output gates: steps and threads change
 * no bit, maps equal their rows, heads can be switched off, and unsupported uses are rejected. */
#include "support/expect.h"
#include "support/rng.h"
#include "support/shared_context.h"
#include "support/suite.h"

#include <multihead/head_pass.h>
#include <multihead/importance.h>
#include <multihead/recurrent.h>
#include <multihead/training.h>
#include <multihead/transformer.h>

#include <string.h>

enum { L = 3, B = 2, T = 90, V = 23, H = 4, E = 16 };

static const mha_layer_desc net = {.struct_size = sizeof net,
                                   .mixer = MHA_MIXER_GATED_DELTA,
                                   .conv_kernel = 4,
                                   .key_dim = 6,
                                   .value_dim = 5};
static const mha_layer_desc gated = {.struct_size = sizeof gated,
                                     .flags = MHA_LAYER_OUTPUT_GATE | MHA_LAYER_QK_NORM};

static const mha_layer_desc convolution = {
    .struct_size = sizeof convolution, .mixer = MHA_MIXER_SHORT_CONVOLUTION, .conv_kernel = 3};
static const mha_layer_desc space = {.struct_size = sizeof space,
                                     .mixer = MHA_MIXER_STATE_SPACE,
                                     .conv_kernel = 4,
                                     .key_dim = 5,
                                     .value_dim = 6,
                                     .step_least = 0.1f,
                                     .step_most = 2};

static mha_transformer_desc describe(const mha_layer_desc *layers)
{
    static const int64_t all[] = {H, 2, H, 2, 1, 2, 0, 2, 0, 0, 1, 0};
    const int64_t *heads = all + (layers[0].mixer == MHA_MIXER_SHORT_CONVOLUTION ? 6 : 0);
    const int64_t *kv_heads = heads + L;
    return (mha_transformer_desc){.struct_size = sizeof(mha_transformer_desc),
                                  .flags = MHA_TRANSFORMER_CAUSAL,
                                  .vocab_size = V,
                                  .max_length = T,
                                  .embed_dim = E,
                                  .num_layers = L,
                                  .num_heads = H,
                                  .head_dim = 8,
                                  .ff_dim = 24,
                                  .norm = MHA_NORM_RMS,
                                  .positions = MHA_ENCODING_ROTARY,
                                  .feed_forward = MHA_FEED_FORWARD_SWIGLU,
                                  .layer_heads = heads,
                                  .layer_kv_heads = kv_heads,
                                  .layers = layers};
}

static mha_transformer *make_of(mha_context *context, const mha_layer_desc *outer)
{
    const mha_layer_desc layers[L] = {*outer, gated, *outer};
    const mha_transformer_desc d = describe(layers);
    mha_transformer *t = NULL;
    rng r = rng_make(5, 0);
    expect_ok(mha_transformer_create(context, &d, &t));
    float *data = mha_transformer_data(t);
    for (int64_t i = 0; i < mha_transformer_size(t); i++) data[i] = 0.4f * rng_normal(&r);
    expect_ok(mha_transformer_update(context, t));
    return t;
}

static mha_transformer *make(mha_context *context)
{
    return make_of(context, &net);
}

static mha_tensor floats(float *data, int64_t n, int64_t width)
{
    return mha_tensor_contiguous(data, MHA_F32, 3, (const int64_t[]){B, n, width});
}

static mha_tensor draw(int32_t *ids)
{
    rng r = rng_make(6, 0);
    for (int i = 0; i < B * T; i++) ids[i] = (int32_t)rng_between(&r, 0, V - 1);
    return mha_tensor_contiguous(ids, MHA_I32, 2, (const int64_t[]){B, T});
}

static void compare_steps(const mha_layer_desc *outer, const char *said)
{
    mha_context *one = context_with(1), *several = context_with(3);
    static float whole[B * T * V], part[B * T * V];
    static int32_t ids[B * T];
    mha_transformer *t = make_of(one, outer);
    mha_transformer_input input = MHA_INIT(mha_transformer_input);
    const mha_tensor tokens = draw(ids), all = floats(whole, T, V);
    input.tokens = &tokens;
    expect_ok(mha_transformer_forward(one, t, &input, NULL, &all, NULL, NULL));
    mha_decoder_desc how = MHA_INIT(mha_decoder_desc);
    how.batch = B;
    mha_decoder *decoder = NULL;
    expect_ok(mha_decoder_create(several, t, &how, &decoder));
    assert_true(mha_decoder_cache_bytes(decoder) > 0);
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
    expect_error(mha_decoder_truncate(decoder, 7), MHA_ERR_UNSUPPORTED, said);
    expect_error(mha_decoder_fork(decoder, 0, 1, 7), MHA_ERR_UNSUPPORTED, said);
    expect_ok(mha_decoder_fork(decoder, 0, 1, T));
    expect_ok(mha_decoder_truncate(decoder, 0));
    mha_tensor first = tokens;
    first.shape[1] = 3;
    const mha_tensor out = floats(part, 3, V);
    const int64_t counts[] = {0, 3};
    expect_ok(mha_decoder_step_rows(several, decoder, &first, NULL, counts, &out));
    assert_memory_equal(part + 3 * V, whole + T * V, 3 * V * sizeof(float));
    mha_decoder_destroy(decoder);
    mha_transformer_destroy(t);
}

static void steps_and_threads_change_no_bit(void **state)
{
    (void)state;
    compare_steps(&net, "layer 0 is a gated delta net");
    compare_steps(&convolution, "layer 0 is a short convolution");
    compare_steps(&space, "layer 0 is a state space");
}

typedef struct maps {
    mha_context *context;
    const mha_layer_desc *outer;
    float *of[L];
    int64_t layer;
} maps;

static mha_status compare_rows(void *user, int64_t b, int64_t row, const mha_tensor *p)
{
    const maps *m = user;
    for (int64_t h = 0; h < p->shape[0]; h++)
        for (int64_t i = 0; i < p->shape[1]; i++)
            assert_memory_equal((const float *)p->data + h * p->stride[0] + i * p->stride[1],
                                m->of[m->layer] + ((b * p->shape[0] + h) * T + row + i) * T,
                                T * sizeof(float));
    return MHA_OK;
}

static mha_status visit(void *user, const mha_activations *a, int64_t layer)
{
    maps *m = user;
    mha_layer_view view = {.struct_size = sizeof view};
    m->layer = layer;
    expect_ok(mha_activations_layer(a, layer, MHA_PART_SELF_ATTENTION, &view));
    assert_int_equal(view.mixer, layer == 1 ? MHA_MIXER_ATTENTION : m->outer->mixer);
    return mha_layer_visit_rows(m->context, &view, 0, compare_rows, m);
}

static void compare_maps(const mha_layer_desc *outer, const char *weight)
{
    mha_context *context = context_with(2);
    static float p[L][B * H * T * T], gates[L * H], logits[B * T * V], other[B * T * V];
    static int32_t ids[B * T];
    mha_transformer *t = make_of(context, outer);
    mha_transformer_input input = MHA_INIT(mha_transformer_input);
    const mha_tensor tokens = draw(ids), all = floats(logits, T, V), again = floats(other, T, V);
    mha_attention_outputs outputs[L];
    mha_tensor tensors[L];
    const mha_attention_outputs *list[L];
    maps m = {.context = context, .outer = outer};
    for (int l = 0; l < L; l++) {
        m.of[l] = p[l];
        tensors[l] =
            mha_tensor_contiguous(p[l], MHA_F32, 4, (const int64_t[]){B, l == 1 ? 2 : H, T, T});
        outputs[l] =
            (mha_attention_outputs){.struct_size = sizeof outputs[l], .probabilities = &tensors[l]};
        list[l] = &outputs[l];
    }
    input.tokens = &tokens;
    input.outputs = list;
    input.after_layer = visit;
    input.after_layer_user = &m;
    expect_ok(mha_transformer_forward(context, t, &input, NULL, &all, NULL, NULL));
    int negative = 0;
    for (int i = 0; i < B * H * T * T; i++) negative += p[0][i] < 0;
    assert_true(negative > 0);
    outputs[0].entropy = &tensors[1];
    expect_error(mha_transformer_forward(context, t, &input, NULL, &all, NULL, NULL),
                 MHA_ERR_UNSUPPORTED, "outputs of layer 0: it is a");
    /* A closed gate, and W_o without the head's columns. */
    input = (mha_transformer_input){.struct_size = sizeof input, .tokens = &tokens};
    const mha_tensor open = mha_tensor_contiguous(gates, MHA_F32, 2, (const int64_t[]){L, H});
    for (int i = 0; i < L * H; i++) gates[i] = i != 2 * H + 1;
    input.gates = &open;
    expect_ok(mha_transformer_forward(context, t, &input, NULL, &all, NULL, NULL));
    mha_parameter out;
    expect_ok(mha_transformer_find(t, 2, weight, &out));
    for (int64_t e = 0; e < E; e++)
        memset(mha_transformer_data(t) + out.offset + e * out.shape[1] + outer->value_dim, 0,
               (size_t)outer->value_dim * sizeof(float));
    expect_ok(mha_transformer_update(context, t));
    input.gates = NULL;
    expect_ok(mha_transformer_forward(context, t, &input, NULL, &again, NULL, NULL));
    for (int i = 0; i < B * T * V; i++) assert_true(logits[i] == other[i]);
    mha_transformer_destroy(t);
}

static void maps_are_rows_and_heads_switch_off(void **state)
{
    (void)state;
    compare_maps(&net, "delta_net.o_proj.weight");
    compare_maps(&space, "state_space.o_proj.weight");
}

/* With its own description a transformer is the same function, with a window a different one. */
static void descriptions_vary(void **state)
{
    mha_context *context = context_with(1);
    static float whole[B * T * V], other[B * T * V];
    static int32_t ids[B * T];
    mha_transformer *t = make(context), *varied = NULL;
    mha_transformer_input input = MHA_INIT(mha_transformer_input);
    const mha_tensor tokens = draw(ids), all = floats(whole, T, V), to = floats(other, T, V);
    mha_transformer_desc d = {.struct_size = sizeof d};
    mha_layer_desc layers[L] = {net, gated, net};
    (void)state;
    input.tokens = &tokens;
    expect_ok(mha_transformer_forward(context, t, &input, NULL, &all, NULL, NULL));
    mha_transformer_describe(t, &d);
    for (int windowed = 0; windowed < 2; windowed++) {
        if (windowed) layers[1].flags |= MHA_LAYER_WINDOW;
        d.layers = layers;
        expect_ok(mha_transformer_vary(context, t, &d, &varied));
        expect_ok(mha_transformer_forward(context, varied, &input, NULL, &to, NULL, NULL));
        assert_int_equal(memcmp(whole, other, sizeof whole) != 0, windowed);
        mha_transformer_destroy(varied);
    }
    mha_transformer_destroy(t);
}

static void what_is_not_supported_is_refused(void **state)
{
    mha_context *context = context_with(1);
    float numbers[B * T * V] = {0};
    mha_transformer *t = make(context), *other = NULL;
    mha_decoder *decoder = NULL;
    mha_trainer *trainer = NULL;
    mha_activations *a = NULL;
    const mha_tensor keep = mha_tensor_contiguous(numbers, MHA_F32, 2, (const int64_t[]){L, H});
    const mha_tensor dy = floats(numbers, T, V);
    const mha_trainer_desc training = MHA_INIT(mha_trainer_desc);
    const mha_transformer_gradients into = {.struct_size = sizeof into};
    mha_transformer_input input = MHA_INIT(mha_transformer_input);
    mha_decoder_desc how = MHA_INIT(mha_decoder_desc);
    static const char said[] = "layer 0 is a gated delta net";
    (void)state;
    how.window = 8;
    expect_error(mha_decoder_create(context, t, &how, &decoder), MHA_ERR_UNSUPPORTED, said);
    expect_error(mha_transformer_prune(context, t, &keep, &other), MHA_ERR_UNSUPPORTED, said);
    expect_error(mha_transformer_share_kv(context, t, 1, &other), MHA_ERR_UNSUPPORTED, said);
    expect_error(mha_transformer_copy(context, t, &other), MHA_ERR_UNSUPPORTED, said);
    expect_error(mha_trainer_create(context, t, NULL, &training, &trainer), MHA_ERR_UNSUPPORTED,
                 said);
    expect_ok(mha_activations_create(context, t, B * T, 0, &a));
    expect_error(mha_transformer_backward(context, t, &input, a, &dy, &into), MHA_ERR_UNSUPPORTED,
                 said);
    mha_activations_destroy(a);
    mha_transformer_destroy(t);
}

static void descriptions_are_checked(void **state)
{
    mha_context *context = context_with(1);
    const struct {
        mha_layer_desc layer;
        mha_status status;
        const char *part;
    } cases[] = {
        {{.mixer = (mha_mixer)4}, MHA_ERR_ARGUMENT, "mixer is 4"},
        {{.step_most = 1}, MHA_ERR_ARGUMENT, "only with a mixer"},
        {{.mixer = MHA_MIXER_GATED_DELTA,
          .conv_kernel = 4,
          .key_dim = 3,
          .value_dim = 3,
          .step_most = 1},
         MHA_ERR_ARGUMENT,
         "leave the other fields 0"},
        {{.mixer = MHA_MIXER_STATE_SPACE,
          .conv_kernel = 4,
          .key_dim = 3,
          .value_dim = 3,
          .step_least = 2,
          .step_most = 1},
         MHA_ERR_ARGUMENT,
         "step_least is 2, step_most 1"},
        {{.mixer = MHA_MIXER_STATE_SPACE,
          .conv_kernel = 4,
          .key_dim = 3,
          .value_dim = 3,
          .step_least = -1},
         MHA_ERR_ARGUMENT,
         "step_least is -1"},

        {{.key_dim = 3}, MHA_ERR_ARGUMENT, "only with a mixer"},
        {{.mixer = MHA_MIXER_GATED_DELTA, .key_dim = 3, .value_dim = 3},
         MHA_ERR_ARGUMENT,
         "conv_kernel is 0"},
        {{.mixer = MHA_MIXER_GATED_DELTA,
          .conv_kernel = 4,
          .key_dim = 3,
          .value_dim = 3,
          .scale = 1},
         MHA_ERR_ARGUMENT,
         "leave the other fields 0"},
        {{.mixer = MHA_MIXER_GATED_DELTA, .conv_kernel = 4, .key_dim = INT64_MAX, .value_dim = 3},
         MHA_ERR_ARGUMENT,
         "key_dim 9223372036854775807"},
        {convolution, MHA_ERR_ARGUMENT, "its number in layer_heads, which is 4"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mha_layer_desc layers[L] = {net, gated, cases[i].layer};
        mha_transformer *t = NULL;
        layers[2].struct_size = sizeof net;
        mha_transformer_desc d = describe(layers);
        expect_error(mha_transformer_create(context, &d, &t), cases[i].status, cases[i].part);
        layers[2] = net;
        d.flags = 0;
        expect_error(mha_transformer_create(context, &d, &t), MHA_ERR_UNSUPPORTED,
                     "needs MHA_TRANSFORMER_CAUSAL");
    }
}

static void convolutions_are_checked(void **state)
{
    mha_context *context = context_with(1);
    mha_layer_desc layers[L] = {convolution, gated, convolution};
    mha_transformer_desc d = describe(layers);
    mha_transformer *t = NULL;
    (void)state;
    layers[2].conv_kernel = MHA_CONVOLUTION_MOST + 1;
    expect_error(mha_transformer_create(context, &d, &t), MHA_ERR_ARGUMENT,
                 "layer 2: mha_layer_desc: conv_kernel is 65");
    layers[2].value_dim = 1;
    expect_error(mha_transformer_create(context, &d, &t), MHA_ERR_ARGUMENT,
                 "conv_kernel alone; leave the other fields 0");
    d.flags = 0;
    expect_error(mha_transformer_create(context, &d, &t), MHA_ERR_UNSUPPORTED,
                 "layer 0: mha_layer_desc: a short convolution needs MHA_TRANSFORMER_CAUSAL");
}

/* A net whose heads are wider than those of attention needs wider rows of means. */
static void means_have_the_width_of_the_widest_layer(void **state)
{
    enum { WIDE = 20 };
    mha_context *context = context_with(1);
    static float gates[L * H], means[L * H * WIDE], logits[B * T * V];
    static int32_t ids[B * T];
    mha_layer_desc layers[L] = {net, gated, net};
    mha_transformer *t = NULL;
    mha_transformer_input input = MHA_INIT(mha_transformer_input);
    const mha_tensor tokens = draw(ids), all = floats(logits, T, V),
                     closed = mha_tensor_contiguous(gates, MHA_F32, 2, (const int64_t[]){L, H}),
                     wide = mha_tensor_contiguous(means, MHA_F32, 2, (int64_t[]){L, H * WIDE}),
                     narrow = mha_tensor_contiguous(means, MHA_F32, 2, (int64_t[]){L, H * 8});
    (void)state;
    layers[2].value_dim = WIDE;
    const mha_transformer_desc d = describe(layers);
    expect_ok(mha_transformer_create(context, &d, &t));
    input.tokens = &tokens;
    input.gates = &closed;
    input.head_means = &narrow;
    expect_error(mha_transformer_forward(context, t, &input, NULL, &all, NULL, NULL), MHA_ERR_SHAPE,
                 "head_means");
    input.head_means = &wide;
    expect_ok(mha_transformer_forward(context, t, &input, NULL, &all, NULL, NULL));
    mha_transformer_destroy(t);
}

static void bytes_are_those_of_states(void **state)
{
    mha_context *context = context_with(1);
    mha_layer_desc layers[L] = {net, net, net};
    mha_transformer *t = NULL;
    mha_recurrent_state *s = NULL;
    mha_decoder_sizes sizes = MHA_INIT(mha_decoder_sizes);
    mha_recurrent_state_desc one = MHA_INIT(mha_recurrent_state_desc);
    size_t bytes = 0;
    (void)state;
    for (int l = 0; l < L; l++) {
        layers[l].key_dim = 16, layers[l].value_dim = 20;
        one.batch = 1, one.heads = l == 1 ? 2 : H, one.head_dim = 16, one.value_dim = 20;
        expect_ok(mha_recurrent_state_create(context, &one, &s));
        const int64_t inputs = one.heads / 2 * 2 * 16 + one.heads * 20;
        bytes += mha_recurrent_state_bytes(s) + (size_t)(inputs * 3) * sizeof(float);
        mha_recurrent_state_destroy(s);
    }
    const mha_transformer_desc d = describe(layers);
    expect_ok(mha_transformer_create(context, &d, &t));
    expect_ok(mha_decoder_count(t, NULL, &sizes));
    assert_int_equal(sizes.total_bytes, bytes);
    mha_transformer_destroy(t);
}

RUN_TESTS(TEST(steps_and_threads_change_no_bit), TEST(maps_are_rows_and_heads_switch_off),
          TEST(means_have_the_width_of_the_widest_layer), TEST(bytes_are_those_of_states),
          TEST(descriptions_vary), TEST(convolutions_are_checked),
          TEST(what_is_not_supported_is_refused), TEST(descriptions_are_checked))
