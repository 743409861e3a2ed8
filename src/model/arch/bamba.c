/* Bamba: Mamba-2 layers, and in some layers attention that rotates half of each head. */
#include "model/arch/family.h"

static const mhai_weight_name names[] = {MHAI_STATE_SPACE_NAMES("mamba"),
                                         MHAI_NAME("norm", "final_layernorm"),
                                         MHAI_NAME("self_attn_norm", "input_layernorm"),
                                         MHAI_NAME("mlp_norm", "pre_ff_layernorm"),
                                         MHAI_NAME("mlp.gate_proj", "feed_forward.gate_proj"),
                                         MHAI_NAME("mlp.up_proj", "feed_forward.up_proj"),
                                         MHAI_NAME("mlp.down_proj", "feed_forward.down_proj"),
                                         MHAI_NAME(NULL, NULL)};

/* transformers ignores a partial_rotary_factor outside rope_parameters. */
static const mhai_rope_kind rope = {NULL, "rope_theta", NULL, 1e4, 0.5, true};

static mha_status find_kind(const mhai_config *config, int64_t layer, int *kind)
{
    bool attends;
    MHA_TRY(mhai_config_lists(config, "attn_layer_indices", layer, &attends));
    *kind = attends ? MHAI_ATTENDS : MHAI_MIXES;
    return MHA_OK;
}

static mha_status read_bamba(const mhai_config *config, mhai_family_plan *plan)
{
    mhai_mixing mixing = {.usual = find_kind};
    return mhai_read_state_spaces(config, &mhai_mamba_keys, &mixing, plan);
}

const mhai_family mhai_family_bamba = {.model_type = "bamba",
                                       MHAI_LLAMA_FILES(names, 0),
                                       .epsilon = 1e-5,
                                       .whole = true,
                                       .bias_key = "attention_bias",
                                       .ff_bias_key = "mlp_bias",
                                       .rope = &rope,
                                       .partial = true,
                                       .read = read_bamba};
