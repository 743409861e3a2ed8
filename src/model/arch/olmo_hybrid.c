/* OLMo Hybrid: gated delta nets with norms before their blocks and strengths up to 2, and in every
 * fourth layer the attention of OLMo 3, with norms after its blocks and usually without positions. */
#include "io/file.h"
#include "model/arch/family.h"

static const mhai_weight_name names[] = {
    MHAI_NAME("self_attn_norm", "input_layernorm"),
    MHAI_NAME("self_attn_norm", "attention_layer_norm"),
    MHAI_NAME("mlp_norm", "post_attention_layernorm"),
    MHAI_NAME("mlp_norm", "feedforward_layer_norm"),
    MHAI_NAME("self_attn_post_norm", "post_attention_layernorm"),
    MHAI_NAME("self_attn_post_norm", "feedforward_layer_norm"), /* saved by transformers 5.23 */
    MHAI_NAME("mlp_post_norm", "post_feedforward_layernorm"),
    {"delta_net.conv", "linear_attn.conv1d", MHAI_CONVOLUTION, 0},
    {"delta_net.conv", "linear_attn.q_conv1d", MHAI_CONVOLUTIONS, 0},
    MHAI_NAME("delta_net.q_proj", "linear_attn.q_proj"),
    MHAI_NAME("delta_net.k_proj", "linear_attn.k_proj"),
    MHAI_NAME("delta_net.v_proj", "linear_attn.v_proj"),
    MHAI_NAME("delta_net.g_proj", "linear_attn.g_proj"),
    MHAI_NAME("delta_net.b_proj", "linear_attn.b_proj"),
    MHAI_NAME("delta_net.a_proj", "linear_attn.a_proj"),
    MHAI_NAME("delta_net.o_norm", "linear_attn.o_norm"),
    MHAI_NAME("delta_net.o_proj", "linear_attn.o_proj"),
    MHAI_NAME("delta_net", "linear_attn"), /* A_log and dt_bias */
    MHAI_NAME(NULL, NULL)};

/* Every fourth layer attends, or the last one of fewer than four. */
static mha_status find_kind(const mhai_config *config, int64_t layer, int *kind)
{
    int64_t layers;
    MHA_TRY(mhai_config_count(config, "num_hidden_layers", 1, MHAI_MOST_LAYERS, &layers));
    const bool attends = layers < 4 ? layer + 1 == layers : layer % 4 == 3;
    *kind = attends ? MHAI_ATTENDS : MHAI_MIXES;
    return MHA_OK;
}

static mha_status read_nets(const mhai_config *config, mhai_family_plan *plan)
{
    const int64_t heads = plan->desc.num_heads, width = plan->desc.embed_dim;
    int64_t keys, values, key_dim, value_dim, kernel;
    bool doubles;
    MHA_TRY(mhai_config_optional(config, "linear_num_key_heads", 1, MHAI_MOST_WIDTH, heads, &keys));
    MHA_TRY(
        mhai_config_optional(config, "linear_num_value_heads", 1, MHAI_MOST_WIDTH, heads, &values));
    MHA_TRY(mhai_config_optional(config, "linear_key_head_dim", 1, MHAI_MOST_WIDTH,
                                 3 * width / (4 * keys), &key_dim));
    MHA_TRY(mhai_config_optional(config, "linear_value_head_dim", 1, MHAI_MOST_WIDTH, 2 * key_dim,
                                 &value_dim));
    MHA_TRY(mhai_config_optional(config, "linear_conv_kernel_dim", 1, MHA_CONVOLUTION_MOST, 4,
                                 &kernel));
    MHA_TRY(mhai_config_bool(config, "linear_allow_neg_eigval", true, &doubles));
    if (values % keys != 0)
        return mhai_config_fail(MHA_ERR_MODEL, config, "linear_num_value_heads",
                                "is %lld, expected a multiple of 'linear_num_key_heads', %lld",
                                (long long)values, (long long)keys);
    const mhai_mixing mixing = {
        .types = {{"full_attention"}, {"linear_attention"}},
        .usual = find_kind,
        .mixer = {.mixer = MHA_MIXER_GATED_DELTA,
                  .key_dim = key_dim,
                  .value_dim = value_dim,
                  .conv_kernel = (int32_t)kernel,
                  .strength_scale = doubles ? 2 : 1,
                  .head_norm_epsilon = 1e-5F},
        .attention = {.flags = MHA_LAYER_QK_NORM | MHA_LAYER_QK_NORM_ROW | MHA_LAYER_BRANCH_NORM},
        .heads = values,
        .kv_heads = keys};
    return mhai_read_mixing(config, &mixing, plan);
}

/* A base of rotation that is null, unlike an absent one, means none. */
static bool rotates(const mhai_config *config)
{
    const json_t *scaling = json_object_get(config->root, "rope_scaling");
    const json_t *given =
        json_object_size(scaling) > 0 ? scaling : json_object_get(config->root, "rope_parameters");
    const json_t *base = json_object_get(given, "rope_theta");
    if (!base) base = json_object_get(config->root, "rope_theta");
    return !base || !json_is_null(base);
}

static mha_status read_olmo_hybrid(const mhai_config *config, mhai_family_plan *plan)
{
    MHA_TRY(read_nets(config, plan));
    if (!rotates(config)) plan->desc.positions = MHA_ENCODING_NONE;
    return MHA_OK;
}

const mhai_family mhai_family_olmo_hybrid = {.model_type = "olmo_hybrid",
                                             MHAI_LLAMA_FILES(names, 0),
                                             .bias_key = "attention_bias",
                                             .read = read_olmo_hybrid};
