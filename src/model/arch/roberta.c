/* RoBERTa: a BERT whose positions begin after the position of the padding token. All padding has
 * the same position. */
#include "io/file.h"
#include "model/arch/family.h"

mha_status mhai_skip_padding(const mhai_config *config, int64_t padding, mhai_family_plan *plan)
{
    plan->first_position = padding;
    plan->desc.max_length -= padding + 1;
    plan->desc.flags |= MHA_TRANSFORMER_PADDING;
    plan->desc.padding_token = (int32_t)padding;
    if (plan->desc.max_length > 0) return MHA_OK;
    return mhai_path_fail(MHA_ERR_MODEL, config->path,
                          "'max_position_embeddings' leaves no position after pad_token_id %lld",
                          (long long)padding);
}

static mha_status read_roberta(const mhai_config *config, mhai_family_plan *plan)
{
    int64_t padding;
    MHA_TRY(mhai_bert_read(config, plan));
    MHA_TRY(mhai_config_optional(config, "pad_token_id", 0, MHAI_MOST_POSITIONS, 1, &padding));
    return mhai_skip_padding(config, padding, plan);
}

#define ROBERTA(name, type)                                                     \
    const mhai_family mhai_family_##name = {.model_type = type,                 \
                                            .keys = &mhai_usual_keys,           \
                                            .shape = MHA_MODEL_SHAPE_QKV_BIAS | \
                                                     MHA_MODEL_SHAPE_OUT_BIAS,  \
                                            .layers = "encoder.layer.",         \
                                            .prefix = "roberta.",               \
                                            .names = mhai_bert_names,           \
                                            .read = read_roberta}
ROBERTA(roberta, "roberta");
ROBERTA(xlm_roberta, "xlm-roberta"); /* another tokenizer */
