/* Model folders that are incomplete, inconsistent or wrong: each gives a specific error. Permitted
 * variations (prefix, 16-bit weights, old names) give the same numbers. */
#include <multihead/io.h>
#include <multihead/model.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/expect.h"
#include "support/one_context.h"
#include "support/suite.h"
#include "support/temp_files.h"

#define TINY "tests/golden/tiny-bert"

enum { E = 36, MOST_TENSORS = 80, TOKENS = 5 };

static char *config_text, *vocab_text;

/* ---- folders ------------------------------------------------------------------------------- */

/* The tensors of the tiny model, which tests change and write again. */
typedef struct weights {
    mha_safetensors *file;
    int64_t count;
    char name[MOST_TENSORS][128];
    mha_tensor tensor[MOST_TENSORS];
    uint16_t *half[MOST_TENSORS]; /* converted data */
} weights;

static weights *read_weights(void)
{
    weights *w = calloc(1, sizeof *w);
    assert_non_null(w);
    expect_ok(mha_safetensors_open(TINY "/model.safetensors", &w->file));
    w->count = mha_safetensors_count(w->file);
    assert_true(w->count < MOST_TENSORS - 2);
    for (int64_t i = 0; i < w->count; i++) {
        snprintf(w->name[i], sizeof w->name[i], "%s", mha_safetensors_name(w->file, i));
        expect_ok(mha_safetensors_tensor(w->file, i, &w->tensor[i]));
    }
    return w;
}

static void free_weights(weights *w)
{
    for (int i = 0; i < MOST_TENSORS; i++) free(w->half[i]);
    mha_safetensors_close(w->file);
    free(w);
}

static int64_t index_of(const weights *w, const char *name)
{
    for (int64_t i = 0; i < w->count; i++)
        if (strcmp(w->name[i], name) == 0) return i;
    fail_msg("no tensor %s", name);
    return -1;
}

static void write_weights(const weights *w)
{
    const char *names[MOST_TENSORS];
    for (int64_t i = 0; i < w->count; i++) names[i] = w->name[i];
    const char *path = temp_path("m/model.safetensors");
    expect_ok(mha_safetensors_write(path, names, w->tensor, w->count, NULL));
}

static void write_config(const char *text)
{
    temp_write("m/config.json", text, strlen(text));
}

/* The tiny model's complete folder. */
static void write_folder(void)
{
    write_config(config_text);
    temp_write("m/vocab.txt", vocab_text, strlen(vocab_text));
    weights *w = read_weights();
    write_weights(w);
    free_weights(w);
}

static mha_status load(mha_model **model, uint32_t flags)
{
    const mha_model_options options = {.struct_size = sizeof options, .flags = flags};
    return mha_model_load(context, temp_path("m"), &options, model);
}

static void refuse(mha_status status, const char *part)
{
    mha_model *model = NULL;
    expect_error(load(&model, MHA_MODEL_NO_TOKENIZER), status, part);
    assert_null(model);
}

/* The last hidden state of a few tokens. */
static void run(const mha_model *model, float *last)
{
    const int32_t ids[TOKENS] = {2, 60, 70, 80, 3};
    const mha_batch batch = {sizeof batch, 0, 1, TOKENS, ids, NULL, NULL, NULL};
    const mha_tensor view = mha_tensor_contiguous(last, MHA_F32, 3, (int64_t[]){1, TOKENS, E});
    const mha_model_outputs outputs = {.struct_size = sizeof outputs, .last_hidden = &view};
    expect_ok(mha_model_forward(context, model, &batch, &outputs));
}

static void load_and_run(float *last)
{
    mha_model *model = NULL;
    mha_status status = load(&model, MHA_MODEL_NO_TOKENIZER);
    if (status != MHA_OK) fail_msg("%s", mha_error_detail());
    run(model, last);
    mha_model_destroy(model);
}

/* ---- files --------------------------------------------------------------------------------- */

