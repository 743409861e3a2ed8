/* The shape of a model's attention: config.json of many architectures, by a table of what each
 * calls its sizes and which biases its attention has. No weight is read. */
#include "io/file.h"
#include "io/json_file.h"
#include "model/model_config.h"

#include <multihead/component.h>
#include <multihead/model.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As in bert_load.c: beyond every published model, and small enough for every product of two. */
enum { MOST_LAYERS = 4096, MOST_WIDTH = 1 << 20 };
static const int64_t most_positions = INT64_C(1) << 40;
static const size_t most_config_bytes = 16u << 20;

/* What an architecture calls its sizes. */
typedef struct key_names {
    const char *embed, *layers, *heads, *positions, *kv_heads, *causal;
} key_names;

static const key_names usual = {"hidden_size",         "num_hidden_layers",
                                "num_attention_heads", "max_position_embeddings",
                                "num_key_value_heads", "is_decoder"};
static const key_names of_gpt2 = {
    "n_embd", "n_layer", "n_head", "n_positions", "num_key_value_heads", "is_decoder"};
static const key_names of_distilbert = {
    "dim", "n_layers", "n_heads", "max_position_embeddings", "num_key_value_heads", "is_decoder"};
static const key_names of_ours = {"embed_dim",  "num_layers", "num_heads",
                                  "max_length", "kv_heads",   "causal"};

/* Flags, and the field of config.json that decides about biases where there is one. */
enum {
    CAUSAL = MHA_MODEL_SHAPE_CAUSAL,
    QKV = MHA_MODEL_SHAPE_QKV_BIAS,
    OUT = MHA_MODEL_SHAPE_OUT_BIAS
};

typedef struct architecture {
    const char *model_type;
    const key_names *keys;
    uint32_t flags;
    const char *bias_key; /* NULL: flags tell */
    bool grouped;         /* num_key_value_heads, head_dim and sliding_window are read */
} architecture;

static const architecture architectures[] = {
    {"bert", &usual, QKV | OUT, NULL, false},
    {"roberta", &usual, QKV | OUT, NULL, false},
    {"electra", &usual, QKV | OUT, NULL, false},
    {"distilbert", &of_distilbert, QKV | OUT, NULL, false},
    {"gpt2", &of_gpt2, CAUSAL | QKV | OUT, NULL, false},
    {"gpt_neox", &usual, CAUSAL | QKV | OUT, "attention_bias", false},
    {"llama", &usual, CAUSAL, "attention_bias", true},
    {"mistral", &usual, CAUSAL, NULL, true},
    {"mixtral", &usual, CAUSAL, NULL, true},
    {"qwen2", &usual, CAUSAL | QKV, NULL, true},
    {"qwen3", &usual, CAUSAL, "attention_bias", true},
    {"gemma", &usual, CAUSAL, "attention_bias", true},
    {"phi3", &usual, CAUSAL, NULL, true},
    {"multihead", &of_ours, 0, "bias", true},
};

enum { ARCHITECTURES = sizeof architectures / sizeof architectures[0] };

static bool has(const mhai_config *config, const char *key)
{
    const json_t *value = json_object_get(config->root, key);
    return value && !json_is_null(value);
}

static mha_status read_count(const mhai_config *config, const char *key, int64_t most,
                             int64_t fallback, int64_t *value)
{
    *value = fallback;
    return has(config, key) ? mhai_config_count(config, key, 1, most, value) : MHA_OK;
}

static mha_status read_bool(const mhai_config *config, const char *key, bool *value)
{
    if (!has(config, key)) return MHA_OK;
    const json_t *found = json_object_get(config->root, key);
    if (!json_is_boolean(found))
        return mha_fail(MHA_ERR_MODEL, "%s: '%s' is neither true nor false",
                        mhai_show_path(config->path).text, key);
    *value = json_is_true(found);
    return MHA_OK;
}

static mha_status find_architecture(const mhai_config *config, const architecture **found)
{
    const char *type = NULL;
    char known[256] = "";
    if (!json_is_object(config->root))
        return mha_fail(MHA_ERR_MODEL, "%s: is no JSON object", mhai_show_path(config->path).text);
    MHA_TRY(mhai_config_text(config, "model_type", NULL, &type));
    for (int i = 0; i < ARCHITECTURES; i++) {
        if (strcmp(architectures[i].model_type, type) == 0) {
            *found = &architectures[i];
            return MHA_OK;
        }
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "",
                 architectures[i].model_type);
    }
    return mha_fail(MHA_ERR_UNSUPPORTED, "%s: the sizes of '%s' are not known; known: %s",
                    mhai_show_path(config->path).text, mhai_show_name(type).text, known);
}

