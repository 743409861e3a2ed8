/* Gemma: Llama with GEGLU, embeddings times sqrt(E), and norms whose weights are stored minus 1.
 * Gemma 2: norms also on the output of each block, softcaps on scores and logits, a window on every
 * second layer. Gemma 3: norms of queries and keys instead of softcaps, a window on five of six
 * layers, which have another base of the rotation. */
#include "io/file.h"
#include "model/arch/family.h"

#include <math.h>

static const mhai_weight_name names[] = {{"norm", "norm", MHAI_PLUS_ONE, 0},
                                         {"self_attn_norm", "input_layernorm", MHAI_PLUS_ONE, 0},
                                         {"mlp_norm", "post_attention_layernorm", MHAI_PLUS_ONE, 0},
                                         MHAI_NAME(NULL, NULL)};

static const mhai_weight_name later_names[] = {
    {"norm", "norm", MHAI_PLUS_ONE, 0},
    {"self_attn_norm", "input_layernorm", MHAI_PLUS_ONE, 0},
    {"self_attn_post_norm", "post_attention_layernorm", MHAI_PLUS_ONE, 0},
    {"mlp_norm", "pre_feedforward_layernorm", MHAI_PLUS_ONE, 0},
    {"mlp_post_norm", "post_feedforward_layernorm", MHAI_PLUS_ONE, 0},
    {"self_attn.q_norm", "self_attn.q_norm", MHAI_PLUS_ONE, 0},
    {"self_attn.k_norm", "self_attn.k_norm", MHAI_PLUS_ONE, 0},
    MHAI_NAME(NULL, NULL)};

static mha_status read_kinds(const mhai_config *config, bool first, mhai_family_plan *plan)
{
    static const char *const acts[] = {"gelu_pytorch_tanh", "gelu"};
    mha_transformer_desc *d = &plan->desc;
    int unused;
    /* transformers reads the "gelu" of the first Gemma as tanh GELU, with which the model was
     * trained */
    MHA_TRY(mhai_config_choice(config, first ? "hidden_act" : "hidden_activation", acts[0], acts,
                               first ? 2 : 1, &unused));
    MHA_TRY(mhai_read_attention_bias(config, plan));
    if (d->head_dim == 0) d->head_dim = 256;
    d->feed_forward = MHA_FEED_FORWARD_GEGLU_TANH;
    d->embed_scale = sqrtf((float)d->embed_dim);
    return MHA_OK;
}

static mha_status read_gemma(const mhai_config *config, mhai_family_plan *plan)
{
    return read_kinds(config, true, plan);
}

/* Shared by Gemma 2 and 3; every period-th layer has no window. */
static mha_status read_later(const mhai_config *config, bool second, int64_t period,
                             mhai_family_plan *plan)
{
    float softcap, scalar;
    MHA_TRY(read_kinds(config, false, plan));
    plan->desc.flags |= MHA_TRANSFORMER_BRANCH_NORM;
    MHA_TRY(mhai_read_windows(config, 4096, 0, period, plan));
    MHA_TRY(mhai_config_real(config, "query_pre_attn_scalar", 256, 1e-6, 1e9, &scalar));
    static const char *const unused[] = {"attn_logit_softcapping", NULL};
    if (!second)
        MHA_TRY(mhai_config_refuse(config, unused)); /* transformers stores it but never uses it */
    MHA_TRY(mhai_read_softcap(config, "attn_logit_softcapping", second ? 50 : 0, &softcap));
    MHA_TRY(mhai_read_softcap(config, "final_logit_softcapping", second ? 30 : 0,
                              &plan->desc.logit_softcap));
    MHA_TRY(mhai_plan_layers(plan));
    for (int64_t i = 0; i < plan->desc.num_layers; i++) {
        plan->layers[i].scale = (float)(1 / sqrt((double)scalar));
        plan->layers[i].softcap = softcap;
        if (second) continue;
        plan->layers[i].flags |= MHA_LAYER_QK_NORM;
        plan->layers[i].qk_norm_epsilon = plan->desc.norm_epsilon;
    }
    return MHA_OK;
}

static mha_status read_gemma2(const mhai_config *config, mhai_family_plan *plan)
{
    return read_later(config, true, 2, plan);
}

/* Without an object, layers with a window are not scaled and have their own base. */
static const mhai_rope_kind ropes[] = {
    {"full_attention", "rope_theta", "partial_rotary_factor", 1e6, 1, true},
    {"sliding_attention", "rope_local_base_freq", "partial_rotary_factor", 1e4, 1, false}};

/* EmbeddingGemma. transformers halves the window, and each side keeps that many keys. */
static mha_status see_both_ways(const mhai_config *config, mhai_family_plan *plan)
{
    bool both;
    MHA_TRY(mhai_config_bool(config, "use_bidirectional_attention", false, &both));
    if (!both) return MHA_OK;
    plan->desc.flags &= ~(uint32_t)MHA_TRANSFORMER_CAUSAL;
    for (int64_t i = 0; i < plan->desc.num_layers; i++) {
        mha_layer_desc *layer = &plan->layers[i];
        if (layer->flags & MHA_LAYER_WINDOW)
            layer->left_keys = layer->right_keys = (layer->left_keys + 1) / 2;
    }
    return MHA_OK;
}

static mha_status read_gemma3(const mhai_config *config, mhai_family_plan *plan)
{
    int64_t period;
    MHA_TRY(
        mhai_config_optional(config, "sliding_window_pattern", 1, MHAI_MOST_LAYERS, 6, &period));
    MHA_TRY(read_later(config, false, period, plan));
    return see_both_ways(config, plan);
}

const mhai_family mhai_family_gemma = {.model_type = "gemma",
                                       MHAI_LLAMA_FILES(names, 0),
                                       .own_act = true,
                                       .whole = true,
                                       .bias_key = "attention_bias",
                                       .tied = true,
                                       .read = read_gemma};

#define LATER(number, type, whole_, ropes_)                                              \
    {                                                                                    \
        .model_type = (type), .text_type = (whole_), MHAI_TEXT_FILES(later_names, 0),    \
        .whole = true, .own_act = true, .bias_key = "attention_bias", .ropes = (ropes_), \
        .both_ways = number == 3, .tied = true, .read = read_gemma##number               \
    }
const mhai_family mhai_family_gemma2 = LATER(2, "gemma2", NULL, NULL);
const mhai_family mhai_family_gemma3 = LATER(3, "gemma3_text", NULL, ropes);
/* with images */
const mhai_family mhai_family_gemma3_whole = LATER(3, "gemma3", "gemma3_text", ropes);
