/* DINOv3 (Siméoni et al. 2025): a ViT with registers and layer scales, whose patches rotate by row and
 * column. Its keys usually have no bias. */
#include "io/file.h"
#include "model/arch/family.h"

static const mhai_weight_name names[] = {
    {"embed_features.weight", "embeddings.patch_embeddings.weight", MHAI_PATCHES, 0},
    {"embed_tokens.weight", "embeddings.patch_embeddings.bias", MHAI_SPECIAL_ROWS, 0},
    MHAI_NAME("self_attn_norm", "norm1"),
    MHAI_NAME("mlp_norm", "norm2"),
    MHAI_NAME("self_attn.q_proj", "attention.q_proj"),
    MHAI_NAME("self_attn.k_proj.weight", "attention.k_proj.weight"),
    {"self_attn.k_proj.bias", "attention.k_proj.bias", MHAI_KEY_BIAS, 0},
    MHAI_NAME("self_attn.v_proj", "attention.v_proj"),
    {"self_attn.o_proj", "attention.o_proj", MHAI_LAYER_SCALED, 1},
    {"mlp.down_proj", "mlp.down_proj", MHAI_LAYER_SCALED, 2},
    MHAI_NAME(NULL, NULL)};

/* All linear layers have biases, except that of keys. */
static mha_status read_biases(const mhai_config *config, mhai_picture *picture)
{
    static const char *const required[] = {"query_bias", "value_bias", "proj_bias", "mlp_bias"};
    bool biased;
    for (int i = 0; i < 4; i++) {
        MHA_TRY(mhai_config_bool(config, required[i], true, &biased));
        if (!biased)
            return mhai_config_fail(MHA_ERR_UNSUPPORTED, config, required[i],
                                    "is false, expected true");
    }
    MHA_TRY(mhai_config_bool(config, "key_bias", false, &biased));
    picture->no_key_bias = !biased;
    return MHA_OK;
}

static mha_status read_dinov3(const mhai_config *config, mhai_family_plan *plan)
{
    static const char *const acts[] = {"gelu", "silu"};
    static const mhai_vision vision = {.patch = 16,
                                       .cls = true,
                                       .registers = true,
                                       .own_act = true,
                                       .epsilon = 1e-5,
                                       .sizes = MHAI_INTERPOLATED,
                                       .mean = mhai_imagenet_mean,
                                       .std = mhai_imagenet_std};
    mha_transformer_desc *d = &plan->desc;
    int act;
    bool gated;
    MHA_TRY(mhai_read_vision(config, &vision, plan));
    MHA_TRY(read_biases(config, &plan->picture));
    MHA_TRY(mhai_config_bool(config, "use_gated_mlp", false, &gated));
    MHA_TRY(mhai_config_choice(config, "hidden_act", acts[0], acts, 2, &act));
    MHA_TRY(mhai_config_real(config, "rope_theta", 100, 1, 1e30, &d->rope_base));
    d->feed_forward = gated ? act ? MHA_FEED_FORWARD_SWIGLU : MHA_FEED_FORWARD_GEGLU
                      : act ? MHA_FEED_FORWARD_SILU
                            : MHA_FEED_FORWARD_GELU;
    d->positions = MHA_ENCODING_ROTARY;
    d->grid_rows = plan->picture.rows;
    d->grid_cols = plan->picture.cols;
    d->grid_first = plan->picture.first;
    plan->picture.processor.floats = true;
    if (d->embed_dim / d->num_heads % 4 == 0) return MHA_OK;
    return mhai_config_fail(MHA_ERR_MODEL, config, "num_attention_heads",
                            "is %lld, so that heads have %lld elements; a multiple of 4 rotates",
                            (long long)d->num_heads, (long long)(d->embed_dim / d->num_heads));
}

const mhai_family mhai_family_dinov3_vit = {.model_type = "dinov3_vit",
                                            .keys = &mhai_vision_keys,
                                            .shape =
                                                MHA_MODEL_SHAPE_QKV_BIAS | MHA_MODEL_SHAPE_OUT_BIAS,
                                            .layers = "layer.",
                                            .prefix = "dinov3_vit.",
                                            .names = names,
                                            .read = read_dinov3};
