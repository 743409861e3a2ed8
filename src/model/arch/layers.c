/* Settings in which the layers of the newest Gemmas differ: the sizes of heads, and shared keys. */
#include "io/file.h"
#include "model/arch/family.h"

#include <stdio.h>
#include <stdlib.h>

static bool slides(const mhai_family_plan *plan, int64_t layer)
{
    return plan->layers[layer].flags & MHA_LAYER_WINDOW;
}

mha_status mhai_read_kinds_of_heads(const mhai_config *config, mhai_family_plan *plan)
{
    mha_transformer_desc *d = &plan->desc;
    const json_t *all = json_object_get(config->root, "per_layer_config");
    size_t layers = 0, fields = 0;
    int64_t wide, groups;
    MHA_TRY(mhai_config_bool(config, "attention_k_eq_v", false, &plan->keys_as_values));
    MHA_TRY(mhai_config_optional(config, "global_head_dim", 1, MHAI_MOST_WIDTH, 512, &wide));
    MHA_TRY(mhai_config_optional(config, "num_global_key_value_heads", 1, d->num_heads, d->kv_heads,
                                 &groups));
    plan->head_lists = calloc((size_t)d->num_layers, 2 * sizeof *plan->head_lists);
    if (!plan->head_lists) return MHA_NO_MEMORY("model");
    for (int64_t i = 0; i < d->num_layers; i++) {
        char key[24];
        snprintf(key, sizeof key, "%lld", (long long)i);
        const mhai_config own = {config->path, json_object_get(all, key)};
        const bool other = !all && !slides(plan, i);
        layers += own.root != NULL;
        fields += json_object_size(own.root) - !mhai_config_absent(&own, "head_dim") -
                  !mhai_config_absent(&own, "num_key_value_heads");
        MHA_TRY(mhai_config_optional(&own, "head_dim", 1, MHAI_MOST_WIDTH,
                                     other ? wide : d->head_dim, &plan->layers[i].head_dim));
        MHA_TRY(mhai_config_optional(&own, "num_key_value_heads", 1, d->num_heads,
                                     other && plan->keys_as_values ? groups : d->kv_heads,
                                     &plan->head_lists[d->num_layers + i]));
        plan->head_lists[i] = d->num_heads;
    }
    d->layer_heads = plan->head_lists;
    d->layer_kv_heads = plan->head_lists + d->num_layers;
    return layers == json_object_size(all) && fields == 0
               ? MHA_OK
               : mhai_config_fail(MHA_ERR_UNSUPPORTED, config, "per_layer_config",
                                  "sets more than head_dim and num_key_value_heads of layers");
}

mha_status mhai_share_keys(const mhai_config *config, mhai_family_plan *plan)
{
    static const char key[] = "num_kv_shared_layers";
    const int64_t layers = plan->desc.num_layers;
    int64_t count;
    bool wide;
    MHA_TRY(mhai_config_optional(config, key, 0, layers - 1, 0, &count));
    MHA_TRY(mhai_config_bool(config, "use_double_wide_mlp", false, &wide));
    for (int64_t i = layers - count; i < layers; i++) {
        int64_t from = layers - count - 1;
        while (from >= 0 && slides(plan, from) != slides(plan, i)) from--;
        if (from < 0)
            return mhai_config_fail(MHA_ERR_MODEL, config, key,
                                    "is %lld, but no layer before these has the kind of layer %lld",
                                    (long long)count, (long long)i);
        plan->layers[i].kv_back = i - from;
        if (wide) plan->layers[i].ff_dim = 2 * plan->desc.ff_dim;
    }
    return MHA_OK;
}
