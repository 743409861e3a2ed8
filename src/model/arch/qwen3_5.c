/* Qwen 3.5, dense or with experts in every layer; only the text part of multimodal models. */
#include "model/arch/family.h"

static const mhai_weight_name names[] = {
    MHAI_DELTA_NAMES,
    MHAI_EXPERT_NAMES,
    {"delta_net.q_proj", "linear_attn.in_proj_qkv", MHAI_FUSED, 0},
    {"delta_net.k_proj", "linear_attn.in_proj_qkv", MHAI_FUSED, 1},
    {"delta_net.v_proj", "linear_attn.in_proj_qkv", MHAI_FUSED, 2},
    MHAI_NAME("delta_net.g_proj", "linear_attn.in_proj_z"),
    MHAI_NAME("delta_net.b_proj", "linear_attn.in_proj_b"),
    MHAI_NAME("delta_net.a_proj", "linear_attn.in_proj_a"),
    MHAI_NAME(NULL, NULL)};

static const char inner[] = "moe_intermediate_size";

static mha_status read_moe(const mhai_config *config, mhai_family_plan *plan)
{
    static const mhai_experts_kind kind = {.count = "num_experts",
                                           .inner = inner,
                                           .shared = "shared_expert_intermediate_size",
                                           .usual = true,
                                           .flags = MHA_EXPERTS_SHARED_GATE};
    MHA_TRY(mhai_read_delta(config, plan));
    return mhai_read_experts(config, &kind, plan);
}

#define QWEN(type, whole, inner_, reader)                                                       \
    {                                                                                           \
        .model_type = (type), .text_type = (whole), MHAI_DELTA_FILES(names), .inner = (inner_), \
        .read = (reader)                                                                        \
    }
const mhai_family mhai_family_qwen3_5 = QWEN("qwen3_5_text", NULL, NULL, mhai_read_delta);
const mhai_family mhai_family_qwen3_5_whole =
    QWEN("qwen3_5", "qwen3_5_text", NULL, mhai_read_delta);
const mhai_family mhai_family_qwen3_5_moe = QWEN("qwen3_5_moe_text", NULL, inner, read_moe);
const mhai_family mhai_family_qwen3_5_moe_whole =
    QWEN("qwen3_5_moe", "qwen3_5_moe_text", inner, read_moe);
