/* BLOOM: causal, layer norms, also of embeddings, ALiBi; q, k and v fused head by head. */
#include "model/arch/family.h"

static const mhai_weight_name bloom_names[] = {MHAI_NAME("embed_tokens", "word_embeddings"),
                                               MHAI_NAME("embed_norm", "word_embeddings_layernorm"),
                                               MHAI_LLAMA_NAMES,
                                               MHAI_FALCON_NAMES,
                                               {"self_attn.alibi_slopes", "", MHAI_SLOPES, 0},
                                               MHAI_NAME(NULL, NULL)};
static const mhai_shape_keys bloom_keys = {
    "n_embed", "n_layer", "n_head", NULL, "num_key_value_heads", "is_decoder"};
static const char *const refused[] = {"apply_residual_connection_post_layernorm", NULL};
static mha_status read_bloom(const mhai_config *config, mhai_family_plan *plan)
{
    static const char key[] = "slow_but_exact";
    int64_t parts;
    bool exact;
    MHA_TRY(mhai_config_bool(config, key, false, &exact));
    MHA_TRY(mhai_config_optional(config, "pretraining_tp", 1, MHAI_MOST_WIDTH, 1, &parts));
    if (exact && parts > 1) /* transformers then omits the biases of two projections */
        return mhai_config_fail(MHA_ERR_UNSUPPORTED, config, key,
                                "is set and 'pretraining_tp' is above 1, which is not supported");
    plan->desc.positions = MHA_ENCODING_NONE;
    plan->desc.feed_forward = MHA_FEED_FORWARD_GELU_TANH;
    plan->desc.ff_dim = 4 * plan->desc.embed_dim;
    return MHA_OK;
}

const mhai_family mhai_family_bloom = {
    .model_type = "bloom",
    .llama = true,
    .own_act = true,
    .keys = &bloom_keys,
    .shape = MHA_MODEL_SHAPE_CAUSAL | MHA_MODEL_SHAPE_QKV_BIAS | MHA_MODEL_SHAPE_OUT_BIAS,
    .norm_key = "layer_norm_epsilon",
    .flags = MHA_TRANSFORMER_EMBEDDING_NORM | MHA_TRANSFORMER_FF_BIAS,
    .layer_flags = MHA_LAYER_ALIBI,
    .wide = true,
    .refused = refused,
    .layers = "h.",
    .prefix = "transformer.",
    .names = bloom_names,
    .tied = true,
    .read = read_bloom,
    .ignores = mhai_decoder_ignores};