static void test_missing_files(void)
{
    mha_model *model = NULL;
    expect_error(mha_model_load(context, temp_path("nowhere"), NULL, &model), MHA_ERR_FILE,
                 "nowhere: no such folder or file; tools/get-minilm");
    temp_write("plain", "x", 1);
    expect_error(mha_model_load(context, temp_path("plain"), NULL, &model), MHA_ERR_FILE,
                 "plain: neither a folder nor a GGUF file");
    write_folder();
    unlink(temp_path("m/config.json"));
    refuse(MHA_ERR_FILE, "m/config.json: no such file; a model folder has config.json, "
                         "model.safetensors and vocab.txt or tokenizer.json; see tools/get-minilm");
    write_config(config_text);
    unlink(temp_path("m/model.safetensors"));
    refuse(MHA_ERR_FILE, "m/model.safetensors: no such file");
    temp_write("m/pytorch_model.bin", "x", 1);
    refuse(MHA_ERR_UNSUPPORTED, "pytorch_model.bin is not read");
    temp_write("m/model.safetensors.index.json", "x", 1);
    refuse(MHA_ERR_FORMAT, "model.safetensors.index.json");
    temp_write("m/model.safetensors.index.json", "{}", 2);
    refuse(MHA_ERR_MODEL, "'weight_map' is not an object");
    static const char *const wrong[] = {"{\"weight_map\": {\"a\": 1}}",
                                        "{\"weight_map\": {\"a\": \"\"}}",
                                        "{\"weight_map\": {\"a\": \"../m/x\"}}"};
    for (int i = 0; i < 3; i++) {
        temp_write("m/model.safetensors.index.json", wrong[i], strlen(wrong[i]));
        refuse(MHA_ERR_MODEL, "not the name of a file in its folder");
    }
    unlink(temp_path("m/model.safetensors.index.json"));
    unlink(temp_path("m/pytorch_model.bin"));
    assert_int_equal(mkdir(temp_path("m/model.safetensors"), 0777), 0);
    refuse(MHA_ERR_FILE, "a folder, expected a regular file");
    rmdir(temp_path("m/model.safetensors"));
    temp_write("m/model.safetensors", "0123456789", 10);
    refuse(MHA_ERR_FORMAT, "m/model.safetensors: the header claims");
    write_folder();
    unlink(temp_path("m/config.json"));
    assert_int_equal(mkfifo(temp_path("m/config.json"), 0600), 0);
    refuse(MHA_ERR_FILE, "a FIFO");
    unlink(temp_path("m/config.json"));
    write_folder();
    unlink(temp_path("m/vocab.txt"));
    expect_error(load(&model, 0), MHA_ERR_FILE, "vocab.txt");
    assert_null(model);
}

static void test_arguments(void)
{
    mha_model *model = NULL;
    mha_model_options options = {.struct_size = sizeof options, .flags = 1u << 30};
    expect_error(mha_model_load(context, TINY, &options, &model), MHA_ERR_UNSUPPORTED, "flags");
    options = (mha_model_options){.struct_size = 0};
    expect_error(mha_model_load(context, TINY, &options, &model), MHA_ERR_ARGUMENT, "struct_size");
    struct {
        mha_model_options options;
        uint32_t more[2];
    } longer = {{.struct_size = sizeof longer}, {1}};
    expect_error(mha_model_load(context, TINY, &longer.options, &model), MHA_ERR_UNSUPPORTED,
                 "byte 24 is set");
    expect_error(mha_model_load(NULL, TINY, NULL, &model), MHA_ERR_NULL, "context");
    expect_error(mha_model_load(context, NULL, NULL, &model), MHA_ERR_NULL, "folder");
    expect_error(mha_model_load(context, TINY, NULL, NULL), MHA_ERR_NULL, "model");
    assert_null(model);
}

/* ---- config.json --------------------------------------------------------------------------- */

/* Writes the tiny config with the line of a field replaced by `text`, without its comma, or omitted
 * if `text` is NULL. A field that the config lacks is added. */
static void change_config(const char *field, const char *text)
{
    char quoted[64], *changed = malloc(strlen(config_text) + 512);
    assert_non_null(changed);
    snprintf(quoted, sizeof quoted, "\"%s\":", field);
    const char *at = strstr(config_text, quoted);
    const char *end = at ? strchr(at, '\n') : NULL;
    if (!at) at = end = strchr(config_text, '{') + 1;
    sprintf(changed, "%.*s%s%s%s", (int)(at - config_text), config_text, text ? text : "",
            text && end[-1] != '"' ? "," : "", end);
    write_config(changed);
    free(changed);
}

