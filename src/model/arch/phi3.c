/* Phi 3: Llama whose projections are fused. Variants for long texts, and Phi-4-mini, have a second
 * rotation for texts longer than those of their training (longrope). */
#include "io/file.h"
#include "model/arch/family.h"

static const mhai_weight_name names[] = {MHAI_LLAMA_NAMES,
                                         {"self_attn.q_proj", "self_attn.qkv_proj", MHAI_FUSED, 0},
                                         {"self_attn.k_proj", "self_attn.qkv_proj", MHAI_FUSED, 1},
                                         {"self_attn.v_proj", "self_attn.qkv_proj", MHAI_FUSED, 2},
                                         {"mlp.gate_proj", "mlp.gate_up_proj", MHAI_FUSED, 0},
                                         {"mlp.up_proj", "mlp.gate_up_proj", MHAI_FUSED, 1},
                                         MHAI_NAME(NULL, NULL)};

/* transformers reads this field from outside the objects alone, where its default is 4096. */
static mha_status check_length(const mhai_config *config)
{
    static const char key[] = "original_max_position_embeddings";
    double length;
    if (!mhai_config_absent(config, key)) return MHA_OK;
    MHA_TRY(mhai_rope_number(config, key, 4096, &length));
    if (length >= 4096 && length <= 4096) return MHA_OK;
    return mhai_config_fail(MHA_ERR_MODEL, config, key,
                            "is %g in rope_scaling or rope_parameters alone; write it beside that "
                            "object too",
                            length);
}

static mha_status read_phi3(const mhai_config *config, mhai_family_plan *plan)
{
    MHA_TRY(check_length(config));
    return mhai_read_windows(config, 0, 0, 0, plan);
}

const mhai_family mhai_family_phi3 = {.model_type = "phi3",
                                      MHAI_LLAMA_FILES(names, 0),
                                      .epsilon = 1e-5,
                                      .partial = true,
                                      .lengths = true,
                                      .read = read_phi3};
