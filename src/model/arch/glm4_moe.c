/* Llama with experts of DeepSeek-V3's kind: GLM 4.5 to 4.7, whose later layers predict further tokens, and
 * dots.llm1. */
#include "io/file.h"
#include "model/arch/family.h"

static const mhai_weight_name names[] = {MHAI_LLAMA_NAMES, MHAI_SHARED_EXPERT_NAMES,
                                         MHAI_NAME(NULL, NULL)};
static mha_status read_deepseek_experts(const mhai_config *config, bool normalises, int64_t first,
                                        mhai_family_plan *plan)
{
    const mhai_experts_kind kind = {.count = "n_routed_experts",
                                    .alias = "num_local_experts",
                                    .inner = "moe_intermediate_size",
                                    .shared_count = "n_shared_experts",
                                    .groups = "n_group",
                                    .groups_used = "topk_group",
                                    .normalises = "norm_topk_prob",
                                    .usual = normalises,
                                    .sum_epsilon = 1e-20F,
                                    .scale = "routed_scaling_factor",
                                    .first = "first_k_dense_replace",
                                    .usual_first = first,
                                    .flags = MHA_EXPERTS_SIGMOID | MHA_EXPERTS_SCORE_BIAS |
                                             MHA_EXPERTS_GROUP_PAIRS};
    return mhai_read_experts(config, &kind, plan);
}

static mha_status read_glm4_moe(const mhai_config *config, mhai_family_plan *plan)
{
    bool normed;
    MHA_TRY(mhai_config_bool(config, "use_qk_norm", false, &normed));
    MHA_TRY(read_deepseek_experts(config, true, 1, plan));
    if (normed) MHA_TRY(mhai_flag_layers(plan, MHA_LAYER_QK_NORM));
    for (int64_t i = 0; normed && i < plan->desc.num_layers; i++)
        plan->layers[i].qk_norm_epsilon = plan->desc.norm_epsilon;
    return MHA_OK;
}

static mha_status read_dots1(const mhai_config *config, mhai_family_plan *plan)
{
    int64_t first;
    MHA_TRY(mhai_config_optional(config, "max_window_layers", 0, MHAI_MOST_LAYERS, 62, &first));
    MHA_TRY(mhai_read_windows(config, 4096, first, 0, plan));
    return read_deepseek_experts(config, false, 0, plan);
}

const mhai_family mhai_family_glm4_moe = {.model_type = "glm4_moe",
                                          .llama = true,
                                          .keys = &mhai_usual_keys,
                                          .shape = MHA_MODEL_SHAPE_CAUSAL,
                                          .grouped = true,
                                          .layers = "layers.",
                                          .prefix = "model.",
                                          .names = names,
                                          .whole = true,
                                          .bias_key = "attention_bias",
                                          .biases_qkv = true,
                                          .epsilon = 1e-5,
                                          .rope = &mhai_half_rope,
                                          .partial = true,
                                          .ignores = mhai_latent_ignores,
                                          .read = read_glm4_moe};

const mhai_family mhai_family_dots1 = {.model_type = "dots1",
                                       MHAI_LLAMA_FILES(names, 0),
                                       .whole = true,
                                       .bias_key = "attention_bias",
                                       .layer_flags = MHA_LAYER_QK_NORM,
                                       .read = read_dots1};
