/* ELECTRA's discriminator: a BERT under another name, whose embeddings may be narrower. */
#include "model/arch/family.h"

static mha_status read_electra(const mhai_config *config, mhai_family_plan *plan)
{
    MHA_TRY(mhai_bert_read(config, plan));
    return mhai_config_optional(config, "embedding_size", 1, MHAI_MOST_WIDTH, 128,
                                &plan->desc.token_dim);
}

const mhai_family mhai_family_electra = {.model_type = "electra",
                                         .keys = &mhai_usual_keys,
                                         .shape =
                                             MHA_MODEL_SHAPE_QKV_BIAS | MHA_MODEL_SHAPE_OUT_BIAS,
                                         .layers = "encoder.layer.",
                                         .prefix = "electra.",
                                         .names = mhai_bert_names,
                                         .read = read_electra};
