/* Kimi Linear (arXiv 2510.26692): Kimi delta attention, and latent attention without positions in every
 * fourth layer, with experts as in DeepSeek-V3. */
#include "io/file.h"
#include "model/arch/family.h"

/* transformers renames some weights of published files; its own names come second. It also renames the
 * weights of dense layers when it saves. */
static const mhai_weight_name names[] = {
    {"delta_net.conv", "self_attn.q_conv1d", MHAI_CONVOLUTIONS, 0},
    {"delta_net.conv", "self_attn.conv1d", MHAI_CONVOLUTION, 0},
    {"delta_net.A_log", "self_attn.A_log", MHAI_FOUR_AXES, 0},
    {"delta_net.A_log", "self_attn.forget_gate.A_log", MHAI_FOUR_AXES, 0},
    MHAI_NAME("delta_net.dt_bias", "self_attn.dt_bias"),
    MHAI_NAME("delta_net.dt_bias", "self_attn.forget_gate.dt_bias"),
    MHAI_NAME("delta_net.f_a_proj", "self_attn.f_a_proj"),
    MHAI_NAME("delta_net.f_a_proj", "self_attn.forget_gate.f_a_proj"),
    MHAI_NAME("delta_net.f_b_proj", "self_attn.f_b_proj"),
    MHAI_NAME("delta_net.f_b_proj", "self_attn.forget_gate.f_b_proj"),
    MHAI_NAME("delta_net.q_proj", "self_attn.q_proj"),
    MHAI_NAME("delta_net.k_proj", "self_attn.k_proj"),
    MHAI_NAME("delta_net.v_proj", "self_attn.v_proj"),
    MHAI_NAME("delta_net.b_proj", "self_attn.b_proj"),
    MHAI_NAME("delta_net.g_a_proj", "self_attn.g_a_proj"),
    MHAI_NAME("delta_net.g_b_proj", "self_attn.g_b_proj"),
    MHAI_NAME("delta_net.o_norm", "self_attn.o_norm"),
    MHAI_NAME("delta_net.o_proj", "self_attn.o_proj"),
    MHAI_NAME("mlp.router", "block_sparse_moe.gate"),
    MHAI_NAME("mlp.score_bias", "block_sparse_moe.gate.e_score_correction_bias"),
    MHAI_NAME("mlp.experts.*.gate_proj", "block_sparse_moe.experts.*.w1"),
    MHAI_NAME("mlp.experts.*.up_proj", "block_sparse_moe.experts.*.w3"),
    MHAI_NAME("mlp.experts.*.down_proj", "block_sparse_moe.experts.*.w2"),
    MHAI_NAME("mlp.shared_expert.gate_proj", "block_sparse_moe.shared_experts.gate_proj"),
    MHAI_NAME("mlp.shared_expert.up_proj", "block_sparse_moe.shared_experts.up_proj"),
    MHAI_NAME("mlp.shared_expert.down_proj", "block_sparse_moe.shared_experts.down_proj"),
    MHAI_NAME("mlp.gate_proj", "block_sparse_moe.gate_proj"),
    MHAI_NAME("mlp.up_proj", "block_sparse_moe.up_proj"),
    MHAI_NAME("mlp.down_proj", "block_sparse_moe.down_proj"),
    MHAI_DEEPSEEK_NAMES,
    MHAI_NAME(NULL, NULL)};

static const mhai_shape_keys keys = {"hidden_size",         "num_hidden_layers",
                                     "num_attention_heads", "model_max_length",
                                     "num_key_value_heads", "is_decoder"};

static const char nets[] = "linear_attn_config";

/* Numbers of layers count from 1. Without these lists, transformers attends in layers 4, 8, ..,
 * counted from 0. */
static mha_status find_kind(const mhai_config *config, int64_t layer, int *kind)
{
    static const char *const lists[MHAI_KINDS] = {"full_attn_layers", "kda_layers"};
    const mhai_config own = {config->path, json_object_get(config->root, nets)};
    bool listed[2];
    *kind = layer > 0 && layer % 4 == 0 ? MHAI_ATTENDS : MHAI_MIXES;
    if (mhai_config_absent(&own, lists[0]) || mhai_config_absent(&own, lists[1])) return MHA_OK;
    for (int i = 0; i < 2; i++) MHA_TRY(mhai_config_lists(&own, lists[i], layer + 1, &listed[i]));
    *kind = listed[0] ? MHAI_ATTENDS : MHAI_MIXES;
    if (listed[0] != listed[1]) return MHA_OK;
    return mhai_config_fail(MHA_ERR_MODEL, config, nets,
                            "has layer %lld in %s of full_attn_layers and kda_layers, expected in "
                            "one",
                            (long long)layer + 1, listed[0] ? "both" : "none");
}

