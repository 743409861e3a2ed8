/* SigLIP's tower of images (Zhai et al. 2023): a ViT without CLS. Its attention pooling is not part
 * of the transformer. */
#include "model/arch/family.h"

static const mhai_weight_name names[] = {
    {"embed_features.weight", "embeddings.patch_embedding.weight", MHAI_PATCHES, 0},
    {"embed_tokens.weight", "embeddings.patch_embedding.bias", MHAI_SPECIAL_ROWS, 0},
    {"embed_positions.weight", "embeddings.position_embedding.weight", MHAI_POSITION_ROWS, 0},
    MHAI_NAME("norm", "post_layernorm"),
    MHAI_NAME("self_attn_norm", "layer_norm1"),
    MHAI_NAME("mlp_norm", "layer_norm2"),
    MHAI_NAME("self_attn.o_proj", "self_attn.out_proj"),
    MHAI_NAME("mlp.up_proj", "mlp.fc1"),
    MHAI_NAME("mlp.down_proj", "mlp.fc2"),
    MHAI_NAME(NULL, NULL)};

static mha_status read_siglip(const mhai_config *config, mhai_family_plan *plan)
{
    static const mhai_vision vision = {
        .patch = 16, .act = "gelu_pytorch_tanh", .epsilon = 1e-6, .filter = MHAI_BICUBIC};
    return mhai_read_vision(config, &vision, plan);
}

#define SIGLIP(type, part)                                                                         \
    {                                                                                              \
        .model_type = (type), .text_type = (part), .images = true, .keys = &mhai_vision_keys,      \
        .shape = MHA_MODEL_SHAPE_QKV_BIAS | MHA_MODEL_SHAPE_OUT_BIAS, .layers = "encoder.layers.", \
        .prefix = "vision_model.", .names = names, .read = read_siglip                             \
    }
const mhai_family mhai_family_siglip_vision_model = SIGLIP("siglip_vision_model", NULL);
const mhai_family mhai_family_siglip_images = SIGLIP("siglip", "siglip_vision_model");
