/* SmolLM3: Llama without a rotation in some layers, usually every fourth. */
#include "io/file.h"
#include "model/arch/family.h"

static const mhai_rope_kind rope = {NULL, "rope_theta", "partial_rotary_factor", 2e6, 1, true};

/* The elements of no_rope_layers are 1 for layers that rotate. */
static mha_status read_unrotated(const mhai_config *config, mhai_family_plan *plan)
{
    static const char key[] = "no_rope_layers";
    const json_t *list = json_object_get(config->root, key);
    const bool listed = !mhai_config_absent(config, key);
    int64_t period;
    MHA_TRY(
        mhai_config_optional(config, "no_rope_layer_interval", 1, MHAI_MOST_LAYERS, 4, &period));
    if (listed && (int64_t)json_array_size(list) < plan->desc.num_layers)
        return mhai_config_fail(MHA_ERR_MODEL, config, key,
                                "is not a list of %lld numbers, one for each layer",
                                (long long)plan->desc.num_layers);
    MHA_TRY(mhai_plan_layers(plan));
    for (int64_t i = 0; i < plan->desc.num_layers; i++) {
        const json_t *given = json_array_get(list, (size_t)i);
        const json_int_t rotates = listed ? json_integer_value(given) : (i + 1) % period != 0;
        if (listed && (!json_is_integer(given) || rotates < 0 || rotates > 1))
            return mhai_config_fail(MHA_ERR_MODEL, config, key,
                                    "holds a value that is not 0 or 1 for layer %lld",
                                    (long long)i);
        if (!rotates) plan->layers[i].flags |= MHA_LAYER_NO_ROPE;
    }
    return MHA_OK;
}

static mha_status read_smollm3(const mhai_config *config, mhai_family_plan *plan)
{
    bool windowed;
    MHA_TRY(mhai_config_bool(config, "use_sliding_window", false, &windowed));
    if (windowed && mhai_config_absent(config, "layer_types"))
        return mhai_config_fail(MHA_ERR_UNSUPPORTED, config, "use_sliding_window",
                                "is true without 'layer_types'; list the type of each layer there");
    MHA_TRY(mhai_read_windows(config, 4096, 0, 1, plan));
    return read_unrotated(config, plan);
}

const mhai_family mhai_family_smollm3 = {.model_type = "smollm3",
                                         MHAI_LLAMA_FILES(mhai_llama_names, 0),
                                         .whole = true,
                                         .bias_key = "attention_bias",
                                         .ff_bias_key = "mlp_bias",
                                         .rope = &rope,
                                         .tied = true,
                                         .read = read_smollm3};
