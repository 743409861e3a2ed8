/* Transformers in folders: every kind is saved and loaded with the same bits; foreign, damaged and
 * hostile folders; unsupported output. tests/python/test_checkpoint_hf.py reads and writes them
 * with transformers. */
#include "support/expect.h"
#include "support/failing_alloc.h"
#include "support/layers.h"
#include "support/one_context.h"
#include "support/rng.h"
#include "support/suite.h"
#include "support/temp_files.h"

#include <multihead/checkpoint.h>
#include <multihead/io.h>
#include <multihead/model.h>
#include <multihead/nn.h>

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <signal.h>

static const mha_transformer_desc llama = {.struct_size = sizeof llama,
                                           .flags = MHA_TRANSFORMER_CAUSAL,
                                           .vocab_size = 11,
                                           .max_length = 16,
                                           .embed_dim = 8,
                                           .num_layers = 2,
                                           .num_heads = 4,
                                           .kv_heads = 2,
                                           .head_dim = 6,
                                           .ff_dim = 10,
                                           .norm = MHA_NORM_RMS,
                                           .positions = MHA_ENCODING_ROTARY,
                                           .feed_forward = MHA_FEED_FORWARD_SWIGLU};

static const mha_transformer_desc bert = {
    .struct_size = sizeof bert,
    .flags = MHA_TRANSFORMER_POST_NORM | MHA_TRANSFORMER_EMBEDDING_NORM | MHA_TRANSFORMER_BIAS,
    .vocab_size = 11,
    .max_length = 16,
    .embed_dim = 8,
    .num_layers = 2,
    .num_heads = 2,
    .ff_dim = 10,
    .norm = MHA_NORM_LAYER,
    .positions = MHA_ENCODING_LEARNED};

static mha_transformer *make(mha_transformer_desc d, uint64_t stream)
{
    mha_transformer *t = NULL;
    rng r = rng_make(rng_run_seed(), stream);
    expect_ok(mha_transformer_create(context, &d, &t));
    for (int64_t i = 0; i < mha_transformer_size(t); i++)
        mha_transformer_data(t)[i] = rng_normal(&r);
    mha_transformer_data(t)[1] = -0.0f;
    expect_ok(mha_transformer_update(context, t));
    return t;
}

static void expect_same(mha_transformer *a, mha_transformer *b)
{
    mha_transformer_desc x, y;
    mha_transformer_describe(a, &x);
    mha_transformer_describe(b, &y);
    assert_int_equal(x.layer_heads != NULL, y.layer_heads != NULL);
    if (x.layer_heads) { /* each transformer has its own lists */
        const size_t bytes = (size_t)x.num_layers * sizeof(int64_t);
        assert_memory_equal(x.layer_heads, y.layer_heads, bytes);
        assert_memory_equal(x.layer_kv_heads, y.layer_kv_heads, bytes);
        x.layer_heads = x.layer_kv_heads = y.layer_heads = y.layer_kv_heads = NULL;
    }
    assert_int_equal(x.layers != NULL, y.layers != NULL);
    if (x.layers) assert_memory_equal(x.layers, y.layers, (size_t)x.num_layers * sizeof *x.layers);
    x.layers = y.layers = NULL;
    assert_memory_equal(&x, &y, sizeof x);
    assert_memory_equal(mha_transformer_data(a), mha_transformer_data(b),
                        (size_t)mha_transformer_size(a) * sizeof(float));
}

/* Compare every row of the output bit by bit. The packed matrices then match the parameters. */
static void expect_same_output(mha_transformer *a, mha_transformer *b)
{
    enum { T = 5, MOST = 64 };
    int32_t ids[T] = {1, 3, 0, 2, 4};
    float rows[2][T * MOST] = {{0}}, memory_data[3 * MOST] = {0};
    mha_transformer_desc d;
    mha_transformer_describe(a, &d);
    mha_tensor tokens = mha_tensor_contiguous(ids, MHA_I32, 2, (int64_t[]){1, T});
    mha_tensor memory =
        mha_tensor_contiguous(memory_data, MHA_F32, 3, (int64_t[]){1, 3, d.memory_dim});
    const bool cross = d.flags & MHA_TRANSFORMER_CROSS;
    const mha_transformer_input input = {
        .struct_size = sizeof input, .tokens = &tokens, .memory = cross ? &memory : NULL};
    for (int i = 0; i < 2; i++) {
        mha_activations *activations = NULL;
        mha_tensor output = mha_tensor_contiguous(
            rows[i], MHA_F32, 3,
            (int64_t[]){1, T, d.flags & MHA_TRANSFORMER_NO_OUTPUT ? d.embed_dim : d.vocab_size});
        expect_ok(mha_activations_create(context, i ? b : a, T, cross ? 3 : 0, &activations));
        expect_ok(
            mha_transformer_forward(context, i ? b : a, &input, activations, &output, NULL, NULL));
        mha_activations_destroy(activations);
    }
    assert_memory_equal(rows[0], rows[1], sizeof rows[0]);
}

/* ---- round trips ---------------------------------------------------------------------------- */

static void round_trip(mha_transformer_desc d, const char *kind)
{
    char wanted[64];
    mha_transformer *from = make(d, 1), *to = NULL;
    expect_ok(mha_checkpoint_save(temp_path("model"), from, NULL));
    char *config = temp_read(temp_path("model/config.json"), NULL);
    snprintf(wanted, sizeof wanted, "\"model_type\": \"%s\"", kind);
    if (!strstr(config, wanted)) fail_msg("%s is not in %s", wanted, config);
    free(config);
    expect_ok(mha_checkpoint_load(context, temp_path("model"), &to));
    expect_same(from, to);
    expect_same_output(from, to);
    mha_transformer_destroy(from);
    mha_transformer_destroy(to);
}

static void round_trips(void)
{
    mha_transformer_desc d = llama;
    round_trip(d, "llama");
    d.flags |= MHA_TRANSFORMER_TIED | MHA_TRANSFORMER_BIAS;
    d.norm_epsilon = 1.2345678e-6f;
    d.rope_base = 500000;
    round_trip(d, "llama");
    d.flags ^= MHA_TRANSFORMER_BIAS | MHA_TRANSFORMER_FF_BIAS;
    round_trip(d, "llama");
    d.flags ^= MHA_TRANSFORMER_FF_BIAS | MHA_TRANSFORMER_QKV_BIAS | MHA_TRANSFORMER_OUT_BIAS;
    round_trip(d, "llama");
    d = bert;
    round_trip(d, "bert");
    d.flags |= MHA_TRANSFORMER_TIED;
    d.norm_epsilon = 1e-12f;
    round_trip(d, "bert");
    d.flags ^= MHA_TRANSFORMER_TIED | MHA_TRANSFORMER_NO_OUTPUT;
    d.feed_forward = MHA_FEED_FORWARD_RELU;
    round_trip(d, "bert");
}