/* Read the sizes of Kimi delta attention, which published files have in an object. */
static mha_status read_nets(const mhai_config *config, mhai_family_plan *plan)
{
    static const struct {
        const char *key, *nested;
        int64_t most, usual;
    } sizes[] = {{"linear_num_heads", "num_heads", MHAI_MOST_WIDTH, 32},
                 {"linear_head_dim", "head_dim", MHAI_MOST_WIDTH, 128},
                 {"linear_conv_kernel_dim", "short_conv_kernel_size", MHA_CONVOLUTION_MOST, 4}};
    const mhai_config own = {config->path, json_object_get(config->root, nets)};
    mha_layer_desc attention = plan->layers[0];
    int64_t n[3];
    if (!mhai_config_absent(config, nets) && !json_is_object(own.root))
        return mhai_config_fail(MHA_ERR_MODEL, config, nets, "is not an object");
    for (int i = 0; i < 3; i++) {
        const bool nested = !mhai_config_absent(&own, sizes[i].nested);
        MHA_TRY(mhai_config_optional(nested ? &own : config,
                                     nested ? sizes[i].nested : sizes[i].key, 1, sizes[i].most,
                                     sizes[i].usual, &n[i]));
    }
    attention.flags = 0, attention.scale = 0;
    const mhai_mixing mixing = {.types = {{"full_attention"}, {"linear_attention"}},
                                .usual = find_kind,
                                .mixer = {.mixer = MHA_MIXER_GATED_DELTA,
                                          .key_dim = n[1],
                                          .value_dim = n[1],
                                          .gate_rank = n[1],
                                          .conv_kernel = (int32_t)n[2]},
                                .attention = attention,
                                .heads = n[0],
                                .kv_heads = n[0]};
    return mhai_read_mixing(config, &mixing, plan);
}

/* transformers also takes the names of other families, but does not write them. */
static mha_status refuse_aliases(const mhai_config *config)
{
    static const char *const names_of[][2] = {{"num_local_experts", "num_experts"},
                                              {"num_experts_per_tok", "num_experts_per_token"},
                                              {"n_shared_experts", "num_shared_experts"},
                                              {"n_group", "num_expert_group"},
                                              {"norm_topk_prob", "moe_renormalize"},
                                              {"max_position_embeddings", "model_max_length"}};
    for (size_t i = 0; i < sizeof names_of / sizeof *names_of; i++)
        if (!mhai_config_absent(config, names_of[i][0]))
            return mhai_config_fail(MHA_ERR_UNSUPPORTED, config, names_of[i][0],
                                    "is set; use '%s' instead", names_of[i][1]);
    return MHA_OK;
}

/* transformers ignores these fields of published files. */
static mha_status check_published(const mhai_config *config)
{
    static const char *const scores[] = {"sigmoid"};
    int64_t unused;
    int score;
    bool bare;
    MHA_TRY(mhai_config_optional(config, "moe_layer_freq", 1, 1, 1, &unused));
    MHA_TRY(mhai_config_choice(config, "moe_router_activation_func", scores[0], scores, 1, &score));
    MHA_TRY(mhai_config_bool(config, "mla_use_nope", true, &bare));
    if (bare) return MHA_OK;
    return mhai_config_fail(MHA_ERR_UNSUPPORTED, config, "mla_use_nope",
                            "is false, which is not supported: no layer rotates");
}

static mha_status read_kimi_linear(const mhai_config *config, mhai_family_plan *plan)
{
    static const mhai_experts_kind kind = {.count = "num_experts",
                                           .used = "num_experts_per_token",
                                           .inner = "moe_intermediate_size",
                                           .shared_count = "num_shared_experts",
                                           .groups = "num_expert_group",
                                           .groups_used = "topk_group",
                                           .normalises = "moe_renormalize",
                                           .usual = true,
                                           .sum_epsilon = 1e-20F,
                                           .scale = "routed_scaling_factor",
                                           .first = "first_k_dense_replace",
                                           .usual_first = 1,
                                           .types = "mlp_layer_types",
                                           .flags = MHA_EXPERTS_SIGMOID | MHA_EXPERTS_SCORE_BIAS |
                                                    MHA_EXPERTS_GROUP_PAIRS};
    MHA_TRY(refuse_aliases(config));
    MHA_TRY(check_published(config));
    if (mhai_config_absent(config, kind.scale))
        return mhai_config_fail(MHA_ERR_MODEL, config, kind.scale, "is missing");
    MHA_TRY(mhai_read_latent(config, 0, plan));
    MHA_TRY(read_nets(config, plan));
    plan->desc.positions = MHA_ENCODING_NONE;
    return mhai_read_experts(config, &kind, plan);
}

const mhai_family mhai_family_kimi_linear = {.model_type = "kimi_linear",
                                             .llama = true,
                                             .keys = &keys,
                                             .shape = MHA_MODEL_SHAPE_CAUSAL,
                                             .grouped = true,
                                             .latent = true,
                                             .layers = "layers.",
                                             .prefix = "model.",
                                             .names = names,
                                             .epsilon = 1e-5,
                                             .ignores = mhai_latent_ignores,
                                             .read = read_kimi_linear};
