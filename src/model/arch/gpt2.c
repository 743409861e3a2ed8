/* GPT-2: causal, pre-norm with layer norms, learned positions, tanh GELU. Linear layers are stored
 * transposed; q, k and v are fused. */
#include "model/arch/family.h"

static const mhai_weight_name names[] = {
    MHAI_NAME("embed_tokens", "wte"),
    MHAI_NAME("embed_positions", "wpe"),
    MHAI_NAME("self_attn_norm", "ln_1"),
    {"self_attn.q_proj", "attn.c_attn", MHAI_FUSED_TRANSPOSED, 0},
    {"self_attn.k_proj", "attn.c_attn", MHAI_FUSED_TRANSPOSED, 1},
    {"self_attn.v_proj", "attn.c_attn", MHAI_FUSED_TRANSPOSED, 2},
    {"self_attn.o_proj", "attn.c_proj", MHAI_TRANSPOSED, 0},
    MHAI_NAME("mlp_norm", "ln_2"),
    {"mlp.up_proj", "mlp.c_fc", MHAI_TRANSPOSED, 0},
    {"mlp.down_proj", "mlp.c_proj", MHAI_TRANSPOSED, 0},
    MHAI_NAME("norm", "ln_f"),
    MHAI_NAME(NULL, NULL)};

static const mhai_shape_keys keys = {
    "n_embd", "n_layer", "n_head", "n_positions", "num_key_value_heads", "is_decoder"};

static mha_status read_gpt2(const mhai_config *config, mhai_family_plan *plan)
{
    static const char *const refused[] = {"add_cross_attention", "scale_attn_by_inverse_layer_idx",
                                          NULL};
    static const char *const acts[] = {"gelu_new", "gelu_pytorch_tanh", "gelu", "relu"};
    static const mha_feed_forward kinds[] = {MHA_FEED_FORWARD_GELU_TANH, MHA_FEED_FORWARD_GELU_TANH,
                                             MHA_FEED_FORWARD_GELU, MHA_FEED_FORWARD_RELU};
    mha_transformer_desc *d = &plan->desc;
    bool tied, scaled;
    int act;
    MHA_TRY(mhai_config_refuse(config, refused));
    MHA_TRY(mhai_read_sizes(config, &mhai_family_gpt2, NULL, d));
    MHA_TRY(
        mhai_config_optional(config, "n_inner", 1, MHAI_MOST_WIDTH, 4 * d->embed_dim, &d->ff_dim));
    MHA_TRY(mhai_config_choice(config, "activation_function", acts[0], acts, 4, &act));
    MHA_TRY(mhai_config_real(config, "layer_norm_epsilon", 1e-5, 0, 1, &d->norm_epsilon));
    MHA_TRY(mhai_config_bool(config, "tie_word_embeddings", true, &tied));
    MHA_TRY(mhai_config_bool(config, "scale_attn_weights", true, &scaled));
    d->flags = MHA_TRANSFORMER_CAUSAL | MHA_TRANSFORMER_BIAS;
    if (tied) d->flags |= MHA_TRANSFORMER_TIED;
    d->norm = MHA_NORM_LAYER;
    d->positions = MHA_ENCODING_LEARNED;
    d->feed_forward = kinds[act];
    if (scaled) return MHA_OK;
    MHA_TRY(mhai_plan_layers(plan));
    for (int64_t i = 0; i < d->num_layers; i++) plan->layers[i].scale = 1;
    return MHA_OK;
}

const mhai_family mhai_family_gpt2 = {.model_type = "gpt2",
                                      .keys = &keys,
                                      .shape = MHA_MODEL_SHAPE_CAUSAL | MHA_MODEL_SHAPE_QKV_BIAS |
                                               MHA_MODEL_SHAPE_OUT_BIAS,
                                      .layers = "h.",
                                      .prefix = "transformer.",
                                      .names = names,
                                      .read = read_gpt2,
                                      .ignores = mhai_decoder_ignores};