/* Any difference from the formats of transformers gives a folder in this library's own format. */
static void round_trips_of_our_own(void)
{
    for (int i = 0; i < 24; i++) {
        mha_transformer_desc d = i < 9 || (i > 14 && i < 20) ? llama : bert;
        if (i == 0) d.flags = 0;
        if (i == 23) d.flags |= MHA_TRANSFORMER_LOGIT_BIAS, d.feed_forward = MHA_FEED_FORWARD_SILU;
        if (i == 1) d.ff_dim = 0;
        if (i == 2) d.norm = MHA_NORM_NONE;
        if (i == 3) d.norm = MHA_NORM_LAYER;
        if (i == 4) d.positions = MHA_ENCODING_SINUSOIDAL;
        if (i == 5) d.positions = MHA_ENCODING_NONE;
        if (i == 6) d.feed_forward = MHA_FEED_FORWARD_RELU;
        if (i == 7) d.flags |= MHA_TRANSFORMER_CROSS, d.memory_dim = 12, d.cross_scale = 1.5f;
        if (i == 8) d.flags |= MHA_TRANSFORMER_POST_NORM | MHA_TRANSFORMER_NO_OUTPUT;
        if (i == 9) d.flags &= ~(uint32_t)MHA_TRANSFORMER_BIAS;
        if (i == 10) d.kv_heads = 1;
        if (i == 11) d.flags |= MHA_TRANSFORMER_CAUSAL;
        if (i == 12) d.logit_softcap = 1.5f;
        if (i == 13) d.feed_forward = MHA_FEED_FORWARD_GELU_TANH;
        if (i == 14) d.embed_scale = 0.3f;
        if (i == 15) d.flags |= MHA_TRANSFORMER_PARALLEL;
        if (i == 16) d.flags |= MHA_TRANSFORMER_BRANCH_NORM;
        if (i == 17) d.flags |= MHA_TRANSFORMER_QKV_BIAS;
        if (i == 18) d.feed_forward = MHA_FEED_FORWARD_GEGLU_TANH;
        if (i == 19) d.feed_forward = MHA_FEED_FORWARD_GEGLU;
        if (i == 20) d.flags |= MHA_TRANSFORMER_PADDING, d.padding_token = 3;
        if (i == 21) d.flags |= MHA_TRANSFORMER_NO_NORM_BIAS;
        if (i == 22)
            d.flags = (d.flags & ~(uint32_t)MHA_TRANSFORMER_POST_NORM) | MHA_TRANSFORMER_PARALLEL |
                      MHA_TRANSFORMER_ONE_NORM;
        round_trip(d, "multihead");
    }
}

/* Settings of layers also use our own format, bit for bit. */
static void round_trips_of_layers(void)
{
    int found = 0;
    for (int i = 0; i < 21; i++) {
        rng r = rng_make(rng_run_seed(), 700 + (uint64_t)i);
        mha_transformer_desc d = i % 2 ? bert : llama;
        mha_layer_desc layers[2];
        layers_draw(&r, &d, layers);
        if (i == 0) layers[0] = (mha_layer_desc){.struct_size = sizeof layers[0], .scale = -0.7f};
        const bool plain = layers[0].flags == 0 && layers[1].flags == 0;
        if (plain && i > 0) continue;
        d.layers = layers;
        round_trip(d, "multihead");
        found++;
    }
    assert_true(found > 5);
    mha_transformer_desc d = bert; /* limits of a layer's settings */
    const mha_layer_desc ends[2] = {{.struct_size = sizeof ends[0],
                                     .flags = MHA_LAYER_WINDOW,
                                     .scale = -FLT_MAX,
                                     .left_keys = INT64_MAX,
                                     .right_keys = INT64_MAX,
                                     .sink_keys = INT64_MAX},
                                    {.struct_size = sizeof ends[0],
                                     .flags = MHA_LAYER_QK_NORM,
                                     .scale = FLT_TRUE_MIN,
                                     .qk_norm_epsilon = FLT_MAX}};
    d.layers = ends;
    round_trip(d, "multihead");
}

/* Gated delta nets, Mamba-2, short convolutions, output gates, experts, and norms after blocks. */
static void round_trips_of_mixers(void)
{
    const mha_layer_desc net = {.struct_size = sizeof net,
                                .mixer = MHA_MIXER_GATED_DELTA,
                                .conv_kernel = 4,
                                .key_dim = 3,
                                .value_dim = 7,
                                .strength_scale = 1.5f,
                                .head_norm_epsilon = 1e-3f},
                         gated = {.struct_size = sizeof gated, .flags = MHA_LAYER_OUTPUT_GATE},
                         convolution = {.struct_size = sizeof convolution,
                                        .mixer = MHA_MIXER_SHORT_CONVOLUTION,
                                        .conv_kernel = MHA_CONVOLUTION_MOST},
                         space = {.struct_size = sizeof space,
                                  .mixer = MHA_MIXER_STATE_SPACE,
                                  .conv_kernel = 4,
                                  .key_dim = 3,
                                  .value_dim = 7,
                                  .step_least = 0.125f,
                                  .step_most = 2},
                         alone = {.struct_size = sizeof alone, .flags = MHA_LAYER_NO_FEED_FORWARD};
    mha_layer_desc all[][2] = {{net, gated}, {net, net},   {space, gated},
                               {net, gated}, {alone, net}, {convolution, net}};
    mha_transformer_desc d = llama;
    all[1][1].gate_rank = 5;
    all[3][0].experts = (mha_experts_desc){.count = 5, .used = 2, .ff_dim = 3, .shared_dim = 4};
    all[3][1].experts = (mha_experts_desc){.count = 1,
                                           .used = 1,
                                           .scale = 2.5f,
                                           .sum_epsilon = 0.125f,
                                           .flags = 2 * MHA_EXPERTS_SHARED_GATE - 1};
    all[1][0].experts = (mha_experts_desc){.count = 3, .used = 2, .flags = MHA_EXPERTS_BIAS};
    all[2][1].flags |= MHA_LAYER_BRANCH_NORM;
    for (int i = 0; i < 6; i++) {
        const int64_t heads[] = {0, d.num_heads}, kv[] = {0, d.num_heads};
        d.layers = all[i];
        if (i == 5) d.layer_heads = heads, d.layer_kv_heads = kv;
        if (i == 4) d.feed_forward = MHA_FEED_FORWARD_RELU2;
        round_trip(d, "multihead");
    }
}

/* Sizes of layers, shared keys, inputs beside the stream, and what follows a layer. */
static void round_trips_of_own_sizes(void)
{
    const mha_layer_desc wide = {.struct_size = sizeof wide,
                                 .flags =
                                     MHA_LAYER_QK_NORM | MHA_LAYER_V_NORM | MHA_LAYER_OUTPUT_SCALE,
                                 .head_dim = 6,
                                 .ff_dim = 5,
                                 .rope_pairs = 2,
                                 .input_dim = 3};
    mha_layer_desc layers[2] = {wide, wide};
    mha_transformer_desc d = llama;
    layers[1].kv_back = 1;
    d.layers = layers;
    round_trip(d, "multihead");
}

