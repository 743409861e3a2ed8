/* Llama: causal, pre-norm with RMS norms, rotary positions, SwiGLU. */
#include "model/arch/family.h"

static bool fits_llama(const mha_transformer_desc *d)
{
    const uint32_t others = MHA_TRANSFORMER_POST_NORM | MHA_TRANSFORMER_EMBEDDING_NORM |
                            MHA_TRANSFORMER_CROSS | MHA_TRANSFORMER_NO_OUTPUT;
    return mhai_desc_has(d, MHA_TRANSFORMER_CAUSAL) && !mhai_desc_has(d, others) &&
           mhai_desc_is_usual(d) && d->type_count == 0 && d->norm == MHA_NORM_RMS &&
           d->positions == MHA_ENCODING_ROTARY && d->ff_dim > 0 &&
           d->feed_forward == MHA_FEED_FORWARD_SWIGLU &&
           mhai_desc_has(d, MHA_TRANSFORMER_QKV_BIAS) == mhai_desc_has(d, MHA_TRANSFORMER_OUT_BIAS);
}

/* transformers 4 requires rope_theta, transformers 5 rope_parameters. */
static bool write_rope(const mha_transformer_desc *d, json_t *root)
{
    json_t *rope = json_object();
    if (!rope || !mhai_put(rope, "rope_theta", mhai_json_real(d->rope_base)) ||
        !mhai_put_text(rope, "rope_type", "default")) {
        json_decref(rope);
        return false;
    }
    return mhai_put(root, "rope_theta", mhai_json_real(d->rope_base)) &&
           mhai_put(root, "rope_parameters", rope);
}

static bool write_llama(const mha_transformer_desc *d, json_t *root)
{
    const uint32_t all = MHA_TRANSFORMER_BIAS;
    return mhai_put_list_of_one(root, "architectures", "LlamaForCausalLM") &&
           mhai_write_sizes(d, root) && mhai_put_count(root, "num_key_value_heads", d->kv_heads) &&
           mhai_put_count(root, "head_dim", d->head_dim) &&
           mhai_put_text(root, "hidden_act", "silu") &&
           mhai_put(root, "rms_norm_eps", mhai_json_real(d->norm_epsilon)) &&
           mhai_put_bool(root, "attention_bias",
                         mhai_desc_has(d, all | MHA_TRANSFORMER_OUT_BIAS)) &&
           mhai_put_bool(root, "mlp_bias", mhai_desc_has(d, all | MHA_TRANSFORMER_FF_BIAS)) &&
           mhai_put_bool(root, "tie_word_embeddings", mhai_desc_has(d, MHA_TRANSFORMER_TIED)) &&
           write_rope(d, root);
}

const mhai_family mhai_family_llama = {.model_type = "llama",
                                       MHAI_LLAMA_FILES(mhai_llama_names, 0),
                                       .bias_key = "attention_bias",
                                       .fits = fits_llama,
                                       .write = write_llama,
                                       .ff_bias_key = "mlp_bias"};
