/* Granite 3 and earlier: Llama with multipliers of embeddings, residuals, scores and logits. */
#include "model/arch/family.h"

#include <multihead/component.h>

static const mhai_weight_name names[] = {MHAI_LLAMA_NAMES, MHAI_NAME(NULL, NULL)};

extern const mhai_family mhai_family_granite;

static mha_status read_granite(const mhai_config *config, mhai_family_plan *plan)
{
    MHA_TRY(mhai_read_decoder(config, &mhai_family_granite, false, plan));
    MHA_TRY(mhai_read_silu(config));
    MHA_TRY(mhai_read_biases(config, plan));
    MHA_TRY(mhai_read_multipliers(config, plan));
    return mhai_read_rope(config, plan);
}

const mhai_family mhai_family_granite = {.model_type = "granite",
                                         MHAI_LLAMA_FILES(names),
                                         .shape = MHA_MODEL_SHAPE_CAUSAL,
                                         .bias_key = "attention_bias",
                                         .read = read_granite};
