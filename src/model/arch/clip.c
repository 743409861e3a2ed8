/* CLIP (Radford et al. 2021), both towers: images with CLS and a norm on the embeddings; texts,
 * causal. */
#include "model/arch/family.h"

#define LAYERS                                                                                    \
    MHAI_NAME("self_attn_norm", "layer_norm1"), MHAI_NAME("mlp_norm", "layer_norm2"),             \
        MHAI_NAME("self_attn.o_proj", "self_attn.out_proj"), MHAI_NAME("mlp.up_proj", "mlp.fc1"), \
        MHAI_NAME("mlp.down_proj", "mlp.fc2")

static const mhai_weight_name image_names[] = {
    {"embed_features.weight", "embeddings.patch_embedding.weight", MHAI_PATCHES, 0},
    {"embed_tokens.weight", "embeddings.patch_embedding.bias", MHAI_SPECIAL_ROWS, 0},
    {"embed_positions.weight", "embeddings.position_embedding.weight", MHAI_POSITION_ROWS, 0},
    MHAI_NAME("embed_norm", "pre_layrnorm"), /* as in the files */
    MHAI_NAME("norm", "post_layernorm"),
    LAYERS,
    MHAI_NAME(NULL, NULL)};

static const mhai_weight_name text_names[] = {
    MHAI_NAME("embed_tokens", "embeddings.token_embedding"),
    MHAI_NAME("embed_positions", "embeddings.position_embedding"),
    MHAI_NAME("norm", "final_layer_norm"), LAYERS, MHAI_NAME(NULL, NULL)};

static mha_status read_image(const mhai_config *config, mhai_family_plan *plan)
{
    static const mhai_vision vision = {.patch = 32,
                                       .cls = true,
                                       .act = "quick_gelu",
                                       .epsilon = 1e-5,
                                       .filter = MHAI_BICUBIC,
                                       .edges = true,
                                       .mean = mhai_clip_mean,
                                       .std = mhai_clip_std};
    MHA_TRY(mhai_read_vision(config, &vision, plan));
    plan->desc.flags |= MHA_TRANSFORMER_EMBEDDING_NORM;
    return MHA_OK;
}

static mha_status read_text(const mhai_config *config, mhai_family_plan *plan)
{
    mha_transformer_desc *d = &plan->desc;
    MHA_TRY(mhai_read_sizes(config, &mhai_family_clip_text_model, "intermediate_size", d));
    MHA_TRY(mhai_read_activation(config, "hidden_act", "quick_gelu", &d->feed_forward));
    MHA_TRY(mhai_config_real(config, "layer_norm_eps", 1e-5, 0, 1, &d->norm_epsilon));
    d->norm = MHA_NORM_LAYER;
    d->positions = MHA_ENCODING_LEARNED;
    d->flags = MHA_TRANSFORMER_CAUSAL | MHA_TRANSFORMER_BIAS | MHA_TRANSFORMER_NO_OUTPUT;
    return MHA_OK;
}

#define BIASES MHA_MODEL_SHAPE_QKV_BIAS | MHA_MODEL_SHAPE_OUT_BIAS
#define IMAGES(type, part)                                                                    \
    {                                                                                         \
        .model_type = (type), .text_type = (part), .images = true, .keys = &mhai_vision_keys, \
        .shape = BIASES, .layers = "encoder.layers.", .prefix = "vision_model.",              \
        .names = image_names, .read = read_image                                              \
    }
#define TEXTS(type, part)                                                      \
    {                                                                          \
        .model_type = (type), .text_type = (part), .keys = &mhai_usual_keys,   \
        .shape = MHA_MODEL_SHAPE_CAUSAL | BIASES, .layers = "encoder.layers.", \
        .prefix = "text_model.", .names = text_names, .read = read_text        \
    }
const mhai_family mhai_family_clip_vision_model = IMAGES("clip_vision_model", NULL);
const mhai_family mhai_family_clip_text_model = TEXTS("clip_text_model", NULL);
const mhai_family mhai_family_clip_images = IMAGES("clip", "clip_vision_model");
const mhai_family mhai_family_clip = TEXTS("clip", "clip_text_model");
