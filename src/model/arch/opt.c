/* OPT and BioGPT: causal, with layer norms and positions after two rows that no token uses. */
#include "io/file.h"
#include "model/arch/family.h"

#include <math.h>

static const mhai_weight_name opt_names[] = {
    {"embed_positions", "embed_positions", MHAI_LAST_ROWS, 0},
    MHAI_NAME("norm", "final_layer_norm"),
    MHAI_BART_LAYER_NAMES,
    MHAI_NAME(NULL, NULL)};
static const mhai_weight_name biogpt_names[] = {
    {"embed_positions", "embed_positions", MHAI_LAST_ROWS, 0},
    MHAI_NAME("norm", "layer_norm"),
    MHAI_NAME("lm_head", "/output_projection"),
    MHAI_BART_LAYER_NAMES,
    MHAI_NAME(NULL, NULL)};

static const char *const refused[] = {"_remove_final_layer_norm", NULL};

static mha_status read_opt(const mhai_config *config, mhai_family_plan *plan)
{
    mha_transformer_desc *d = &plan->desc;
    bool before, affine;
    int64_t width = d->embed_dim;
    plan->first_position = 2;
    d->positions = MHA_ENCODING_LEARNED;
    MHA_TRY(mhai_config_bool(config, "do_layer_norm_before", true, &before));
    MHA_TRY(mhai_config_bool(config, "layer_norm_elementwise_affine", true, &affine));
    MHA_TRY(mhai_config_optional(config, "word_embed_proj_dim", 1, MHAI_MOST_WIDTH, width, &width));
    if (!before) d->flags |= MHA_TRANSFORMER_POST_NORM;
    if (!affine)
        return mhai_config_fail(MHA_ERR_UNSUPPORTED, config, "layer_norm_elementwise_affine",
                                "is false, which is not supported");
    if (width == d->embed_dim) return MHA_OK;
    return mhai_config_fail(MHA_ERR_UNSUPPORTED, config, "word_embed_proj_dim",
                            "is %lld, 'hidden_size' is %lld; embeddings of another width are not "
                            "supported (OPT 350M)",
                            (long long)width, (long long)d->embed_dim);
}

static mha_status read_biogpt(const mhai_config *config, mhai_family_plan *plan)
{
    bool scaled;
    plan->first_position = 2;
    plan->desc.positions = MHA_ENCODING_LEARNED;
    MHA_TRY(mhai_config_bool(config, "scale_embedding", true, &scaled));
    if (scaled) plan->desc.embed_scale = sqrtf((float)plan->desc.embed_dim);
    return MHA_OK;
}

#define BIASES MHA_MODEL_SHAPE_QKV_BIAS | MHA_MODEL_SHAPE_OUT_BIAS
const mhai_family mhai_family_opt = {.model_type = "opt",
                                     .llama = true,
                                     .keys = &mhai_usual_keys,
                                     .shape = MHA_MODEL_SHAPE_CAUSAL | BIASES,
                                     .bias_key = "enable_bias",
                                     .ff_bias_key = "enable_bias",
                                     .inner = "ffn_dim",
                                     .act_key = "activation_function",
                                     .act = "relu",
                                     .norm_key = "",
                                     .flags = MHA_TRANSFORMER_FF_BIAS,
                                     .layers = "layers.",
                                     .prefix = "model.decoder.",
                                     .text_prefix = "decoder.",
                                     .names = opt_names,
                                     .refused = refused,
                                     .tied = true,
                                     .read = read_opt,
                                     .ignores = mhai_decoder_ignores};

const mhai_family mhai_family_biogpt = {.model_type = "biogpt",
                                        .llama = true,
                                        .keys = &mhai_usual_keys,
                                        .shape = MHA_MODEL_SHAPE_CAUSAL | BIASES,
                                        .act = "gelu",
                                        .norm_key = "",
                                        .flags = MHA_TRANSFORMER_FF_BIAS,
                                        .layers = "layers.",
                                        .prefix = "biogpt.",
                                        .names = biogpt_names,
                                        .tied = true,
                                        .read = read_biogpt,
                                        .ignores = mhai_decoder_ignores};
