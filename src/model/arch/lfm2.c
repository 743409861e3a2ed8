/* LFM2: short convolutions, and in some layers attention with norms of queries and keys. */
#include "model/arch/family.h"

static const mhai_weight_name names[] = {MHAI_LFM2_NAMES, MHAI_NAME(NULL, NULL)};

const mhai_rope_kind mhai_lfm2_rope = {NULL, "rope_theta", "partial_rotary_factor", 1e6, 1, true};

static mha_status find_kind(const mhai_config *config, int64_t layer, int *kind)
{
    static const char key[] = "full_attn_idxs";
    bool attends;
    MHA_TRY(mhai_config_lists(config, key, layer, &attends));
    *kind = attends || mhai_config_absent(config, key) ? MHAI_ATTENDS : MHAI_MIXES;
    return MHA_OK;
}

/* Adjust the width of feed-forward layers: two thirds of the width in config.json, times a factor,
 * rounded up. */
static mha_status adjust(const mhai_config *config, mha_transformer_desc *d)
{
    bool adjusts;
    double factor;
    int64_t step;
    MHA_TRY(mhai_config_bool(config, "block_auto_adjust_ff_dim", true, &adjusts));
    MHA_TRY(mhai_config_number(config, "block_ffn_dim_multiplier", 1, &factor));
    MHA_TRY(mhai_config_optional(config, "block_multiple_of", 1, MHAI_MOST_WIDTH, 256, &step));
    if (!adjusts) return MHA_OK;
    const double width = factor * (double)(d->ff_dim * 2 / 3);
    if (!(width >= 1 && width <= MHAI_MOST_WIDTH))
        return mhai_config_fail(MHA_ERR_MODEL, config, "block_ffn_dim_multiplier",
                                "is %g, which makes feed-forward layers %g wide; expected 1..%d",
                                factor, width, MHAI_MOST_WIDTH);
    d->ff_dim = ((int64_t)width + step - 1) / step * step;
    return MHA_OK;
}

mha_status mhai_read_lfm2(const mhai_config *config, mhai_family_plan *plan)
{
    int64_t kernel;
    bool tied;
    MHA_TRY(mhai_config_real(config, "norm_eps", 1e-5, 0, 1, &plan->desc.norm_epsilon));
    MHA_TRY(mhai_config_unset(config, "conv_bias"));
    MHA_TRY(mhai_config_optional(config, "conv_L_cache", 1, MHA_CONVOLUTION_MOST, 3, &kernel));
    MHA_TRY(mhai_config_bool(config, "tie_embedding",
                             mhai_desc_has(&plan->desc, MHA_TRANSFORMER_TIED), &tied));
    if (tied != mhai_desc_has(&plan->desc, MHA_TRANSFORMER_TIED))
        plan->desc.flags ^= MHA_TRANSFORMER_TIED;
    const mhai_mixing mixing = {
        .types = {{"full_attention"}, {"conv"}},
        .usual = find_kind,
        .mixer = {.mixer = MHA_MIXER_SHORT_CONVOLUTION, .conv_kernel = (int32_t)kernel},
        .attention = {.flags = MHA_LAYER_QK_NORM}};
    return mhai_read_mixing(config, &mixing, plan);
}

static mha_status read_lfm2(const mhai_config *config, mhai_family_plan *plan)
{
    MHA_TRY(mhai_read_lfm2(config, plan));
    return adjust(config, &plan->desc);
}

const mhai_family mhai_family_lfm2 = {.model_type = "lfm2",
                                      MHAI_LLAMA_FILES(names, 0),
                                      .own_act = true,
                                      .whole = true,
                                      .inner = "block_ff_dim",
                                      .rope = &mhai_lfm2_rope,
                                      .tied = true,
                                      .read = read_lfm2};
