/* gpt-oss: experts with biases in every layer, a sink logit for each head, a window on every second
 * layer. Folders hold the experts as tables, transposed or in blocks of MXFP4. */
#include "io/file.h"
#include "model/arch/family.h"

static const mhai_weight_name names[] = {
    MHAI_LLAMA_NAMES,
    {"mlp.experts.*.gate_proj.weight", "mlp.experts.gate_up_proj", MHAI_EXPERT_TURNED, 0},
    {"mlp.experts.*.up_proj.weight", "mlp.experts.gate_up_proj", MHAI_EXPERT_TURNED, 1},
    {"mlp.experts.*.down_proj.weight", "mlp.experts.down_proj", MHAI_EXPERT_TURNED, 0},
    {"mlp.experts.*.gate_proj.weight", "mlp.experts.gate_up_proj_blocks", MHAI_EXPERT_MXFP4, 0},
    {"mlp.experts.*.up_proj.weight", "mlp.experts.gate_up_proj_blocks", MHAI_EXPERT_MXFP4, 1},
    {"mlp.experts.*.down_proj.weight", "mlp.experts.down_proj_blocks", MHAI_EXPERT_MXFP4, 0},
    {"mlp.experts.*.gate_proj.bias", "mlp.experts.gate_up_proj_bias", MHAI_EXPERT_MIXED, 0},
    {"mlp.experts.*.up_proj.bias", "mlp.experts.gate_up_proj_bias", MHAI_EXPERT_MIXED, 1},
    {"mlp.experts.*.down_proj.bias", "mlp.experts.down_proj_bias", MHAI_EXPERT_MIXED, 0},
    MHAI_NAME(NULL, NULL)};

static const mhai_rope_kind rope = {NULL, "rope_theta", "partial_rotary_factor", 1.5e5, 1, true};

/* The activation of experts is fixed. */
static mha_status check_activation(const mhai_config *config)
{
    static const struct {
        const char *key;
        double value;
    } known[] = {{"swiglu_alpha", 1.702}, {"swiglu_limit", 7}};
    for (int i = 0; i < 2; i++) {
        double value;
        MHA_TRY(mhai_config_number(config, known[i].key, known[i].value, &value));
        if (value < known[i].value || value > known[i].value)
            return mhai_config_fail(MHA_ERR_UNSUPPORTED, config, known[i].key,
                                    "is %g, which is not supported; known: %g", value,
                                    known[i].value);
    }
    return MHA_OK;
}

static mha_status read_gpt_oss(const mhai_config *config, mhai_family_plan *plan)
{
    static const mhai_experts_kind kind = {.count = "num_local_experts",
                                           .alias = "num_experts",
                                           .usual = true,
                                           .flags = MHA_EXPERTS_BIAS};
    mha_transformer_desc *d = &plan->desc;
    MHA_TRY(check_activation(config));
    d->feed_forward = MHA_FEED_FORWARD_SWIGLU_CLAMPED;
    MHA_TRY(mhai_read_windows(config, 128, 0, 2, plan));
    MHA_TRY(mhai_read_experts(config, &kind, plan));
    return mhai_require_rope(config);
}

const mhai_family mhai_family_gpt_oss = {
    .model_type = "gpt_oss",
    MHAI_LLAMA_FILES(names, MHA_MODEL_SHAPE_QKV_BIAS | MHA_MODEL_SHAPE_OUT_BIAS),
    .epsilon = 1e-5,
    .whole = true,
    .own_act = true,
    .mxfp4 = true,
    .bias_key = "attention_bias",
    .usual_head_dim = 64,
    .layer_flags = MHA_LAYER_SINKS,
    .rope = &rope,
    .read = read_gpt_oss};
