/* Shared by families whose layers have two kinds of mixers. */
#include "io/file.h"
#include "model/arch/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* list: of layer types; NULL: `usual` chooses. */
static mha_status find_kind(const mhai_config *config, const mhai_mixing *mixing, const char *key,
                            const json_t *list, int64_t layer, int *kind)
{
    char known[64] = "";
    *kind = MHAI_MIXES;
    if (!list) return mixing->usual ? mixing->usual(config, layer, kind) : MHA_OK;
    const char *type = json_string_value(json_array_get(list, (size_t)layer));
    for (*kind = 0; *kind < MHAI_KINDS; ++*kind) {
        const char *const *names = mixing->types[*kind];
        for (int i = 0; type && i < 3 && names[i]; i++)
            if (strcmp(type, names[i]) == 0) return MHA_OK;
        if (names[0])
            snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s",
                     *known ? ", " : "", names[0]);
    }
    return mhai_path_fail(MHA_ERR_UNSUPPORTED, config->path,
                          "'%s' of layer %lld is '%s'; known: %s", key, (long long)layer,
                          type ? mhai_show_name(type).text : "", known);
}

static mha_status read_layers(const mhai_config *config, const mhai_mixing *mixing,
                              mhai_family_plan *plan)
{
    const int64_t layers = plan->desc.num_layers;
    const bool other = mhai_config_absent(config, "layer_types") && mixing->list;
    const char *key = other ? mixing->list : "layer_types";
    const bool listed = !mhai_config_absent(config, key);
    const json_t *list = listed ? json_object_get(config->root, key) : NULL;
    if (listed && (!json_is_array(list) || (int64_t)json_array_size(list) != layers))
        return mhai_config_fail(MHA_ERR_MODEL, config, key,
                                "is not a list of %lld, one for each layer", (long long)layers);
    MHA_TRY(mhai_plan_layers(plan));
    for (int64_t i = 0; i < layers; i++) {
        int kind;
        MHA_TRY(find_kind(config, mixing, key, list, i, &kind));
        mha_layer_desc *l = &plan->layers[i];
        if (kind == MHAI_MIXES) *l = mixing->mixer;
        if (kind == MHAI_ATTENDS) *l = mixing->attention;
        l->struct_size = sizeof *l;
        if (l->flags & MHA_LAYER_QK_NORM) l->qk_norm_epsilon = plan->desc.norm_epsilon;
        plan->head_lists[i] = kind == MHAI_ATTENDS ? plan->desc.num_heads
                              : kind == MHAI_MIXES ? mixing->heads
                                                   : 0;
        plan->head_lists[layers + i] = kind == MHAI_ATTENDS ? plan->desc.kv_heads
                                       : kind == MHAI_MIXES ? mixing->kv_heads
                                                            : 0;
    }
    return MHA_OK;
}

mha_status mhai_read_mixing(const mhai_config *config, const mhai_mixing *mixing,
                            mhai_family_plan *plan)
{
    mha_transformer_desc *d = &plan->desc;
    const int64_t L = d->num_layers, heads = mixing->heads;
    if (d->head_dim == 0) d->head_dim = d->embed_dim / d->num_heads;
    if (d->kv_heads == 0) d->kv_heads = d->num_heads;
    if (plan->head_lists)
        return mhai_path_fail(MHA_ERR_UNSUPPORTED, config->path,
                              "heads by layer are not supported in a model of this kind");
    plan->head_lists = calloc((size_t)L, 2 * sizeof *plan->head_lists);
    if (!plan->head_lists) return MHA_NO_MEMORY("model");
    MHA_TRY(read_layers(config, mixing, plan));
    d->layer_heads = plan->head_lists;
    d->layer_kv_heads = plan->head_lists + L;
    if (heads > d->num_heads) d->num_heads = heads;
    /* each layer has its own number */
    if (d->num_heads % d->kv_heads != 0) d->kv_heads = d->num_heads;
    return MHA_OK;
}

/* ---- Mamba-2 --------------------------------------------------------------------------------- */

/* JSON has no infinity, so transformers 5 writes an object. */
static mha_status read_limit(const mhai_config *config, const char *key, mha_layer_desc *space)
{
    const json_t *list = json_object_get(config->root, key), *least = json_array_get(list, 0),
                 *most = json_array_get(list, 1), *tag = json_object_get(most, "__float__");
    const double from = json_number_value(least), to = json_number_value(most);
    const bool endless = json_is_string(tag) && strcmp(json_string_value(tag), "Infinity") == 0;
    if (mhai_config_absent(config, key)) return MHA_OK;
    if (json_array_size(list) != 2 || !json_is_number(least) || !(from >= 0 && from <= 1e9) ||
        !(endless || (json_is_number(most) && to >= from && to > 1e-30 && to <= 1e30)))
        return mhai_config_fail(MHA_ERR_MODEL, config, key,
                                "is not a list of two numbers from 0 in order; the second may be "
                                "{\"__float__\": \"Infinity\"}");
    space->step_least = (float)from;
    space->step_most = endless ? 0 : (float)to;
    return MHA_OK;
}

