/* Qwen3-Next: gated delta nets and attention, with experts in some layers or in none. */
#include "model/arch/family.h"

static const mhai_weight_name next_names[] = {
    MHAI_DELTA_NAMES,
    MHAI_EXPERT_NAMES,
    {"delta_net.q_proj", "linear_attn.in_proj_qkvz", MHAI_FUSED_GROUPS, 0},
    {"delta_net.k_proj", "linear_attn.in_proj_qkvz", MHAI_FUSED_GROUPS, 1},
    {"delta_net.v_proj", "linear_attn.in_proj_qkvz", MHAI_FUSED_GROUPS, 2},
    {"delta_net.g_proj", "linear_attn.in_proj_qkvz", MHAI_FUSED_GROUPS, 3},
    {"delta_net.b_proj", "linear_attn.in_proj_ba", MHAI_FUSED_GROUPS, 0},
    {"delta_net.a_proj", "linear_attn.in_proj_ba", MHAI_FUSED_GROUPS, 1},
    MHAI_NAME(NULL, NULL)};

static mha_status read_next(const mhai_config *config, mhai_family_plan *plan)
{
    static const mhai_experts_kind kind = {.count = "num_experts",
                                           .inner = "moe_intermediate_size",
                                           .shared = "shared_expert_intermediate_size",
                                           .normalises = "norm_topk_prob",
                                           .usual = true,
                                           .may_lack = true,
                                           .steps = true,
                                           .flags = MHA_EXPERTS_SHARED_GATE};
    MHA_TRY(mhai_read_delta(config, plan));
    return mhai_read_experts(config, &kind, plan);
}

const mhai_family mhai_family_qwen3_next = {
    .model_type = "qwen3_next", MHAI_DELTA_FILES(next_names), .read = read_next};
