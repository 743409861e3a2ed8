/* ModernBERT: a pre-norm encoder with rotary positions and GEGLU, whose first layer has no norm before
 * its attention. Two of three layers have a window, on both sides, and another base of the rotation. */
#include "io/file.h"
#include "model/arch/family.h"

static const mhai_weight_name names[] = {
    MHAI_NAME("embed_tokens", "embeddings.tok_embeddings"),
    MHAI_NAME("embed_norm", "embeddings.norm"),
    MHAI_NAME("norm", "final_norm"),
    {"self_attn.q_proj", "attn.Wqkv", MHAI_FUSED, 0},
    {"self_attn.k_proj", "attn.Wqkv", MHAI_FUSED, 1},
    {"self_attn.v_proj", "attn.Wqkv", MHAI_FUSED, 2},
    MHAI_NAME("self_attn.o_proj", "attn.Wo"),
    MHAI_NAME("self_attn_norm", "attn_norm"),
    {"mlp.gate_proj", "mlp.Wi", MHAI_FUSED, 0}, /* the activated half is first */
    {"mlp.up_proj", "mlp.Wi", MHAI_FUSED, 1},
    MHAI_NAME("mlp.down_proj", "mlp.Wo"),
    MHAI_NAME(NULL, NULL)};

static const mhai_rope_kind ropes[] = {
    {"full_attention", "global_rope_theta", "partial_rotary_factor", 160000, 1, true},
    {"sliding_attention", "local_rope_theta", "partial_rotary_factor", 1e4, 1, true}};

/* local_attention counts both sides; transformers rounds half of it down. Without layer_types, every
 * third layer, from the first on, has no window. */
static mha_status read_sides(const mhai_config *config, mhai_family_plan *plan)
{
    const json_t *list = json_object_get(config->root, "layer_types");
    int64_t local, period;
    MHA_TRY(mhai_config_optional(config, "local_attention", 2, INT64_MAX, 128, &local));
    MHA_TRY(mhai_config_optional(config, "global_attn_every_n_layers", 1, MHAI_MOST_LAYERS, 3,
                                 &period));
    MHA_TRY(mhai_read_windows(config, local / 2 + 1, 0, 0, plan));
    for (int64_t i = 0; i < plan->desc.num_layers; i++) {
        mha_layer_desc *layer = &plan->layers[i];
        if (!json_is_array(list) && i % period == 0) layer->flags &= ~(uint32_t)MHA_LAYER_WINDOW;
        const bool slides = layer->flags & MHA_LAYER_WINDOW;
        layer->left_keys = layer->right_keys = slides ? local / 2 : 0;
    }
    plan->layers[0].flags |= MHA_LAYER_NO_ATTENTION_NORM;
    return MHA_OK;
}

static mha_status read_modernbert(const mhai_config *config, mhai_family_plan *plan)
{
    static const char *const acts[] = {"gelu", "gelu_pytorch_tanh", "silu"};
    static const mha_feed_forward kinds[] = {MHA_FEED_FORWARD_GEGLU, MHA_FEED_FORWARD_GEGLU_TANH,
                                             MHA_FEED_FORWARD_SWIGLU};
    mha_transformer_desc *d = &plan->desc;
    bool biased;
    int act;
    MHA_TRY(mhai_config_unset(config, "sliding_window"));
    MHA_TRY(mhai_read_sizes(config, &mhai_family_modernbert, "intermediate_size", d));
    MHA_TRY(mhai_config_real(config, "norm_eps", 1e-5, 0, 1, &d->norm_epsilon));
    MHA_TRY(mhai_config_bool(config, "norm_bias", false, &biased));
    MHA_TRY(mhai_config_choice(config, "hidden_activation", acts[0], acts, 3, &act));
    MHA_TRY(mhai_read_attention_bias(config, plan));
    MHA_TRY(mhai_read_flag(config, "mlp_bias", false, MHA_TRANSFORMER_FF_BIAS, plan));
    d->norm = MHA_NORM_LAYER;
    d->positions = MHA_ENCODING_ROTARY;
    d->feed_forward = kinds[act];
    d->flags |= MHA_TRANSFORMER_EMBEDDING_NORM | MHA_TRANSFORMER_NO_OUTPUT;
    if (!biased) d->flags |= MHA_TRANSFORMER_NO_NORM_BIAS;
    MHA_TRY(mhai_plan_layers(plan));
    MHA_TRY(read_sides(config, plan));
    return mhai_read_ropes(config, ropes, plan);
}

const mhai_family mhai_family_modernbert = {.model_type = "modernbert",
                                            .keys = &mhai_usual_keys,
                                            .bias_key = "attention_bias",
                                            .layers = "layers.",
                                            .prefix = "model.",
                                            .names = names,
                                            .read = read_modernbert};
