/* Shared by the families of decoders: sizes, biases, norms. */
#include "io/file.h"
#include "model/arch/family.h"

#include <stdlib.h>
#include <string.h>

const mhai_weight_name mhai_llama_names[] = {MHAI_LLAMA_NAMES, MHAI_NAME(NULL, NULL)};

/* What sizes need: whether key/value heads divide the heads. */
static mha_status read_grouping(const mhai_config *config, const mhai_family *family,
                                mha_transformer_desc *d)
{
    if (family->read_kv) return family->read_kv(config, d->num_heads, &d->kv_heads);
    if (!family->grouped) return MHA_OK;
    MHA_TRY(
        mhai_config_optional(config, "num_key_value_heads", 1, MHAI_MOST_WIDTH, 0, &d->kv_heads));
    MHA_TRY(mhai_config_optional(config, "head_dim", 1, MHAI_MOST_WIDTH, 0, &d->head_dim));
    if (!json_object_get(config->root, "head_dim")) d->head_dim = family->usual_head_dim;
    if (family->whole && d->kv_heads == 0)
        return mhai_path_fail(MHA_ERR_MODEL, config->path,
                              "'num_key_value_heads' is missing; %s models require it",
                              family->model_type);
    if (d->kv_heads > 0 && d->num_heads % d->kv_heads != 0)
        return mhai_config_fail(MHA_ERR_MODEL, config, family->keys->kv_heads,
                                "is %lld, which does not divide '%s' %lld", (long long)d->kv_heads,
                                mhai_config_name(config, family->keys->heads).text,
                                (long long)d->num_heads);
    return MHA_OK;
}

static mha_status read_sizes(const mhai_config *config, const mhai_family *family,
                             mhai_family_plan *plan)
{
    const bool own = family->inner && !mhai_config_absent(config, family->inner);
    const char *inner = own ? family->inner : "intermediate_size";
    mha_transformer_desc *d = &plan->desc;
    MHA_TRY(mhai_read_sizes(config, family, family->wide ? NULL : inner, d));
    if (family->wide)
        MHA_TRY(
            mhai_config_optional(config, inner, 1, MHAI_MOST_WIDTH, 4 * d->embed_dim, &d->ff_dim));
    MHA_TRY(read_grouping(config, family, d));
    return mhai_read_heads(config, plan);
}

static mha_status read_norms(const mhai_config *config, const mhai_family *family,
                             mha_transformer_desc *d)
{
    const char *key = family->norm_key ? family->norm_key : "rms_norm_eps";
    const double usual = family->epsilon > 0 ? family->epsilon : family->norm_key ? 1e-5 : 1e-6;
    d->norm = family->norm_key ? MHA_NORM_LAYER : MHA_NORM_RMS;
    return key[0] ? mhai_config_real(config, key, usual, 0, 1, &d->norm_epsilon) : MHA_OK;
}

mha_status mhai_read_flag(const mhai_config *config, const char *key, bool usual, uint32_t flags,
                          mhai_family_plan *plan)
{
    bool set;
    MHA_TRY(mhai_config_bool(config, key, usual, &set));
    plan->desc.flags = (plan->desc.flags & ~flags) | (set ? flags : 0);
    return MHA_OK;
}

/* The biases that the fields of the family set. */
static mha_status read_bias_keys(const mhai_config *config, const mhai_family *family,
                                 mhai_family_plan *plan)
{
    const uint32_t qkv = MHA_TRANSFORMER_QKV_BIAS, out = MHA_TRANSFORMER_OUT_BIAS,
                   ff = MHA_TRANSFORMER_FF_BIAS, shape = family->shape;
    const bool usual = shape & MHA_MODEL_SHAPE_QKV_BIAS;
    plan->desc.flags |= (usual ? qkv : 0) | (shape & MHA_MODEL_SHAPE_OUT_BIAS ? out : 0);
    if (family->bias_key)
        MHA_TRY(mhai_read_flag(config, family->bias_key, usual,
                               family->biases_qkv ? qkv : qkv | out, plan));
    if (!family->ff_bias_key) return MHA_OK;
    return mhai_read_flag(config, family->ff_bias_key, family->flags & ff, ff, plan);
}

/* Causal, pre-norm, rotary positions; sizes, norms, biases, activation, tied embeddings. */
static mha_status read_decoder(const mhai_config *config, const mhai_family *family,
                               mhai_family_plan *plan)
{
    mha_transformer_desc *d = &plan->desc;
    d->flags = MHA_TRANSFORMER_CAUSAL | family->flags;
    d->positions = MHA_ENCODING_ROTARY;
    d->feed_forward = MHA_FEED_FORWARD_SWIGLU;
    if (!family->both_ways) MHA_TRY(mhai_config_unset(config, "use_bidirectional_attention"));
    MHA_TRY(read_sizes(config, family, plan));
    MHA_TRY(read_norms(config, family, d));
    MHA_TRY(read_bias_keys(config, family, plan));
    MHA_TRY(
        mhai_read_flag(config, "tie_word_embeddings", family->tied, MHA_TRANSFORMER_TIED, plan));
    if (family->layer_flags) MHA_TRY(mhai_flag_layers(plan, family->layer_flags));
    for (int64_t i = 0; (family->layer_flags & MHA_LAYER_QK_NORM) && i < d->num_layers; i++)
        plan->layers[i].qk_norm_epsilon = d->norm_epsilon;
    if (family->act)
        return mhai_read_activation(config, family->act_key ? family->act_key : "hidden_act",
                                    family->act, &d->feed_forward);
    return family->own_act ? MHA_OK : mhai_read_silu(config);
}

