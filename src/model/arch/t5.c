/* T5 and mT5: an encoder and a decoder in one folder, pre-norm with RMS norms, without biases. A
 * table of buckets of distances, which all layers of a tower share, is added to the scores of
 * self-attention. Scores are not scaled. */
#include "io/file.h"
#include "model/arch/family.h"

#include <math.h>
#include <string.h>

#define TOWER_NAMES(tower, feed)                                                           \
    MHAI_NAME("embed_tokens", tower ".embed_tokens"), MHAI_NAME("embed_tokens", "shared"), \
        MHAI_NAME("self_attn_norm", "layer.0.layer_norm"),                                 \
        MHAI_NAME("self_attn.q_proj", "layer.0.SelfAttention.q"),                          \
        MHAI_NAME("self_attn.k_proj", "layer.0.SelfAttention.k"),                          \
        MHAI_NAME("self_attn.v_proj", "layer.0.SelfAttention.v"),                          \
        MHAI_NAME("self_attn.o_proj", "layer.0.SelfAttention.o"),                          \
        MHAI_NAME("self_attn.relative_attention_bias",                                     \
                  "/" tower ".block.0.layer.0.SelfAttention.relative_attention_bias"),     \
        MHAI_NAME("mlp_norm", feed ".layer_norm"),                                         \
        MHAI_NAME("mlp.gate_proj", feed ".DenseReluDense.wi_0"),                           \
        MHAI_NAME("mlp.up_proj", feed ".DenseReluDense.wi_1"),                             \
        MHAI_NAME("mlp.up_proj", feed ".DenseReluDense.wi"),                               \
        MHAI_NAME("mlp.down_proj", feed ".DenseReluDense.wo"),                             \
        MHAI_NAME("norm", tower ".final_layer_norm")

static const mhai_weight_name encoder_names[] = {TOWER_NAMES("encoder", "layer.1"),
                                                 MHAI_NAME(NULL, NULL)};
static const mhai_weight_name decoder_names[] = {
    TOWER_NAMES("decoder", "layer.2"),
    MHAI_NAME("cross_attn_norm", "layer.1.layer_norm"),
    MHAI_NAME("cross_attn.q_proj", "layer.1.EncDecAttention.q"),
    MHAI_NAME("cross_attn.k_proj", "layer.1.EncDecAttention.k"),
    MHAI_NAME("cross_attn.v_proj", "layer.1.EncDecAttention.v"),
    MHAI_NAME("cross_attn.o_proj", "layer.1.EncDecAttention.o"),
    MHAI_NAME(NULL, NULL)};

static const mhai_shape_keys keys = {"d_model", "num_layers",          "num_heads",
                                     NULL,      "num_key_value_heads", "is_decoder"};

static mha_status read_layers(const mhai_config *config, mhai_family_plan *plan)
{
    int64_t buckets, most;
    MHA_TRY(mhai_config_optional(config, "relative_attention_num_buckets", 1, MHAI_MOST_WIDTH, 32,
                                 &buckets));
    MHA_TRY(
        mhai_config_optional(config, "relative_attention_max_distance", 1, INT32_MAX, 128, &most));
    MHA_TRY(mhai_plan_layers(plan));
    for (int64_t i = 0; i < plan->desc.num_layers; i++) {
        plan->layers[i].scale = 1;
        plan->layers[i].t5_buckets = buckets;
        plan->layers[i].t5_max_distance = most;
    }
    return MHA_OK;
}

/* transformers writes the two parts of feed_forward_proj too, and prefers them. */
static mha_status compare_activation(const mhai_config *config, const char *whole,
                                     const char *inner, bool gated)
{
    static const char *const parts[] = {"dense_act_fn", "is_gated_act"};
    const char *name;
    bool gate;
    MHA_TRY(mhai_config_text(config, parts[0], inner, &name));
    MHA_TRY(mhai_config_bool(config, parts[1], gated, &gate));
    const bool same = strcmp(name, inner) == 0;
    if (same && gate == gated) return MHA_OK;
    return mhai_config_fail(MHA_ERR_MODEL, config, parts[same],
                            "is '%s', 'feed_forward_proj' is '%s'; remove the one that does not "
                            "match the weights",
                            !same  ? mhai_show_name(name).text
                            : gate ? "true"
                                   : "false",
                            whole);
}

