/* Families of which only the shape of the attention is known so far. */
#include "model/arch/family.h"

enum {
    CAUSAL = MHA_MODEL_SHAPE_CAUSAL,
    QKV = MHA_MODEL_SHAPE_QKV_BIAS,
    OUT = MHA_MODEL_SHAPE_OUT_BIAS
};

static const mhai_shape_keys of_gpt2 = {
    "n_embd", "n_layer", "n_head", "n_positions", "num_key_value_heads", "is_decoder"};

#define SHAPE(name, type, sizes, flags, key, shares)            \
    extern const mhai_family mhai_family_##name;                \
    const mhai_family mhai_family_##name = {.model_type = type, \
                                            .keys = &(sizes),   \
                                            .shape = (flags),   \
                                            .bias_key = (key),  \
                                            .grouped = (shares)};
SHAPE(roberta, "roberta", mhai_usual_keys, QKV | OUT, NULL, false)
SHAPE(gpt2, "gpt2", of_gpt2, CAUSAL | QKV | OUT, NULL, false)
SHAPE(gpt_neox, "gpt_neox", mhai_usual_keys, CAUSAL | QKV | OUT, "attention_bias", false)
SHAPE(mistral, "mistral", mhai_usual_keys, CAUSAL, NULL, true)
SHAPE(mixtral, "mixtral", mhai_usual_keys, CAUSAL, NULL, true)
SHAPE(qwen2, "qwen2", mhai_usual_keys, CAUSAL | QKV, NULL, true)
SHAPE(qwen3, "qwen3", mhai_usual_keys, CAUSAL, "attention_bias", true)
SHAPE(gemma, "gemma", mhai_usual_keys, CAUSAL, "attention_bias", true)
SHAPE(phi3, "phi3", mhai_usual_keys, CAUSAL, NULL, true)
