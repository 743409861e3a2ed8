/* Phi 3: Llama whose projections are fused. */
#include "model/arch/family.h"

static const mhai_weight_name names[] = {MHAI_LLAMA_NAMES,
                                         {"self_attn.q_proj", "self_attn.qkv_proj", MHAI_FUSED, 0},
                                         {"self_attn.k_proj", "self_attn.qkv_proj", MHAI_FUSED, 1},
                                         {"self_attn.v_proj", "self_attn.qkv_proj", MHAI_FUSED, 2},
                                         {"mlp.gate_proj", "mlp.gate_up_proj", MHAI_FUSED, 0},
                                         {"mlp.up_proj", "mlp.gate_up_proj", MHAI_FUSED, 1},
                                         MHAI_NAME(NULL, NULL)};

static mha_status read_phi3(const mhai_config *config, mhai_family_plan *plan)
{
    return mhai_read_windows(config, 0, 0, 0, plan);
}

const mhai_family mhai_family_phi3 = {.model_type = "phi3",
                                      MHAI_LLAMA_FILES(names, 0),
                                      .epsilon = 1e-5,
                                      .partial = true,
                                      .read = read_phi3};
