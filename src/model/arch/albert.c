/* ALBERT: a BERT whose layers share their weights, with narrow embeddings that are projected. */
#include "io/file.h"
#include "model/arch/family.h"

static const mhai_weight_name names[] = {
    MHAI_NAME("embed_tokens", "embeddings.word_embeddings"),
    MHAI_NAME("embed_positions", "embeddings.position_embeddings"),
    MHAI_NAME("embed_types", "embeddings.token_type_embeddings"),
    MHAI_NAME("embed_norm", "embeddings.LayerNorm"),
    MHAI_NAME("embed_proj", "encoder.embedding_hidden_mapping_in"),
    MHAI_NAME("self_attn.q_proj", "attention.query"),
    MHAI_NAME("self_attn.k_proj", "attention.key"),
    MHAI_NAME("self_attn.v_proj", "attention.value"),
    MHAI_NAME("self_attn.o_proj", "attention.dense"),
    MHAI_NAME("self_attn_norm", "attention.LayerNorm"),
    MHAI_NAME("mlp.up_proj", "ffn"),
    MHAI_NAME("mlp.down_proj", "ffn_output"),
    MHAI_NAME("mlp_norm", "full_layer_layer_norm"),
    MHAI_NAME(NULL, NULL)};

/* Copies of the one layer: more than any published model has, so that a small file cannot become a
 * large transformer. */
enum { MOST_COPIES = 64 };

static mha_status read_albert(const mhai_config *config, mhai_family_plan *plan)
{
    static const char *const groups[] = {"num_hidden_groups", "inner_group_num"};
    mha_transformer_desc *d = &plan->desc;
    mha_feed_forward kind;
    int64_t count;
    MHA_TRY(mhai_config_unset(config, "is_decoder"));
    MHA_TRY(mhai_read_sizes(config, &mhai_family_albert, "intermediate_size", d));
    for (int i = 0; i < 2; i++) {
        MHA_TRY(mhai_config_optional(config, groups[i], 1, MHAI_MOST_LAYERS, 1, &count));
        if (count != 1)
            return mhai_config_fail(MHA_ERR_UNSUPPORTED, config, groups[i],
                                    "is %lld; only one layer that all share is supported",
                                    (long long)count);
    }
    if (d->num_layers > MOST_COPIES)
        return mhai_config_fail(MHA_ERR_UNSUPPORTED, config, "num_hidden_layers",
                                "is %lld, at most %d copies of a layer are supported",
                                (long long)d->num_layers, MOST_COPIES);
    MHA_TRY(mhai_config_optional(config, "embedding_size", 1, MHAI_MOST_WIDTH, 128, &d->token_dim));
    MHA_TRY(
        mhai_config_optional(config, "type_vocab_size", 1, MHAI_MOST_ENTRIES, 2, &d->type_count));
    MHA_TRY(mhai_config_real(config, "layer_norm_eps", 1e-12, 0, 1, &d->norm_epsilon));
    MHA_TRY(mhai_read_activation(config, "hidden_act", "gelu_new", &kind));
    mhai_bert_describe(kind, d);
    d->flags |= MHA_TRANSFORMER_NO_OUTPUT;
    if (d->token_dim != d->embed_dim) return MHA_OK;
    return mhai_config_fail(MHA_ERR_UNSUPPORTED, config, "embedding_size",
                            "is hidden_size %lld; a projection to the same width is not supported",
                            (long long)d->embed_dim);
}

const mhai_family mhai_family_albert = {.model_type = "albert",
                                        .keys = &mhai_usual_keys,
                                        .shape =
                                            MHA_MODEL_SHAPE_QKV_BIAS | MHA_MODEL_SHAPE_OUT_BIAS,
                                        .layers = "encoder.albert_layer_groups.0.albert_layers.0.",
                                        .shared = true,
                                        .prefix = "albert.",
                                        .names = names,
                                        .read = read_albert};