mha_status mhai_read_attention_bias(const mhai_config *config, mhai_family_plan *plan)
{
    return mhai_read_flag(config, "attention_bias", false,
                          MHA_TRANSFORMER_QKV_BIAS | MHA_TRANSFORMER_OUT_BIAS, plan);
}

mha_status mhai_check_head_dim(const mhai_config *config, const mha_transformer_desc *d)
{
    const int64_t width = d->embed_dim / d->num_heads;
    int64_t unused;
    return mhai_config_optional(config, "head_dim", width, width, width, &unused);
}

mha_status mhai_read_silu(const mhai_config *config)
{
    static const char *const acts[] = {"silu", "swish"};
    int unused;
    return mhai_config_choice(config, "hidden_act", "silu", acts, 2, &unused);
}

mha_status mhai_read_softcap(const mhai_config *config, const char *key, float usual,
                             float *softcap)
{
    const json_t *found = json_object_get(config->root, key);
    *softcap = found ? 0 : usual;
    return mhai_config_absent(config, key) ? MHA_OK
                                           : mhai_config_real(config, key, 1, 1e-6, 1e9, softcap);
}

mha_status mhai_read_multipliers(const mhai_config *config, mhai_family_plan *plan)
{
    static const char *const keys[] = {"embedding_multiplier", "residual_multiplier",
                                       "attention_multiplier", "logits_scaling"};
    float x[4];
    for (int i = 0; i < 4; i++) MHA_TRY(mhai_config_real(config, keys[i], 1, 1e-9, 1e9, &x[i]));
    plan->desc.embed_scale = x[0];
    plan->desc.residual_scale = x[1];
    plan->desc.logit_scale = 1 / x[3];
    MHA_TRY(mhai_plan_layers(plan));
    for (int64_t i = 0; i < plan->desc.num_layers; i++)
        if (!plan->layers[i].mixer) plan->layers[i].scale = x[2];
    return MHA_OK;
}

mha_status mhai_plan_layers(mhai_family_plan *plan)
{
    if (plan->layers) return MHA_OK;
    plan->layers = calloc((size_t)plan->desc.num_layers, sizeof *plan->layers);
    if (!plan->layers) return MHA_NO_MEMORY("model");
    for (int64_t i = 0; i < plan->desc.num_layers; i++)
        plan->layers[i].struct_size = sizeof *plan->layers;
    plan->desc.layers = plan->layers;
    return MHA_OK;
}

mha_status mhai_leave_unscaled(mhai_family_plan *plan)
{
    MHA_TRY(mhai_plan_layers(plan));
    for (int64_t i = 0; i < plan->desc.num_layers; i++) plan->layers[i].scale = 1;
    return MHA_OK;
}

mha_status mhai_flag_layers(mhai_family_plan *plan, uint32_t flags)
{
    MHA_TRY(mhai_plan_layers(plan));
    for (int64_t i = 0; i < plan->desc.num_layers; i++) plan->layers[i].flags |= flags;
    return MHA_OK;
}

/* Whether a weight is of keys or values of a layer that uses those of an earlier one. */
static bool is_unused_key(const mhai_family_plan *plan, const char *name)
{
    const char *at = strstr(name, "layers.");
    char *end = NULL;
    const long long layer = at ? strtoll(at + strlen("layers."), &end, 10) : -1;
    return layer >= 0 && layer < plan->desc.num_layers && plan->layers &&
           plan->layers[layer].kv_back > 0 &&
           (strncmp(end, ".self_attn.k_", 13) == 0 || strncmp(end, ".self_attn.v_", 13) == 0);
}

/* Old files hold tables of frequencies and masks. */
bool mhai_decoder_ignores(const mhai_family_plan *plan, const char *name)
{
    static const char *const old[] = {".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias",
                                      ".attention.bias", ".attention.masked_bias"};
    const size_t length = strlen(name);
    for (size_t i = 0; i < sizeof old / sizeof old[0]; i++) {
        const size_t tail = strlen(old[i]);
        if (length > tail && strcmp(name + length - tail, old[i]) == 0) return true;
    }
    return is_unused_key(plan, name);
}

mha_status mhai_family_read(const mhai_family *family, const mhai_config *config,
                            mhai_family_plan *plan)
{
    if (family->refused) MHA_TRY(mhai_config_refuse(config, family->refused));
    if (family->llama) MHA_TRY(read_decoder(config, family, plan));
    if (family->read) MHA_TRY(family->read(config, plan));
    if (!family->llama || family->fixed_rope || plan->desc.positions != MHA_ENCODING_ROTARY)
        return MHA_OK;
    return family->ropes ? mhai_read_ropes(config, family->ropes, plan)
                         : mhai_read_rope(config, plan);
}