static void test_config_fields(void)
{
    static const struct {
        const char *field, *text;
        mha_status status;
        const char *part;
    } cases[] = {
        {"model_type", NULL, MHA_ERR_MODEL, "'model_type' is missing"},
        {"model_type", "\"model_type\": 5", MHA_ERR_MODEL, "'model_type' is not a string"},
        {"model_type", "\"model_type\": \"parrot\"", MHA_ERR_UNSUPPORTED,
         "model_type 'parrot' is not known; docs/model-folders.md lists all"},
        {"model_type", "\"model_type\": \"qwen-3\"", MHA_ERR_UNSUPPORTED,
         "model_type 'qwen-3' is not known; did you mean 'qwen3'?; docs/model-folders.md lists "
         "all"},
        {"hidden_size", NULL, MHA_ERR_MODEL, "'hidden_size' is missing"},
        {"hidden_size", "\"hidden_size\": null", MHA_ERR_MODEL, "'hidden_size' is missing"},
        {"hidden_size", "\"hidden_size\": \"36\"", MHA_ERR_MODEL, "not a whole number"},
        {"hidden_size", "\"hidden_size\": 36.0", MHA_ERR_MODEL, "not a whole number"},
        {"hidden_size", "\"hidden_size\": 0", MHA_ERR_MODEL, "'hidden_size' is 0, expected 1.."},
        {"hidden_size", "\"hidden_size\": -36", MHA_ERR_MODEL, "is -36"},
        {"hidden_size", "\"hidden_size\": 37", MHA_ERR_MODEL,
         "hidden_size 37 is not a multiple of num_attention_heads 3"},
        {"hidden_size", "\"hidden_size\": 39", MHA_ERR_MODEL,
         "weight 'embeddings.word_embeddings.weight' has shape ["},
        {"hidden_size", "\"hidden_size\": 9223372036854775808", MHA_ERR_FORMAT, "malformed JSON"},
        {"num_hidden_layers", "\"num_hidden_layers\": 1099511627776", MHA_ERR_MODEL,
         "'num_hidden_layers' is 1099511627776, expected 1..4096"},
        {"num_hidden_layers", "\"num_hidden_layers\": 3", MHA_ERR_MODEL,
         "numbers, config.json describes at least "},
        {"num_hidden_layers", "\"num_hidden_layers\": 1", MHA_ERR_MODEL,
         "has weight 'encoder.layer.1."},
        {"num_attention_heads", "\"num_attention_heads\": []", MHA_ERR_MODEL, "not a whole number"},
        {"num_attention_heads", "\"num_attention_heads\": 5", MHA_ERR_MODEL, "not a multiple"},
        {"intermediate_size", "\"intermediate_size\": 81", MHA_ERR_MODEL,
         "has shape [80, 36], config.json requires [81, 36]"},
        {"vocab_size", "\"vocab_size\": 30522", MHA_ERR_MODEL, "requires [30522, 36]"},
        {"vocab_size", "\"vocab_size\": 9223372036854775807", MHA_ERR_MODEL, "'vocab_size' is"},
        {"max_position_embeddings", "\"max_position_embeddings\": 512", MHA_ERR_MODEL,
         "numbers, config.json describes at least "},
        {"type_vocab_size", "\"type_vocab_size\": 1", MHA_ERR_MODEL, "token_type_embeddings"},
        {"layer_norm_eps", "\"layer_norm_eps\": -1", MHA_ERR_MODEL, "'layer_norm_eps' is -1"},
        {"layer_norm_eps", "\"layer_norm_eps\": 2", MHA_ERR_MODEL, "'layer_norm_eps' is 2"},
        {"layer_norm_eps", "\"layer_norm_eps\": \"x\"", MHA_ERR_MODEL, "not a number"},
        {"layer_norm_eps", "\"layer_norm_eps\": 1e999", MHA_ERR_FORMAT, "malformed JSON"},
        {"hidden_act", "\"hidden_act\": \"gelu_new\"", MHA_ERR_UNSUPPORTED,
         "hidden_act 'gelu_new' is not supported; known: gelu, relu"},
        {"hidden_act", "\"hidden_act\": {}", MHA_ERR_MODEL, "not a string"},
        {"position_embedding_type", "\"position_embedding_type\": \"rotary\"", MHA_ERR_UNSUPPORTED,
         "'rotary' is not supported; known: absolute, relative_key, relative_key_query"},
        {"is_decoder", "\"is_decoder\": true", MHA_ERR_UNSUPPORTED, "'is_decoder' is set"},
        {"quantization_config", "\"quantization_config\": {\"bits\": 4}", MHA_ERR_UNSUPPORTED,
         "'quantization_config' is set"},
        {"pruned_heads", "\"pruned_heads\": {\"0\": [1]}", MHA_ERR_UNSUPPORTED, "'pruned_heads'"},
        {"hidden_size", "\"vocab_size\": 5", MHA_ERR_FORMAT, "duplicate"},
    };
    write_folder();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        change_config(cases[i].field, cases[i].text);
        refuse(cases[i].status, cases[i].part);
    }
}

