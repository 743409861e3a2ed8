/* Granite 4: Mamba-2 layers, and in some layers attention, usually without positions; with experts
 * in all layers, or in none. */
#include "io/file.h"
#include "model/arch/family.h"

static const mhai_weight_name names[] = {MHAI_LLAMA_NAMES, MHAI_STATE_SPACE_NAMES("mamba"),
                                         MHAI_GRANITE_EXPERT_NAMES, MHAI_NAME(NULL, NULL)};

static mha_status read_hybrid(const mhai_config *config, mhai_family_plan *plan)
{
    static const char *const kinds[] = {"nope", "rope"};
    mha_transformer_desc *d = &plan->desc;
    mhai_mixing mixing = {.list = "layers_block_type"};
    int rotates;
    MHA_TRY(mhai_config_optional(config, "shared_intermediate_size", 1, MHAI_MOST_WIDTH, 1024,
                                 &d->ff_dim));
    MHA_TRY(mhai_config_choice(config, "position_embedding_type", kinds[0], kinds, 2, &rotates));
    MHA_TRY(mhai_read_state_spaces(config, &mhai_mamba_keys, &mixing, plan));
    MHA_TRY(mhai_read_granite_experts(config, true, d->ff_dim, plan));
    MHA_TRY(mhai_read_multipliers(config, plan));
    if (rotates) return MHA_OK;
    d->positions = MHA_ENCODING_NONE;
    return MHA_OK;
}

const mhai_family mhai_family_granitemoehybrid = {.model_type = "granitemoehybrid",
                                                  MHAI_LLAMA_FILES(names, 0),
                                                  .bias_key = "attention_bias",
                                                  .read = read_hybrid};
