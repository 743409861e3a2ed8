/* ELECTRA's discriminator: a BERT under another name. */
#include "io/file.h"
#include "model/arch/family.h"

static mha_status read_electra(const mhai_config *config, mhai_family_plan *plan)
{
    int64_t width;
    MHA_TRY(mhai_bert_read(config, plan));
    MHA_TRY(mhai_config_optional(config, "embedding_size", 1, MHAI_MOST_WIDTH, 128, &width));
    if (width == plan->desc.embed_dim) return MHA_OK;
    return mhai_path_fail(
        MHA_ERR_UNSUPPORTED, config->path,
        "embedding_size %lld is not hidden_size %lld: embeddings that are projected "
        "are not supported",
        (long long)width, (long long)plan->desc.embed_dim);
}

const mhai_family mhai_family_electra = {.model_type = "electra",
                                         .keys = &mhai_usual_keys,
                                         .shape =
                                             MHA_MODEL_SHAPE_QKV_BIAS | MHA_MODEL_SHAPE_OUT_BIAS,
                                         .layers = "encoder.layer.",
                                         .prefix = "electra.",
                                         .names = mhai_bert_names,
                                         .read = read_electra};