static void test_config_forms(void)
{
    static const struct {
        const char *text;
        mha_status status;
        const char *part;
    } cases[] = {
        {"", MHA_ERR_FORMAT, "m/config.json: malformed JSON"},
        {"{", MHA_ERR_FORMAT, "malformed JSON"},
        {"[]", MHA_ERR_MODEL, "is not a JSON object"},
        {"{}", MHA_ERR_MODEL, "'model_type' is missing"},
        {"{\"model_type\": \"\xff\"}", MHA_ERR_FORMAT, "malformed JSON"},
    };
    write_folder();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_config(cases[i].text);
        refuse(cases[i].status, cases[i].part);
    }
    char *deep = malloc(100001);
    assert_non_null(deep);
    memset(deep, '[', 100000);
    deep[100000] = '\0';
    write_config(deep);
    refuse(MHA_ERR_FORMAT, "malformed JSON");
    free(deep);
    assert_int_equal(truncate(temp_path("m/config.json"), 1 << 30), 0); /* sparse */
    refuse(MHA_ERR_SIZE, "at most");
}

static void test_config_defaults(void)
{
    static const char *const optional[][2] = {
        {"hidden_act", NULL},
        {"layer_norm_eps", NULL},
        {"position_embedding_type", "\"position_embedding_type\": null"},
        {"is_decoder", "\"is_decoder\": false"},
        {"pruned_heads", "\"pruned_heads\": {}"},
        {"something_new", "\"something_new\": [1, 2]"},
    };
    float want[TOKENS * E], got[TOKENS * E];
    write_folder();
    load_and_run(want);
    for (size_t i = 0; i < sizeof optional / sizeof optional[0]; i++) {
        change_config(optional[i][0], optional[i][1]);
        load_and_run(got);
        assert_memory_equal(got, want, sizeof want);
    }
    change_config("hidden_act", "\"hidden_act\": \"relu\"");
    load_and_run(got);
    assert_memory_not_equal(got, want, sizeof want);
}

/* ---- weights ------------------------------------------------------------------------------- */

static void test_weight_errors(void)
{
    static float zeros[E * E * 4];
    static double doubles[E];
    const char *name = "encoder.layer.1.output.LayerNorm.bias";
    write_folder();
    weights *w = read_weights();
    int64_t i = index_of(w, name);
    mha_tensor good = w->tensor[i];
    snprintf(w->name[i], sizeof w->name[i], "other");
    write_weights(w);
    refuse(MHA_ERR_MODEL, "weight 'encoder.layer.1.output.LayerNorm.bias' is missing");
    snprintf(w->name[i], sizeof w->name[i], "%s", name);
    w->tensor[i] = mha_tensor_contiguous(zeros, MHA_F32, 1, (int64_t[]){E + 1});
    write_weights(w);
    refuse(MHA_ERR_MODEL, "has shape [37], config.json requires [36]");
    w->tensor[i] = mha_tensor_contiguous(zeros, MHA_F32, 2, (int64_t[]){1, E});
    write_weights(w);
    refuse(MHA_ERR_MODEL, "has shape [1, 36], config.json requires [36]");
    w->tensor[i] = mha_tensor_contiguous(doubles, MHA_F64, 1, (int64_t[]){E});
    write_weights(w);
    refuse(MHA_ERR_UNSUPPORTED, "is f64; save the model as float32, float16 or bfloat16");
    w->tensor[i] = good;
    write_weights(w);
    float got[TOKENS * E];
    load_and_run(got);
    free_weights(w);
}

