/* Llama: causal, pre-norm with RMS norms, rotary positions, SwiGLU. */
#include "io/file.h"
#include "model/arch/family.h"

#include <multihead/component.h>

#include <string.h>

static const char *const llama_names[][2] = {{"embed_tokens", "model.embed_tokens"},
                                             {"self_attn_norm", "input_layernorm"},
                                             {"mlp_norm", "post_attention_layernorm"},
                                             {"norm", "model.norm"},
                                             {NULL, NULL}};

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

/* transformers 4 wants rope_theta, transformers 5 rope_parameters. */
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
    const uint32_t of_all = MHA_TRANSFORMER_BIAS;
    return mhai_put_list_of_one(root, "architectures", "LlamaForCausalLM") &&
           mhai_write_sizes(d, root) && mhai_put_count(root, "num_key_value_heads", d->kv_heads) &&
           mhai_put_count(root, "head_dim", d->head_dim) &&
           mhai_put_text(root, "hidden_act", "silu") &&
           mhai_put(root, "rms_norm_eps", mhai_json_real(d->norm_epsilon)) &&
           mhai_put_bool(root, "attention_bias",
                         mhai_desc_has(d, of_all | MHA_TRANSFORMER_OUT_BIAS)) &&
           mhai_put_bool(root, "mlp_bias", mhai_desc_has(d, of_all | MHA_TRANSFORMER_FF_BIAS)) &&
           mhai_put_bool(root, "tie_word_embeddings", mhai_desc_has(d, MHA_TRANSFORMER_TIED)) &&
           write_rope(d, root);
}

static mha_status read_rope(const mhai_config *config, mha_transformer_desc *d)
{
    static const char *const types[] = {"default"};
    static const char *const old[] = {"rope_scaling", NULL};
    const mhai_config inner = {config->path, json_object_get(config->root, "rope_parameters")};
    const bool nested = !mhai_config_absent(config, "rope_parameters");
    double base = 1e4, partial = 1;
    int unused;
    if (nested && !json_is_object(inner.root))
        return mha_fail(MHA_ERR_MODEL, "%s: 'rope_parameters' is no JSON object",
                        mhai_show_path(config->path).text);
    if (nested) MHA_TRY(mhai_config_choice(&inner, "rope_type", types[0], types, 1, &unused));
    if (!nested) MHA_TRY(mhai_config_refuse(config, old));
    MHA_TRY(mhai_config_number(config, "partial_rotary_factor", 1, &partial));
    if (nested) MHA_TRY(mhai_config_number(&inner, "partial_rotary_factor", partial, &partial));
    if (partial < 1 || partial > 1)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "%s: 'partial_rotary_factor' is %g; only whole heads are turned (1)",
                        mhai_show_path(config->path).text, partial);
    MHA_TRY(mhai_config_number(config, "rope_theta", base, &base));
    return mhai_config_real(nested ? &inner : config, "rope_theta", base, 1, 3e38, &d->rope_base);
}

static mha_status read_llama_kinds(const mhai_config *config, mhai_family_plan *plan)
{
    static const char *const refused[] = {"quantization_config", "is_encoder_decoder", NULL};
    static const char *const acts[] = {"silu", "swish"};
    mha_transformer_desc *d = &plan->desc;
    bool attention, mlp, tied;
    int unused;
    MHA_TRY(mhai_config_refuse(config, refused));
    MHA_TRY(mhai_config_choice(config, "hidden_act", "silu", acts, 2, &unused));
    MHA_TRY(mhai_config_bool(config, "attention_bias", false, &attention));
    MHA_TRY(mhai_config_bool(config, "mlp_bias", false, &mlp));
    MHA_TRY(mhai_config_bool(config, "tie_word_embeddings", false, &tied));
    d->flags = MHA_TRANSFORMER_CAUSAL;
    if (attention) d->flags |= MHA_TRANSFORMER_QKV_BIAS | MHA_TRANSFORMER_OUT_BIAS;
    if (mlp) d->flags |= MHA_TRANSFORMER_FF_BIAS;
    if (tied) d->flags |= MHA_TRANSFORMER_TIED;
    return MHA_OK;
}

static mha_status read_llama(const mhai_config *config, mhai_family_plan *plan)
{
    mha_transformer_desc *d = &plan->desc;
    d->norm = MHA_NORM_RMS;
    d->positions = MHA_ENCODING_ROTARY;
    d->feed_forward = MHA_FEED_FORWARD_SWIGLU;
    MHA_TRY(mhai_read_sizes(config, &mhai_family_llama, "intermediate_size", d));
    MHA_TRY(
        mhai_config_optional(config, "num_key_value_heads", 1, MHAI_MOST_WIDTH, 0, &d->kv_heads));
    MHA_TRY(mhai_config_optional(config, "head_dim", 1, MHAI_MOST_WIDTH, 0, &d->head_dim));
    MHA_TRY(mhai_config_real(config, "rms_norm_eps", 1e-6, 0, 1, &d->norm_epsilon));
    MHA_TRY(read_rope(config, d));
    return read_llama_kinds(config, plan);
}

/* Tables of frequencies in old files, and a copy of the embeddings that is one by config.json. */
static bool llama_ignores(const mhai_family_plan *plan, const char *name)
{
    static const char old[] = ".rotary_emb.inv_freq";
    const size_t length = strlen(name), tail = sizeof old - 1;
    if (length > tail && strcmp(name + length - tail, old) == 0) return true;
    return mhai_desc_has(&plan->desc, MHA_TRANSFORMER_TIED) && strcmp(name, "lm_head.weight") == 0;
}

const mhai_family mhai_family_llama = {.model_type = "llama",
                                       .keys = &mhai_usual_keys,
                                       .shape = MHA_MODEL_SHAPE_CAUSAL,
                                       .bias_key = "attention_bias",
                                       .grouped = true,
                                       .layers = "model.layers.",
                                       .prefix = "",
                                       .names = llama_names,
                                       .fits = fits_llama,
                                       .write = write_llama,
                                       .read = read_llama,
                                       .ignores = llama_ignores};
