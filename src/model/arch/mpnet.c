/* MPNet: a RoBERTa without segments, whose layers share one table of T5's relative biases. */
#include "io/file.h"
#include "model/arch/family.h"

static const mhai_weight_name names[] = {
    MHAI_NAME("embed_tokens", "embeddings.word_embeddings"),
    {"embed_positions", "embeddings.position_embeddings", MHAI_LAST_ROWS, 0},
    MHAI_NAME("embed_norm", "embeddings.LayerNorm"),
    MHAI_NAME("self_attn.q_proj", "attention.attn.q"),
    MHAI_NAME("self_attn.k_proj", "attention.attn.k"),
    MHAI_NAME("self_attn.v_proj", "attention.attn.v"),
    MHAI_NAME("self_attn.o_proj", "attention.attn.o"),
    MHAI_NAME("self_attn.relative_attention_bias", "/encoder.relative_attention_bias"),
    MHAI_NAME("self_attn_norm", "attention.LayerNorm"),
    MHAI_NAME("mlp.up_proj", "intermediate.dense"),
    MHAI_NAME("mlp.down_proj", "output.dense"),
    MHAI_NAME("mlp_norm", "output.LayerNorm"),
    MHAI_NAME(NULL, NULL)};

/* transformers writes the token of padding into the model, and the number of buckets into the
 * function that uses them. */
enum { PADDING = 1, BUCKETS = 32 };

static mha_status read_mpnet(const mhai_config *config, mhai_family_plan *plan)
{
    mha_transformer_desc *d = &plan->desc;
    mha_feed_forward kind;
    int64_t buckets;
    MHA_TRY(mhai_read_sizes(config, &mhai_family_mpnet, "intermediate_size", d));
    MHA_TRY(mhai_config_optional(config, "relative_attention_num_buckets", BUCKETS, BUCKETS,
                                 BUCKETS, &buckets));
    MHA_TRY(mhai_config_real(config, "layer_norm_eps", 1e-12, 0, 1, &d->norm_epsilon));
    MHA_TRY(mhai_read_activation(config, "hidden_act", "gelu", &kind));
    mhai_bert_describe(kind, d);
    d->flags |= MHA_TRANSFORMER_NO_OUTPUT;
    MHA_TRY(mhai_skip_padding(config, PADDING, plan));
    MHA_TRY(mhai_plan_layers(plan));
    for (int64_t i = 0; i < d->num_layers; i++) plan->layers[i].t5_buckets = buckets;
    return MHA_OK;
}

const mhai_family mhai_family_mpnet = {.model_type = "mpnet",
                                       .keys = &mhai_usual_keys,
                                       .shape = MHA_MODEL_SHAPE_QKV_BIAS | MHA_MODEL_SHAPE_OUT_BIAS,
                                       .layers = "encoder.layer.",
                                       .prefix = "mpnet.",
                                       .names = names,
                                       .read = read_mpnet};
