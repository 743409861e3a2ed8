/* OLMo 2: Llama whose norms follow each block instead of preceding it, with norms that span the
 * queries, or the keys, of all heads. OLMo 3: a window on three of four layers, whose rotation is
 * not scaled. EXAONE 4: a norm for each head, and no positions in layers without a window if others
 * have one. */
#include "io/file.h"
#include "model/arch/family.h"

static const mhai_weight_name names[] = {
    MHAI_NAME("self_attn_post_norm", "post_attention_layernorm"),
    MHAI_NAME("mlp_post_norm", "post_feedforward_layernorm"), MHAI_NAME(NULL, NULL)};

static const mhai_rope_kind ropes[] = {
    {"full_attention", "rope_theta", "partial_rotary_factor", 5e5, 1, true},
    {"sliding_attention", NULL, "partial_rotary_factor", 5e5, 1, false}};

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
    MHA_TRY(check_base(config));
    return mhai_read_windows(config, 4096, 0, 4, plan);
}

static mha_status read_exaone4(const mhai_config *config, mhai_family_plan *plan)
{
    const bool hybrid = !json_is_null(json_object_get(config->root, "sliding_window"));
    int64_t period = 4;
    if (hybrid && mhai_config_absent(config, "layer_types"))
        MHA_TRY(mhai_config_optional(config, "sliding_window_pattern", 1, MHAI_MOST_LAYERS, 4,
                                     &period));
    MHA_TRY(mhai_read_windows(config, 4096, 0, period, plan));
    for (int64_t i = 0; hybrid && i < plan->desc.num_layers; i++)
        if (!(plan->layers[i].flags & MHA_LAYER_WINDOW)) plan->layers[i].flags |= MHA_LAYER_NO_ROPE;
    return MHA_OK;
}

#define OLMO(type, ropes_, reader)                                                   \
    {                                                                                \
        .model_type = (type), MHAI_LLAMA_FILES(names, 0), .epsilon = 1e-5,           \
        .bias_key = "attention_bias",                                                \
        .flags = MHA_TRANSFORMER_BRANCH_NORM | MHA_TRANSFORMER_NO_INPUT_NORM,        \
        .layer_flags = MHA_LAYER_QK_NORM | MHA_LAYER_QK_NORM_ROW, .ropes = (ropes_), \
        .read = (reader)                                                             \
    }
const mhai_family mhai_family_olmo2 = OLMO("olmo2", NULL, NULL);
const mhai_family mhai_family_olmo3 = OLMO("olmo3", ropes, read_olmo3);

const mhai_family mhai_family_exaone4 = {.model_type = "exaone4",
                                         MHAI_LLAMA_FILES(names, 0),
                                         .epsilon = 1e-5,
                                         .whole = true,
                                         .flags = MHA_TRANSFORMER_BRANCH_NORM |
                                                  MHA_TRANSFORMER_NO_INPUT_NORM,
                                         .layer_flags = MHA_LAYER_QK_NORM,
                                         .read = read_exaone4};
