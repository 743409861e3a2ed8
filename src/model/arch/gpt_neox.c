/* GPT-NeoX (Pythia): causal, layer norms, attention and feed-forward in parallel, rotary positions
 * on a part of each head; q, k and v fused head by head. */
#include "model/arch/family.h"

static const mhai_weight_name names[] = {
    MHAI_NAME("embed_tokens", "embed_in"),
    MHAI_NAME("self_attn_norm", "input_layernorm"),
    {"self_attn.q_proj", "attention.query_key_value", MHAI_FUSED_HEADS, 0},
    {"self_attn.k_proj", "attention.query_key_value", MHAI_FUSED_HEADS, 1},
    {"self_attn.v_proj", "attention.query_key_value", MHAI_FUSED_HEADS, 2},
    MHAI_NAME("self_attn.o_proj", "attention.dense"),
    MHAI_NAME("mlp_norm", "post_attention_layernorm"),
    MHAI_NAME("mlp.up_proj", "mlp.dense_h_to_4h"),
    MHAI_NAME("mlp.down_proj", "mlp.dense_4h_to_h"),
    MHAI_NAME("norm", "final_layer_norm"),
    MHAI_NAME("lm_head", "embed_out"),
    MHAI_NAME(NULL, NULL)};
static const mhai_rope_kind rope = {.base = "rotary_emb_base",
                                    .part = "rotary_pct",
                                    .usual_base = 1e4,
                                    .usual_part = 0.25,
                                    .scales = true};
static mha_status read_gpt_neox(const mhai_config *config, mhai_family_plan *plan)
{
    MHA_TRY(mhai_check_head_dim(config, &plan->desc));
    return mhai_read_flag(config, "use_parallel_residual", true, MHA_TRANSFORMER_PARALLEL, plan);
}

#define BIASES MHA_MODEL_SHAPE_QKV_BIAS | MHA_MODEL_SHAPE_OUT_BIAS
const mhai_family mhai_family_gpt_neox = {.model_type = "gpt_neox",
                                          .llama = true,
                                          .keys = &mhai_usual_keys,
                                          .shape = MHA_MODEL_SHAPE_CAUSAL | BIASES,
                                          .bias_key = "attention_bias",
                                          .act = "gelu",
                                          .norm_key = "layer_norm_eps",
                                          .flags = MHA_TRANSFORMER_FF_BIAS,
                                          .rope = &rope,
                                          .partial = true,
                                          .layers = "layers.",
                                          .prefix = "gpt_neox.",
                                          .names = names,
                                          .read = read_gpt_neox,
                                          .ignores = mhai_decoder_ignores};