/* What both towers have, except for their layers. usual: the default of feed_forward_proj. */
static mha_status read_tower(const mhai_config *config, const mhai_family *family,
                             const char *usual, mhai_family_plan *plan)
{
    static const char *const acts[] = {"relu", "gated-gelu", "gated-silu", "gelu", "silu"};
    static const mha_feed_forward kinds[] = {MHA_FEED_FORWARD_RELU, MHA_FEED_FORWARD_GEGLU_TANH,
                                             MHA_FEED_FORWARD_SWIGLU, MHA_FEED_FORWARD_GELU,
                                             MHA_FEED_FORWARD_SILU};
    static const char *const inner[] = {"relu", "gelu_new", "silu", "gelu", "silu"};
    mha_transformer_desc *d = &plan->desc;
    int act;
    MHA_TRY(mhai_config_unset(config, "is_decoder"));
    MHA_TRY(mhai_read_sizes(config, family, "d_ff", d));
    MHA_TRY(mhai_config_real(config, "layer_norm_epsilon", 1e-6, 0, 1, &d->norm_epsilon));
    MHA_TRY(mhai_config_choice(config, "feed_forward_proj", usual, acts, 5, &act));
    MHA_TRY(compare_activation(config, acts[act], inner[act], act == 1 || act == 2));
    d->feed_forward = kinds[act];
    d->norm = MHA_NORM_RMS;
    return MHA_OK;
}

static mha_status read_encoder(const mhai_config *config, const mhai_family *family,
                               const char *usual, mhai_family_plan *plan)
{
    MHA_TRY(read_tower(config, family, usual, plan));
    plan->desc.flags = MHA_TRANSFORMER_NO_OUTPUT;
    return read_layers(config, plan);
}

static mha_status read_decoder(const mhai_config *config, const mhai_family *family,
                               const char *usual, mhai_family_plan *plan)
{
    mha_transformer_desc *d = &plan->desc;
    MHA_TRY(read_tower(config, family, usual, plan));
    MHA_TRY(mhai_config_optional(config, "num_decoder_layers", 1, MHAI_MOST_LAYERS, d->num_layers,
                                 &d->num_layers));
    d->flags = MHA_TRANSFORMER_CAUSAL | MHA_TRANSFORMER_CROSS | MHA_TRANSFORMER_TIED;
    d->cross_scale = 1;
    return read_layers(config, plan);
}

static mha_status read_t5_encoder(const mhai_config *config, mhai_family_plan *plan)
{
    return read_encoder(config, mhai_family_t5.encoder, "relu", plan);
}

/* The first version scales the input of its output, and is known by tied embeddings. */
static mha_status read_t5(const mhai_config *config, mhai_family_plan *plan)
{
    static const char key[] = "scale_decoder_outputs";
    bool tied, scaled;
    MHA_TRY(read_decoder(config, &mhai_family_t5, "relu", plan));
    MHA_TRY(mhai_config_bool(config, "tie_word_embeddings", true, &tied));
    /* transformers treats null as false */
    MHA_TRY(mhai_config_bool(config, key, tied && !json_object_get(config->root, key), &scaled));
    if (scaled) plan->desc.logit_scale = 1 / sqrtf((float)plan->desc.embed_dim);
    return MHA_OK;
}

static mha_status read_mt5_encoder(const mhai_config *config, mhai_family_plan *plan)
{
    return read_encoder(config, mhai_family_mt5.encoder, "gated-gelu", plan);
}

static mha_status read_mt5(const mhai_config *config, mhai_family_plan *plan)
{
    return read_decoder(config, &mhai_family_mt5, "gated-gelu", plan);
}

/* Old files have a table of cross-attention that nothing reads. */
static bool ignores(const mhai_family_plan *plan, const char *name)
{
    (void)plan;
    return strncmp(name, "decoder.block.", 14) != 0 ||
           strcmp(name, "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight") ==
               0;
}

#define TOWERS(family)                                                             \
    static const mhai_family family##_encoder = {.model_type = #family,            \
                                                 .towers = true,                   \
                                                 .keys = &keys,                    \
                                                 .head_dim = "d_kv",               \
                                                 .layers = "encoder.block.",       \
                                                 .prefix = "",                     \
                                                 .names = encoder_names,           \
                                                 .read = read_##family##_encoder}; \
    const mhai_family mhai_family_##family = {.model_type = #family,               \
                                              .encoder = &family##_encoder,        \
                                              .towers = true,                      \
                                              .may_tie = true,                     \
                                              .keys = &keys,                       \
                                              .head_dim = "d_kv",                  \
                                              .shape = MHA_MODEL_SHAPE_CAUSAL,     \
                                              .layers = "decoder.block.",          \
                                              .prefix = "",                        \
                                              .names = decoder_names,              \
                                              .ignores = ignores,                  \
                                              .read = read_##family}
TOWERS(t5);
TOWERS(mt5);
