/* Granite 3 with experts in every layer: Llama with multipliers. A further expert, which every token
 * uses, is optional in granitemoeshared. */
#include "io/file.h"
#include "model/arch/family.h"

static const mhai_weight_name names[] = {MHAI_LLAMA_NAMES, MHAI_GRANITE_EXPERT_NAMES,
                                         MHAI_NAME(NULL, NULL)};

mha_status mhai_read_granite_experts(const mhai_config *config, bool may_lack, int64_t shared,
                                     mhai_family_plan *plan)
{
    const mhai_experts_kind kind = {.count = "num_local_experts",
                                    .inner = "intermediate_size",
                                    .usual = true,
                                    .may_lack = may_lack};
    MHA_TRY(mhai_read_experts(config, &kind, plan));
    for (int64_t i = 0; plan->layers && i < plan->desc.num_layers; i++)
        if (plan->layers[i].experts.count > 0) plan->layers[i].experts.shared_dim = shared;
    return MHA_OK;
}

static mha_status read_moe(const mhai_config *config, int64_t shared, mhai_family_plan *plan)
{
    MHA_TRY(mhai_read_granite_experts(config, false, shared, plan));
    return mhai_read_multipliers(config, plan);
}

static mha_status read_plain(const mhai_config *config, mhai_family_plan *plan)
{
    return read_moe(config, 0, plan);
}

static mha_status read_shared(const mhai_config *config, mhai_family_plan *plan)
{
    int64_t shared;
    MHA_TRY(
        mhai_config_optional(config, "shared_intermediate_size", 0, MHAI_MOST_WIDTH, 0, &shared));
    return read_moe(config, shared, plan);
}

#define GRANITE(type, reader)                                                           \
    {                                                                                   \
        .model_type = (type), MHAI_LLAMA_FILES(names, 0), .bias_key = "attention_bias", \
        .read = (reader)                                                                \
    }
const mhai_family mhai_family_granitemoe = GRANITE("granitemoe", read_plain);
const mhai_family mhai_family_granitemoeshared = GRANITE("granitemoeshared", read_shared);
