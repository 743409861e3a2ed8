/* Cohere (Command R): parallel blocks with one layer norm without bias, a rotation of neighbouring
 * elements, scaled logits. Cohere 2 (Command R7B, Command A): windows on three of four layers, and
 * no positions on the others. */
#include "model/arch/family.h"

static const mhai_weight_name names[] = {MHAI_NAME("self_attn_norm", "input_layernorm"),
                                         MHAI_NAME(NULL, NULL)};

static const mhai_rope_kind rope = {NULL, "rope_theta", "partial_rotary_factor", 5e5, 1, true};

static mha_status read_kinds(const mhai_config *config, mhai_family_plan *plan)
{
    mha_transformer_desc *d = &plan->desc;
    MHA_TRY(mhai_config_real(config, "logit_scale", 0.0625, 1e-9, 1e9, &d->logit_scale));
    return mhai_plan_layers(plan);
}

static mha_status read_cohere(const mhai_config *config, mhai_family_plan *plan)
{
    MHA_TRY(mhai_config_unset(config, "use_qk_norm")); /* of Command R+, a layer norm */
    MHA_TRY(read_kinds(config, plan));
    return mhai_flag_layers(plan, MHA_LAYER_ROPE_INTERLEAVED);
}

static mha_status read_cohere2(const mhai_config *config, mhai_family_plan *plan)
{
    int64_t period;
    MHA_TRY(read_kinds(config, plan));
    MHA_TRY(
        mhai_config_optional(config, "sliding_window_pattern", 1, MHAI_MOST_LAYERS, 4, &period));
    MHA_TRY(mhai_read_windows(config, 4096, 0, period, plan));
    for (int64_t i = 0; i < plan->desc.num_layers; i++) {
        const bool slides = plan->layers[i].flags & MHA_LAYER_WINDOW;
        plan->layers[i].flags |= slides ? MHA_LAYER_ROPE_INTERLEAVED : MHA_LAYER_NO_ROPE;
    }
    return MHA_OK;
}

#define COHERE(type, rope_, reader)                                                             \
    {                                                                                           \
        .model_type = (type), MHAI_LLAMA_FILES(names, 0), .bias_key = "attention_bias",         \
        .norm_key = "layer_norm_eps",                                                           \
        .flags =                                                                                \
            MHA_TRANSFORMER_PARALLEL | MHA_TRANSFORMER_ONE_NORM | MHA_TRANSFORMER_NO_NORM_BIAS, \
        .rope = (rope_), .tied = true, .read = (reader)                                         \
    }
const mhai_family mhai_family_cohere = COHERE("cohere", &rope, read_cohere);
const mhai_family mhai_family_cohere2 = COHERE("cohere2", NULL, read_cohere2);
