/* DeepSeek-V2: latent attention, and experts whose scores are a softmax. */
#include "model/arch/family.h"

static const mhai_weight_name names[] = {MHAI_DEEPSEEK_NAMES, MHAI_NAME(NULL, NULL)};

static mha_status read_deepseek_v2(const mhai_config *config, mhai_family_plan *plan)
{
    static const char *const methods[] = {"greedy", "group_limited_greedy"};
    static const char *const refused[] = {"norm_topk_prob", "mlp_bias", NULL};
    mhai_experts_kind kind = {.count = "n_routed_experts",
                              .inner = "moe_intermediate_size",
                              .shared_count = "n_shared_experts",
                              .scale = "routed_scaling_factor",
                              .first = "first_k_dense_replace"};
    int64_t unused;
    int method;
    MHA_TRY(mhai_config_refuse(config, refused));
    MHA_TRY(mhai_config_optional(config, "moe_layer_freq", 1, 1, 1, &unused));
    MHA_TRY(mhai_config_choice(config, "topk_method", methods[0], methods, 2, &method));
    if (method == 1) kind.groups = "n_group", kind.groups_used = "topk_group";
    MHA_TRY(mhai_read_latent(config, 0, plan));
    for (int64_t i = 0; i < plan->desc.num_layers; i++) /* transformers ignores rope_interleave */
        plan->layers[i].flags |= MHA_LAYER_ROPE_INTERLEAVED;
    return mhai_read_experts(config, &kind, plan);
}

const mhai_family mhai_family_deepseek_v2 = {
    .model_type = "deepseek_v2", MHAI_LATENT_FILES(names), .read = read_deepseek_v2};
