/* GLM 4 (0414): norms before and after each block, a rotation of neighbouring elements in half of
 * each head, and fused gate and up projections. */
#include "model/arch/family.h"

static const mhai_weight_name names[] = {
    MHAI_LLAMA_NAMES,
    MHAI_NAME("self_attn_post_norm", "post_self_attn_layernorm"),
    MHAI_NAME("mlp_post_norm", "post_mlp_layernorm"),
    {"mlp.gate_proj", "mlp.gate_up_proj", MHAI_FUSED, 0},
    {"mlp.up_proj", "mlp.gate_up_proj", MHAI_FUSED, 1},
    MHAI_NAME(NULL, NULL)};

static const mhai_rope_kind rope = {NULL, "rope_theta", "partial_rotary_factor", 1e4, 0.5, true};

static mha_status read_glm4(const mhai_config *config, mhai_family_plan *plan)
{
    mha_transformer_desc *d = &plan->desc;
    bool biased;
    MHA_TRY(mhai_config_bool(config, "attention_bias", true, &biased));
    d->flags |= MHA_TRANSFORMER_BRANCH_NORM | (biased ? MHA_TRANSFORMER_QKV_BIAS : 0);
    if (d->head_dim == 0) d->head_dim = 128;
    return mhai_flag_layers(plan, MHA_LAYER_ROPE_INTERLEAVED);
}

const mhai_family mhai_family_glm4 = {.model_type = "glm4",
                                      MHAI_LLAMA_FILES(names, MHA_MODEL_SHAPE_QKV_BIAS),
                                      .epsilon = 1.5625e-7,
                                      .whole = true,
                                      .bias_key = "attention_bias",
                                      .biases_qkv = true,
                                      .rope = &rope,
                                      .partial = true,
                                      .read = read_glm4};
