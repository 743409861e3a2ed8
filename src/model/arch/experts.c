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

static const char *used_key(const mhai_experts_kind *kind)
{
    return kind->used ? kind->used : "num_experts_per_tok";
}

static mha_status read_groups(const mhai_config *config, const mhai_experts_kind *kind,
                              mha_experts_desc *x)
{
    const int64_t most = x->count < UINT16_MAX ? x->count : UINT16_MAX;
    const int64_t least = x->flags & MHA_EXPERTS_GROUP_PAIRS ? 2 : 1;
    int64_t groups, used;
    MHA_TRY(mhai_config_optional(config, kind->groups, 1, most, 1, &groups));
    MHA_TRY(mhai_config_optional(config, kind->groups_used, 1, groups, 1, &used));
    if (x->count % groups != 0 || (groups > 1 && x->count / groups < least))
        return mhai_config_fail(MHA_ERR_MODEL, config, kind->groups,
                                "is %lld, expected a divisor of '%s' %lld, with %lld or more in "
                                "each group",
                                (long long)groups, kind->count, (long long)x->count,
                                (long long)least);
    if (x->used > used * (x->count / groups))
        return mhai_config_fail(MHA_ERR_MODEL, config, kind->groups_used,
                                "is %lld, whose groups have fewer than '%s' %lld experts",
                                (long long)used, used_key(kind), (long long)x->used);
    x->groups = (uint16_t)groups;
    x->groups_used = (uint16_t)used;
    return MHA_OK;
}

static mha_status read_experts(const mhai_config *config, const mhai_experts_kind *kind,
                               int64_t ff_dim, mha_experts_desc *x)
{
    bool normalises = kind->usual;
    *x = (mha_experts_desc){.flags = kind->flags, .ff_dim = ff_dim};
    MHA_TRY(read_count(config, kind, &x->count));
    if (x->count == 0) return MHA_OK;
    MHA_TRY(mhai_config_count(config, used_key(kind), 1, x->count, &x->used));
    if (kind->inner)
        MHA_TRY(mhai_config_count(config, kind->inner, 1, MHAI_MOST_WIDTH, &x->ff_dim));
    if (kind->shared)
        MHA_TRY(mhai_config_count(config, kind->shared, 1, MHAI_MOST_WIDTH, &x->shared_dim));
    if (kind->shared_count) {
        MHA_TRY(mhai_config_count(config, kind->shared_count, 1, MHAI_MOST_WIDTH, &x->shared_dim));
        x->shared_dim *= x->ff_dim;
    }
    if (kind->groups) MHA_TRY(read_groups(config, kind, x));
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

/* Whether a list of kinds, which may be absent, names a layer sparse. */
static mha_status read_type(const mhai_config *config, const char *key, int64_t layers,
                            int64_t layer, bool *sparse)
{
    const json_t *list = json_object_get(config->root, key);
    const char *type = json_string_value(json_array_get(list, (size_t)layer));
    if (!key || mhai_config_absent(config, key)) return MHA_OK;
    *sparse = type && strcmp(type, "sparse") == 0;
    if (json_array_size(list) == (size_t)layers && (*sparse || (type && !strcmp(type, "dense"))))
        return MHA_OK;
    return mhai_config_fail(MHA_ERR_MODEL, config, key,
                            "is not a list of %lld names, dense or sparse, one for each layer",
                            (long long)layers);
}

mha_status mhai_read_experts(const mhai_config *config, const mhai_experts_kind *kind,
                             mhai_family_plan *plan)
{
    mha_experts_desc x;
    int64_t step = 1, first = kind->usual_first;
    MHA_TRY(read_experts(config, kind, plan->desc.ff_dim, &x));
    if (x.count == 0) return MHA_OK;
    if (kind->first)
        MHA_TRY(mhai_config_optional(config, kind->first, 0, MHAI_MOST_LAYERS, first, &first));
    if (kind->steps)
        MHA_TRY(mhai_config_optional(config, "decoder_sparse_step", 1, MHAI_MOST_LAYERS, 1, &step));
    MHA_TRY(mhai_plan_layers(plan));
    for (int64_t i = 0; i < plan->desc.num_layers; i++) {
        bool dense = false, sparse = i >= first;
        if (kind->steps) MHA_TRY(mhai_config_lists(config, "mlp_only_layers", i, &dense));
        MHA_TRY(read_type(config, kind->types, plan->desc.num_layers, i, &sparse));
        if (sparse && !dense && (i + 1) % step == 0) plan->layers[i].experts = x;
    }
    return MHA_OK;
}
