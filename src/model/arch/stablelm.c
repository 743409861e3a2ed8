/* StableLM: Llama with layer norms and a rotation of a quarter of each head. */
#include "model/arch/family.h"

static const mhai_rope_kind rope = {NULL, "rope_theta", "partial_rotary_factor", 1e4, 0.25, true};
/* set by the 12B model only, which has both */
static const char *const refused[] = {"qk_layernorm", "use_parallel_residual", NULL};

static mha_status read_stablelm(const mhai_config *config, mhai_family_plan *plan)
{
    return mhai_check_head_dim(config, &plan->desc);
}

const mhai_family mhai_family_stablelm = {.model_type = "stablelm",
                                          MHAI_LLAMA_FILES(mhai_llama_names, 0),
                                          .whole = true,
                                          .bias_key = "use_qkv_bias",
                                          .biases_qkv = true,
                                          .norm_key = "layer_norm_eps",
                                          .refused = refused,
                                          .rope = &rope,
                                          .partial = true,
                                          .even = true,
                                          .read = read_stablelm};
