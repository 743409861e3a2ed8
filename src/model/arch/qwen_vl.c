/* The text parts of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: Qwen 2 and Qwen 3. The three positions of a
 * token are equal in texts. */
#include "model/arch/family.h"

/* Models with images have another default of rope_theta. */
static const mhai_rope_kind ropes[] = {{NULL, "rope_theta", "partial_rotary_factor", 1e6, 1, true},
                                       {NULL, "rope_theta", "partial_rotary_factor", 5e5, 1, true}};

static mha_status read_qwen2_vl(const mhai_config *config, mhai_family_plan *plan)
{
    return mhai_read_qwen(config, 80, plan);
}

static mha_status read_qwen3_vl(const mhai_config *config, mhai_family_plan *plan)
{
    MHA_TRY(mhai_config_unset(config, "use_sliding_window")); /* transformers ignores it */
    return mhai_read_qwen3(config, plan);
}

#define QWEN2(type, whole_)                                                           \
    {                                                                                 \
        .model_type = (type), .text_type = (whole_), .flat = true, .whole = true,     \
        MHAI_TEXT_FILES(mhai_llama_names, MHA_MODEL_SHAPE_QKV_BIAS), .epsilon = 1e-5, \
        .rope = &ropes[0], .read = read_qwen2_vl                                      \
    }
const mhai_family mhai_family_qwen2_vl_text = QWEN2("qwen2_vl_text", NULL);
const mhai_family mhai_family_qwen2_vl = QWEN2("qwen2_vl", "qwen2_vl_text");
const mhai_family mhai_family_qwen2_5_vl_text = QWEN2("qwen2_5_vl_text", NULL);
const mhai_family mhai_family_qwen2_5_vl = QWEN2("qwen2_5_vl", "qwen2_5_vl_text");

#define QWEN3(type, whole_)                                                                    \
    {                                                                                          \
        .model_type = (type), .text_type = (whole_), .whole = true,                            \
        MHAI_TEXT_FILES(mhai_llama_names, 0), .bias_key = "attention_bias", .rope = &ropes[1], \
        .usual_head_dim = 128, .layer_flags = MHA_LAYER_QK_NORM, .read = read_qwen3_vl         \
    }
const mhai_family mhai_family_qwen3_vl_text = QWEN3("qwen3_vl_text", NULL);
const mhai_family mhai_family_qwen3_vl = QWEN3("qwen3_vl", "qwen3_vl_text");
