/* Mixtral: Mistral with experts, whose window is optional. */
#include "model/arch/family.h"

#include <multihead/component.h>

static const mhai_weight_name names[] = {
    MHAI_LLAMA_NAMES,
    MHAI_NAME("mlp.router", "block_sparse_moe.gate"),
    MHAI_NAME("mlp.experts.*.gate_proj", "block_sparse_moe.experts.*.w1"),
    MHAI_NAME("mlp.experts.*.up_proj", "block_sparse_moe.experts.*.w3"),
    MHAI_NAME("mlp.experts.*.down_proj", "block_sparse_moe.experts.*.w2"),
    MHAI_EXPERT_NAMES,
    MHAI_NAME(NULL, NULL)};

static const mhai_rope_kind rope = {NULL, "rope_theta", "partial_rotary_factor", 1e6, 1, true};

extern const mhai_family mhai_family_mixtral;

static mha_status read_mixtral(const mhai_config *config, mhai_family_plan *plan)
{
    static const mhai_experts_kind kind = {
        .count = "num_local_experts", .alias = "num_experts", .usual = true};
    MHA_TRY(mhai_read_decoder(config, &mhai_family_mixtral, true, plan));
    MHA_TRY(mhai_config_real(config, "rms_norm_eps", 1e-5, 0, 1, &plan->desc.norm_epsilon));
    MHA_TRY(mhai_read_silu(config));
    MHA_TRY(mhai_read_windows(config, 0, 0, 0, plan));
    MHA_TRY(mhai_read_experts(config, &kind, plan));
    return mhai_read_rope(config, plan);
}

const mhai_family mhai_family_mixtral = {.model_type = "mixtral",
                                         MHAI_LLAMA_FILES(names),
                                         .shape = MHA_MODEL_SHAPE_CAUSAL,
                                         .rope = &rope,
                                         .read = read_mixtral};