/* Foreign formats do not support layers with different numbers of heads. */
static void round_trips_of_pruned_ones(void)
{
    for (int i = 0; i < 6; i++) {
        const int64_t heads[][2] = {{4, 2}, {3, 4}, {0, 4}, {4, 0}, {0, 0}, {2, 2}};
        const int64_t kv[][2] = {{2, 1}, {3, 2}, {0, 2}, {4, 0}, {0, 0}, {1, 1}};
        mha_transformer_desc d = i % 2 ? bert : llama;
        if (i % 2) d.num_heads = d.kv_heads = 4;
        if (i == 4) d.num_heads = d.kv_heads = 1;     /* no layer has more heads */
        if (i == 5) d.flags |= MHA_TRANSFORMER_CROSS; /* whose heads confirm num_heads */
        d.layer_heads = heads[i];
        d.layer_kv_heads = kv[i];
        round_trip(d, "multihead");
    }
}

/* mha_model_load() also loads an encoder, and computes it with other code. */
static void encoder_as_model(void)
{
    enum { T = 6 };
    mha_transformer_desc d = bert;
    d.flags |= MHA_TRANSFORMER_NO_OUTPUT;
    mha_transformer *t = make(d, 2);
    mha_model *model = NULL;
    mha_activations *activations = NULL;
    int32_t ids[T] = {1, 3, 0, 2, 10, 4};
    float ours[T * 8], models[T * 8];
    expect_ok(mha_checkpoint_save(temp_path("encoder"), t, NULL));
    const mha_model_options options = {.struct_size = sizeof options,
                                       .flags = MHA_MODEL_NO_TOKENIZER};
    expect_ok(mha_model_load(context, temp_path("encoder"), &options, &model));
    mha_tensor tokens = mha_tensor_contiguous(ids, MHA_I32, 2, (int64_t[]){1, T});
    mha_tensor out = mha_tensor_contiguous(ours, MHA_F32, 3, (int64_t[]){1, T, 8});
    mha_tensor hidden = mha_tensor_contiguous(models, MHA_F32, 3, (int64_t[]){1, T, 8});
    const mha_transformer_input input = {.struct_size = sizeof input, .tokens = &tokens};
    expect_ok(mha_activations_create(context, t, T, 0, &activations));
    expect_ok(mha_transformer_forward(context, t, &input, activations, &out, NULL, NULL));
    const mha_batch batch = {.struct_size = sizeof batch, .batch = 1, .length = T, .ids = ids};
    const mha_model_outputs outputs = {.struct_size = sizeof outputs, .last_hidden = &hidden};
    expect_ok(mha_model_forward(context, model, &batch, &outputs));
    /* Rows of a layer norm with unit weights are about 1. Two layers have a few hundred
     * roundings. */
    for (int i = 0; i < T * 8; i++) assert_float_equal(ours[i], models[i], 1e-4f);
    mha_activations_destroy(activations);
    mha_model_destroy(model);
    mha_transformer_destroy(t);
}

/* Transformers that could not be loaded are not saved, and the folder is not created. */
static void unloadable_ones_are_not_saved(void)
{
    const int64_t heads[] = {3, 2}, kv[] = {3, 2};
    const mha_layer_desc buckets[2] = {{.struct_size = sizeof buckets[0]},
                                       {.struct_size = sizeof buckets[0],
                                        .t5_buckets = (1 << 20) + 2,
                                        .t5_max_distance = 1 << 21}};
    mha_transformer_desc d = llama;
#define REFUSED(wanted, part, ...)                                                    \
    do {                                                                              \
        d = llama;                                                                    \
        __VA_ARGS__;                                                                  \
        mha_transformer *t = make(d, 2);                                              \
        expect_error(mha_checkpoint_save(temp_path("large"), t, NULL), wanted, part); \
        mha_transformer_destroy(t);                                                   \
    } while (0)
    REFUSED(MHA_ERR_MODEL, "mha_checkpoint_save: 'max_length' is 1048577, expected 1..1048576",
            d.positions = MHA_ENCODING_NONE, d.max_length = (1 << 20) + 1);
    REFUSED(MHA_ERR_MODEL, "layers[1]: 't5_buckets' is 1048578, expected 0..1048576",
            d.layers = buckets);
    REFUSED(MHA_ERR_MODEL, "'rms_norm_eps' is 2, expected more than 0, at most 1",
            d.norm_epsilon = 2);
    REFUSED(MHA_ERR_MODEL, "'norm_epsilon' is 2", d.norm_epsilon = 2, d.ff_dim = 0);
    REFUSED(MHA_ERR_MODEL, "'layer_norm_eps' is 2", d = bert, d.norm_epsilon = 2);
    REFUSED(MHA_ERR_MODEL, "'rope_base' is 3.40282e+38", d.rope_base = FLT_MAX, d.flags = 0);
    REFUSED(MHA_ERR_MODEL, "'num_heads' is 4, but no layer has more than 3", d.kv_heads = 4,
            d.layer_heads = heads, d.layer_kv_heads = kv);
    REFUSED(MHA_ERR_SIZE, "mha_checkpoint_save: 1048576 positions of 66 angles", d.head_dim = 66,
            d.max_length = 1 << 20);
    assert_int_not_equal(access(temp_path("large"), F_OK), 0);
    d = llama; /* llama has its own bounds */
    d.rope_base = FLT_MAX;
    round_trip(d, "llama");
}

/* ---- words ---------------------------------------------------------------------------------- */

static const char *const words[] = {"<pad>", "<s>", "</s>", "<unk>", "a", "caf\xC3\xA9", "\"q\"\\"};

static mha_checkpoint_settings some_words(void)
{
    return (mha_checkpoint_settings){.struct_size = sizeof(mha_checkpoint_settings),
                                     .words = words,
                                     .word_count = 7,
                                     .bos_word = "<s>",
                                     .eos_word = "</s>",
                                     .pad_word = "<pad>",
                                     .unknown_word = "<unk>"};
}

static void expect_in(const char *path, const char *part)
{
    char *text = temp_read(path, NULL);
    if (!strstr(text, part)) fail_msg("%s: %s is not in %s", path, part, text);
    free(text);
}

static void words_are_written(void)
{
    mha_transformer *t = make(llama, 3);
    const mha_checkpoint_settings settings = some_words();
    expect_ok(mha_checkpoint_save(temp_path("words"), t, &settings));
    expect_in(temp_path("words/tokenizer.json"), "\"caf\xC3\xA9\": 5");
    expect_in(temp_path("words/tokenizer.json"), "\"\\\"q\\\"\\\\\": 6");
    expect_in(temp_path("words/tokenizer.json"), "\"unk_token\": \"<unk>\"");
    expect_in(temp_path("words/tokenizer_config.json"), "\"eos_token\": \"</s>\"");
    expect_in(temp_path("words/config.json"), "\"eos_token_id\": 2");
    expect_in(temp_path("words/config.json"), "\"bos_token_id\": 1");
    mha_transformer_destroy(t);
}

