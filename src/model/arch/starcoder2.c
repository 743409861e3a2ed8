/* Llama with layer norms: StarCoder 2 (tanh GELU, a window), Nemotron and Jais 2 (squared ReLU), OLMo
 * (norms without parameters). */
#include "model/arch/family.h"

/* The weights of Nemotron's norms are stored minus 1. */
static const mhai_weight_name nemotron_names[] = {
    {"norm.weight", "norm.weight", MHAI_PLUS_ONE, 0},
    {"self_attn_norm.weight", "input_layernorm.weight", MHAI_PLUS_ONE, 0},
    {"mlp_norm.weight", "post_attention_layernorm.weight", MHAI_PLUS_ONE, 0},
    MHAI_LLAMA_NAMES,
    MHAI_NAME(NULL, NULL)};
static const mhai_weight_name starcoder2_names[] = {
    MHAI_LLAMA_NAMES, MHAI_NAME("mlp.up_proj", "mlp.c_fc"),
    MHAI_NAME("mlp.down_proj", "mlp.c_proj"), MHAI_NAME(NULL, NULL)};
static const mhai_weight_name olmo_names[] = {{"self_attn_norm", "", MHAI_ONES, 0},
                                              {"mlp_norm", "", MHAI_ONES, 0},
                                              {"norm", "", MHAI_ONES, 0},
                                              MHAI_NAME(NULL, NULL)};

static const char *const clips[] = {"clip_qkv", NULL};
static mha_status read_starcoder2(const mhai_config *config, mhai_family_plan *plan)
{
    return mhai_read_windows(config, 0, 0, 0, plan);
}

#define ATTENTION_BIAS .bias_key = "attention_bias", .ff_bias_key = "mlp_bias"
#define BIASES MHA_MODEL_SHAPE_QKV_BIAS | MHA_MODEL_SHAPE_OUT_BIAS

const mhai_family mhai_family_nemotron = {.model_type = "nemotron",
                                          MHAI_LLAMA_FILES(nemotron_names, 0),
                                          ATTENTION_BIAS,
                                          .whole = true,
                                          .act = "relu2",
                                          .norm_key = "norm_eps",
                                          .rope = &mhai_half_rope,
                                          .partial = true,
                                          .even = true};

const mhai_family mhai_family_jais2 = {.model_type = "jais2",
                                       MHAI_LLAMA_FILES(mhai_llama_names, BIASES),
                                       ATTENTION_BIAS,
                                       .act = "relu2",
                                       .norm_key = "layer_norm_eps",
                                       .flags = MHA_TRANSFORMER_FF_BIAS};

const mhai_family mhai_family_starcoder2 = {.model_type = "starcoder2",
                                            MHAI_LLAMA_FILES(starcoder2_names, BIASES),
                                            .bias_key = "use_bias",
                                            .ff_bias_key = "use_bias",
                                            .whole = true,
                                            .act = "gelu_pytorch_tanh",
                                            .norm_key = "norm_epsilon",
                                            .flags = MHA_TRANSFORMER_FF_BIAS,
                                            .tied = true,
                                            .read = read_starcoder2};

const mhai_family mhai_family_olmo = {.model_type = "olmo",
                                      MHAI_LLAMA_FILES(olmo_names, 0),
                                      .bias_key = "attention_bias",
                                      .norm_key = "",
                                      .flags = MHA_TRANSFORMER_NO_NORM_BIAS,
                                      .refused = clips};
