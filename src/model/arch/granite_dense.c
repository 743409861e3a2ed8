/* Granite 3 and earlier: Llama with multipliers of embeddings, residuals, scores and logits. Granite
 * SWA: sinks, and windows by layer. */
#include "io/file.h"
#include "model/arch/family.h"

const mhai_family mhai_family_granite = {.model_type = "granite",
                                         MHAI_LLAMA_FILES(mhai_llama_names, 0),
                                         .bias_key = "attention_bias",
                                         .ff_bias_key = "mlp_bias",
                                         .read = mhai_read_multipliers};

/* layer_rope_theta: the base of each layer, 0: no rotation. */
static mha_status read_bases(const mhai_config *config, mhai_family_plan *plan)
{
    static const char key[] = "layer_rope_theta";
    const json_t *list = json_object_get(config->root, key);
    double base;
    MHA_TRY(mhai_config_number(config, "rope_theta", 1e4, &base));
    MHA_TRY(mhai_rope_number(config, "rope_theta", base, &base));
    for (int64_t i = 0; !mhai_config_absent(config, key) && i < plan->desc.num_layers; i++) {
        const json_t *own = json_array_get(list, (size_t)i);
        if (json_is_number(own) && !(json_number_value(own) > 0) && !(json_number_value(own) < 0))
            plan->layers[i].flags |= MHA_LAYER_NO_ROPE;
        else if (!json_is_number(own) || json_number_value(own) < base ||
                 json_number_value(own) > base)
            return mhai_config_fail(
                MHA_ERR_UNSUPPORTED, config, key,
                "is neither 0 nor the 'rope_theta' of 'rope_parameters', %g, for layer %lld", base,
                (long long)i);
    }
    return MHA_OK;
}

static mha_status read_granite_swa(const mhai_config *config, mhai_family_plan *plan)
{
    if (mhai_config_absent(config, "layer_types"))
        return mhai_config_fail(MHA_ERR_MODEL, config, "layer_types", "is missing");
    MHA_TRY(mhai_read_windows(config, 128, 0, 0, plan));
    MHA_TRY(read_bases(config, plan));
    return mhai_read_multipliers(config, plan);
}

const mhai_family mhai_family_granite_swa = {.model_type = "granite_swa",
                                             MHAI_LLAMA_FILES(mhai_llama_names, 0),
                                             .whole = true,
                                             .bias_key = "attention_bias",
                                             .ff_bias_key = "mlp_bias",
                                             .layer_flags = MHA_LAYER_SINKS,
                                             .epsilon = 1e-5,
                                             .tied = true,
                                             .read = read_granite_swa};
