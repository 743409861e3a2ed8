/* The text part of Gemma 4: Gemma 3's blocks with norms of values, a scale after each layer and an input of
 * each layer beside the stream. The last layers use keys and values of earlier ones. Layers without a window
 * have heads of another size, and rotate a part of their pairs. */
#include "io/file.h"
#include "model/arch/family.h"

#include <math.h>
#include <string.h>

static const mhai_weight_name names[] = {
    MHAI_NAME("self_attn_norm", "input_layernorm"),
    MHAI_NAME("self_attn_post_norm", "post_attention_layernorm"),
    MHAI_NAME("mlp_norm", "pre_feedforward_layernorm"),
    MHAI_NAME("mlp_post_norm", "post_feedforward_layernorm"),
    {"self_attn.v_proj", "self_attn.k_proj", MHAI_KEYS_AS_VALUES, 0},
    {"input.table", "/embed_tokens_per_layer", MHAI_LAYER_COLUMNS, 0},
    {"input.proj", "/per_layer_model_projection", MHAI_LAYER_ROWS, 0},
    MHAI_NAME("input.norm", "/per_layer_projection_norm"),
    MHAI_NAME("input.gate_proj", "per_layer_input_gate"),
    MHAI_NAME("input.o_proj", "per_layer_projection"),
    MHAI_NAME("input_post_norm", "post_per_layer_input_norm"),
    MHAI_NAME("output.scale", "layer_scalar"),
    MHAI_NAME(NULL, NULL)};

static const mhai_rope_kind ropes[] = {
    {"full_attention", "rope_theta", "partial_rotary_factor", 1e4, 1, false},
    {"sliding_attention", "rope_theta", "partial_rotary_factor", 1e4, 1, false}};

/* "Unified" models have no input beside the stream. */
static mha_status read_gemma4(const mhai_config *config, mhai_family_plan *plan)
{
    static const char *const acts[] = {"gelu_pytorch_tanh"}, *const both[] = {"", "vision"};
    mha_transformer_desc *d = &plan->desc;
    int64_t width = 0, rows;
    int unused;
    const char *type;
    MHA_TRY(mhai_config_text(config, "model_type", NULL, &type));
    for (int i = 0; i < 2; i++)
        if (!json_object_get(json_object_get(config->root, "rope_parameters"), ropes[i].layers))
            return mhai_config_fail(MHA_ERR_MODEL, config, "rope_parameters", "has no '%s'",
                                    ropes[i].layers);
    MHA_TRY(mhai_config_count(config, "sliding_window", 1, INT64_MAX, &rows));
    MHA_TRY(mhai_config_choice(config, "hidden_activation", acts[0], acts, 1, &unused));
    MHA_TRY(mhai_config_choice(config, "use_bidirectional_attention", "", both, 2, &unused));
    d->feed_forward = MHA_FEED_FORWARD_GEGLU_TANH;
    d->embed_scale = sqrtf((float)d->embed_dim);
    MHA_TRY(mhai_read_softcap(config, "final_logit_softcapping", 0, &d->logit_softcap));
    MHA_TRY(mhai_leave_unscaled(plan));
    MHA_TRY(mhai_read_windows(config, 512, 0, 6, plan));
    plan->layers[d->num_layers - 1].flags &= ~(uint32_t)MHA_LAYER_WINDOW;
    plan->layers[d->num_layers - 1].left_keys = 0;
    if (strcmp(type, "gemma4_text") == 0) {
        MHA_TRY(mhai_config_optional(config, "hidden_size_per_layer_input", 0, MHAI_MOST_WIDTH, 256,
                                     &width));
        MHA_TRY(mhai_config_optional(config, "vocab_size_per_layer_input",
                                     width ? d->vocab_size : INT64_MIN,
                                     width ? d->vocab_size : INT64_MAX, 262144, &rows));
    }
    for (int64_t i = 0; i < d->num_layers; i++) plan->layers[i].input_dim = width;
    MHA_TRY(mhai_read_kinds_of_heads(config, plan));
    return mhai_share_keys(config, plan);
}

static const char *const refused[] = {"enable_moe_block", NULL};

#define GEMMA4(type, text)                                                                         \
    {                                                                                              \
        .model_type = (type), .text_type = (text), MHAI_TEXT_FILES(names, 0), .whole = true,       \
        .own_act = true, .usual_head_dim = 256, .bias_key = "attention_bias", .refused = refused,  \
        .flags = MHA_TRANSFORMER_BRANCH_NORM,                                                      \
        .layer_flags = MHA_LAYER_QK_NORM | MHA_LAYER_V_NORM | MHA_LAYER_OUTPUT_SCALE,              \
        .ropes = ropes, .both_ways = true, .own_layers = true, .proportional = true, .tied = true, \
        .read = read_gemma4                                                                        \
    }
const mhai_family mhai_family_gemma4 = GEMMA4("gemma4_text", NULL);
const mhai_family mhai_family_gemma4_unified = GEMMA4("gemma4_unified_text", NULL);
/* with images and audio */
const mhai_family mhai_family_gemma4_whole = GEMMA4("gemma4", "gemma4_text");
const mhai_family mhai_family_gemma4_unified_whole =
    GEMMA4("gemma4_unified", "gemma4_unified_text");
