/* GLM 4: a rotation of neighbouring elements in half of each head, and fused gate and up projections.
 * GLM 4 0414 (glm4): norms also after each block. */
#include "model/arch/family.h"

static const mhai_weight_name names[] = {
    MHAI_LLAMA_NAMES,
    MHAI_NAME("self_attn_post_norm", "post_self_attn_layernorm"),
    MHAI_NAME("mlp_post_norm", "post_mlp_layernorm"),
    {"mlp.gate_proj", "mlp.gate_up_proj", MHAI_FUSED, 0},
    {"mlp.up_proj", "mlp.gate_up_proj", MHAI_FUSED, 1},
    MHAI_NAME(NULL, NULL)};

#define GLM(type, flags_)                                                                      \
    {                                                                                          \
        .model_type = (type), MHAI_LLAMA_FILES(names, MHA_MODEL_SHAPE_QKV_BIAS),               \
        .epsilon = 1.5625e-7, .whole = true, .bias_key = "attention_bias", .biases_qkv = true, \
        .usual_head_dim = 128, .flags = (flags_), .layer_flags = MHA_LAYER_ROPE_INTERLEAVED,   \
        .rope = &mhai_half_rope, .partial = true                                               \
    }
const mhai_family mhai_family_glm = GLM("glm", 0);
const mhai_family mhai_family_glm4 = GLM("glm4", MHA_TRANSFORMER_BRANCH_NORM);