const mhai_space_keys mhai_mamba_keys = {.heads = "mamba_n_heads",
                                         .groups = "mamba_n_groups",
                                         .state = "mamba_d_state",
                                         .kernel = "mamba_d_conv",
                                         .size = "mamba_d_head",
                                         .expand = "mamba_expand",
                                         .conv_bias = "mamba_conv_bias",
                                         .proj_bias = "mamba_proj_bias",
                                         .limit = "time_step_limit",
                                         .usual_groups = 1,
                                         .usual_state = 256};

/* Read the size of heads. If it is "auto", or absent in a family without a usual size, the heads
 * together are `expand` times as wide as the model. */
static mha_status read_size(const mhai_config *config, const mhai_space_keys *keys, int64_t width,
                            int64_t heads, int64_t *size)
{
    const char *text = json_string_value(json_object_get(config->root, keys->size));
    int64_t expand = 0;
    if (keys->expand)
        MHA_TRY(mhai_config_optional(config, keys->expand, 1, MHAI_MOST_WIDTH, 2, &expand));
    *size = keys->usual_size ? keys->usual_size : expand * width / heads;
    if (keys->usual_size || !text || strcmp(text, "auto") != 0)
        MHA_TRY(mhai_config_optional(config, keys->size, 1, MHAI_MOST_WIDTH, *size, size));
    if (!keys->expand || *size * heads == expand * width) return MHA_OK;
    return mhai_config_fail(MHA_ERR_MODEL, config, keys->size,
                            "is %lld and '%s' %lld; their product must be '%s' %lld times "
                            "'hidden_size' %lld",
                            (long long)*size, mhai_config_name(config, keys->heads).text,
                            (long long)heads, keys->expand, (long long)expand, (long long)width);
}

mha_status mhai_read_state_spaces(const mhai_config *config, const mhai_space_keys *keys,
                                  mhai_mixing *mixing, mhai_family_plan *plan)
{
    const struct {
        const char *key;
        int64_t most, usual;
    } sizes[] = {{keys->heads, MHAI_MOST_WIDTH, 128},
                 {keys->groups, MHAI_MOST_WIDTH, keys->usual_groups},
                 {keys->state, MHAI_MOST_WIDTH, keys->usual_state},
                 {keys->kernel, MHA_CONVOLUTION_MOST, 4}};
    int64_t n[4], size;
    bool biased;
    for (int i = 0; i < 4; i++)
        MHA_TRY(
            mhai_config_optional(config, sizes[i].key, 1, sizes[i].most, sizes[i].usual, &n[i]));
    if (n[0] % n[1] != 0)
        return mhai_config_fail(MHA_ERR_MODEL, config, keys->heads,
                                "is %lld, expected a multiple of '%s', %lld", (long long)n[0],
                                mhai_config_name(config, keys->groups).text, (long long)n[1]);
    MHA_TRY(read_size(config, keys, plan->desc.embed_dim, n[0], &size));
    MHA_TRY(mhai_config_unset(config, keys->proj_bias));
    MHA_TRY(mhai_config_bool(config, keys->conv_bias, true, &biased));
    if (!biased)
        return mhai_config_fail(MHA_ERR_UNSUPPORTED, config, keys->conv_bias,
                                "is false, which is not supported");
    mixing->types[MHAI_ATTENDS][0] = "full_attention";
    mixing->types[MHAI_ATTENDS][1] = "attention"; /* in transformers before 5 */
    mixing->types[MHAI_MIXES][0] = "linear_attention";
    mixing->types[MHAI_MIXES][1] = "mamba"; /* likewise */
    mixing->mixer.mixer = MHA_MIXER_STATE_SPACE;
    mixing->mixer.key_dim = n[2];
    mixing->mixer.value_dim = size;
    mixing->mixer.conv_kernel = (int32_t)n[3];
    mixing->heads = n[0];
    mixing->kv_heads = n[1];
    if (keys->limit) MHA_TRY(read_limit(config, keys->limit, &mixing->mixer));
    return mhai_read_mixing(config, mixing, plan);
}