static void expect_tokens(const mha_vocabulary *v, const char *text, const char *wanted)
{
    int32_t ids[16];
    int64_t count = 0;
    char got[128] = "";
    expect_ok(mha_vocabulary_encode(v, text, strlen(text), ids, 16, &count));
    for (int64_t i = 0; i < count; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%d ", (int)ids[i]);
    assert_string_equal(got, wanted);
}

/* Each token with its bytes of the text. */
static void words_are_located(void)
{
    static const char text[] = "  caf\xC3\xA9\xC2\xA0 a\n</s>";
    static const int64_t from[] = {-1, 2, 10, 12}, to[] = {-1, 7, 11, 16};
    int32_t ids[8];
    int64_t begin[8], end[8], count = 0;
    mha_transformer *t = make(llama, 3);
    mha_vocabulary *v = NULL;
    mha_checkpoint_settings s = some_words();
    expect_ok(mha_checkpoint_save(temp_path("located"), t, &s));
    expect_ok(mha_vocabulary_load(temp_path("located"), &v));
    expect_ok(mha_vocabulary_locate(v, text, sizeof text - 1, ids, begin, end, 8, &count));
    assert_int_equal(count, 4);
    assert_memory_equal(begin, from, sizeof from);
    assert_memory_equal(end, to, sizeof to);
    expect_error(mha_vocabulary_locate(v, "a a", 3, ids, begin, end, 2, &count), MHA_ERR_SIZE,
                 "than 2");
    assert_int_equal(count, 4);
    mha_vocabulary_destroy(v);
    mha_transformer_destroy(t);
}

/* The vocabulary lacks case and attached punctuation; the longest known word is used. */
static void typed_words_are_normalised(void)
{
    static const char *const some[] = {"<s>", "the", "cat", ".", "...", "Cat", "\xC3\xA9t"};
    static const char text[] = "The CAT. Cat... the.. \xC3\xA9T.", unknown[] = "The cat (the) cat";
    static const int32_t wanted[] = {0, 1, 2, 3, 5, 4, 1, 3, 3, 6, 3};
    static const int64_t from[] = {-1, 0, 4, 7, 9, 12, 16, 19, 20, 22, 25};
    int32_t ids[16];
    int64_t begin[16], end[16], count = 0;
    mha_transformer *t = make(llama, 3);
    mha_vocabulary *v = NULL;
    const mha_checkpoint_settings s = {
        .struct_size = sizeof s, .words = some, .word_count = 7, .bos_word = "<s>"};
    expect_ok(mha_checkpoint_save(temp_path("typed"), t, &s));
    expect_ok(mha_vocabulary_load(temp_path("typed"), &v));
    expect_ok(
        mha_vocabulary_locate_normalised(v, text, sizeof text - 1, ids, begin, end, 16, &count));
    assert_int_equal(count, 11);
    assert_memory_equal(ids, wanted, sizeof wanted);
    assert_memory_equal(begin, from, sizeof from);
    for (int i = 1; i < 11; i++)
        assert_int_equal(end[i] - begin[i], (int64_t)strlen(some[wanted[i]]));
    /* begin and end are optional; if the arrays are too small, nothing is written */
    expect_ok(
        mha_vocabulary_locate_normalised(v, text, sizeof text - 1, ids, NULL, NULL, 11, &count));
    expect_error(
        mha_vocabulary_locate_normalised(v, text, sizeof text - 1, ids, begin, end, 10, &count),
        MHA_ERR_SIZE, "than 10");
    assert_int_equal(count, 11);
    /* the error locates the unknown word */
    expect_error(mha_vocabulary_locate_normalised(v, unknown, sizeof unknown - 1, ids, begin, end,
                                                  16, &count),
                 MHA_ERR_FORMAT, "'(the)' is not one of the model's 7 words");
    assert_int_equal(count, 3);
    assert_int_equal(begin[3], 8);
    assert_int_equal(end[3], 13);
    expect_error(mha_vocabulary_locate_normalised(v, "\xFF", 1, ids, begin, end, 16, &count),
                 MHA_ERR_UTF8, "byte 0");
    mha_vocabulary_destroy(v);
    mha_transformer_destroy(t);
}

static void words_are_read(void)
{
    int32_t ids[2];
    int64_t count = 7;
    mha_transformer *t = make(llama, 3);
    mha_vocabulary *v = NULL;
    mha_checkpoint_settings s = some_words();
    expect_ok(mha_checkpoint_save(temp_path("read"), t, &s));
    expect_ok(mha_vocabulary_load(temp_path("read"), &v));
    assert_int_equal(mha_vocabulary_count(v), 7);
    for (int i = 0; i < 7; i++) assert_string_equal(mha_vocabulary_word(v, i), words[i]);
    assert_null(mha_vocabulary_word(v, 7));
    assert_null(mha_vocabulary_word(v, -1));
    assert_int_equal(mha_vocabulary_end(v), 2);
    expect_tokens(v, "a", "1 4 ");
    expect_tokens(v, "", "1 ");
    expect_tokens(v, "  caf\xC3\xA9\xC2\xA0 a\n\"q\"\\ b </s>", "1 5 4 6 3 2 ");
    expect_error(mha_vocabulary_encode(v, "a a", 3, ids, 2, &count), MHA_ERR_SIZE, "than 2");
    expect_error(mha_vocabulary_encode(v, "a", 1, NULL, 0, &count), MHA_ERR_SIZE, "than 0");
    expect_error(mha_vocabulary_encode(v, "a\xFF", 2, ids, 2, &count), MHA_ERR_UTF8, "byte 1");
    expect_error(mha_vocabulary_encode(v, "a\0b", 3, ids, 2, &count), MHA_ERR_UTF8, "byte 1");
    expect_error(mha_vocabulary_encode(NULL, "a", 1, ids, 2, &count), MHA_ERR_NULL,
                 "vocabulary is NULL");
    expect_error(mha_vocabulary_encode(v, "a", 1, NULL, 2, &count), MHA_ERR_NULL, "ids is NULL");
    assert_int_equal(count, 7);
    mha_vocabulary_destroy(v);
    s = (mha_checkpoint_settings){.struct_size = sizeof s, .words = words, .word_count = 5};
    expect_ok(mha_checkpoint_save(temp_path("read"), t, &s));
    expect_ok(mha_vocabulary_load(temp_path("read"), &v));
    assert_int_equal(mha_vocabulary_end(v), -1);
    expect_tokens(v, "a <s>", "4 1 ");
    expect_ok(mha_vocabulary_encode(v, "", 0, NULL, 0, &count));
    assert_int_equal(count, 0);
    /* the name for unknown words also occurs as a word */
    expect_tokens(v, "zebra", "3 ");
    mha_vocabulary_destroy(v);
    mha_vocabulary_destroy(NULL);
    mha_transformer_destroy(t);
}

/* The pieces of a text, each followed by a bar. */
static void expect_pieces(mha_splitting how, const char *text, const char *wanted)
{
    char got[128] = "";
    size_t bytes = strlen(text), at = 0, from = 0;
    for (;;) {
        expect_ok(mha_split_next(how, text, bytes, &at, &from));
        if (from == bytes) break;
        snprintf(got + strlen(got), sizeof got - strlen(got), "%.*s|", (int)(at - from),
                 text + from);
    }
    assert_int_equal(at, bytes);
    assert_string_equal(got, wanted);
}

static void texts_are_split(void)
{
    static const char text[] = " The cat,\n(caf\xC3\xA9)\xE2\x80\x94$5 ";
    size_t at = 0, from = 0;
    expect_pieces(MHA_SPLIT_SPACE, text, "The|cat,|(caf\xC3\xA9)\xE2\x80\x94$5|");
    expect_pieces(MHA_SPLIT_PUNCTUATION, text, "The|cat|,|(|caf\xC3\xA9|)|\xE2\x80\x94|$|5|");
    expect_pieces(MHA_SPLIT_CHARACTERS, "a \xC3\xA9\n", "a| |\xC3\xA9|\n|");
    for (int how = 0; how < 3; how++) expect_pieces((mha_splitting)how, "", "");
    expect_pieces(MHA_SPLIT_SPACE, " \t\n", "");
    expect_error(mha_split_next(MHA_SPLIT_SPACE, "ab\xFF", 3, &at, &from), MHA_ERR_UTF8, "byte 2");
    expect_error(mha_split_next(MHA_SPLIT_SPACE, "ab\0", 3, &at, &from), MHA_ERR_UTF8, "zero byte");
    expect_error(mha_split_next((mha_splitting)3, "ab", 2, &at, &from), MHA_ERR_ARGUMENT,
                 "splitting 3");
    expect_error(mha_split_next(MHA_SPLIT_SPACE, "ab", 2, NULL, &from), MHA_ERR_NULL, "at is NULL");
    expect_error(mha_split_next(MHA_SPLIT_SPACE, NULL, 2, &at, &from), MHA_ERR_NULL,
                 "text is NULL");
    at = 3;
    expect_error(mha_split_next(MHA_SPLIT_SPACE, "ab", 2, &at, &from), MHA_ERR_ARGUMENT, "at 3");
}

/* A folder's splitting rule is saved and loaded, and applied to texts. */
static void splittings_are_kept(void)
{
    static const char *const list[] = {"<s>", "<unk>", "cat", ",", "c", "a", " ", "\n"};
    static const char *const wanted[] = {"0 1 2 0 ", "0 2 3 2 0 ", "0 4 5 1 3 7 4 5 1 6 1 1 1 "};
    mha_transformer *t = make(llama, 3);
    for (int how = 0; how < 3; how++) {
        mha_vocabulary *v = NULL;
        const mha_checkpoint_settings s = {.struct_size = sizeof s,
                                           .words = list,
                                           .word_count = 8,
                                           .bos_word = "<s>",
                                           .unknown_word = "<unk>",
                                           .splitting = (mha_splitting)how};
        expect_ok(mha_checkpoint_save(temp_path("splits"), t, &s));
        expect_ok(mha_vocabulary_load(temp_path("splits"), &v));
        assert_int_equal(mha_vocabulary_splitting(v), how);
        assert_int_equal(mha_vocabulary_begin(v), 0);
        expect_tokens(v, "cat,\ncat <s>", wanted[how]);
        mha_vocabulary_destroy(v);
    }
    const mha_checkpoint_settings none = {
        .struct_size = sizeof none, .words = list, .word_count = 8, .splitting = (mha_splitting)3};
    expect_error(mha_checkpoint_save(temp_path("splits"), t, &none), MHA_ERR_ARGUMENT, "splitting");
    mha_transformer_destroy(t);
}

/* Loading returns a status for any changed bytes. Foreign tokenizers are reported as such. */
static void foreign_words(void)
{
    size_t size, kept;
    mha_transformer *t = make(llama, 3);
    mha_vocabulary *v = NULL;
    const mha_checkpoint_settings s = some_words();
    expect_ok(mha_checkpoint_save(temp_path("words"), t, &s));
    char *text = temp_read(temp_path("words/tokenizer.json"), &size);
    unsigned char *changed = malloc(size + 1);
    assert_non_null(changed);
    for (uint32_t seed = 0; seed < 400; seed++) {
        kept = size;
        memcpy(changed, text, size);
        mutate(changed, &kept, seed);
        temp_write("words/tokenizer.json", changed, kept);
        if (mha_vocabulary_load(temp_path("words"), &v) == MHA_OK) mha_vocabulary_destroy(v);
    }
    v = NULL;
    static const char bpe[] = "{\"model\": {\"type\": \"BPE\"}}";
    temp_write("words/tokenizer.json", bpe, sizeof bpe - 1);
    expect_error(mha_vocabulary_load(temp_path("words"), &v), MHA_ERR_UNSUPPORTED, "WordLevel");
    static const char holes[] = "{\"model\": {\"type\": \"WordLevel\", \"vocab\": {\"a\": 1}}, "
                                "\"pre_tokenizer\": {\"type\": \"WhitespaceSplit\"}}";
    temp_write("words/tokenizer.json", holes, sizeof holes - 1);
    expect_error(mha_vocabulary_load(temp_path("words"), &v), MHA_ERR_MODEL, "0..0");
    expect_error(mha_vocabulary_load(temp_path("none"), &v), MHA_ERR_FILE, "tokenizer.json");
    expect_error(mha_vocabulary_load(NULL, &v), MHA_ERR_NULL, "folder");
    assert_null(v);
    free(changed);
    free(text);
    mha_transformer_destroy(t);
}

static void words_are_checked(void)
{
    mha_transformer *t = make(llama, 3);
    const char *const twice[] = {"a", "b", "a"}, *const empty[] = {"a", ""};
    const char *const none[] = {"a", NULL}, *const bad[] = {"a", "\xFFz"};
    mha_checkpoint_settings s = some_words();
    const char *folder = temp_path("unwritten");
#define REFUSE(status, part, ...) \
    expect_spoiled(s, mha_checkpoint_save(folder, t, &s), status, part, __VA_ARGS__)
    REFUSE(MHA_ERR_ARGUMENT, "word_count is 12", s.word_count = 12);
    REFUSE(MHA_ERR_ARGUMENT, "word_count is 0", s.word_count = 0);
    REFUSE(MHA_ERR_ARGUMENT, "eos_word 'a'", s.word_count = 4, s.eos_word = "a");
    REFUSE(MHA_ERR_UNSUPPORTED, "reserved", s.reserved = 1);
    REFUSE(MHA_ERR_ARGUMENT, "struct_size", s.struct_size = 4);
    s = (mha_checkpoint_settings){.struct_size = sizeof s, .words = twice, .word_count = 2};
    REFUSE(MHA_ERR_ARGUMENT, "words[0] and words[2]", s.word_count = 3);
    REFUSE(MHA_ERR_ARGUMENT, "words[1] is empty", s.words = empty);
    REFUSE(MHA_ERR_NULL, "words[1]", s.words = none);
    REFUSE(MHA_ERR_UTF8, "words[1]", s.words = bad);
    REFUSE(MHA_ERR_ARGUMENT, "word_count is 2", s.words = NULL);
    REFUSE(MHA_ERR_ARGUMENT, "bos_word", s.words = NULL, s.word_count = 0, s.bos_word = "a");
#undef REFUSE
    expect_error(mha_checkpoint_save(NULL, t, NULL), MHA_ERR_NULL, "folder");
    expect_error(mha_checkpoint_save(folder, NULL, NULL), MHA_ERR_NULL, "transformer");
    assert_int_not_equal(access(folder, F_OK), 0); /* no folder was created */
    mha_transformer_destroy(t);
}

/* ---- foreign and damaged folders --------------------------------------------------------------
 */

/* Load a folder with the llama's weights and a config.json whose first `from` is replaced by
 * `to`. */
static void with_config(const char *from, const char *to, mha_status wanted, const char *part)
{
    size_t size;
    char *config = temp_read(temp_path("base/config.json"), &size);
    char *at = strstr(config, from), *changed = malloc(size + strlen(to) + 1);
    mha_transformer *t = NULL;
    assert_non_null(at);
    assert_non_null(changed);
    const int length = snprintf(changed, size + strlen(to) + 1, "%.*s%s%s", (int)(at - config),
                                config, to, at + strlen(from));
    temp_write("foreign/config.json", changed, (size_t)length);
    expect_error(mha_checkpoint_load(context, temp_path("foreign"), &t), wanted, part);
    assert_null(t);
    free(changed);
    free(config);
}

static void begin_foreign(const mha_transformer_desc *d)
{
    size_t size;
    mha_transformer *t = make(*d, 4);
    expect_ok(mha_checkpoint_save(temp_path("base"), t, NULL));
    char *weights = temp_read(temp_path("base/model.safetensors"), &size);
    temp_write("foreign/model.safetensors", weights, size);
    free(weights);
    mha_transformer_destroy(t);
}

static void foreign_configs(void)
{
    begin_foreign(&llama);
    with_config("\"llama\"", "\"mamba\"", MHA_ERR_UNSUPPORTED, "'mamba'");
    with_config("\"vocab_size\": 11", "\"vocab_size\": 12", MHA_ERR_MODEL, "[12, 8]");
    with_config("\"vocab_size\": 11", "\"vocab_size\": -1", MHA_ERR_MODEL, "vocab_size");
    with_config("\"hidden_size\": 8", "\"hidden_size\": 8.0", MHA_ERR_MODEL, "whole number");
    with_config("\"intermediate_size\": 10", "\"intermediate_size\": 1048576", MHA_ERR_MODEL,
                "numbers");
    with_config("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 4096", MHA_ERR_MODEL,
                "numbers");
    with_config("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1", MHA_ERR_MODEL,
                "model.layers.1.");
    with_config("\"num_attention_heads\": 4", "\"num_attention_heads\": 1048574", MHA_ERR_MODEL,
                "numbers");
    with_config("\"head_dim\": 6", "\"head_dim\": 3", MHA_ERR_MODEL,
                "heads have 3 numbers, an odd one");
    with_config("\"head_dim\": 6", "\"head_dim\": 4", MHA_ERR_MODEL, "q_proj");
    with_config("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 1", MHA_ERR_MODEL,
                "k_proj");
    with_config("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3", MHA_ERR_MODEL,
                "'num_key_value_heads' is 3, which does not divide 'num_attention_heads' 4");
    with_config("\"max_position_embeddings\": 16", "\"max_position_embeddings\": 1048577",
                MHA_ERR_MODEL, "max_position_embeddings");
    with_config("\"silu\"", "\"gelu\"", MHA_ERR_UNSUPPORTED, "hidden_act 'gelu'");
    with_config("\"attention_bias\": false", "\"attention_bias\": true", MHA_ERR_MODEL,
                "q_proj.bias");
    with_config("\"attention_bias\": false", "\"attention_bias\": 0", MHA_ERR_MODEL, "true nor");
    with_config("\"rope_type\": \"default\"", "\"rope_type\": \"longrope\"", MHA_ERR_UNSUPPORTED,
                "rope_type 'longrope'");
    with_config("\"rope_type\": \"default\"", "\"rope_type\": \"yarn\"", MHA_ERR_MODEL,
                "'factor' is missing");
    with_config("\"rope_parameters\": {", "\"rope_parameters\": 7, \"x\": {", MHA_ERR_MODEL,
                "'rope_parameters' is not a JSON object");
    with_config("\"rope_type\"", "\"partial_rotary_factor\": 0.5, \"rope_type\"",
                MHA_ERR_UNSUPPORTED, "'partial_rotary_factor' rotates 3 of a head's 6 numbers");
    with_config("\"rope_type\": \"default\"", "\"rope_type\": \"linear\", \"factor\": 1e9",
                MHA_ERR_MODEL, "factor");
    with_config("\"rope_type\": \"default\"",
                "\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4", MHA_ERR_MODEL,
                "'high_freq_factor' is 4, expected more than 'low_freq_factor' 4");
    with_config("\"rope_type\": \"default\"", "\"rope_type\": \"llama3\", \"factor\": 0",
                MHA_ERR_MODEL, "'factor' is 0, expected at least 1e-06");
    with_config("\"rope_type\"", "\"partial_rotary_factor\": 1e300, \"rope_type\"", MHA_ERR_MODEL,
                "'partial_rotary_factor' rotates 6e+300 of a head's 6 numbers");
    with_config("\"rms_norm_eps\": 1", "\"rms_norm_eps\": 0,\"x\": 1", MHA_ERR_MODEL,
                "rms_norm_eps");
    with_config("{", "[{", MHA_ERR_FORMAT, "config.json");
    with_config("\"vocab_size\": 11", "\"vocab_size\": 11, \"quantization_config\": {\"bits\": 4}",
                MHA_ERR_UNSUPPORTED, "quantization_config");
}

static void foreign_configs_of_our_own(void)
{
    mha_transformer_desc d = llama;
    d.positions = MHA_ENCODING_SINUSOIDAL;
    begin_foreign(&d);
    with_config("\"sinusoidal\"", "\"alibi\"", MHA_ERR_UNSUPPORTED, "positions 'alibi'");
    with_config("\"sinusoidal\"", "\"learned\"", MHA_ERR_MODEL, "numbers");
    with_config("\"norm\": \"rms\"", "\"norm\": \"none\"", MHA_ERR_MODEL, "norm.weight");
    with_config("\"causal\": true", "\"causal\": \"yes\"", MHA_ERR_MODEL, "causal");
    with_config("\"cross_attention\": false", "\"cross_attention\": true", MHA_ERR_MODEL, "");
    with_config("\"max_length\": 16", "\"max_length\": 0", MHA_ERR_MODEL, "max_length");
    with_config("\"rms\"", "\"rms\", \"norm\": \"rms\"", MHA_ERR_FORMAT, "config.json");
}

/* A folder with the tokenizer and the special tokens of another folder. */
static void like_another(void)
{
    static const char *const few[] = {"<s>", "</s>", "a", "b"};
    const mha_checkpoint_settings first = {.struct_size = sizeof first,
                                           .words = few,
                                           .word_count = 4,
                                           .bos_word = "<s>",
                                           .eos_word = "</s>"};
    mha_transformer *t = make(llama, 5);
    char other[512];
    expect_ok(mha_checkpoint_save(temp_path("first"), t, &first));
    snprintf(other, sizeof other, "%s", temp_path("first"));
    mha_checkpoint_settings like = {.struct_size = sizeof like, .like = other};
    expect_ok(mha_checkpoint_save(temp_path("second"), t, &like));
    expect_ok(mha_checkpoint_save(temp_path("second"), t, &like)); /* overwrites it */
    static const char *const files[] = {"tokenizer.json", "tokenizer_config.json", "config.json"};
    for (int i = 0; i < 3; i++) {
        char path[64];
        size_t size[2];
        snprintf(path, sizeof path, "first/%s", files[i]);
        char *a = temp_read(temp_path(path), &size[0]);
        snprintf(path, sizeof path, "second/%s", files[i]);
        char *b = temp_read(temp_path(path), &size[1]);
        assert_int_equal(size[0], size[1]);
        assert_memory_equal(a, b, size[0]);
        free(a);
        free(b);
    }
    like.words = few;
    like.word_count = 4;
    expect_error(mha_checkpoint_save(temp_path("third"), t, &like), MHA_ERR_ARGUMENT, "give one");
    like = (mha_checkpoint_settings){.struct_size = sizeof like, .like = "/nowhere/at/all"};
    expect_error(mha_checkpoint_save(temp_path("third"), t, &like), MHA_ERR_FILE, "nowhere");
    assert_int_not_equal(access(temp_path("third/config.json"), F_OK), 0);
    mha_transformer_destroy(t);
}

static void foreign_lists_of_heads(void)
{
    const int64_t heads[] = {4, 2}, kv[] = {2, 1};
    mha_transformer_desc d = llama;
    d.layer_heads = heads;
    d.layer_kv_heads = kv;
    begin_foreign(&d);
    static const char list[] = "\"layer_heads\": [\n    4,\n    2\n  ]";
    with_config(list, "\"layer_heads\": [4, 2, 2]", MHA_ERR_MODEL, "not a list of 2 numbers");
    with_config(list, "\"layer_heads\": 4", MHA_ERR_MODEL, "not a list of 2 numbers");
    with_config(list, "\"layer_heads\": null", MHA_ERR_MODEL, "not a list of 2 numbers");
    with_config(list, "\"layer_heads\": [4, 5]", MHA_ERR_MODEL, "number 1");
    with_config(list, "\"layer_heads\": [4, -2]", MHA_ERR_MODEL, "number 1");
    with_config(list, "\"layer_heads\": [4.0, 2]", MHA_ERR_MODEL, "number 0");
    with_config(list, "\"layer_heads\": [4, 18446744073709551618]", MHA_ERR_FORMAT, "config.json");
    with_config(list, "\"layer_heads\": [4, 1]", MHA_ERR_MODEL, "q_proj");
    with_config(list, "\"layer_heads\": [4, 4]", MHA_ERR_MODEL, "numbers");
    with_config(list, "\"layer_heads\": [3, 2]", MHA_ERR_MODEL, "no layer has more than 3");
    with_config(list, "\"layer_heads\": [4, 0]", MHA_ERR_MODEL, "layer 1 has 0 heads");
    with_config("\"num_heads\": 4", "\"num_heads\": 1048576", MHA_ERR_MODEL, "no layer has more");
}

static void foreign_layers(void)
{
    const mha_layer_desc layers[2] = {{.struct_size = sizeof layers[0],
                                       .flags = MHA_LAYER_WINDOW | MHA_LAYER_QK_NORM,
                                       .left_keys = 3,
                                       .softcap = 2.5f},
                                      {.struct_size = sizeof layers[0], .t5_buckets = 6}};
    mha_transformer_desc d = llama;
    d.layers = layers;
    begin_foreign(&d);
    with_config("\"window\": true", "\"window\": 1", MHA_ERR_MODEL, "'window' is neither");
    with_config("\"window\": true", "\"window\": false", MHA_ERR_MODEL,
                "only with MHA_LAYER_WINDOW");
    with_config("\"left_keys\": 3", "\"left_keys\": -2", MHA_ERR_MODEL,
                "layers[0]: 'left_keys' is -2");
    with_config("\"left_keys\": 3", "\"left_keys\": 3.5", MHA_ERR_MODEL, "not a whole number");
    with_config("\"softcap\": 2.5", "\"softcap\": -1", MHA_ERR_MODEL, "layer 0: softcap");
    with_config("\"softcap\": 2.5", "\"softcap\": 1e39", MHA_ERR_MODEL, "fits in a float");
    with_config("\"softcap\": 2.5", "\"softcap\": \"2.5\"", MHA_ERR_MODEL, "fits in a float");
    with_config("\"qk_norm_kind\": \"rms\"", "\"qk_norm_kind\": \"l1\"", MHA_ERR_UNSUPPORTED,
                "known: rms, l2");
    with_config("\"t5_buckets\": 6", "\"t5_buckets\": 1", MHA_ERR_MODEL, "layer 1: ");
    with_config("\"t5_buckets\": 6", "\"mixer\": \"mamba\"", MHA_ERR_UNSUPPORTED,
                "known: attention, gated_delta");
    with_config("\"t5_buckets\": 6", "\"mixer\": \"gated_delta\"", MHA_ERR_MODEL,
                "leave the other fields 0");
    static const char experts[] = "\"t5_buckets\": 6";
    with_config(experts, "\"experts\": 3", MHA_ERR_MODEL, "'experts' is not an object");
    with_config(experts, "\"experts\": {}", MHA_ERR_MODEL, "'count' is missing");
    with_config(experts,
                "\"experts\": {\"count\": 3, \"used\": 4, \"ff_dim\": 2, \"shared_dim\": 0}",
                MHA_ERR_MODEL, "4 of 3 experts are used");
    with_config(experts,
                "\"experts\": {\"count\": 3, \"used\": 2, \"ff_dim\": 0, \"shared_dim\": 0}",
                MHA_ERR_MODEL, "'ff_dim' is 0");
    with_config(experts,
                "\"experts\": {\"count\": 65536, \"used\": 2, \"ff_dim\": 9, \"shared_dim\": 0}",
                MHA_ERR_MODEL, "describes at least");
    with_config(experts,
                "\"experts\": {\"count\": 3, \"used\": 2, \"ff_dim\": 2, \"shared_dim\": 0, "
                "\"sum_epsilom\": 1}",
                MHA_ERR_UNSUPPORTED, "layers[1]: 'sum_epsilom' is not known");
    with_config("\"t5_buckets\": 6", "\"conv_kernel\": 65", MHA_ERR_MODEL, "'conv_kernel' is 65");
    with_config("\"t5_buckets\": 6",
                "\"mixer\": \"gated_delta\", \"conv_kernel\": 4, \"key_dim\": 1048576, "
                "\"value_dim\": 1048576",
                MHA_ERR_MODEL, "describes at least");
    with_config("\"t5_buckets\": 6", "\"t5_buckets\": 1048576", MHA_ERR_MODEL, "numbers");
    with_config("\"t5_buckets\": 6", "\"t5_buckets\": 5", MHA_ERR_MODEL, "relative_attention_bias");
    with_config("\"softcap\": 2.5", "\"sofcap\": 2.5", MHA_ERR_UNSUPPORTED, "layers[0]: 'sofcap'");
    with_config("\"layers\": [", "\"layers\": [{}, ", MHA_ERR_MODEL, "not a list of 2 objects");
    with_config("\"layers\": [", "\"layers\": 3, \"x\": [", MHA_ERR_MODEL,
                "not a list of 2 objects");
    with_config("\"layers\": [", "\"layers\": [1, 2], \"x\": [", MHA_ERR_MODEL,
                "layers[0]: is not an object");
}

static void wrong_folders(void)
{
    mha_transformer *t = NULL;
    expect_error(mha_checkpoint_load(context, temp_path("nowhere"), &t), MHA_ERR_FILE, "no such");
    temp_write("half/config.json", "{}", 2);
    expect_error(mha_checkpoint_load(context, temp_path("half"), &t), MHA_ERR_FILE,
                 "model.safetensors");
    temp_write("half/model.safetensors", "", 0);
    expect_error(mha_checkpoint_load(context, temp_path("half"), &t), MHA_ERR_MODEL, "model_type");
    expect_error(mha_checkpoint_load(NULL, temp_path("half"), &t), MHA_ERR_NULL, "context");
    expect_error(mha_checkpoint_load(context, NULL, &t), MHA_ERR_NULL, "folder");
    expect_error(mha_checkpoint_load(context, temp_path("half"), NULL), MHA_ERR_NULL,
                 "transformer");
    assert_null(t);
}

/* The error names the unsupported type of a weight, not missing numbers. */
static void types_that_are_not_read(void)
{
    static const char *const names[] = {"\"model.layers.0.self_attn.q_proj.weight\"",
                                        "\"model.norm.weight\""};
    begin_foreign(&llama);
    for (int i = 0; i < 2; i++) {
        size_t size;
        char wanted[128];
        mha_transformer *t = NULL;
        char *weights = temp_read(temp_path("base/model.safetensors"), &size);
        char *config = temp_read(temp_path("base/config.json"), NULL);
        char *type = strstr(strstr(weights + 8, names[i]), "\"F32\"");
        assert_non_null(type);
        type[1] = 'U';
        temp_write("foreign/model.safetensors", weights, size);
        temp_write("foreign/config.json", config, strlen(config));
        snprintf(wanted, sizeof wanted,
                 "foreign/model.safetensors: tensor '%.*s': element type U32",
                 (int)strlen(names[i]) - 2, names[i] + 1);
        expect_error(mha_checkpoint_load(context, temp_path("foreign"), &t), MHA_ERR_UNSUPPORTED,
                     wanted);
        assert_null(t);
        free(config);
        free(weights);
    }
}

/* Loading returns a status for any changed bytes and never crashes. A loaded model can be run. */
static void damaged_files(void)
{
    static const char *const names[] = {"config.json", "model.safetensors"};
    begin_foreign(&llama);
    for (int i = 0; i < 2; i++) {
        char from[64], to[64];
        size_t size, kept;
        int loaded = 0;
        snprintf(from, sizeof from, "base/%s", names[i]);
        snprintf(to, sizeof to, "foreign/%s", names[i]);
        char *bytes = temp_read(temp_path(from), &size), *config;
        config = temp_read(temp_path("base/config.json"), &kept);
        temp_write("foreign/config.json", config, kept);
        free(config);
        unsigned char *changed = malloc(size + 1);
        assert_non_null(changed);
        for (uint32_t seed = 0; seed < 400; seed++) {
            mha_transformer *t = NULL;
            kept = size;
            memcpy(changed, bytes, size);
            mutate(changed, &kept, seed);
            temp_write(to, changed, kept);
            if (mha_checkpoint_load(context, temp_path("foreign"), &t) == MHA_OK) loaded++;
            mha_transformer_destroy(t);
        }
        printf("  %s: %d of 400 damaged ones load\n", names[i], loaded);
        free(changed);
        free(bytes);
    }
}

/* ---- write and allocation failures ----------------------------------------------------------- */

static void unwritable(void)
{
    mha_transformer *t = make(llama, 5);
    temp_write("file", "x", 1);
    expect_error(mha_checkpoint_save(temp_path("file"), t, NULL), MHA_ERR_WRITE, "not a folder");
    expect_error(mha_checkpoint_save(temp_path("no/such"), t, NULL), MHA_ERR_WRITE, "no/such");
    if (geteuid() != 0) {
        assert_int_equal(mkdir(temp_path("closed"), 0500), 0);
        expect_error(mha_checkpoint_save(temp_path("closed"), t, NULL), MHA_ERR_WRITE,
                     "config.json");
    }
    mha_transformer_destroy(t);
}

/* A file larger than the free disk space. The older checkpoint remains and can be loaded. */
static void disk_full(void)
{
    struct rlimit before, small;
    struct stat status;
    mha_transformer *old = make(llama, 6), *new = make(llama, 7), *back = NULL;
    expect_ok(mha_checkpoint_save(temp_path("full"), old, NULL));
    assert_int_equal(stat(temp_path("full/model.safetensors"), &status), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = (rlim_t)status.st_size - 1;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    mha_status got = mha_checkpoint_save(temp_path("full"), new, NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, handler);
    expect_error(got, MHA_ERR_WRITE, "model.safetensors");
    expect_ok(mha_checkpoint_load(context, temp_path("full"), &back));
    expect_same(old, back);
    mha_transformer_destroy(old);
    mha_transformer_destroy(new);
    mha_transformer_destroy(back);
}

static mha_status loaded(mha_context *own, failing_alloc *memory, void *user)
{
    mha_transformer *back = NULL;
    failing_from_here(memory);
    const mha_status status = mha_checkpoint_load(own, temp_path("model"), &back);
    if (status == MHA_OK) expect_same(user, back);
    if (status != MHA_OK) assert_null(back);
    mha_transformer_destroy(back);
    return status;
}

static void failed_allocations_are_reported(void)
{
    mha_transformer *t = make(llama, 8);
    expect_ok(mha_checkpoint_save(temp_path("model"), t, NULL));
    assert_true(failing_each(loaded, t) > 5);
    mha_transformer_destroy(t);
}

RUN_TESTS_BETWEEN(context_and_folder_begin, context_and_folder_end, TEST(round_trips),
                  TEST(round_trips_of_our_own), TEST(encoder_as_model), TEST(words_are_written),
                  TEST(words_are_checked), TEST(words_are_read), TEST(texts_are_split),
                  TEST(splittings_are_kept), TEST(words_are_located),
                  TEST(typed_words_are_normalised), TEST(foreign_words), TEST(foreign_configs),
                  TEST(foreign_configs_of_our_own), TEST(foreign_lists_of_heads),
                  TEST(foreign_layers), TEST(round_trips_of_layers), TEST(round_trips_of_mixers),
                  TEST(round_trips_of_own_sizes), TEST(like_another),
                  TEST(round_trips_of_pruned_ones), TEST(unloadable_ones_are_not_saved),
                  TEST(wrong_folders), TEST(types_that_are_not_read), TEST(damaged_files),
                  TEST(unwritable), TEST(disk_full), TEST(failed_allocations_are_reported))
