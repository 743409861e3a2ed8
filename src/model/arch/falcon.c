/* Falcon: causal, layer norms, attention and feed-forward in parallel; heads share one key and value, or
 * those of their group. Falcon RW: ALiBi, sequential blocks, biases. */
#include "io/file.h"
#include "model/arch/family.h"

/* transformers adds ALiBi before it divides scores by sqrt(D). */
static const mhai_weight_name names[] = {MHAI_NAME("embed_tokens", "word_embeddings"),
                                         MHAI_LLAMA_NAMES,
                                         MHAI_NAME("self_attn_norm", "ln_attn"),
                                         MHAI_NAME("mlp_norm", "ln_mlp"),
                                         MHAI_FALCON_NAMES,
                                         {"self_attn.alibi_slopes", "", MHAI_SLOPES, 1},
                                         MHAI_NAME(NULL, NULL)};

static const mhai_shape_keys keys = {"n_embed", "num_hidden_layers",   "num_attention_heads",
                                     NULL,      "num_key_value_heads", "is_decoder"};

/* The new architecture has groups of heads; the old one has one group, or none. */
static mha_status read_kv(const mhai_config *config, int64_t heads, int64_t *kv_heads)
{
    bool grouped, one;
    MHA_TRY(mhai_config_bool(config, "new_decoder_architecture", false, &grouped));
    MHA_TRY(mhai_config_bool(config, "multi_query", true, &one));
    MHA_TRY(mhai_config_optional(config, "num_kv_heads", 1, heads, heads, kv_heads));
    if (!grouped && one) *kv_heads = 1;
    if (grouped ? heads % *kv_heads == 0 : one || *kv_heads == heads) return MHA_OK;
    return mhai_config_fail(MHA_ERR_MODEL, config, "num_kv_heads",
                            "is %lld, which does not fit %lld heads", (long long)*kv_heads,
                            (long long)heads);
}

/* The new architecture has one or two norms in each layer, whose blocks are parallel. */
static mha_status read_norms(const mhai_config *config, mhai_family_plan *plan)
{
    bool grouped, parallel;
    int64_t norms;
    MHA_TRY(mhai_config_bool(config, "new_decoder_architecture", false, &grouped));
    MHA_TRY(mhai_config_bool(config, "parallel_attn", true, &parallel));
    MHA_TRY(mhai_config_optional(config, "num_ln_in_parallel_attn", 1, 2, grouped ? 2 : 1, &norms));
    if (grouped ? !parallel : norms != 1)
        return mhai_config_fail(MHA_ERR_UNSUPPORTED, config,
                                grouped ? "parallel_attn" : "num_ln_in_parallel_attn",
                                "does not fit 'new_decoder_architecture'");
    if (parallel) plan->desc.flags |= MHA_TRANSFORMER_PARALLEL;
    if (parallel && norms == 1) plan->desc.flags |= MHA_TRANSFORMER_ONE_NORM;
    return MHA_OK;
}

static mha_status read_falcon(const mhai_config *config, mhai_family_plan *plan)
{
    mha_transformer_desc *d = &plan->desc;
    bool alibi;
    MHA_TRY(read_norms(config, plan));
    MHA_TRY(mhai_config_optional(config, "max_position_embeddings", 1, MHAI_MOST_POSITIONS, 2048,
                                 &d->max_length));
    MHA_TRY(mhai_config_bool(config, "alibi", false, &alibi));
    MHA_TRY(mhai_check_head_dim(config, d));
    if (!alibi) return MHA_OK;
    d->positions = MHA_ENCODING_NONE;
    return mhai_flag_layers(plan, MHA_LAYER_ALIBI);
}

const mhai_family mhai_family_falcon = {.model_type = "falcon",
                                        .llama = true,
                                        .keys = &keys,
                                        .read_kv = read_kv,
                                        .shape = MHA_MODEL_SHAPE_CAUSAL,
                                        .bias_key = "bias",
                                        .ff_bias_key = "bias",
                                        .inner = "ffn_hidden_size",
                                        .wide = true,
                                        .act_key = "activation",
                                        .act = "gelu",
                                        .norm_key = "layer_norm_epsilon",
                                        .layers = "h.",
                                        .prefix = "transformer.",
                                        .names = names,
                                        .tied = true,
                                        .read = read_falcon,
                                        .ignores = mhai_decoder_ignores};
