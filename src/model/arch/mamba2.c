/* Mamba-2: state spaces alone, without feed-forward layers and without a limit of positions. */
#include "model/arch/family.h"

/* Older files have one "embedding". */
static const mhai_weight_name names[] = {
    MHAI_STATE_SPACE_NAMES("mixer"),        MHAI_NAME("embed_tokens", "embeddings"),
    MHAI_NAME("embed_tokens", "embedding"), MHAI_NAME("norm", "norm_f"),
    MHAI_NAME("self_attn_norm", "norm"),    MHAI_NAME(NULL, NULL)};

static const mhai_shape_keys sizes = {"hidden_size", "num_hidden_layers", "num_heads",
                                      NULL,          "n_groups",          "is_decoder"};

static const mhai_space_keys spaces = {.heads = "num_heads",
                                       .groups = "n_groups",
                                       .state = "state_size",
                                       .kernel = "conv_kernel",
                                       .size = "head_dim",
                                       .expand = "expand",
                                       .conv_bias = "use_conv_bias",
                                       .proj_bias = "use_bias",
                                       .limit = "time_step_limit",
                                       .usual_groups = 8,
                                       .usual_state = 128,
                                       .usual_size = 64};

static mha_status read_mamba2(const mhai_config *config, mhai_family_plan *plan)
{
    mha_transformer_desc *d = &plan->desc;
    mhai_mixing mixing = {0};
    bool tied;
    d->flags = MHA_TRANSFORMER_CAUSAL;
    d->norm = MHA_NORM_RMS;
    MHA_TRY(mhai_read_sizes(config, &mhai_family_mamba2, NULL, d));
    MHA_TRY(mhai_config_optional(config, "head_dim", 1, MHAI_MOST_WIDTH, 64, &d->head_dim));
    MHA_TRY(mhai_config_real(config, "layer_norm_epsilon", 1e-5, 0, 1, &d->norm_epsilon));
    MHA_TRY(mhai_config_bool(config, "tie_word_embeddings", false, &tied));
    if (tied) d->flags |= MHA_TRANSFORMER_TIED;
    MHA_TRY(mhai_read_silu(config));
    /* transformers divides the weights that it loads */
    MHA_TRY(mhai_config_unset(config, "rescale_prenorm_residual"));
    return mhai_read_state_spaces(config, &spaces, &mixing, plan);
}

const mhai_family mhai_family_mamba2 = {.model_type = "mamba2",
                                        .keys = &sizes,
                                        .grouped = true,
                                        .shape = MHA_MODEL_SHAPE_CAUSAL,
                                        .layers = "layers.",
                                        .prefix = "backbone.",
                                        .names = names,
                                        .read = read_mamba2,
                                        .ignores = mhai_decoder_ignores};
