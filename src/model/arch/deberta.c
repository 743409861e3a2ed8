/* DeBERTa (He et al. 2021, arXiv 2006.03654): a BERT whose scores have terms of content and distance. */
#include "io/file.h"
#include "model/arch/family.h"

#include <math.h>
#include <string.h>

static const mhai_weight_name names[] = {
    MHAI_DEBERTA_NAMES,
    {"self_attn.q_proj.weight", "attention.self.in_proj.weight", MHAI_FUSED_HEADS, 0},
    {"self_attn.k_proj.weight", "attention.self.in_proj.weight", MHAI_FUSED_HEADS, 1},
    {"self_attn.v_proj.weight", "attention.self.in_proj.weight", MHAI_FUSED_HEADS, 2},
    MHAI_NAME("self_attn.q_proj.bias", "attention.self.q_bias"),
    {"self_attn.k_proj.bias", "", MHAI_ZEROS, 0},
    MHAI_NAME("self_attn.v_proj.bias", "attention.self.v_bias"),
    MHAI_NAME("self_attn.position_k_proj.weight", "attention.self.pos_proj.weight"),
    {"self_attn.position_k_proj.bias", "", MHAI_ZEROS, 0},
    MHAI_NAME("self_attn.position_q_proj", "attention.self.pos_q_proj"),
    MHAI_NAME(NULL, NULL)};

/* Read pos_att_type, a text or a list of terms. */
static mha_status read_terms(const mhai_config *config, uint32_t *flags)
{
    static const char key[] = "pos_att_type";
    static const char *const known[] = {"c2p", "p2c", "c2p|p2c", "p2c|c2p"};
    const json_t *given = json_object_get(config->root, key);
    const bool list = json_is_array(given);
    const size_t count = list ? json_array_size(given) : !mhai_config_absent(config, key);
    *flags = 0;
    for (size_t i = 0; i < count; i++) {
        const char *text = json_string_value(list ? json_array_get(given, i) : given);
        uint32_t terms = 0;
        for (int k = 0; text && k < (list ? 2 : 4); k++)
            if (strcmp(text, known[k]) == 0)
                terms = (k != 1 ? MHA_LAYER_CONTENT_TO_POSITION : 0) |
                        (k != 0 ? MHA_LAYER_POSITION_TO_CONTENT : 0);
        if (!terms || *flags & terms)
            return mhai_config_fail(MHA_ERR_UNSUPPORTED, config, key,
                                    "is not known; expected c2p, p2c or both, once each");
        *flags |= terms;
    }
    return MHA_OK;
}

mha_status mhai_read_deberta(const mhai_config *config, mhai_family_plan *plan)
{
    mha_transformer_desc *d = &plan->desc;
    mha_feed_forward kind;
    bool placed, relative;
    uint32_t terms;
    int64_t most, width;
    MHA_TRY(mhai_read_sizes(config, &mhai_family_deberta, "intermediate_size", d));
    MHA_TRY(mhai_config_optional(config, "embedding_size", d->embed_dim, d->embed_dim, d->embed_dim,
                                 &width));
    MHA_TRY(
        mhai_config_optional(config, "type_vocab_size", 0, MHAI_MOST_ENTRIES, 0, &d->type_count));
    MHA_TRY(mhai_config_real(config, "layer_norm_eps", 1e-7, 0, 1, &d->norm_epsilon));
    MHA_TRY(mhai_read_activation(config, "hidden_act", "gelu", &kind));
    mhai_bert_describe(kind, d);
    d->flags |= MHA_TRANSFORMER_NO_OUTPUT;
    MHA_TRY(mhai_config_bool(config, "position_biased_input", true, &placed));
    if (!placed) d->positions = MHA_ENCODING_NONE;
    MHA_TRY(read_terms(config, &terms));
    MHA_TRY(mhai_config_bool(config, "relative_attention", false, &relative));
    MHA_TRY(mhai_config_optional(config, "max_relative_positions", INT32_MIN, MHAI_MOST_POSITIONS,
                                 -1, &most));
    MHA_TRY(mhai_plan_layers(plan));
    const int factor = terms == 0 ? 1 : terms & (terms - 1) ? 3 : 2; /* terms of a score */
    for (int64_t i = 0; i < d->num_layers; i++) {
        mha_layer_desc *l = &plan->layers[i];
        l->scale = 1 / sqrtf((float)(factor * (d->embed_dim / d->num_heads)));
        l->flags = relative ? terms : 0;
        if (l->flags) l->relative_rows = 2 * (most < 1 ? d->max_length : most);
    }
    return MHA_OK;
}

static const char *const refused[] = {"talking_head", NULL};
const mhai_family mhai_family_deberta = {MHAI_DEBERTA_FILES("deberta"), .refused = refused,
                                         .read = mhai_read_deberta};
