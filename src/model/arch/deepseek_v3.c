/* DeepSeek-V3 and R1, and GLM-4.7-Flash: latent attention, and experts whose scores are sigmoids. */
#include "io/file.h"
#include "model/arch/family.h"

static const mhai_weight_name names[] = {MHAI_DEEPSEEK_NAMES, MHAI_NAME(NULL, NULL)};

static const mhai_experts_kind v3_experts = {.count = "n_routed_experts",
                                             .inner = "moe_intermediate_size",
                                             .shared_count = "n_shared_experts",
                                             .groups = "n_group",
                                             .groups_used = "topk_group",
                                             .normalises = "norm_topk_prob",
                                             .sum_epsilon = 1e-20F,
                                             .scale = "routed_scaling_factor",
                                             .first = "first_k_dense_replace",
                                             .usual_first = 3,
                                             .flags = MHA_EXPERTS_SIGMOID | MHA_EXPERTS_SCORE_BIAS |
                                                      MHA_EXPERTS_GROUP_PAIRS};

/* transformers' defaults are those of one published model. */
static mha_status read_common(const mhai_config *config, mhai_family_plan *plan)
{
    static const char *const keys[] = {"n_group", "topk_group", "norm_topk_prob",
                                       "routed_scaling_factor"};
    int64_t unused;
    for (int i = 0; i < 4; i++)
        if (mhai_config_absent(config, keys[i]))
            return mhai_config_fail(MHA_ERR_MODEL, config, keys[i], "is missing");
    MHA_TRY(mhai_config_optional(config, "moe_layer_freq", 1, 1, 1, &unused));
    return mhai_read_latent(config, 0, plan);
}

static mha_status read_deepseek_v3(const mhai_config *config, mhai_family_plan *plan)
{
    MHA_TRY(read_common(config, plan));
    return mhai_read_experts(config, &v3_experts, plan);
}

static mha_status read_glm4_moe_lite(const mhai_config *config, mhai_family_plan *plan)
{
    mhai_experts_kind kind = v3_experts;
    int64_t width;
    kind.first = NULL;
    kind.usual_first = 1;
    kind.types = "mlp_layer_types";
    MHA_TRY(read_common(config, plan));
    width = plan->layers[0].shared_dim; /* another name of qk_rope_head_dim */
    MHA_TRY(mhai_config_optional(config, "head_dim", width, width, width, &width));
    return mhai_read_experts(config, &kind, plan);
}

const mhai_family mhai_family_deepseek_v3 = {
    .model_type = "deepseek_v3", MHAI_LATENT_FILES(names), .read = read_deepseek_v3};

const mhai_family mhai_family_glm4_moe_lite = {.model_type = "glm4_moe_lite",
                                               MHAI_LATENT_FILES(names),
                                               .epsilon = 1e-5,
                                               .read = read_glm4_moe_lite};
