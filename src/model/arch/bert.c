/* BERT: an encoder, post-norm with layer norms, learned positions and segments. */
#include "io/file.h"
#include "model/arch/family.h"

const mhai_weight_name mhai_bert_names[] = {
    MHAI_NAME("embed_tokens", "embeddings.word_embeddings"),
    {"embed_positions", "embeddings.position_embeddings", MHAI_LAST_ROWS, 0},
    MHAI_NAME("embed_types", "embeddings.token_type_embeddings"),
    MHAI_NAME("embed_norm", "embeddings.LayerNorm"),
    MHAI_NAME("embed_proj", "embeddings_project"), /* of ELECTRA */
    MHAI_NAME("self_attn.q_proj", "attention.self.query"),
    MHAI_NAME("self_attn.k_proj", "attention.self.key"),
    MHAI_NAME("self_attn.v_proj", "attention.self.value"),
    MHAI_NAME("self_attn.o_proj", "attention.output.dense"),
    MHAI_NAME("self_attn.distance_embedding", "attention.self.distance_embedding"),
    MHAI_NAME("self_attn_norm", "attention.output.LayerNorm"),
    MHAI_NAME("mlp.up_proj", "intermediate.dense"),
    MHAI_NAME("mlp.down_proj", "output.dense"),
    MHAI_NAME("mlp_norm", "output.LayerNorm"),
    MHAI_NAME(NULL, NULL)};

/* Read a field of multihead_output, this library's own object. */
static const char *const outputs[] = {"none", "tied", "own"};

static bool fits_bert(const mha_transformer_desc *d)
{
    const uint32_t wanted =
        MHA_TRANSFORMER_POST_NORM | MHA_TRANSFORMER_EMBEDDING_NORM | MHA_TRANSFORMER_BIAS;
    return (d->flags & wanted) == wanted && mhai_desc_is_usual(d) &&
           !mhai_desc_has(d, MHA_TRANSFORMER_CAUSAL | MHA_TRANSFORMER_CROSS) &&
           d->norm == MHA_NORM_LAYER && d->positions == MHA_ENCODING_LEARNED && d->ff_dim > 0 &&
           d->feed_forward <= MHA_FEED_FORWARD_RELU && d->kv_heads == d->num_heads &&
           d->head_dim * d->num_heads == d->embed_dim;
}

static bool write_bert(const mha_transformer_desc *d, json_t *root)
{
    const char *output = mhai_desc_has(d, MHA_TRANSFORMER_NO_OUTPUT) ? outputs[0]
                         : mhai_desc_has(d, MHA_TRANSFORMER_TIED)    ? outputs[1]
                                                                     : outputs[2];
    return mhai_put_list_of_one(root, "architectures", "BertModel") && mhai_write_sizes(d, root) &&
           mhai_put_text(root, "hidden_act",
                         d->feed_forward == MHA_FEED_FORWARD_GELU ? "gelu" : "relu") &&
           mhai_put(root, "layer_norm_eps", mhai_json_real(d->norm_epsilon)) &&
           mhai_put_count(root, "type_vocab_size", d->type_count ? d->type_count : 2) &&
           mhai_put_text(root, "position_embedding_type", "absolute") &&
           mhai_put_text(root, "multihead_output", output);
}

void mhai_bert_describe(mha_feed_forward activation, mha_transformer_desc *d)
{
    d->norm = MHA_NORM_LAYER;
    d->positions = MHA_ENCODING_LEARNED;
    d->feed_forward = activation;
    d->flags = MHA_TRANSFORMER_POST_NORM | MHA_TRANSFORMER_EMBEDDING_NORM | MHA_TRANSFORMER_BIAS;
}

/* Read all fields. known: the number of accepted kinds of positions. */
static mha_status read_fields(const mhai_config *config, int known, int *positions,
                              mhai_family_plan *plan)
{
    static const char *const refused[] = {"is_decoder", "add_cross_attention", "pruned_heads",
                                          NULL};
    static const char *const acts[] = {"gelu", "relu"};
    static const char *const kinds[] = {"absolute", "relative_key", "relative_key_query"};
    mha_transformer_desc *d = &plan->desc;
    int act, output;
    MHA_TRY(mhai_config_refuse(config, refused));
    MHA_TRY(mhai_read_sizes(config, &mhai_family_bert, "intermediate_size", d));
    MHA_TRY(mhai_config_count(config, "type_vocab_size", 1, MHAI_MOST_ENTRIES, &d->type_count));
    MHA_TRY(mhai_config_real(config, "layer_norm_eps", 1e-12, 0, 1, &d->norm_epsilon));
    MHA_TRY(
        mhai_config_choice(config, "position_embedding_type", kinds[0], kinds, known, positions));
    MHA_TRY(mhai_config_choice(config, "hidden_act", acts[0], acts, 2, &act));
    MHA_TRY(mhai_config_choice(config, "multihead_output", outputs[0], outputs, 3, &output));
    mhai_bert_describe(act == 0 ? MHA_FEED_FORWARD_GELU : MHA_FEED_FORWARD_RELU, d);
    if (output == 0) d->flags |= MHA_TRANSFORMER_NO_OUTPUT;
    if (output == 1) d->flags |= MHA_TRANSFORMER_TIED;
    return MHA_OK;
}

mha_status mhai_bert_read(const mhai_config *config, mhai_family_plan *plan)
{
    int absolute;
    return read_fields(config, 1, &absolute, plan);
}

/* With relative keys (Shaw et al. 2018; Huang et al. 2020, arXiv 2009.13658), files may have
 * a table of positions that nothing uses. */
static mha_status read_bert(const mhai_config *config, mhai_family_plan *plan)
{
    mha_transformer_desc *d = &plan->desc;
    int positions;
    MHA_TRY(read_fields(config, 3, &positions, plan));
    if (positions == 0) return MHA_OK;
    d->positions = MHA_ENCODING_NONE;
    MHA_TRY(mhai_plan_layers(plan));
    for (int64_t i = 0; i < d->num_layers; i++) {
        mha_layer_desc *l = &plan->layers[i];
        l->flags = MHA_LAYER_RELATIVE_TABLE | MHA_LAYER_CONTENT_TO_POSITION;
        if (positions == 2) l->flags |= MHA_LAYER_POSITION_TO_CONTENT;
        l->relative_rows = 2 * d->max_length - 1;
    }
    return MHA_OK;
}

const mhai_family mhai_family_bert = {.model_type = "bert",
                                      .keys = &mhai_usual_keys,
                                      .shape = MHA_MODEL_SHAPE_QKV_BIAS | MHA_MODEL_SHAPE_OUT_BIAS,
                                      .layers = "encoder.layer.",
                                      .prefix = "bert.",
                                      .names = mhai_bert_names,
                                      .old_norms = true,
                                      .fits = fits_bert,
                                      .write = write_bert,
                                      .read = read_bert};
