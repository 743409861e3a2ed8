/* GPT-Neo: GPT-2 with separate q, k and v, scores that are not scaled, and a window on every second
 * layer. */
#include "io/file.h"
#include "model/arch/family.h"

#include <string.h>

static const mhai_weight_name neo_names[] = {MHAI_GPT_NAMES,
                                             MHAI_GPT_LINEAR("attn.attention.out_proj", MHAI_AS_IS),
                                             MHAI_NAME("self_attn.q_proj", "attn.attention.q_proj"),
                                             MHAI_NAME("self_attn.k_proj", "attn.attention.k_proj"),
                                             MHAI_NAME("self_attn.v_proj", "attn.attention.v_proj"),
                                             MHAI_NAME(NULL, NULL)};

static const mhai_shape_keys neo_keys = {"hidden_size",         "num_layers",
                                         "num_heads",           "max_position_embeddings",
                                         "num_key_value_heads", "is_decoder"};

/* Expand [[["global", "local"], 12]] to a name for each layer. */
static mha_status expand_types(const mhai_config *config, int64_t layers, json_t *expanded)
{
    static const char key[] = "attention_types";
    json_t *groups = json_object_get(config->root, key), *group;
    size_t i;
    json_array_foreach(groups, i, group)
    {
        const json_int_t times = json_integer_value(json_array_get(group, 1));
        for (json_int_t k = 0;
             k < times && k <= layers && (int64_t)json_array_size(expanded) <= layers; k++)
            if (json_array_extend(expanded, json_array_get(group, 0)) != 0) break;
    }
    if ((int64_t)json_array_size(expanded) == layers) return MHA_OK;
    return mhai_config_fail(
        MHA_ERR_MODEL, config, key,
        "does not describe %lld layers as [[[\"global\", \"local\"], 12]] does 24",
        (long long)layers);
}

static mha_status set_windows(const mhai_config *config, const json_t *types,
                              mhai_family_plan *plan)
{
    const json_t *listed = json_object_get(config->root, "attention_layers");
    int64_t window;
    if (!mhai_config_absent(config, "attention_layers") && !json_equal(listed, types))
        return mhai_config_fail(MHA_ERR_MODEL, config, "attention_layers",
                                "differs from 'attention_types'; remove it");
    MHA_TRY(mhai_config_optional(config, "window_size", 1, INT64_MAX, 256, &window));
    for (int64_t i = 0; i < plan->desc.num_layers; i++) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        if (!type || (strcmp(type, "local") != 0 && strcmp(type, "global") != 0))
            return mhai_config_fail(MHA_ERR_UNSUPPORTED, config, "attention_types",
                                    "is neither local nor global for layer %lld", (long long)i);
        if (type[0] == 'g') continue;
        plan->layers[i].flags |= MHA_LAYER_WINDOW;
        plan->layers[i].left_keys = window - 1;
    }
    return MHA_OK;
}

static mha_status read_gpt_neo(const mhai_config *config, mhai_family_plan *plan)
{
    json_t *types = json_array();
    mha_status status = types ? mhai_leave_unscaled(plan) : MHA_NO_MEMORY("model");
    plan->desc.positions = MHA_ENCODING_LEARNED;
    if (status == MHA_OK) status = expand_types(config, plan->desc.num_layers, types);
    if (status == MHA_OK) status = set_windows(config, types, plan);
    json_decref(types);
    return status;
}

const mhai_family mhai_family_gpt_neo = {
    .model_type = "gpt_neo",
    MHAI_GPT_FILES(&neo_keys, neo_names, MHA_MODEL_SHAPE_OUT_BIAS, 0),
    .act = "gelu_new",
    .tied = true,
    .read = read_gpt_neo};
