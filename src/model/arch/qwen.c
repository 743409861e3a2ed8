/* Qwen 2: Llama with biases of q, k and v, and a window on some layers. Qwen 3: norms of queries
 * and keys instead, and in Qwen3-MoE experts. */
#include "model/arch/family.h"

static const mhai_weight_name names[] = {MHAI_LLAMA_NAMES, MHAI_EXPERT_NAMES,
                                         MHAI_NAME(NULL, NULL)};

mha_status mhai_read_qwen(const mhai_config *config, int64_t last, mhai_family_plan *plan)
{
    bool windowed;
    int64_t first;
    MHA_TRY(mhai_config_bool(config, "use_sliding_window", false, &windowed));
    MHA_TRY(mhai_config_optional(config, "max_window_layers", 0, MHAI_MOST_LAYERS, last, &first));
    return windowed ? mhai_read_windows(config, 4096, first, 0, plan) : MHA_OK;
}

mha_status mhai_read_qwen3(const mhai_config *config, mhai_family_plan *plan)
{
    return mhai_read_qwen(config, 28, plan);
}

static mha_status read_qwen3_moe(const mhai_config *config, mhai_family_plan *plan)
{
    static const mhai_experts_kind kind = {.count = "num_local_experts",
                                           .alias = "num_experts",
                                           .inner = "moe_intermediate_size",
                                           .normalises = "norm_topk_prob",
                                           .may_lack = true,
                                           .steps = true};
    bool windowed;
    MHA_TRY(mhai_config_bool(config, "use_sliding_window", false, &windowed));
    if (windowed) MHA_TRY(mhai_config_unset(config, "layer_types")); /* transformers ignores it */
    if (windowed) MHA_TRY(mhai_read_windows(config, 4096, 0, 0, plan));
    return mhai_read_experts(config, &kind, plan);
}

/* layer_types is required with a window: the default alternates, up to max_window_layers. */
static mha_status read_qwen2_moe(const mhai_config *config, mhai_family_plan *plan)
{
    static const mhai_experts_kind kind = {.count = "num_experts",
                                           .inner = "moe_intermediate_size",
                                           .shared = "shared_expert_intermediate_size",
                                           .normalises = "norm_topk_prob",
                                           .flags = MHA_EXPERTS_SHARED_GATE,
                                           .may_lack = true,
                                           .steps = true};
    bool windowed;
    MHA_TRY(mhai_config_bool(config, "use_sliding_window", false, &windowed));
    if (windowed && mhai_config_absent(config, "layer_types"))
        return mhai_config_fail(MHA_ERR_UNSUPPORTED, config, "use_sliding_window",
                                "is true without 'layer_types'; list the type of each layer there");
    if (windowed) MHA_TRY(mhai_read_windows(config, 4096, 0, 1, plan));
    return mhai_read_experts(config, &kind, plan);
}

const mhai_family mhai_family_qwen2 = {.model_type = "qwen2",
                                       MHAI_LLAMA_FILES(names, MHA_MODEL_SHAPE_QKV_BIAS),
                                       .whole = true,
                                       .read = mhai_read_qwen3};

const mhai_family mhai_family_qwen2_moe = {.model_type = "qwen2_moe",
                                           MHAI_LLAMA_FILES(names, MHA_MODEL_SHAPE_QKV_BIAS),
                                           .whole = true,
                                           .bias_key = "qkv_bias",
                                           .biases_qkv = true,
                                           .read = read_qwen2_moe};

const mhai_family mhai_family_qwen3 = {.model_type = "qwen3",
                                       MHAI_LLAMA_FILES(names, 0),
                                       .whole = true,
                                       .bias_key = "attention_bias",
                                       .usual_head_dim = 128,
                                       .layer_flags = MHA_LAYER_QK_NORM,
                                       .read = mhai_read_qwen3};

const mhai_family mhai_family_qwen3_moe = {.model_type = "qwen3_moe",
                                           MHAI_LLAMA_FILES(names, 0),
                                           .whole = true,
                                           .bias_key = "attention_bias",
                                           .layer_flags = MHA_LAYER_QK_NORM,
                                           .read = read_qwen3_moe};
