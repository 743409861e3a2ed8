/* OLMo 2: Llama whose norms follow each block instead of preceding it, with norms that span the
 * queries, or the keys, of all heads. OLMo 3: a window on three of four layers, whose rotation is
 * not scaled. */
#include "io/file.h"
#include "model/arch/family.h"

static const mhai_weight_name names[] = {
    MHAI_NAME("self_attn_post_norm", "post_attention_layernorm"),
    MHAI_NAME("mlp_post_norm", "post_feedforward_layernorm"), MHAI_NAME(NULL, NULL)};

static const mhai_rope_kind ropes[] = {
    {"full_attention", "rope_theta", "partial_rotary_factor", 5e5, 1, true},
    {"sliding_attention", NULL, "partial_rotary_factor", 5e5, 1, false}};

static mha_status read_olmo2(const mhai_config *config, mhai_family_plan *plan)
{
    plan->desc.flags |= MHA_TRANSFORMER_BRANCH_NORM | MHA_TRANSFORMER_NO_INPUT_NORM;
    return mhai_read_normed(config, MHA_LAYER_QK_NORM | MHA_LAYER_QK_NORM_ROW, plan);
}

/* rope_theta outside an object applies to all layers in transformers 4, and to layers without a
 * window in transformers 5. */
static mha_status check_base(const mhai_config *config)
{
    const json_t *objects = json_object_get(config->root, "rope_parameters");
    double base;
    MHA_TRY(mhai_config_number(config, "rope_theta", 5e5, &base));
    if (json_object_get(objects, "sliding_attention") || !(base < 5e5 || base > 5e5)) return MHA_OK;
    return mhai_config_fail(MHA_ERR_UNSUPPORTED, config, "rope_theta",
                            "is %g; move it into rope_parameters, for each type of layer", base);
}

static mha_status read_olmo3(const mhai_config *config, mhai_family_plan *plan)
{
    MHA_TRY(read_olmo2(config, plan));
    MHA_TRY(check_base(config));
    return mhai_read_windows(config, 4096, 0, 4, plan);
}

#define OLMO(number, type, ropes_)                                              \
    const mhai_family mhai_family_olmo##number = {.model_type = type,           \
                                                  MHAI_LLAMA_FILES(names, 0),   \
                                                  .epsilon = 1e-5,              \
                                                  .bias_key = "attention_bias", \
                                                  .ropes = ropes_,              \
                                                  .read = read_olmo##number}
OLMO(2, "olmo2", NULL);
OLMO(3, "olmo3", ropes);
