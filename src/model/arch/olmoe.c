/* OLMoE: Llama with experts, and norms that span the queries, or the keys, of all heads. */
#include "model/arch/family.h"

static const mhai_weight_name names[] = {MHAI_LLAMA_NAMES, MHAI_EXPERT_NAMES,
                                         MHAI_NAME(NULL, NULL)};
static const char *const refused[] = {"clip_qkv", NULL};

static mha_status read_olmoe(const mhai_config *config, mhai_family_plan *plan)
{
    static const mhai_experts_kind kind = {
        .count = "num_experts", .alias = "num_local_experts", .normalises = "norm_topk_prob"};
    return mhai_read_experts(config, &kind, plan);
}

const mhai_family mhai_family_olmoe = {.model_type = "olmoe",
                                       MHAI_LLAMA_FILES(names, 0),
                                       .epsilon = 1e-5,
                                       .bias_key = "attention_bias",
                                       .layer_flags = MHA_LAYER_QK_NORM | MHA_LAYER_QK_NORM_ROW,
                                       .refused = refused,
                                       .read = read_olmoe};
