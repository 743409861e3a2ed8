/* DistilBERT: a BERT without segments, with its own names. */
#include "model/arch/family.h"

static const mhai_weight_name names[] = {
    MHAI_NAME("embed_tokens", "embeddings.word_embeddings"),
    MHAI_NAME("embed_positions", "embeddings.position_embeddings"),
    MHAI_NAME("embed_norm", "embeddings.LayerNorm"),
    MHAI_NAME("self_attn.q_proj", "attention.q_lin"),
    MHAI_NAME("self_attn.k_proj", "attention.k_lin"),
    MHAI_NAME("self_attn.v_proj", "attention.v_lin"),
    MHAI_NAME("self_attn.o_proj", "attention.out_lin"),
    MHAI_NAME("self_attn_norm", "sa_layer_norm"),
    MHAI_NAME("mlp.up_proj", "ffn.lin1"),
    MHAI_NAME("mlp.down_proj", "ffn.lin2"),
    MHAI_NAME("mlp_norm", "output_layer_norm"),
    MHAI_NAME(NULL, NULL)};

static const mhai_shape_keys shape_keys = {
    "dim", "n_layers", "n_heads", "max_position_embeddings", "num_key_value_heads", "is_decoder"};

static mha_status read_distilbert(const mhai_config *config, mhai_family_plan *plan)
{
    static const char *const acts[] = {"gelu", "relu"};
    mha_transformer_desc *d = &plan->desc;
    int act;
    MHA_TRY(mhai_config_unset(config, "pruned_heads"));
    MHA_TRY(mhai_read_sizes(config, &mhai_family_distilbert, "hidden_dim", d));
    MHA_TRY(mhai_config_choice(config, "activation", acts[0], acts, 2, &act));
    mhai_bert_describe(act == 0 ? MHA_FEED_FORWARD_GELU : MHA_FEED_FORWARD_RELU, d);
    d->flags |= MHA_TRANSFORMER_NO_OUTPUT;
    d->norm_epsilon = 1e-12f;
    return MHA_OK;
}

const mhai_family mhai_family_distilbert = {.model_type = "distilbert",
                                            .keys = &shape_keys,
                                            .shape =
                                                MHA_MODEL_SHAPE_QKV_BIAS | MHA_MODEL_SHAPE_OUT_BIAS,
                                            .layers = "transformer.layer.",
                                            .prefix = "distilbert.",
                                            .names = names,
                                            .read = read_distilbert};