static mha_status check_heads(const mhai_config *config, const mha_model_shape *shape,
                              bool head_dim_given)
{
    if (!head_dim_given && shape->embed_dim % shape->heads != 0)
        return mha_fail(MHA_ERR_MODEL, "%s: the width %lld is not a multiple of the %lld heads",
                        mhai_show_path(config->path).text, (long long)shape->embed_dim,
                        (long long)shape->heads);
    if (shape->kv_heads > shape->heads || shape->heads % shape->kv_heads != 0)
        return mha_fail(
            MHA_ERR_MODEL, "%s: %lld query heads cannot share num_key_value_heads %lld evenly",
            mhai_show_path(config->path).text, (long long)shape->heads, (long long)shape->kv_heads);
    return MHA_OK;
}

static mha_status read_grouped(const mhai_config *config, const key_names *keys,
                               mha_model_shape *shape)
{
    bool windowed = true;
    MHA_TRY(read_count(config, keys->kv_heads, MOST_WIDTH, shape->heads, &shape->kv_heads));
    MHA_TRY(read_bool(config, "use_sliding_window", &windowed));
    int64_t window = 0;
    MHA_TRY(read_count(config, "sliding_window", most_positions, 0, &window));
    shape->window = windowed ? window : 0;
    return MHA_OK;
}

static mha_status read_shape(const mhai_config *config, mha_model_shape *shape)
{
    const architecture *a = NULL;
    MHA_TRY(find_architecture(config, &a));
    const key_names *keys = a->keys;
    MHA_TRY(mhai_config_count(config, keys->embed, 1, MOST_WIDTH, &shape->embed_dim));
    MHA_TRY(mhai_config_count(config, keys->layers, 1, MOST_LAYERS, &shape->layers));
    MHA_TRY(mhai_config_count(config, keys->heads, 1, MOST_WIDTH, &shape->heads));
    MHA_TRY(read_count(config, keys->positions, most_positions, 0, &shape->max_positions));
    shape->kv_heads = shape->heads;
    if (a->grouped) MHA_TRY(read_grouped(config, keys, shape));
    bool head_dim_given = a->grouped && has(config, "head_dim");
    MHA_TRY(check_heads(config, shape, head_dim_given));
    shape->head_dim = shape->embed_dim / shape->heads;
    if (head_dim_given)
        MHA_TRY(mhai_config_count(config, "head_dim", 1, MOST_WIDTH, &shape->head_dim));
    bool bias = a->flags & QKV;
    if (a->bias_key) MHA_TRY(read_bool(config, a->bias_key, &bias));
    shape->flags = a->bias_key ? (a->flags & CAUSAL) | (bias ? QKV | OUT : 0) : a->flags;
    bool decoder = false;
    MHA_TRY(read_bool(config, keys->causal, &decoder));
    if (decoder) shape->flags |= CAUSAL;
    snprintf(shape->architecture, sizeof shape->architecture, "%s", a->model_type);
    return MHA_OK;
}

mha_status mha_model_read_shape(const char *folder, mha_model_shape *shape)
{
    if (!folder || !shape)
        return mha_fail(MHA_ERR_NULL, "mha_model_read_shape: %s is NULL",
                        folder ? "shape" : "folder");
    uint32_t size = shape->struct_size;
    MHA_TRY(mha_struct_check_size("mha_model_shape", size, sizeof *shape));
    size_t bytes = strlen(folder) + sizeof "/config.json";
    char *path = malloc(bytes);
    if (!path) return mha_fail(MHA_ERR_NOMEM, "%s: cannot allocate a name", folder);
    snprintf(path, bytes, "%s/config.json", folder);
    json_t *root = NULL;
    mha_model_shape made = {0};
    mha_status status = mhai_json_read(path, most_config_bytes, &root);
    if (status == MHA_OK) status = read_shape(&(mhai_config){path, root}, &made);
    json_decref(root);
    free(path);
    if (status != MHA_OK) return status;
    memset(shape, 0, size); /* fields of a newer caller */
    *shape = made;
    shape->struct_size = size;
    return MHA_OK;
}
