/* The shape of a model's attention, from config.json alone. A table lists the names of sizes and
 * the attention biases of each architecture. */
#include "io/file.h"
#include "io/json_file.h"
#include "model/folder.h"
#include "model/gguf_config.h"

#include <multihead/component.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t most_positions = INT64_C(1) << 40;
static const size_t most_config_bytes = 16u << 20;

static mha_status check_heads(const mhai_config *config, const mha_model_shape *shape,
                              bool head_dim_given)
{
    if (!head_dim_given && shape->embed_dim % shape->heads != 0)
        return mhai_path_fail(MHA_ERR_MODEL, config->path,
                              "the width %lld is not a multiple of the %lld heads",
                              (long long)shape->embed_dim, (long long)shape->heads);
    if (shape->kv_heads > shape->heads || shape->heads % shape->kv_heads != 0)
        return mhai_path_fail(
            MHA_ERR_MODEL, config->path, "%lld query heads cannot share %s %lld evenly",
            (long long)shape->heads, mhai_config_name(config, "num_key_value_heads").text,
            (long long)shape->kv_heads);
    return MHA_OK;
}

static mha_status read_grouped(const mhai_config *config, const mhai_shape_keys *keys,
                               mha_model_shape *shape)
{
    bool windowed = true;
    MHA_TRY(mhai_config_optional(config, keys->kv_heads, 1, MHAI_MOST_WIDTH, shape->heads,
                                 &shape->kv_heads));
    MHA_TRY(mhai_config_bool(config, "use_sliding_window", true, &windowed));
    return windowed ? mhai_config_optional(config, "sliding_window", 1, most_positions, 0,
                                           &shape->window)
                    : MHA_OK;
}

/* Counts and costs of attention assume heads of one size. */
static mha_status check_latent(const mhai_config *config, const mhai_family *family)
{
    if (family->own_layers)
        return mhai_config_fail(MHA_ERR_UNSUPPORTED, config, "global_head_dim",
                                "gives some layers other heads; this needs heads of one size");
    return family->latent ? mhai_config_fail(MHA_ERR_UNSUPPORTED, config, "kv_lora_rank",
                                             "describes latent attention, whose keys and values "
                                             "differ in size; this needs heads of one size")
                          : MHA_OK;
}

static mha_status read_shape(const mhai_config *whole, mha_model_shape *shape)
{
    const mhai_family *a = NULL;
    mhai_config text = *whole, *config = &text;
    MHA_TRY(mhai_family_find(config, false, &a));
    MHA_TRY(mhai_family_enter(a, config));
    if (a->encoder) a = a->encoder; /* whose sizes the keys name */
    MHA_TRY(check_latent(config, a));
    const mhai_shape_keys *keys = a->keys;
    MHA_TRY(mhai_config_count(config, mhai_size_key(config, keys->embed, mhai_usual_keys.embed), 1,
                              MHAI_MOST_WIDTH, &shape->embed_dim));
    MHA_TRY(mhai_read_layer_count(config, a, &shape->layers));
    MHA_TRY(mhai_config_count(config, mhai_size_key(config, keys->heads, mhai_usual_keys.heads), 1,
                              MHAI_MOST_WIDTH, &shape->heads));
    shape->max_positions = MHAI_MOST_POSITIONS;
    if (keys->positions)
        MHA_TRY(mhai_config_optional(
            config, mhai_size_key(config, keys->positions, mhai_usual_keys.positions), 1,
            most_positions, 0, &shape->max_positions));
    shape->kv_heads = shape->heads;
    if (a->read_kv) MHA_TRY(a->read_kv(config, shape->heads, &shape->kv_heads));
    if (a->grouped) MHA_TRY(read_grouped(config, keys, shape));
    const char *head_dim = a->head_dim ? a->head_dim : "head_dim";
    const bool usual = a->usual_head_dim > 0 && !json_object_get(config->root, "head_dim");
    bool head_dim_given = (a->head_dim || a->grouped) && !mhai_config_absent(config, head_dim);
    MHA_TRY(check_heads(config, shape, head_dim_given || usual));
    shape->head_dim = usual ? a->usual_head_dim : shape->embed_dim / shape->heads;
    if (head_dim_given)
        MHA_TRY(mhai_config_count(config, head_dim, 1, MHAI_MOST_WIDTH, &shape->head_dim));
    bool bias = a->shape & MHA_MODEL_SHAPE_QKV_BIAS;
    if (a->bias_key) MHA_TRY(mhai_config_bool(config, a->bias_key, bias, &bias));
    shape->flags = a->bias_key ? (a->shape & MHA_MODEL_SHAPE_CAUSAL) |
                                     (bias ? MHA_MODEL_SHAPE_QKV_BIAS : 0) |
                                     (a->biases_qkv ? a->shape & MHA_MODEL_SHAPE_OUT_BIAS
                                      : bias        ? MHA_MODEL_SHAPE_OUT_BIAS
                                                    : 0)
                               : a->shape;
    bool decoder = false, both = false;
    if (a->both_ways && !a->own_layers)
        MHA_TRY(mhai_config_bool(config, "use_bidirectional_attention", false, &both));
    if (both) shape->flags &= ~(uint32_t)MHA_MODEL_SHAPE_CAUSAL;
    MHA_TRY(mhai_config_bool(config, keys->causal, false, &decoder));
    if (decoder) shape->flags |= MHA_MODEL_SHAPE_CAUSAL;
    snprintf(shape->architecture, sizeof shape->architecture, "%s", a->model_type);
    return MHA_OK;
}

static mha_status read_folder(const char *folder, mha_model_shape *made)
{
    json_t *root = NULL;
    char *path = mhai_model_join(folder, "config.json");
    if (!path) return mha_fail(MHA_ERR_NOMEM, "%s: cannot allocate a name", folder);
    mha_status status = mhai_json_read(path, most_config_bytes, &root);
    if (status == MHA_OK) status = read_shape(&(mhai_config){path, root}, made);
    json_decref(root);
    free(path);
    return status;
}

static mha_status read_gguf(const char *path, mha_model_shape *made)
{
    json_t *root = NULL;
    mha_gguf *file;
    MHA_TRY(mha_gguf_open(path, &file));
    mha_status status = mhai_gguf_config(file, path, &root);
    if (status == MHA_OK) status = read_shape(&(mhai_config){path, root}, made);
    json_decref(root);
    mha_gguf_close(file);
    return status;
}

mha_status mha_model_read_shape(const char *folder, mha_model_shape *shape)
{
    MHA_NEED("mha_model_read_shape", folder, shape);
    uint32_t size = shape->struct_size;
    MHA_TRY(mha_struct_check_size("mha_model_shape", size, sizeof *shape));
    mha_model_shape made = {0};
    MHA_TRY(mhai_model_is_gguf(folder) ? read_gguf(folder, &made) : read_folder(folder, &made));
    memset(shape, 0, size); /* clears fields that only a newer caller knows */
    *shape = made;
    shape->struct_size = size;
    return MHA_OK;
}
