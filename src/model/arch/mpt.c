/* MPT: causal, layer norms, ALiBi, no biases. */
#include "io/file.h"
#include "model/arch/family.h"

static const mhai_weight_name names[] = {MHAI_NAME("embed_tokens", "wte"),
                                         MHAI_NAME("self_attn_norm", "norm_1"),
                                         {"self_attn.q_proj", "attn.Wqkv", MHAI_FUSED, 0},
                                         {"self_attn.k_proj", "attn.Wqkv", MHAI_FUSED, 1},
                                         {"self_attn.v_proj", "attn.Wqkv", MHAI_FUSED, 2},
                                         MHAI_NAME("self_attn.o_proj", "attn.out_proj"),
                                         MHAI_NAME("mlp_norm", "norm_2"),
                                         MHAI_NAME("mlp.up_proj", "ffn.up_proj"),
                                         MHAI_NAME("mlp.down_proj", "ffn.down_proj"),
                                         MHAI_NAME("norm", "norm_f"),
                                         {"self_attn.alibi_slopes", "", MHAI_SLOPES, 0},
                                         MHAI_NAME(NULL, NULL)};

static const mhai_shape_keys keys = {
    "d_model", "n_layers", "n_heads", "max_seq_len", "num_key_value_heads", "is_decoder"};

static const char *const refused[] = {"logit_scale", NULL};

/* Fields that transformers ignores: other values have another meaning in the model's own code. */
static mha_status check_fixed(const mhai_config *config)
{
    static const char *const kinds[] = {"multihead_attention"}, *const norms[] = {
                                                                    "low_precision_layernorm",
                                                                    "layernorm"};
    const mhai_config attention = {config->path, json_object_get(config->root, "attn_config")};
    bool alibi, bare;
    int64_t unused;
    int choice;
    static const char *const fields[] = {"clip_qkv", "prefix_lm", "qk_ln", NULL};
    MHA_TRY(mhai_config_refuse(&attention, fields));
    MHA_TRY(mhai_config_choice(&attention, "attn_type", kinds[0], kinds, 1, &choice));
    MHA_TRY(mhai_config_choice(config, "norm_type", norms[0], norms, 2, &choice));
    MHA_TRY(mhai_config_optional(&attention, "alibi_bias_max", 8, 8, 8, &unused));
    MHA_TRY(mhai_config_optional(config, "expansion_ratio", 4, 4, 4, &unused));
    MHA_TRY(mhai_config_bool(&attention, "alibi", true, &alibi));
    MHA_TRY(mhai_config_bool(config, "no_bias", true, &bare));
    if (alibi && bare) return MHA_OK;
    return mhai_config_fail(MHA_ERR_UNSUPPORTED, config, alibi ? "no_bias" : "alibi",
                            "is false, which is not supported");
}

static mha_status read_mpt(const mhai_config *config, mhai_family_plan *plan)
{
    const mhai_config attention = {config->path, json_object_get(config->root, "attn_config")};
    mha_transformer_desc *d = &plan->desc;
    float scale = 0;
    MHA_TRY(check_fixed(config));
    d->positions = MHA_ENCODING_NONE;
    d->feed_forward = MHA_FEED_FORWARD_GELU;
    d->ff_dim = 4 * d->embed_dim;
    if (mhai_config_absent(&attention, "softmax_scale")) return MHA_OK;
    MHA_TRY(mhai_config_real(&attention, "softmax_scale", 1, 1e-6, 1e6, &scale));
    for (int64_t i = 0; i < d->num_layers; i++) plan->layers[i].scale = scale;
    return MHA_OK;
}

const mhai_family mhai_family_mpt = {.model_type = "mpt",
                                     .llama = true,
                                     .own_act = true,
                                     .keys = &keys,
                                     .shape = MHA_MODEL_SHAPE_CAUSAL,
                                     .norm_key = "layer_norm_epsilon",
                                     .flags = MHA_TRANSFORMER_NO_NORM_BIAS,
                                     .layer_flags = MHA_LAYER_ALIBI,
                                     .wide = true,
                                     .refused = refused,
                                     .layers = "blocks.",
                                     .prefix = "transformer.",
                                     .names = names,
                                     .tied = true,
                                     .read = read_mpt,
                                     .ignores = mhai_decoder_ignores};
