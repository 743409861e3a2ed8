/* Granite 3 and earlier: Llama with multipliers of embeddings, residuals, scores and logits. */
#include "model/arch/family.h"

static mha_status read_granite(const mhai_config *config, mhai_family_plan *plan)
{
    MHA_TRY(mhai_read_biases(config, plan));
    return mhai_read_multipliers(config, plan);
}

const mhai_family mhai_family_granite = {.model_type = "granite",
                                         MHAI_LLAMA_FILES(mhai_llama_names, 0),
                                         .bias_key = "attention_bias",
                                         .read = read_granite};
