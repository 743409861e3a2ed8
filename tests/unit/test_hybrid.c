/* Transformers whose layers are gated delta nets or short convolutions, or have output gates: steps
 * and threads change no bit, maps equal their rows, heads can be disabled, training reduces the
 * loss, and unsupported uses are rejected. */
#include "support/expect.h"
#include "support/rng.h"
#include "support/shared_context.h"
#include "support/small_model.h"
#include "support/suite.h"

#include <multihead/ablation.h>
#include <multihead/head_pass.h>
#include <multihead/importance.h>
#include <multihead/nn.h>
#include <multihead/recurrent.h>
#include <multihead/training.h>
#include <multihead/transformer.h>

#include <math.h>
#include <string.h>

enum { L = 3, B = 2, T = 90, V = 23, H = 4, E = 16 };

static const mha_layer_desc net = {.struct_size = sizeof net,
                                   .mixer = MHA_MIXER_GATED_DELTA,
                                   .conv_kernel = 4,
                                   .key_dim = 6,
                                   .value_dim = 5};
#define RANKED .mixer = MHA_MIXER_GATED_DELTA, .conv_kernel = 4, .key_dim = 6, .value_dim = 5
static const mha_layer_desc ranked = {.struct_size = sizeof ranked, RANKED, .gate_rank = 3};
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
    return normal_transformer(context, rng_make(5, 0), 0.4f, &d);
}

static mha_transformer *make(mha_context *context)
{
    return make_of(context, &net);
}

static mha_tensor floats(float *data, int64_t n, int64_t width)
{
    return mha_tensor_contiguous(data, MHA_F32, 3, (const int64_t[]){B, n, width});
}

