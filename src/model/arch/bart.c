/* BART and Marian: an encoder and a decoder in one folder, post-norm with layer norms and shared
 * embeddings. BART learns its positions and normalises embeddings; Marian's positions are sines,
 * followed by cosines. */
#include "io/file.h"
#include "model/arch/family.h"

#include <math.h>

#define TOWER_NAMES(tower)                                                                 \
    MHAI_NAME("embed_tokens", tower ".embed_tokens"), MHAI_NAME("embed_tokens", "shared"), \
        {"embed_positions", tower ".embed_positions", MHAI_LAST_ROWS, 0},                  \
        MHAI_NAME("embed_norm", tower ".layernorm_embedding"), MHAI_BART_LAYER_NAMES

static const mhai_weight_name encoder_names[] = {TOWER_NAMES("encoder"), MHAI_NAME(NULL, NULL)};
static const mhai_weight_name decoder_names[] = {
    TOWER_NAMES("decoder"),
    MHAI_BART_CROSS_NAMES,
    {"lm_head.bias", "final_logits_bias", MHAI_ONE_ROW, 0},
    MHAI_NAME(NULL, NULL)};

static const mhai_shape_keys keys = {"d_model",
                                     "encoder_layers",
                                     "encoder_attention_heads",
                                     "max_position_embeddings",
                                     "num_key_value_heads",
                                     "is_decoder"};

/* What both towers of both families have. */
static mha_status read_tower(const mhai_config *config, const mhai_family *family,
                             mhai_family_plan *plan)
{
    static const char *const refused[] = {"is_decoder", "normalize_before", "add_final_layer_norm",
                                          NULL};
    mha_transformer_desc *d = &plan->desc;
    bool scaled;
    MHA_TRY(mhai_config_refuse(config, refused));
    MHA_TRY(mhai_read_sizes(config, family, "encoder_ffn_dim", d));
    MHA_TRY(mhai_read_activation(config, "activation_function", "gelu", &d->feed_forward));
    MHA_TRY(mhai_config_bool(config, "scale_embedding", false, &scaled));
    d->embed_scale = scaled ? sqrtf((float)d->embed_dim) : 1;
    d->norm = MHA_NORM_LAYER;
    d->positions = MHA_ENCODING_LEARNED;
    d->flags |= MHA_TRANSFORMER_POST_NORM | MHA_TRANSFORMER_BIAS | MHA_TRANSFORMER_NO_OUTPUT;
    return MHA_OK;
}

mha_status mhai_bart_read_decoder(const mhai_config *config, mha_transformer_desc *d)
{
    bool tied;
    MHA_TRY(mhai_config_count(config, "decoder_layers", 1, MHAI_MOST_LAYERS, &d->num_layers));
    MHA_TRY(
        mhai_config_count(config, "decoder_attention_heads", 1, MHAI_MOST_WIDTH, &d->num_heads));
    MHA_TRY(mhai_config_count(config, "decoder_ffn_dim", 1, MHAI_MOST_WIDTH, &d->ff_dim));
    MHA_TRY(mhai_config_bool(config, "tie_word_embeddings", true, &tied));
    if (d->embed_dim % d->num_heads != 0)
        return mhai_config_fail(MHA_ERR_MODEL, config, "decoder_attention_heads",
                                "is %lld, which does not divide d_model %lld",
                                (long long)d->num_heads, (long long)d->embed_dim);
    d->flags |= MHA_TRANSFORMER_CAUSAL | MHA_TRANSFORMER_CROSS | (tied ? MHA_TRANSFORMER_TIED : 0);
    return MHA_OK;
}

static mha_status read_decoder(const mhai_config *config, const mhai_family *family,
                               mhai_family_plan *plan)
{
    MHA_TRY(read_tower(config, family, plan));
    plan->desc.flags ^= MHA_TRANSFORMER_NO_OUTPUT | MHA_TRANSFORMER_LOGIT_BIAS;
    return mhai_bart_read_decoder(config, &plan->desc);
}

/* Positions begin with row 2 of the table. */
static void begin_bart(mhai_family_plan *plan)
{
    plan->first_position = 2;
    plan->desc.flags |= MHA_TRANSFORMER_EMBEDDING_NORM;
}

static mha_status read_bart_encoder(const mhai_config *config, mhai_family_plan *plan)
{
    begin_bart(plan);
    return read_tower(config, mhai_family_bart.encoder, plan);
}

static mha_status read_bart(const mhai_config *config, mhai_family_plan *plan)
{
    begin_bart(plan);
    return read_decoder(config, &mhai_family_bart, plan);
}

static mha_status read_marian_encoder(const mhai_config *config, mhai_family_plan *plan)
{
    plan->sinusoids = true;
    return read_tower(config, mhai_family_marian.encoder, plan);
}

static mha_status read_marian(const mhai_config *config, mhai_family_plan *plan)
{
    int64_t own;
    plan->sinusoids = true;
    MHA_TRY(read_decoder(config, &mhai_family_marian, plan));
    MHA_TRY(mhai_config_optional(config, "decoder_vocab_size", 1, MHAI_MOST_ENTRIES,
                                 plan->desc.vocab_size, &own));
    if (own == plan->desc.vocab_size) return MHA_OK;
    return mhai_config_fail(MHA_ERR_UNSUPPORTED, config, "decoder_vocab_size",
                            "is %lld, 'vocab_size' is %lld; two vocabularies are not supported",
                            (long long)own, (long long)plan->desc.vocab_size);
}

#define BIASES MHA_MODEL_SHAPE_QKV_BIAS | MHA_MODEL_SHAPE_OUT_BIAS
#define TOWERS(family)                                                                  \
    static const mhai_family family##_encoder = {.model_type = #family,                 \
                                                 .towers = true,                        \
                                                 .keys = &keys,                         \
                                                 .shape = BIASES,                       \
                                                 .layers = "encoder.layers.",           \
                                                 .prefix = "model.",                    \
                                                 .names = encoder_names,                \
                                                 .read = read_##family##_encoder};      \
    const mhai_family mhai_family_##family = {.model_type = #family,                    \
                                              .encoder = &family##_encoder,             \
                                              .towers = true,                           \
                                              .keys = &keys,                            \
                                              .shape = MHA_MODEL_SHAPE_CAUSAL | BIASES, \
                                              .layers = "decoder.layers.",              \
                                              .prefix = "model.",                       \
                                              .names = decoder_names,                   \
                                              .read = read_##family}
TOWERS(bart);
TOWERS(marian);
