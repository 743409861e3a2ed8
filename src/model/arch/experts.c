/* Shared by families with routed experts: which layers have them, and their routing. */
#include "io/file.h"
#include "model/arch/family.h"

#include <string.h>

/* The number of experts. Some versions of transformers call it num_experts, others
 * num_local_experts; a family reads one of these names, or both. */
static mha_status read_count(const mhai_config *config, const mhai_experts_kind *kind,
                             int64_t *count)
{
    const char *key = kind->count;
    int64_t other;
    if (kind->alias && mhai_config_absent(config, key)) key = kind->alias;
    MHA_TRY(mhai_config_count(config, key, kind->may_lack ? 0 : 1, MHA_EXPERTS_MOST, count));
    if (!kind->alias) return MHA_OK;
    MHA_TRY(mhai_config_optional(config, kind->alias, INT64_MIN, INT64_MAX, *count, &other));
    if (other == *count) return MHA_OK;
    return mhai_config_fail(MHA_ERR_MODEL, config, kind->alias,
                            "is %lld, '%s' is %lld; remove the one that does not match the "
                            "weights",
                            (long long)other, kind->count, (long long)*count);
}

static mha_status read_experts(const mhai_config *config, const mhai_experts_kind *kind,
                               int64_t ff_dim, mha_experts_desc *x)
{
    bool normalises = kind->usual;
    *x = (mha_experts_desc){.flags = kind->flags, .ff_dim = ff_dim};
    MHA_TRY(read_count(config, kind, &x->count));
    if (x->count == 0) return MHA_OK;
    MHA_TRY(mhai_config_count(config, "num_experts_per_tok", 1, x->count, &x->used));
    if (kind->inner)
        MHA_TRY(mhai_config_count(config, kind->inner, 1, MHAI_MOST_WIDTH, &x->ff_dim));
    if (kind->shared)
        MHA_TRY(mhai_config_count(config, kind->shared, 1, MHAI_MOST_WIDTH, &x->shared_dim));
    if (kind->normalises)
        MHA_TRY(mhai_config_bool(config, kind->normalises, kind->usual, &normalises));
    if (normalises) x->flags |= MHA_EXPERTS_NORMALISED, x->sum_epsilon = kind->sum_epsilon;
    if (kind->scale) MHA_TRY(mhai_config_real(config, kind->scale, 1, 0, 1e6, &x->scale));
    return MHA_OK;
}

mha_status mhai_config_lists(const mhai_config *config, const char *key, int64_t layer,
                             bool *listed)
{
    const json_t *list = json_object_get(config->root, key);
    *listed = false;
    if (mhai_config_absent(config, key)) return MHA_OK;
    if (!json_is_array(list)) return mhai_config_fail(MHA_ERR_MODEL, config, key, "is not a list");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_integer_value(json_array_get(list, i)) == layer) *listed = true;
    return MHA_OK;
}

mha_status mhai_read_experts(const mhai_config *config, const mhai_experts_kind *kind,
                             mhai_family_plan *plan)
{
    mha_experts_desc x;
    int64_t step = 1, first = 0;
    MHA_TRY(read_experts(config, kind, plan->desc.ff_dim, &x));
    if (x.count == 0) return MHA_OK;
    if (kind->first)
        MHA_TRY(mhai_config_optional(config, kind->first, 0, MHAI_MOST_LAYERS, 0, &first));
    if (kind->steps)
        MHA_TRY(mhai_config_optional(config, "decoder_sparse_step", 1, MHAI_MOST_LAYERS, 1, &step));
    MHA_TRY(mhai_plan_layers(plan));
    for (int64_t i = first; i < plan->desc.num_layers; i++) {
        bool dense = false;
        if (kind->steps) MHA_TRY(mhai_config_lists(config, "mlp_only_layers", i, &dense));
        if (!dense && (i + 1) % step == 0) plan->layers[i].experts = x;
    }
    return MHA_OK;
}