/* Permitted differences that must not matter. */
static void test_weight_names(void)
{
    static float pooler[E * E];
    float want[TOKENS * E], got[TOKENS * E];
    write_folder();
    load_and_run(want);
    weights *w = read_weights();
    for (int64_t i = 0; i < w->count; i++) { /* names of BertForMaskedLM and of old TensorFlow */
        char old[100];
        snprintf(old, sizeof old, "%.*s", (int)strcspn(w->name[i], "?"), w->name[i]);
        char *norm = strstr(old, "LayerNorm.");
        if (norm) strcpy(norm, strstr(norm, "weight") ? "LayerNorm.gamma" : "LayerNorm.beta");
        snprintf(w->name[i], sizeof w->name[i], "bert.%s", old);
    }
    snprintf(w->name[w->count], sizeof w->name[0], "bert.pooler.dense.weight");
    w->tensor[w->count++] = mha_tensor_contiguous(pooler, MHA_F32, 2, (int64_t[]){E, E});
    snprintf(w->name[w->count], sizeof w->name[0], "cls.predictions.bias");
    w->tensor[w->count++] = mha_tensor_contiguous(pooler, MHA_I64, 1, (int64_t[]){E});
    write_weights(w);
    load_and_run(got);
    assert_memory_equal(got, want, sizeof want);
    free_weights(w);
}

static uint16_t to_bf16(float value) /* truncates */
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}

/* Rounded towards zero; the weights are finite and below 65504. */
static uint16_t to_f16(float value)
{
    int exponent;
    float fraction = frexpf(fabsf(value), &exponent); /* [0.5, 1) */
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    if (value == 0) return sign;
    if (exponent < -13) /* subnormal: multiples of 2^-24 */
        return (uint16_t)(sign | (uint16_t)ldexpf(fraction, exponent + 24));
    return (uint16_t)(sign | (exponent + 14) << 10 | ((int)(fraction * 2048) & 0x3FF));
}

/* 16-bit weights close to the originals give similar results. A wrong conversion of exponent, sign
 * or subnormals would not. */
static void test_weight_types(void)
{
    float want[TOKENS * E], got[TOKENS * E];
    write_folder();
    load_and_run(want);
    for (int kind = 0; kind < 2; kind++) {
        weights *w = read_weights();
        for (int64_t i = 0; i < w->count; i++) {
            int64_t count = 0;
            expect_ok(mha_tensor_count(&w->tensor[i], &count));
            w->half[i] = malloc((size_t)count * 2);
            assert_non_null(w->half[i]);
            const float *from = w->tensor[i].data;
            for (int64_t j = 0; j < count; j++)
                w->half[i][j] = kind == 0 ? to_f16(from[j]) : to_bf16(from[j]);
            w->tensor[i].data = w->half[i];
            w->tensor[i].dtype = kind == 0 ? MHA_F16 : MHA_BF16;
        }
        write_weights(w);
        load_and_run(got);
        double worst = 0;
        for (int i = 0; i < TOKENS * E; i++) worst = fmax(worst, fabs((double)(got[i] - want[i])));
        print_message("%s: largest change %.1e\n", kind == 0 ? "f16" : "bf16", worst);
        /* One unit in the last place of 11 or 8 bits, and a margin for two layers. */
        assert_true(worst < (kind == 0 ? 0x1p-10 : 0x1p-7) * 16);
        assert_true(worst > 0);
        free_weights(w);
    }
}

/* f16 numbers from the smallest subnormal to 30608, through a model whose other weights have no
 * effect. */
static void test_f16_values(void)
{
    write_folder();
    weights *w = read_weights();
    int64_t at = index_of(w, "embeddings.position_embeddings.weight");
    int64_t count = 128 * E;
    for (int64_t i = 0; i < w->count; i++) { /* so that hidden[0] = norm(position[t]) */
        int64_t elements = 0;
        expect_ok(mha_tensor_count(&w->tensor[i], &elements));
        w->half[i] = calloc((size_t)elements, 2);
        assert_non_null(w->half[i]);
        if (strstr(w->name[i], "LayerNorm.weight"))
            for (int64_t j = 0; j < elements; j++) w->half[i][j] = 0x3C00; /* 1 */
        w->tensor[i].data = w->half[i];
        w->tensor[i].dtype = MHA_F16;
    }
    /* Rows of +x, -x, +x, ...: the norm gives +-1, or x / sqrt(epsilon) where x is tiny. */
    for (int64_t j = 0; j < count; j++) {
        uint16_t bits = (uint16_t)(1 + j / E * 241);
        w->half[at][j] = (uint16_t)(bits | (j % 2 ? 0x8000 : 0));
    }
    write_weights(w);
    mha_model *model = NULL;
    expect_ok(load(&model, MHA_MODEL_NO_TOKENIZER));
    const int32_t ids[128] = {0};
    const mha_batch batch = {sizeof batch, 0, 1, 128, ids, NULL, NULL, NULL};
    static float hidden[128 * E];
    const mha_tensor view = mha_tensor_contiguous(hidden, MHA_F32, 3, (int64_t[]){1, 128, E});
    const mha_tensor *wanted[3] = {&view};
    const mha_model_outputs outputs = {.struct_size = sizeof outputs, .hidden = wanted};
    expect_ok(mha_model_forward(context, model, &batch, &outputs));
    for (int64_t j = 0; j < count; j++) {
        int bits = (int)(1 + j / E * 241);
        double x =
            bits < 1024 ? ldexp(bits, -24) : ldexp(1 + (bits & 1023) / 1024.0, (bits >> 10) - 15);
        double expected = (j % 2 ? -x : x) / sqrt(x * x + (double)1e-12f);
        assert_true(fabs((double)hidden[j] - expected) < 1e-6);
    }
    mha_model_destroy(model);
    free_weights(w);
}

