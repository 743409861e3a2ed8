/* Mistral: Llama with a window on every layer. */
#include "model/arch/family.h"

#include <multihead/component.h>

static const mhai_weight_name names[] = {MHAI_LLAMA_NAMES, MHAI_NAME(NULL, NULL)};

extern const mhai_family mhai_family_mistral;

static mha_status read_mistral(const mhai_config *config, mhai_family_plan *plan)
{
    MHA_TRY(mhai_read_decoder(config, &mhai_family_mistral, true, plan));
    MHA_TRY(mhai_read_silu(config));
    MHA_TRY(mhai_read_windows(config, 4096, 0, 0, plan));
    return mhai_read_rope(config, plan);
}

const mhai_family mhai_family_mistral = {.model_type = "mistral",
                                         MHAI_LLAMA_FILES(names),
                                         .shape = MHA_MODEL_SHAPE_CAUSAL,
                                         .read = read_mistral};
