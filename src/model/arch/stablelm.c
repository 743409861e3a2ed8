/* StableLM: Llama with layer norms and a rotation of a quarter of each head. */
#include "model/arch/family.h"

static const mhai_rope_kind rope = {NULL, "rope_theta", "partial_rotary_factor", 1e4, 0.25, true};

static mha_status read_stablelm(const mhai_config *config, mhai_family_plan *plan)
{
    /* set by the 12B model only, which has both */
    static const char *const refused[] = {"qk_layernorm", "use_parallel_residual", NULL};
    mha_transformer_desc *d = &plan->desc;
    bool biased;
    MHA_TRY(mhai_check_head_dim(config, d));
    MHA_TRY(mhai_config_refuse(config, refused));
    MHA_TRY(mhai_config_real(config, "layer_norm_eps", 1e-5, 0, 1, &d->norm_epsilon));
    MHA_TRY(mhai_config_bool(config, "use_qkv_bias", false, &biased));
    if (biased) d->flags |= MHA_TRANSFORMER_QKV_BIAS;
    d->norm = MHA_NORM_LAYER;
    return MHA_OK;
}

const mhai_family mhai_family_stablelm = {.model_type = "stablelm",
                                          MHAI_LLAMA_FILES(mhai_llama_names, 0),
                                          .whole = true,
                                          .bias_key = "use_qkv_bias",
                                          .biases_qkv = true,
                                          .rope = &rope,
                                          .partial = true,
                                          .even = true,
                                          .read = read_stablelm};