static void test_tokenizer_belongs_to_model(void)
{
    mha_model *model = NULL;
    write_folder();
    if (load(&model, 0) != MHA_OK) fail_msg("%s", mha_error_detail());
    assert_non_null(mha_model_tokenizer(model));
    mha_model_destroy(model);
    model = NULL;
    char *longer = malloc(strlen(vocab_text) + 16);
    assert_non_null(longer);
    sprintf(longer, "%sonemoretoken\n", vocab_text);
    temp_write("m/vocab.txt", longer, strlen(longer));
    free(longer);
    expect_error(load(&model, 0), MHA_ERR_MODEL, "they belong to different models");
    assert_null(model);
}

/* ---- mutations ----------------------------------------------------------------------------- */

/* ---- other families ------------------------------------------------------------------------ */

static void save_transformer(const char *folder, mha_transformer_desc d, uint64_t seed)
{
    mha_transformer *t = NULL;
    d.struct_size = sizeof d;
    d.vocab_size = 9, d.max_length = 8, d.embed_dim = 12, d.num_layers = 2, d.num_heads = 2;
    d.ff_dim = 20;
    const mha_transformer_init init = {.struct_size = sizeof init, .seed = seed};
    expect_ok(mha_transformer_create(context, &d, &t));
    expect_ok(mha_transformer_initialise(context, t, &init));
    expect_ok(mha_checkpoint_save(temp_path(folder), t, NULL));
    mha_transformer_destroy(t);
}

static mha_status load_folder(const char *folder, mha_model **model)
{
    const mha_model_options options = {.struct_size = sizeof options,
                                       .flags = MHA_MODEL_NO_TOKENIZER};
    *model = NULL;
    return mha_model_load(context, temp_path(folder), &options, model);
}

