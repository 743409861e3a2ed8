/* Whisper: an audio encoder and a decoder in one folder, pre-norm with layer norms; keys have no
 * bias. audio_stem.c has the convolutions before the encoder's layers. Like transformers, ignores
 * scale_embedding. */
#include "io/file.h"
#include "model/arch/family.h"

#define TOWER_NAMES(tower)                                                                    \
    MHAI_NAME("embed_tokens", "decoder.embed_tokens"),                                        \
        {"self_attn.k_proj.bias", "", MHAI_ZEROS, 0}, MHAI_NAME("norm", tower ".layer_norm"), \
        MHAI_BART_LAYER_NAMES

static const mhai_weight_name encoder_names[] = {TOWER_NAMES("encoder"), MHAI_NAME(NULL, NULL)};
static const mhai_weight_name decoder_names[] = {
    TOWER_NAMES("decoder"),
    MHAI_NAME("embed_positions", "decoder.embed_positions"),
    {"cross_attn.k_proj.bias", "", MHAI_ZEROS, 0},
    MHAI_BART_CROSS_NAMES,
    MHAI_NAME("lm_head", "proj_out"),
    MHAI_NAME(NULL, NULL)};

static const mhai_shape_keys keys = {"d_model", "encoder_layers",      "encoder_attention_heads",
                                     NULL,      "num_key_value_heads", "is_decoder"};

static mha_status read_tower(const mhai_config *config, const mhai_family *family,
                             mhai_family_plan *plan)
{
    static const char *const acts[] = {"gelu"}, *const refused[] = {"is_decoder", NULL};
    mha_transformer_desc *d = &plan->desc;
    int unused;
    int64_t heads;
    MHA_TRY(mhai_config_refuse(config, refused));
    MHA_TRY(mhai_read_sizes(config, family, "encoder_ffn_dim", d));
    heads = d->num_heads; /* transformers reads both names as one field */
    MHA_TRY(mhai_config_optional(config, "num_key_value_heads", heads, heads, heads, &heads));
    MHA_TRY(mhai_config_choice(config, "activation_function", acts[0], acts, 1, &unused));
    d->norm = MHA_NORM_LAYER;
    d->feed_forward = MHA_FEED_FORWARD_GELU;
    d->flags = MHA_TRANSFORMER_BIAS;
    return MHA_OK;
}

static mha_status read_whisper_encoder(const mhai_config *config, mhai_family_plan *plan)
{
    MHA_TRY(read_tower(config, mhai_family_whisper.encoder, plan));
    MHA_TRY(mhai_config_count(config, "num_mel_bins", 1, 256, &plan->bins));
    MHA_TRY(mhai_config_count(config, "max_source_positions", 1, MHAI_MOST_POSITIONS,
                              &plan->desc.max_length));
    plan->desc.flags |= MHA_TRANSFORMER_NO_OUTPUT;
    return MHA_OK;
}

static mha_status read_whisper(const mhai_config *config, mhai_family_plan *plan)
{
    mha_transformer_desc *d = &plan->desc;
    MHA_TRY(read_tower(config, &mhai_family_whisper, plan));
    MHA_TRY(
        mhai_config_count(config, "max_target_positions", 1, MHAI_MOST_POSITIONS, &d->max_length));
    d->positions = MHA_ENCODING_LEARNED;
    return mhai_bart_read_decoder(config, d);
}

static const mhai_family whisper_encoder = {.model_type = "whisper",
                                            .towers = true,
                                            .keys = &keys,
                                            .shape = MHA_MODEL_SHAPE_OUT_BIAS,
                                            .layers = "encoder.layers.",
                                            .prefix = "model.",
                                            .names = encoder_names,
                                            .read = read_whisper_encoder};

const mhai_family mhai_family_whisper = {.model_type = "whisper",
                                         .encoder = &whisper_encoder,
                                         .towers = true,
                                         .keys = &keys,
                                         .shape = MHA_MODEL_SHAPE_CAUSAL | MHA_MODEL_SHAPE_OUT_BIAS,
                                         .layers = "decoder.layers.",
                                         .prefix = "model.",
                                         .names = decoder_names,
                                         .read = read_whisper};
