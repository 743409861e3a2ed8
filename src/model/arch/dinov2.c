/* DINOv2 (Oquab et al. 2023): a ViT with layer scales, and a SwiGLU in the largest size; registers
 * (Darcet et al. 2024) follow CLS and have no positions. */
#include "io/file.h"
#include "model/arch/family.h"

static const mhai_weight_name names[] = {
    {"embed_features.weight", "embeddings.patch_embeddings.projection.weight", MHAI_PATCHES, 0},
    {"embed_tokens.weight", "embeddings.patch_embeddings.projection.bias", MHAI_SPECIAL_ROWS, 0},
    {"embed_positions.weight", "embeddings.position_embeddings", MHAI_POSITION_ROWS, 0},
    MHAI_VIT_NAMES,
    MHAI_NAME("self_attn_norm", "norm1"),
    MHAI_NAME("mlp_norm", "norm2"),
    {"self_attn.o_proj", "attention.output.dense", MHAI_LAYER_SCALED, 1},
    {"mlp.gate_proj", "mlp.weights_in", MHAI_FUSED, 0},
    {"mlp.up_proj", "mlp.fc1", MHAI_AS_IS, 0},
    {"mlp.up_proj", "mlp.weights_in", MHAI_FUSED, 1},
    {"mlp.down_proj", "mlp.fc2", MHAI_LAYER_SCALED, 2},
    {"mlp.down_proj", "mlp.weights_out", MHAI_LAYER_SCALED, 2},
    MHAI_NAME("norm", "layernorm"),
    MHAI_NAME(NULL, NULL)};

/* The width is the product of hidden_size and mlp_ratio, rounded down; of a SwiGLU, two thirds of
 * it, rounded down and then up to a multiple of 8. */
static mha_status read_width(const mhai_config *config, mha_transformer_desc *d)
{
    double ratio;
    bool gated;
    MHA_TRY(mhai_config_number(config, "mlp_ratio", 4, &ratio));
    MHA_TRY(mhai_config_bool(config, "use_swiglu_ffn", false, &gated));
    if (!(ratio * (double)d->embed_dim >= 1 && ratio * (double)d->embed_dim < MHAI_MOST_WIDTH))
        return mhai_config_fail(MHA_ERR_MODEL, config, "mlp_ratio",
                                "is %g, expected a feed-forward width of 1..%d", ratio,
                                MHAI_MOST_WIDTH);
    d->ff_dim = (int64_t)((double)d->embed_dim * ratio);
    if (!gated) return MHA_OK;
    d->ff_dim = ((int64_t)((double)(2 * d->ff_dim) / 3) + 7) / 8 * 8;
    d->feed_forward = MHA_FEED_FORWARD_SWIGLU;
    return MHA_OK;
}

static mha_status read(const mhai_config *config, bool registers, mhai_family_plan *plan)
{
    const mhai_vision vision = {.patch = 14,
                                .cls = true,
                                .registers = registers,
                                .usual_registers = 4,
                                .own_inner = true,
                                .act = "gelu",
                                .epsilon = 1e-6,
                                .sizes = registers ? MHAI_ANTIALIASED : MHAI_INTERPOLATED,
                                .filter = MHAI_BICUBIC,
                                .edges = true,
                                .mean = mhai_imagenet_mean,
                                .std = mhai_imagenet_std};
    MHA_TRY(mhai_read_vision(config, &vision, plan));
    return read_width(config, &plan->desc);
}

static mha_status read_plain(const mhai_config *config, mhai_family_plan *plan)
{
    return read(config, false, plan);
}

static mha_status read_registers(const mhai_config *config, mhai_family_plan *plan)
{
    return read(config, true, plan);
}

#define DINOV2(type, read_)                                                                   \
    {                                                                                         \
        .model_type = (type), .keys = &mhai_vision_keys,                                      \
        .shape = MHA_MODEL_SHAPE_QKV_BIAS | MHA_MODEL_SHAPE_OUT_BIAS, .bias_key = "qkv_bias", \
        .biases_qkv = true, .layers = "encoder.layer.", .prefix = type ".", .names = names,   \
        .read = (read_)                                                                       \
    }
const mhai_family mhai_family_dinov2 = DINOV2("dinov2", read_plain);
const mhai_family mhai_family_dinov2_with_registers =
    DINOV2("dinov2_with_registers", read_registers);