/* The hidden states of a causal model with rotary positions equal the transformer's. */
static void test_any_family(void)
{
    enum { T = 5, W = 12 };
    mha_model *model;
    mha_model_info info = {.struct_size = sizeof info};
    save_transformer("llama",
                     (mha_transformer_desc){.flags = MHA_TRANSFORMER_CAUSAL,
                                            .norm = MHA_NORM_RMS,
                                            .positions = MHA_ENCODING_ROTARY,
                                            .feed_forward = MHA_FEED_FORWARD_SWIGLU},
                     1);
    expect_ok(load_folder("llama", &model));
    expect_ok(mha_model_describe(model, &info));
    assert_string_equal(info.architecture, "llama");
    assert_int_equal(info.type_vocab_size, 1);
    assert_null(mha_model_encoder(model));
    int32_t ids[T] = {3, 1, 4, 1, 5};
    float hidden[3][T * W], last[T * W], logits[T * 9];
    const int64_t shape[] = {1, T, W};
    mha_tensor views[3];
    const mha_tensor *list[3];
    for (int i = 0; i < 3; i++) {
        views[i] = mha_tensor_contiguous(hidden[i], MHA_F32, 3, shape);
        list[i] = &views[i];
    }
    const mha_tensor end = mha_tensor_contiguous(last, MHA_F32, 3, shape);
    const mha_batch batch = {sizeof batch, 0, 1, T, ids, NULL, NULL, NULL};
    const mha_model_outputs outputs = {
        .struct_size = sizeof outputs, .last_hidden = &end, .hidden = list};
    expect_ok(mha_model_forward(context, model, &batch, &outputs));
    mha_transformer *t = mha_model_transformer(model);
    mha_activations *kept = NULL;
    const mha_tensor tokens = mha_tensor_contiguous(ids, MHA_I32, 2, (int64_t[]){1, T});
    const mha_tensor output = mha_tensor_contiguous(logits, MHA_F32, 3, (int64_t[]){1, T, 9});
    const mha_transformer_input input = {.struct_size = sizeof input, .tokens = &tokens};
    expect_ok(mha_activations_create(context, t, T, 0, &kept));
    expect_ok(mha_transformer_forward(context, t, &input, kept, &output, NULL, NULL));
    mha_stream_view ends = {.struct_size = sizeof ends};
    mha_layer_view second = {.struct_size = sizeof second};
    expect_ok(mha_activations_stream(kept, &ends));
    expect_ok(mha_activations_layer(kept, 1, MHA_PART_SELF_ATTENTION, &second));
    assert_memory_equal(hidden[0], ends.first.data, sizeof last);
    assert_memory_equal(hidden[1], second.stream.data, sizeof last);
    assert_memory_equal(hidden[2], ends.last.data, sizeof last);
    assert_memory_equal(last, ends.normed.data, sizeof last);
    const int32_t types[T] = {0, 0, 1, 0, 0};
    const mha_batch typed = {sizeof typed, 0, 1, T, ids, types, NULL, NULL};
    expect_error(mha_model_forward(context, model, &typed, &outputs), MHA_ERR_ARGUMENT, "type id");
    mha_activations_destroy(kept);
    mha_model_destroy(model);
}

/* Outputs have the layer's number of heads, and outputs of layers must not overlap. */
static void test_layers_of_fewer_heads(void)
{
    enum { T = 3, D = 6 };
    const int64_t heads[] = {2, 1};
    mha_model *model;
    save_transformer("fewer", (mha_transformer_desc){.layer_heads = heads}, 1);
    expect_ok(load_folder("fewer", &model));
    const int32_t ids[T] = {1, 2, 3};
    float q[2][2 * T * D], hidden[T * 12];
    mha_tensor views[2], first = mha_tensor_contiguous(hidden, MHA_F32, 3, (int64_t[]){1, T, 12});
    const mha_tensor *hidden_list[3] = {&first};
    mha_module_outputs outputs[2];
    const mha_module_outputs *list[] = {&outputs[0], &outputs[1]};
    for (int l = 0; l < 2; l++) {
        views[l] = mha_tensor_contiguous(q[l], MHA_F32, 4, (int64_t[]){1, heads[l], T, D});
        outputs[l] = (mha_module_outputs){.struct_size = sizeof outputs[l], .q = &views[l]};
    }
    const mha_batch batch = {sizeof batch, 0, 1, T, ids, NULL, NULL, NULL};
    mha_model_outputs all = {.struct_size = sizeof all, .attention = list, .hidden = hidden_list};
    expect_ok(mha_model_forward(context, model, &batch, &all));
    views[1].shape[1] = 2;
    expect_error(mha_model_forward(context, model, &batch, &all), MHA_ERR_SHAPE,
                 "q of layer 1: dim 1 is 2, expected 1");
    views[1].shape[1] = 1;
    first.data = q[0]; /* overlaps the outputs of layer 0 */
    expect_error(mha_model_forward(context, model, &batch, &all), MHA_ERR_OVERLAP,
                 "hidden[0] overlaps q of layer 0");
    mha_model_destroy(model);
}

static void test_encoder_decoder(void)
{
    const mha_transformer_desc encoder = {.flags = MHA_TRANSFORMER_NO_OUTPUT},
                               decoder = {.flags = MHA_TRANSFORMER_CAUSAL | MHA_TRANSFORMER_CROSS};
    mha_model *model;
    mha_model_info info = {.struct_size = sizeof info};
    assert_int_equal(mkdir(temp_path("both"), 0700), 0);
    save_transformer("both/encoder", encoder, 1);
    save_transformer("both/decoder", decoder, 2);
    expect_ok(load_folder("both", &model));
    assert_non_null(mha_model_encoder(model));
    expect_ok(mha_model_describe(model, &info));
    assert_string_equal(info.architecture, "encoder-decoder");
    const int32_t ids[] = {1};
    const mha_batch batch = {sizeof batch, 0, 1, 1, ids, NULL, NULL, NULL};
    const mha_model_outputs outputs = {.struct_size = sizeof outputs};
    expect_error(mha_model_forward(context, model, &batch, &outputs), MHA_ERR_UNSUPPORTED,
                 "two texts");
    mha_model_destroy(model);
    expect_error(load_folder("both/decoder", &model), MHA_ERR_UNSUPPORTED, "needs its encoder");
    save_transformer("both/decoder", encoder, 2);
    expect_error(load_folder("both", &model), MHA_ERR_MODEL, "do not belong together");
    assert_null(model);
}

