/* Gemma 4, of which only the text part is read: Gemma 3's blocks with norms of values, a scale after each
 * layer and, in some, an input of each layer beside the stream. The last num_kv_shared_layers use the
 * keys and values of the last layer before them of their kind. Layers without a window have heads of
 * another size, and rotate a part of their pairs. */
#include "io/file.h"
#include "model/arch/family.h"

#include <math.h>
#include <stdlib.h>
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

static const mhai_rope_kind ropes[] = {{"full_attention", NULL, NULL, 1e4, 1, false},
                                       {"sliding_attention", NULL, NULL, 1e4, 1, false}};

/* Files may have keys and values of layers that use those of earlier ones. */
static bool ignores(const mhai_family_plan *plan, const char *name)
{
    static const char *const unused[] = {".self_attn.k_", ".self_attn.v_"};
    const char *at = strstr(name, "layers.");
    char *end = NULL;
    const long long layer = at ? strtoll(at + strlen("layers."), &end, 10) : -1;
    if (layer < 0 || layer >= plan->desc.num_layers || plan->layers[layer].kv_back == 0)
        return mhai_decoder_ignores(plan, name);
    return strncmp(end, unused[0], 13) == 0 || strncmp(end, unused[1], 13) == 0;
}

/* unified: without an input beside the stream. */
static mha_status read_kind(const mhai_config *config, bool unified, mhai_family_plan *plan)
{
    static const char *const acts[] = {"gelu_pytorch_tanh"}, *const both[] = {"", "vision"};
    static const char *const refused[] = {"enable_moe_block", NULL};
    mha_transformer_desc *d = &plan->desc;
    int64_t width = 0, rows;
    int unused;
    MHA_TRY(mhai_config_refuse(config, refused));
    MHA_TRY(mhai_require_rope(config));
    if (json_is_null(json_object_get(config->root, "sliding_window")))
        return mhai_config_fail(MHA_ERR_MODEL, config, "sliding_window", "is null");
    MHA_TRY(mhai_config_choice(config, "hidden_activation", acts[0], acts, 1, &unused));
    MHA_TRY(mhai_config_choice(config, "use_bidirectional_attention", "", both, 2, &unused));
    MHA_TRY(mhai_read_attention_bias(config, plan));
    if (d->head_dim == 0) d->head_dim = 256;
    d->flags |= MHA_TRANSFORMER_BRANCH_NORM;
    d->feed_forward = MHA_FEED_FORWARD_GEGLU_TANH;
    d->embed_scale = sqrtf((float)d->embed_dim);
    if (!mhai_config_absent(config, "final_logit_softcapping"))
        MHA_TRY(
            mhai_config_real(config, "final_logit_softcapping", 1, 1e-6, 1e9, &d->logit_softcap));
    MHA_TRY(mhai_flag_layers(plan, MHA_LAYER_QK_NORM | MHA_LAYER_V_NORM | MHA_LAYER_OUTPUT_SCALE));
    MHA_TRY(mhai_read_windows(config, unified ? 1024 : 512, 0, 6, plan));
    plan->layers[d->num_layers - 1].flags &= ~(uint32_t)MHA_LAYER_WINDOW;
    plan->layers[d->num_layers - 1].left_keys = 0;
    if (!unified) {
        MHA_TRY(mhai_config_optional(config, "hidden_size_per_layer_input", 0, MHAI_MOST_WIDTH, 256,
                                     &width));
        MHA_TRY(mhai_config_optional(config, "vocab_size_per_layer_input",
                                     width ? d->vocab_size : INT64_MIN,
                                     width ? d->vocab_size : INT64_MAX, 262144, &rows));
    }
    for (int64_t i = 0; i < d->num_layers; i++) {
        plan->layers[i].scale = 1;
        plan->layers[i].qk_norm_epsilon = d->norm_epsilon;
        plan->layers[i].input_dim = width;
    }
    MHA_TRY(mhai_read_kinds_of_heads(config, plan));
    return mhai_share_keys(config, plan);
}

static mha_status read_text(const mhai_config *config, mhai_family_plan *plan)
{
    return read_kind(config, false, plan);
}

static mha_status read_unified(const mhai_config *config, mhai_family_plan *plan)
{
    return read_kind(config, true, plan);
}

#define GEMMA4(type, text, read_)                                                                  \
    {                                                                                              \
        .model_type = (type), .text_type = (text), .llama = true, .keys = &mhai_usual_keys,        \
        .shape = MHA_MODEL_SHAPE_CAUSAL, .grouped = true, .layers = "layers.", .prefix = "model.", \
        .names = names, .ignores = ignores, .text_part = true, .whole = true, .own_act = true,     \
        .bias_key = "attention_bias", .ropes = ropes, .both_ways = true, .own_layers = true,       \
        .proportional = true, .tied = true, .read = read_                                          \
    }
const mhai_family mhai_family_gemma4 = GEMMA4("gemma4_text", NULL, read_text);
const mhai_family mhai_family_gemma4_unified = GEMMA4("gemma4_unified_text", NULL, read_unified);
/* with images and audio */
const mhai_family mhai_family_gemma4_whole = GEMMA4("gemma4", "gemma4_text", read_text);
const mhai_family mhai_family_gemma4_unified_whole =
    GEMMA4("gemma4_unified", "gemma4_unified_text", read_unified);
