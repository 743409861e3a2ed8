/* DeBERTa 2 and 3 (He et al. 2021, arXiv 2111.09543): a DeBERTa with distances in logarithmic buckets, whose
 * embeddings may be normalised and projected by W_q and W_k. */
#include "io/file.h"
#include "model/arch/family.h"

static const mhai_weight_name names[] = {
    MHAI_DEBERTA_NAMES,
    MHAI_NAME("self_attn.q_proj", "attention.self.query_proj"),
    MHAI_NAME("self_attn.k_proj", "attention.self.key_proj"),
    MHAI_NAME("self_attn.v_proj", "attention.self.value_proj"),
    MHAI_NAME("self_attn.position_k_proj", "attention.self.pos_key_proj"),
    MHAI_NAME("self_attn.position_q_proj", "attention.self.pos_query_proj"),
    MHAI_NAME(NULL, NULL)};

/* Reject what only the largest sizes of version 2 have. */
static mha_status check_sizes(const mhai_config *config, const mha_transformer_desc *d)
{
    int64_t kernel, size = d->embed_dim / d->num_heads;
    MHA_TRY(mhai_config_optional(config, "attention_head_size", size, size, size, &size));
    MHA_TRY(mhai_config_optional(config, "conv_kernel_size", INT32_MIN, INT32_MAX, 0, &kernel));
    if (kernel < 1) return MHA_OK;
    return mhai_config_fail(MHA_ERR_UNSUPPORTED, config, "conv_kernel_size",
                            "is %lld; a convolution after the first layer is not supported",
                            (long long)kernel);
}

static mha_status read_deberta_v2(const mhai_config *config, mhai_family_plan *plan)
{
    static const char *const norms[] = {"none", "layer_norm"};
    mha_transformer_desc *d = &plan->desc;
    int64_t buckets;
    bool shared;
    int norm;
    MHA_TRY(mhai_read_deberta(config, plan));
    MHA_TRY(check_sizes(config, d));
    MHA_TRY(mhai_config_bool(config, "share_att_key", false, &shared));
    MHA_TRY(mhai_config_choice(config, "norm_rel_ebd", norms[0], norms, 2, &norm));
    MHA_TRY(mhai_config_optional(config, "position_buckets", INT32_MIN, MHAI_MOST_POSITIONS, -1,
                                 &buckets));
    const int64_t most = plan->layers[0].relative_rows / 2;
    if (most == 0) return MHA_OK;
    if (norm == 1) d->flags |= MHA_TRANSFORMER_RELATIVE_NORM;
    if (buckets == 1 || (buckets > 1 && most - 1 <= buckets / 2))
        return mhai_config_fail(MHA_ERR_MODEL, config, "position_buckets",
                                "is %lld; expected 2 or more, and their half below the largest "
                                "distance, %lld",
                                (long long)buckets, (long long)most - 1);
    for (int64_t i = 0; i < d->num_layers; i++) {
        mha_layer_desc *l = &plan->layers[i];
        if (shared) l->flags |= MHA_LAYER_RELATIVE_SHARED;
        if (buckets < 1) continue;
        l->relative_rows = 2 * buckets;
        l->relative_buckets = buckets;
        l->relative_max_distance = most;
    }
    return MHA_OK;
}

const mhai_family mhai_family_deberta_v2 = {MHAI_DEBERTA_FILES("deberta-v2"),
                                            .read = read_deberta_v2};
