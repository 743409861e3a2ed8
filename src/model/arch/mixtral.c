/* Mixtral: Mistral with experts, whose window is optional. */
#include "model/arch/family.h"

static const mhai_weight_name names[] = {
    MHAI_LLAMA_NAMES,
    MHAI_NAME("mlp.router", "block_sparse_moe.gate"),
    MHAI_NAME("mlp.experts.*.gate_proj", "block_sparse_moe.experts.*.w1"),
    MHAI_NAME("mlp.experts.*.up_proj", "block_sparse_moe.experts.*.w3"),
    MHAI_NAME("mlp.experts.*.down_proj", "block_sparse_moe.experts.*.w2"),
    MHAI_EXPERT_NAMES,
    MHAI_NAME(NULL, NULL)};

static const mhai_rope_kind rope = {NULL, "rope_theta", "partial_rotary_factor", 1e6, 1, true};

static mha_status read_mixtral(const mhai_config *config, mhai_family_plan *plan)
{
    static const mhai_experts_kind kind = {
        .count = "num_local_experts", .alias = "num_experts", .usual = true};
    MHA_TRY(mhai_read_windows(config, 0, 0, 0, plan));
    return mhai_read_experts(config, &kind, plan);
}

const mhai_family mhai_family_mixtral = {.model_type = "mixtral",
                                         MHAI_LLAMA_FILES(names, 0),
                                         .epsilon = 1e-5,
                                         .whole = true,
                                         .rope = &rope,
                                         .read = read_mixtral};
