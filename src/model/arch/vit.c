/* ViT (Dosovitskiy et al. 2021): pre-norm, CLS, learned positions. */
#include "model/arch/family.h"

static const mhai_weight_name names[] = {
    {"embed_features.weight", "embeddings.patch_embeddings.projection.weight", MHAI_PATCHES, 0},
    {"embed_tokens.weight", "embeddings.patch_embeddings.projection.bias", MHAI_SPECIAL_ROWS, 0},
    {"embed_positions.weight", "embeddings.position_embeddings", MHAI_POSITION_ROWS, 0},
    MHAI_VIT_NAMES,
    MHAI_NAME("self_attn_norm", "layernorm_before"),
    MHAI_NAME("mlp_norm", "layernorm_after"),
    MHAI_NAME("mlp.up_proj", "intermediate.dense"),
    MHAI_NAME("mlp.down_proj", "output.dense"),
    MHAI_NAME("self_attn.o_proj", "attention.output.dense"),
    MHAI_NAME("norm", "layernorm"),
    MHAI_NAME(NULL, NULL)};

static mha_status read_vit(const mhai_config *config, mhai_family_plan *plan)
{
    static const mhai_vision vision = {.patch = 16, .cls = true, .act = "gelu", .epsilon = 1e-12};
    return mhai_read_vision(config, &vision, plan);
}

const mhai_family mhai_family_vit = {.model_type = "vit",
                                     .keys = &mhai_vision_keys,
                                     .shape = MHA_MODEL_SHAPE_QKV_BIAS | MHA_MODEL_SHAPE_OUT_BIAS,
                                     .bias_key = "qkv_bias",
                                     .biases_qkv = true,
                                     .layers = "encoder.layer.",
                                     .prefix = "vit.",
                                     .names = names,
                                     .read = read_vit};
