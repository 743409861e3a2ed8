/* Settings in which layers of a decoder differ: windows, sizes of heads, shared keys. */
#include "io/file.h"
#include "model/arch/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whether a layer has the window. */
static mha_status read_layer_type(const mhai_config *config, const json_t *list, int64_t layer,
                                  bool *slides)
{
    const char *type = json_string_value(json_array_get(list, (size_t)layer));
    *slides = type && strcmp(type, "sliding_attention") == 0;
    if (*slides || (type && strcmp(type, "full_attention") == 0)) return MHA_OK;
    return mhai_path_fail(MHA_ERR_UNSUPPORTED, config->path,
                          "'layer_types' of layer %lld is '%s'; known: full_attention, "
                          "sliding_attention",
                          (long long)layer, type ? mhai_show_name(type).text : "");
}

mha_status mhai_read_windows(const mhai_config *config, int64_t usual, int64_t first,
                             int64_t period, mhai_family_plan *plan)
{
    const json_t *list = json_object_get(config->root, "layer_types");
    const bool listed = usual > 0 && !mhai_config_absent(config, "layer_types");
    int64_t window;
    if (!json_is_null(json_object_get(config->root, "sliding_window")))
        MHA_TRY(mhai_config_optional(config, "sliding_window", 1, INT64_MAX, usual, &window));
    else
        window = 0;
    if (listed && (!json_is_array(list) || (int64_t)json_array_size(list) != plan->desc.num_layers))
        return mhai_path_fail(MHA_ERR_MODEL, config->path,
                              "'layer_types' is not a list of %lld, one for each layer",
                              (long long)plan->desc.num_layers);
    for (int64_t i = 0; i < plan->desc.num_layers; i++) {
        bool slides = i >= first && (period == 0 || (i + 1) % period != 0);
        if (listed) MHA_TRY(read_layer_type(config, list, i, &slides));
        if (!slides || window == 0) continue;
        MHA_TRY(mhai_plan_layers(plan));
        plan->layers[i].flags |= MHA_LAYER_WINDOW;
        plan->layers[i].left_keys = window - 1;
    }
    return MHA_OK;
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
    if (!plan->head_lists)
        plan->head_lists = calloc((size_t)d->num_layers, 2 * sizeof *plan->head_lists);
    if (!plan->head_lists) return MHA_NO_MEMORY("model");
    for (int64_t i = 0; i < d->num_layers; i++) {
        char key[24];
        snprintf(key, sizeof key, "%lld", (long long)i);
        const mhai_config own = {config->path, json_object_get(all, key)};
        const bool other = !all && !mhai_slides(plan, i);
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
        while (from >= 0 && mhai_slides(plan, from) != mhai_slides(plan, i)) from--;
        if (from < 0)
            return mhai_config_fail(MHA_ERR_MODEL, config, key,
                                    "is %lld, but no layer before these has the kind of layer %lld",
                                    (long long)count, (long long)i);
        plan->layers[i].kv_back = i - from;
        if (wide) plan->layers[i].ff_dim = 2 * plan->desc.ff_dim;
    }
    return MHA_OK;
}
