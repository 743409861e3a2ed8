/* StableLM: Llama with layer norms and a rotation of a quarter of each head. */
#include "model/arch/family.h"

#include <multihead/component.h>

static const mhai_weight_name names[] = {MHAI_LLAMA_NAMES, MHAI_NAME(NULL, NULL)};

static const mhai_rope_kind rope = {NULL, "rope_theta", "partial_rotary_factor", 1e4, 0.25, true};

extern const mhai_family mhai_family_stablelm;

static mha_status read_stablelm(const mhai_config *config, mhai_family_plan *plan)
{
    /* set by the 12B model only, which has both */
    static const char *const refused[] = {"qk_layernorm", "use_parallel_residual", NULL};
    mha_transformer_desc *d = &plan->desc;
    bool biased;
    MHA_TRY(mhai_read_decoder(config, &mhai_family_stablelm, true, plan));
    MHA_TRY(mhai_check_head_dim(config, d));
    MHA_TRY(mhai_read_silu(config));
    MHA_TRY(mhai_config_refuse(config, refused));
    MHA_TRY(mhai_config_real(config, "layer_norm_eps", 1e-5, 0, 1, &d->norm_epsilon));
    MHA_TRY(mhai_config_bool(config, "use_qkv_bias", false, &biased));
    if (biased) d->flags |= MHA_TRANSFORMER_QKV_BIAS;
    d->norm = MHA_NORM_LAYER;
    return mhai_read_rope(config, plan);
}

const mhai_family mhai_family_stablelm = {.model_type = "stablelm",
                                          MHAI_LLAMA_FILES(names),
                                          .shape = MHA_MODEL_SHAPE_CAUSAL,
                                          .bias_key = "use_qkv_bias",
                                          .biases_qkv = true,
                                          .rope = &rope,
                                          .partial = true,
                                          .even = true,
                                          .read = read_stablelm};