static void compare_steps(const mha_layer_desc *outer, const char *said)
{
    mha_context *one = context_with(1), *several = context_with(3);
    static float whole[B * T * V], part[B * T * V];
    static int32_t ids[B * T];
    mha_transformer *t = make_of(one, outer);
    mha_transformer_input input = MHA_INIT(mha_transformer_input);
    const mha_tensor tokens = fixed_tokens(ids, B, T, V), all = floats(whole, T, V);
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

static void steps_and_threads_change_no_bit(void)
{
    compare_steps(&net, "layer 0 is a gated delta net");
    compare_steps(&ranked, "layer 0 is Kimi delta attention");
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
    const mha_tensor tokens = fixed_tokens(ids, B, T, V), all = floats(logits, T, V),
                     again = floats(other, T, V);
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
                 MHA_ERR_UNSUPPORTED, "outputs of layer 0: it is ");
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

static void maps_are_rows_and_heads_switch_off(void)
{
    compare_maps(&net, "delta_net.o_proj.weight");
    compare_maps(&ranked, "delta_net.o_proj.weight");
    compare_maps(&space, "state_space.o_proj.weight");
}

/* A transformer with its own description computes the same function; with a window it computes a
 * different one. */
static void descriptions_vary(void)
{
    mha_context *context = context_with(1);
    static float whole[B * T * V], other[B * T * V];
    static int32_t ids[B * T];
    mha_transformer *t = make(context), *varied = NULL;
    mha_transformer_input input = MHA_INIT(mha_transformer_input);
    const mha_tensor tokens = fixed_tokens(ids, B, T, V), all = floats(whole, T, V),
                     to = floats(other, T, V);
    mha_transformer_desc d = {.struct_size = sizeof d};
    mha_layer_desc layers[L] = {net, gated, net};
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

static void what_is_not_supported_is_refused(void)
{
    mha_context *context = context_with(1);
    float numbers[L * H] = {0};
    mha_transformer *t = make(context), *other = NULL;
    mha_decoder *decoder = NULL;
    const mha_tensor keep = mha_tensor_contiguous(numbers, MHA_F32, 2, (const int64_t[]){L, H});
    mha_decoder_desc how = MHA_INIT(mha_decoder_desc);
    static const char said[] = "layer 0 is a gated delta net";
    how.window = 8;
    expect_error(mha_decoder_create(context, t, &how, &decoder), MHA_ERR_UNSUPPORTED, said);
    expect_error(mha_transformer_prune(context, t, &keep, &other), MHA_ERR_UNSUPPORTED, said);
    expect_error(mha_transformer_share_kv(context, t, 1, &other), MHA_ERR_UNSUPPORTED, said);
    mha_transformer_destroy(t);
}

/* ---- training and effects -------------------------------------------------------------------- */

enum { STEPS = 12 };

/* Trains a copy and stores its parameters in `data`. */
static void train(mha_context *context, const mha_transformer *from, float *data, double *loss)
{
    static int32_t ids[B * T], next[B * T];
    mha_transformer *t = NULL;
    mha_trainer *trainer = NULL;
    expect_ok(mha_transformer_copy(context, from, &t));
    const mha_trainer_desc how = {.struct_size = sizeof how,
                                  .max_tokens = B * T,
                                  .learning_rate = 0.02,
                                  .clip = 1,
                                  .head_grade = 0.5};
    expect_ok(mha_trainer_create(context, t, NULL, &how, &trainer));
    const mha_tensor tokens = fixed_tokens(ids, B, T, V);
    for (int i = 0; i < B * T; i++) next[i] = i % T ? ids[i - 1] : -1; /* the previous token */
    const mha_tensor targets = mha_tensor_contiguous(next, MHA_I32, 2, (const int64_t[]){B, T});
    const mha_transformer_input input = {.struct_size = sizeof input, .tokens = &tokens};
    const mha_training_batch batch = {
        .struct_size = sizeof batch, .input = &input, .targets = &targets};
    for (int i = 0; i < STEPS; i++) expect_ok(mha_trainer_step(trainer, &batch, &loss[i]));
    memcpy(data, mha_transformer_data(t), (size_t)mha_transformer_size(t) * sizeof *data);
    mha_trainer_destroy(trainer);
    mha_transformer_destroy(t);
}

static void training_learns_with_the_same_bits_for_any_threads(void)
{
    mha_context *one = context_with(1), *several = context_with(3);
    static float data[2][1 << 14];
    double loss[2][STEPS];
    static const mha_layer_desc *const all[] = {&net, &ranked, &convolution, &space};
    for (int k = 0; k < 4; k++) {
        mha_transformer *t = make_of(one, all[k]);
        const mha_transformer_init init = {.struct_size = sizeof init, .seed = 3};
        expect_ok(mha_transformer_initialise(one, t, &init));
        assert_true(mha_transformer_size(t) <= 1 << 14);
        train(one, t, data[0], loss[0]);
        train(several, t, data[1], loss[1]);
        assert_memory_equal(loss[0], loss[1], sizeof loss[0]);
        assert_memory_equal(data[0], data[1], (size_t)mha_transformer_size(t) * sizeof(float));
        assert_true(loss[0][STEPS - 1] < 0.8 * loss[0][0]);
        mha_transformer_destroy(t);
    }
}

/* Decays begin near 1: half-lives are between a few tokens and a few hundred. */
static void decays_begin_near_1(void)
{
    mha_context *context = context_with(1);
    mha_transformer *t = make(context);
    const mha_transformer_init init = {.struct_size = sizeof init, .seed = 9};
    mha_parameter rates, shifts, taps;
    expect_ok(mha_transformer_initialise(context, t, &init));
    expect_ok(mha_transformer_find(t, 0, "delta_net.A_log", &rates));
    expect_ok(mha_transformer_find(t, 0, "delta_net.dt_bias", &shifts));
    expect_ok(mha_transformer_find(t, 0, "delta_net.conv.weight", &taps));
    const float *data = mha_transformer_data(t);
    double squares = 0;
    for (int64_t h = 0; h < H; h++) {
        const double rate = exp((double)data[rates.offset + h]);
        const double step = log1p(exp((double)data[shifts.offset + h]));
        assert_true(rate > 1 && rate < 16 && step > 0.00099 && step < 0.101);
    }
    for (int64_t i = 0; i < taps.count; i++)
        squares += (double)data[taps.offset + i] * (double)data[taps.offset + i];
    const double mean = squares / (double)taps.count; /* 1 / K */
    assert_true(mean > 0.15 && mean < 0.4);
    mha_transformer_destroy(t);
}

/* The mean loss of sequence 0 without the heads whose gates are 0. If dgates is NULL, gradients are
 * not computed. */
static double loss_with(mha_context *context, const mha_transformer *t, int32_t *ids, float *gates,
                        float *dgates)
{
    static float logits[T * V];
    mha_activations *a = NULL;
    double loss;
    const mha_tensor tokens = mha_tensor_contiguous(ids, MHA_I32, 2, (int64_t[]){1, T}),
                     open = mha_tensor_contiguous(gates, MHA_F32, 2, (int64_t[]){L, H}),
                     slopes = mha_tensor_contiguous(dgates, MHA_F32, 2, (int64_t[]){L, H}),
                     all = mha_tensor_contiguous(logits, MHA_F32, 3, (int64_t[]){1, T, V}),
                     rows = mha_tensor_contiguous(logits, MHA_F32, 2, (int64_t[]){T - 1, V}),
                     next = mha_tensor_contiguous(ids + 1, MHA_I32, 1, (int64_t[]){T - 1});
    const mha_transformer_input input = {
        .struct_size = sizeof input, .tokens = &tokens, .gates = &open};
    expect_ok(mha_activations_create(context, t, T, 0, &a));
    expect_ok(mha_transformer_forward(context, t, &input, a, &all, NULL, NULL));
    expect_ok(mha_cross_entropy(context, &rows, &next, NULL, &loss, NULL, &rows));
    memset(logits + (T - 1) * V, 0, V * sizeof *logits);
    const mha_transformer_gradients into = {.struct_size = sizeof into, .gates = &slopes};
    if (dgates) expect_ok(mha_transformer_backward(context, t, &input, a, &all, &into));
    mha_activations_destroy(a);
    return loss;
}

/* Ablation by 0 equals a closed gate, and its estimate is the negative gradient of the gate. */
static void effects_are_those_of_gates(void)
{
    mha_context *context = context_with(2);
    static int32_t ids[B * T];
    static mha_effect_term terms[T];
    mha_transformer *t = make(context);
    int64_t heads[L * H], first[L * H + 1], count = 0;
    float gates[L * H], dgates[L * H] = {0};
    double whole, without[L * H], estimates[L * H];
    fixed_tokens(ids, B, T, V);
    const mha_tensor tokens = mha_tensor_contiguous(ids, MHA_I32, 2, (int64_t[]){1, T});
    expect_ok(mha_effect_loss(ids, 1, T, 1, 0, terms));
    const mha_effect_text text = {
        .struct_size = sizeof text, .tokens = &tokens, .terms = terms, .term_count = T - 1};
    const mha_effect_text *texts[] = {&text};
    const mha_effect_data data = {
        .struct_size = sizeof data, .texts = 1, .measures = 1, .text = texts};
    const mha_ablation_desc zero = {.struct_size = sizeof zero, .kind = MHA_ABLATION_ZERO};
    for (int64_t k = 0; k < L * H; k++) {
        gates[k] = 1;
        if (k / H != 1 || k % H < 2) heads[count] = k, first[count] = count, count++;
    }
    first[count] = count;
    const mha_head_sets sets = {
        .struct_size = sizeof sets, .count = count, .first = first, .heads = heads};
    expect_ok(mha_effect_sets(context, t, &zero, &data, &sets, &whole, without));
    expect_ok(mha_effect_gradients(context, t, &zero, &data, estimates));
    assert_true(fabs(loss_with(context, t, ids, gates, dgates) - whole) < 1e-5);
    for (int64_t i = 0; i < count; i++) {
        gates[heads[i]] = 0;
        assert_true(fabs(loss_with(context, t, ids, gates, NULL) - without[i]) < 1e-5);
        gates[heads[i]] = 1;
        assert_true(fabs(estimates[heads[i]] + (double)dgates[heads[i]]) < 1e-5);
    }
    mha_transformer_destroy(t);
}

static void descriptions_are_checked(void)
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

        {{.mixer = MHA_MIXER_GATED_DELTA,
          .conv_kernel = 4,
          .key_dim = 3,
          .value_dim = 3,
          .strength_scale = 2.5f},
         MHA_ERR_ARGUMENT,
         "strength_scale is 2.5, expected 0..2"},
        {{.mixer = MHA_MIXER_GATED_DELTA,
          .conv_kernel = 4,
          .key_dim = 3,
          .value_dim = 3,
          .flags = MHA_LAYER_BRANCH_NORM},
         MHA_ERR_ARGUMENT,
         "leave the other fields 0"},
        {{.flags = MHA_LAYER_NO_FEED_FORWARD, .experts = {.count = 2, .used = 1}},
         MHA_ERR_ARGUMENT,
         "MHA_LAYER_NO_FEED_FORWARD: only with an ff_dim"},
        {{.key_dim = 3}, MHA_ERR_ARGUMENT, "only with a mixer"},
        {{.gate_rank = 3}, MHA_ERR_ARGUMENT, "gate_rank: only with a mixer"},
        {{RANKED, .gate_rank = -1}, MHA_ERR_ARGUMENT, "gate_rank -1; expected"},
        {{RANKED, .gate_rank = INT64_MAX}, MHA_ERR_ARGUMENT, "gate_rank 9223372036854775807;"},
        {{.mixer = MHA_MIXER_STATE_SPACE,
          .conv_kernel = 4,
          .key_dim = 3,
          .value_dim = 3,
          .gate_rank = 1},
         MHA_ERR_ARGUMENT,
         "leave the other fields 0"},
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

static void convolutions_are_checked(void)
{
    mha_context *context = context_with(1);
    mha_layer_desc layers[L] = {convolution, gated, convolution};
    mha_transformer_desc d = describe(layers);
    mha_transformer *t = NULL;
    layers[2].conv_kernel = MHA_CONVOLUTION_MOST + 1;
    expect_error(mha_transformer_create(context, &d, &t), MHA_ERR_ARGUMENT,
                 "layer 2: mha_layer_desc: conv_kernel is 65");
    layers[2].value_dim = 1;
    expect_error(mha_transformer_create(context, &d, &t), MHA_ERR_ARGUMENT,
                 "MHA_LAYER_NO_FEED_FORWARD; leave the other fields 0");
    d.flags = 0;
    expect_error(mha_transformer_create(context, &d, &t), MHA_ERR_UNSUPPORTED,
                 "layer 0: mha_layer_desc: a short convolution needs MHA_TRANSFORMER_CAUSAL");
}

/* A delta net with wider heads than attention needs wider rows of means. */
static void means_have_the_width_of_the_widest_layer(void)
{
    enum { WIDE = 20 };
    mha_context *context = context_with(1);
    static float gates[L * H], means[L * H * WIDE], logits[B * T * V];
    static int32_t ids[B * T];
    mha_layer_desc layers[L] = {net, gated, net};
    mha_transformer *t = NULL;
    mha_transformer_input input = MHA_INIT(mha_transformer_input);
    const mha_tensor tokens = fixed_tokens(ids, B, T, V), all = floats(logits, T, V),
                     closed = mha_tensor_contiguous(gates, MHA_F32, 2, (const int64_t[]){L, H}),
                     wide = mha_tensor_contiguous(means, MHA_F32, 2, (int64_t[]){L, H * WIDE}),
                     narrow = mha_tensor_contiguous(means, MHA_F32, 2, (int64_t[]){L, H * 8});
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

/* A layer with a mixer and a feed-forward part is two layers, each with one of them. */
static void layers_have_either_part(void)
{
    enum { BOTH = 2, EACH = 4 };
    mha_context *context = context_with(2);
    static float logits[2][B * T * V], gradient[2][1 << 14];
    static int32_t ids[B * T];
    const mha_tensor tokens = fixed_tokens(ids, B, T, V), dlogits = floats(logits[0], T, V);
    for (int k = 0; k < 2; k++) {
        const mha_layer_desc both[BOTH] = {space, gated}, none = {.struct_size = sizeof none};
        mha_layer_desc each[EACH] = {space, none, gated, none};
        each[0].flags |= MHA_LAYER_NO_FEED_FORWARD;
        each[2].flags |= MHA_LAYER_NO_FEED_FORWARD;
        const int64_t heads[] = {H, 2, H, 0, 2, 0}, kv[] = {2, 1, 2, 0, 1, 0};
        mha_transformer_desc d = describe(k ? each : both);
        d.num_layers = k ? EACH : BOTH;
        d.layer_heads = heads + (k ? BOTH : 0);
        d.layer_kv_heads = kv + (k ? BOTH : 0);
        d.feed_forward = MHA_FEED_FORWARD_RELU2;
        mha_transformer *t = normal_transformer(context, rng_make(7, 0), 0.3f, &d);
        mha_activations *a = NULL;
        mha_transformer_input input = MHA_INIT(mha_transformer_input);
        const mha_tensor all = floats(logits[k], T, V);
        assert_true(mha_transformer_size(t) <= 1 << 14);
        expect_ok(mha_activations_create(context, t, B * T, 0, &a));
        input.tokens = &tokens;
        expect_ok(mha_transformer_forward(context, t, &input, a, &all, NULL, NULL));
        const mha_transformer_gradients into = {.struct_size = sizeof into,
                                                .parameters = gradient[k]};
        expect_ok(mha_transformer_backward(context, t, &input, a, &dlogits, &into));
        mha_layer_view view = {.struct_size = sizeof view};
        for (int i = 0; i < d.num_layers; i++) {
            assert_int_equal(mha_transformer_feeds(&d, i), !k || i % 2);
            if (!k || i % 2)
                expect_ok(mha_activations_layer(a, i, MHA_PART_FEED_FORWARD, &view));
            else
                expect_error(mha_activations_layer(a, i, MHA_PART_FEED_FORWARD, &view),
                             MHA_ERR_ARGUMENT, "has no feed-forward part");
        }
        mha_activations_destroy(a);
        mha_transformer_destroy(t);
    }
    assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
    assert_memory_equal(gradient[0], gradient[1], sizeof gradient[0]);
}

static void bytes_are_those_of_states(void)
{
    mha_context *context = context_with(1);
    mha_layer_desc layers[L] = {net, net, net};
    mha_transformer *t = NULL;
    mha_recurrent_state *s = NULL;
    mha_decoder_sizes sizes = MHA_INIT(mha_decoder_sizes);
    mha_recurrent_state_desc one = MHA_INIT(mha_recurrent_state_desc);
    size_t bytes = 0;
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
          TEST(what_is_not_supported_is_refused), TEST(descriptions_are_checked),
          TEST(training_learns_with_the_same_bits_for_any_threads), TEST(decays_begin_near_1),
          TEST(effects_are_those_of_gates), TEST(layers_have_either_part))