static mha_status note_file(void *user, const char *name, const char *path)
{
    assert_true(strlen(path) > strlen(name));
    strcat(strcat(user, name), " ");
    return MHA_OK;
}

/* The digest of each file depends on each of its bytes and on no other file. */
static void test_digests(void)
{
    mha_model_digests first, now;
    write_folder();
    expect_ok(mha_model_digest(context, temp_path("m"), 0, &first));
    temp_write("m/notes.txt", "none", 4);
    char names[256] = "";
    expect_ok(mha_model_files(temp_path("m"), note_file, names));
    assert_string_equal(names, "config.json vocab.txt model.safetensors ");
    expect_error(mha_model_files(temp_path("nowhere"), note_file, names), MHA_ERR_FILE, "nowhere");
    expect_ok(mha_model_digest(context, temp_path("m"), 0, &now));
    assert_memory_equal(&first, &now, sizeof now);
    temp_write("m/vocab.txt", vocab_text, strlen(vocab_text) - 1);
    expect_ok(mha_model_digest(context, temp_path("m"), 0, &now));
    assert_true(first.tokenizer != now.tokenizer && first.weights == now.weights);
    expect_ok(mha_model_digest(context, temp_path("m"), MHA_MODEL_NO_TOKENIZER, &now));
    assert_true(now.tokenizer == 0 && first.configuration == now.configuration);
    temp_write("m/config.json", config_text, strlen(config_text) - 1);
    weights *w = read_weights();
    w->count--;
    write_weights(w);
    free_weights(w);
    expect_ok(mha_model_digest(context, temp_path("m"), 0, &now));
    assert_true(first.configuration != now.configuration && first.weights != now.weights);
    expect_error(mha_model_digest(context, temp_path("m"), 64, &now), MHA_ERR_UNSUPPORTED, "flags");
    expect_error(mha_model_digest(context, NULL, 0, &now), MHA_ERR_NULL, "NULL");
    expect_error(mha_model_digest(context, temp_path("nowhere"), 0, &now), MHA_ERR_FILE, "nowhere");
}

static void test_config_mutations(void)
{
    static unsigned char bytes[4096];
    size_t size = strlen(config_text);
    int loaded = 0, refused = 0;
    write_folder();
    for (uint32_t seed = 0; seed < 4000; seed++) {
        size_t length = size;
        mha_model *model = NULL;
        memcpy(bytes, config_text, size);
        mutate(bytes, &length, seed);
        temp_write("m/config.json", bytes, length);
        if (load(&model, MHA_MODEL_NO_TOKENIZER) == MHA_OK) {
            loaded++;
        } else {
            assert_null(model);
            assert_true(mha_error_detail()[0]);
            refused++;
        }
        mha_model_destroy(model);
    }
    print_message("%d mutants loaded, %d refused\n", loaded, refused);
    assert_true(loaded > 50 && refused > 1000);
}

static int begin(void **state)
{
    if (context_and_folder_begin(state) != 0) return 1;
    config_text = temp_read(TINY "/config.json", NULL);
    vocab_text = temp_read(TINY "/vocab.txt", NULL);
    return 0;
}

static int end(void **state)
{
    free(config_text);
    free(vocab_text);
    return context_and_folder_end(state);
}

RUN_TESTS_BETWEEN(begin, end, TEST(test_missing_files), TEST(test_arguments),
                  TEST(test_config_fields), TEST(test_config_forms), TEST(test_config_defaults),
                  TEST(test_weight_errors), TEST(test_weight_names), TEST(test_weight_types),
                  TEST(test_f16_values), TEST(test_tokenizer_belongs_to_model),
                  TEST(test_any_family), TEST(test_layers_of_fewer_heads),
                  TEST(test_encoder_decoder), TEST(test_digests), TEST(test_config_mutations))
