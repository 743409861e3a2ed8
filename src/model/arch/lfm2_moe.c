/* LFM2-MoE: LFM2 with experts whose scores are sigmoids, after some dense layers. */
#include "model/arch/family.h"

static const mhai_weight_name names[] = {
    MHAI_LFM2_NAMES,
    MHAI_NAME("mlp.router", "feed_forward.gate"),
    MHAI_NAME("mlp.score_bias", "feed_forward.expert_bias"),
    MHAI_NAME("mlp.experts.*.gate_proj", "feed_forward.experts.*.w1"),
    MHAI_NAME("mlp.experts.*.up_proj", "feed_forward.experts.*.w3"),
    MHAI_NAME("mlp.experts.*.down_proj", "feed_forward.experts.*.w2"),
    {"mlp.experts.*.gate_proj.weight", "feed_forward.experts.gate_up_proj", MHAI_EXPERT_PAIR, 0},
    {"mlp.experts.*.up_proj.weight", "feed_forward.experts.gate_up_proj", MHAI_EXPERT_PAIR, 1},
    {"mlp.experts.*.down_proj.weight", "feed_forward.experts.down_proj", MHAI_EXPERT, 0},
    MHAI_NAME(NULL, NULL)};

static mha_status read_lfm2_moe(const mhai_config *config, mhai_family_plan *plan)
{
    mhai_experts_kind kind = {.count = "num_experts",
                              .inner = "moe_intermediate_size",
                              .normalises = "norm_topk_prob",
                              .usual = true,
                              .sum_epsilon = 1e-6F,
                              .scale = "routed_scaling_factor",
                              .first = "num_dense_layers",
                              .flags = MHA_EXPERTS_SIGMOID};
    bool biased;
    MHA_TRY(mhai_read_lfm2(config, plan));
    MHA_TRY(mhai_config_bool(config, "use_expert_bias", true, &biased));
    if (biased) kind.flags |= MHA_EXPERTS_SCORE_BIAS;
    return mhai_read_experts(config, &kind, plan);
}

const mhai_family mhai_family_lfm2_moe = {.model_type = "lfm2_moe",
                                          MHAI_LLAMA_FILES(names, 0),
                                          .own_act = true,
                                          .whole = true,
                                          .rope = &mhai_lfm2_rope,
                                          .tied = true,
                                          .read = read_lfm2_moe};
