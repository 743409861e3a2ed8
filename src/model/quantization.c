/* See quantization.h. The formats are those of transformers' FineGrainedFP8Config (DeepSeek, Qwen)
 * and of the package compressed-tensors. */
#include "model/quantization.h"

#include <multihead/component.h>

#include <string.h>

static const char field[] = "quantization_config";
enum { MOST_BLOCK = 1 << 20 };

/* Find the object `key` in an object. */
static mha_status enter(const mhai_config *config, const char *key, mhai_config *inner)
{
    const json_t *found = json_object_get(config->root, key);
    *inner = (mhai_config){config->path, found};
    if (json_is_object(found)) return MHA_OK;
    return mhai_config_fail(MHA_ERR_MODEL, config, key, "is not a JSON object");
}

/* Read the field: a block's [rows, columns], or null if a weight has a single scale. */
static mha_status read_block(const mhai_config *config, const char *key, mhai_quantization *q)
{
    const json_t *block = json_object_get(config->root, key);
    int64_t size[2] = {INT64_MAX, INT64_MAX};
    bool good =
        mhai_config_absent(config, key) || (json_is_array(block) && json_array_size(block) == 2);
    for (size_t i = 0; i < 2 && good && !mhai_config_absent(config, key); i++) {
        size[i] = (int64_t)json_integer_value(json_array_get(block, i)); /* 0: not an integer */
        good = size[i] >= 1 && size[i] <= MOST_BLOCK;
    }
    q->rows = size[0];
    q->columns = size[1];
    return good ? MHA_OK
                : mhai_config_fail(MHA_ERR_MODEL, config, key,
                                   "is not a list of two numbers from 1 to %d", MOST_BLOCK);
}

static mha_status read_fp8(const mhai_config *config, mhai_quantization *q)
{
    static const char *const schemes[] = {"dynamic"}, *const experts[] = {"fp8"};
    int unused;
    MHA_TRY(mhai_config_choice(config, "activation_scheme", "dynamic", schemes, 1, &unused));
    MHA_TRY(mhai_config_choice(config, "expert_dtype", "fp8", experts, 1, &unused));
    q->suffix = "_scale_inv";
    return read_block(config, "weight_block_size", q);
}

static mha_status read_group(const mhai_config *group, mhai_quantization *q)
{
    static const char *const types[] = {"float"}, *const strategies[] = {"tensor", "channel",
                                                                         "block"};
    mhai_config weights, inputs;
    int64_t bits;
    int unused, strategy;
    bool fixed = true;
    MHA_TRY(enter(group, "weights", &weights));
    MHA_TRY(mhai_config_choice(&weights, "type", NULL, types, 1, &unused));
    MHA_TRY(mhai_config_count(&weights, "num_bits", 8, 8, &bits));
    MHA_TRY(mhai_config_bool(&weights, "symmetric", true, &fixed));
    if (!fixed)
        return mhai_config_fail(MHA_ERR_UNSUPPORTED, &weights, "symmetric",
                                "is false: zero points are not supported");
    MHA_TRY(mhai_config_choice(&weights, "strategy", NULL, strategies, 3, &strategy));
    if (!mhai_config_absent(group, "input_activations")) {
        MHA_TRY(enter(group, "input_activations", &inputs));
        MHA_TRY(mhai_config_bool(&inputs, "dynamic", false, &fixed));
        if (!fixed)
            return mhai_config_fail(MHA_ERR_UNSUPPORTED, &inputs, "dynamic",
                                    "is false: scales of inputs are not supported");
    }
    MHA_TRY(mhai_config_unset(group, "output_activations"));
    *q = (mhai_quantization){"_scale", strategy == 1 ? 1 : INT64_MAX, INT64_MAX};
    return strategy == 2 ? read_block(&weights, "block_structure", q) : MHA_OK;
}

static mha_status read_compressed(const mhai_config *config, mhai_quantization *q)
{
    static const char *const formats[] = {"float-quantized", "naive-quantized"};
    static const char *const refused[] = {"kv_cache_scheme", "sparsity_config", "transform_config",
                                          NULL};
    mhai_config groups, group;
    int unused;
    MHA_TRY(mhai_config_choice(config, "format", NULL, formats, 2, &unused));
    MHA_TRY(mhai_config_refuse(config, refused));
    MHA_TRY(enter(config, "config_groups", &groups));
    void *only = json_object_iter((json_t *)(uintptr_t)groups.root);
    if (json_object_size(groups.root) != 1)
        return mhai_config_fail(MHA_ERR_UNSUPPORTED, config, "config_groups",
                                "has %zu groups, one is supported", json_object_size(groups.root));
    MHA_TRY(enter(&groups, json_object_iter_key(only), &group));
    return read_group(&group, q);
}

mha_status mhai_quantization_read(const mhai_config *config, mhai_quantization *q)
{
    static const char *const methods[] = {"fp8", "compressed-tensors"};
    mhai_config inner = {config->path, json_object_get(config->root, field)};
    int method;
    *q = (mhai_quantization){NULL, INT64_MAX, INT64_MAX};
    if (!json_is_string(json_object_get(inner.root, "quant_method")))
        return mhai_config_unset(config, field);
    MHA_TRY(mhai_config_choice(&inner, "quant_method", NULL, methods, 2, &method));
    return method == 0 ? read_fp8(&inner, q) : read_compressed(&inner, q);
}
