/* Shared by families whose layers have two kinds of mixers. */
#include "io/file.h"
#include "model/arch/family.h"

#include <multihead/component.h>

#include <stdlib.h>
#include <string.h>

/* Whether a layer is not attention. list: layer_types, or NULL. */
static mha_status find_mixer(const mhai_config *config, const mhai_mixing *mixing,
                             const json_t *list, int64_t layer, bool *mixes)
{
    if (!list) return mixing->usual(config, layer, mixes);
    const char *type = json_string_value(json_array_get(list, (size_t)layer));
    *mixes = type && strcmp(type, mixing->type) == 0;
    if (*mixes || (type && strcmp(type, "full_attention") == 0)) return MHA_OK;
    return mhai_path_fail(MHA_ERR_UNSUPPORTED, config->path,
                          "'layer_types' of layer %lld is '%s'; known: full_attention, %s",
                          (long long)layer, type ? mhai_show_name(type).text : "", mixing->type);
}

static mha_status read_layers(const mhai_config *config, const mhai_mixing *mixing,
                              mhai_family_plan *plan)
{
    const int64_t layers = plan->desc.num_layers;
    const bool listed = !mhai_config_absent(config, "layer_types");
    const json_t *list = listed ? json_object_get(config->root, "layer_types") : NULL;
    if (listed && (!json_is_array(list) || (int64_t)json_array_size(list) != layers))
        return mhai_path_fail(MHA_ERR_MODEL, config->path,
                              "'layer_types' is not a list of %lld, one for each layer",
                              (long long)layers);
    MHA_TRY(mhai_plan_layers(plan));
    for (int64_t i = 0; i < layers; i++) {
        bool mixes;
        MHA_TRY(find_mixer(config, mixing, list, i, &mixes));
        plan->layers[i] = mixes ? mixing->mixer : mixing->attention;
        plan->layers[i].struct_size = sizeof *plan->layers;
        if (!mixes) plan->layers[i].qk_norm_epsilon = plan->desc.norm_epsilon;
    }
    return MHA_OK;
}

mha_status mhai_read_mixing(const mhai_config *config, const mhai_mixing *mixing,
                            mhai_family_plan *plan)
{
    mha_transformer_desc *d = &plan->desc;
    const int64_t L = d->num_layers, heads = mixing->heads;
    if (plan->head_lists)
        return mhai_path_fail(MHA_ERR_UNSUPPORTED, config->path,
                              "heads by layer are not supported in a model of this kind");
    plan->head_lists = calloc((size_t)L, 2 * sizeof *plan->head_lists);
    if (!plan->head_lists) return MHA_NO_MEMORY("model");
    MHA_TRY(read_layers(config, mixing, plan));
    for (int64_t i = 0; i < L; i++) {
        const bool mixes = plan->layers[i].mixer;
        plan->head_lists[i] = mixes ? heads : d->num_heads;
        plan->head_lists[L + i] = mixes ? mixing->kv_heads : d->kv_heads;
    }
    d->layer_heads = plan->head_lists;
    d->layer_kv_heads = plan->head_lists + L;
    if (heads > d->num_heads) d->num_heads = heads;
    if (d->num_heads % d->kv_heads != 0) d->kv_heads = d->num_heads; /* each layer has its own */
    return MHA_OK;
}
