/* MiniCPM3 and Youtu-LLM: latent attention and dense feed-forward layers. */
#include "model/arch/family.h"

#include <math.h>

static const mhai_weight_name names[] = {MHAI_LATENT_NAMES, MHAI_NAME(NULL, NULL)};

/* null: the residual and the logits are not scaled. */
static mha_status read_minicpm3(const mhai_config *config, mhai_family_plan *plan)
{
    mha_transformer_desc *d = &plan->desc;
    const double layers = sqrt((double)d->num_layers), width = (double)d->embed_dim;
    const bool deep = json_is_null(json_object_get(config->root, "scale_depth"));
    const bool wide = json_is_null(json_object_get(config->root, "dim_model_base"));
    float depth, base;
    bool biased;
    MHA_TRY(mhai_read_latent(config, d->embed_dim / d->num_heads, plan));
    for (int64_t i = 0; i < d->num_layers; i++)
        plan->layers[i].flags &= ~(uint32_t)MHA_LAYER_ROPE_INTERLEAVED;
    MHA_TRY(mhai_config_bool(config, "mlp_bias", false, &biased));
    if (biased) d->flags |= MHA_TRANSFORMER_FF_BIAS;
    MHA_TRY(mhai_config_real(config, "scale_emb", 12, 1e-9, 1e9, &d->embed_scale));
    MHA_TRY(mhai_config_real(config, "scale_depth", deep ? layers : 1.4, 1e-9, 1e9, &depth));
    MHA_TRY(mhai_config_real(config, "dim_model_base", wide ? width : 256, 1, 1e9, &base));
    d->residual_scale = (float)((double)depth / layers);
    d->logit_scale = (float)((double)base / width);
    return MHA_OK;
}

static mha_status read_youtu(const mhai_config *config, mhai_family_plan *plan)
{
    MHA_TRY(mhai_config_unset(config, "mlp_bias"));
    return mhai_read_latent(config, 0, plan);
}

const mhai_family mhai_family_minicpm3 = {.model_type = "minicpm3",
                                          MHAI_LATENT_FILES(names),
                                          .epsilon = 1e-5,
                                          .tied = true,
                                          .longrope = true,
                                          .read = read_minicpm3};

const mhai_family mhai_family_youtu = {
    .model_type = "youtu", MHAI_LATENT_FILES(names), .tied = true, .read = read_youtu};
