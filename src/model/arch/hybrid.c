/* Shared by families whose layers have two kinds of mixers. */
#include "io/file.h"
#include "model/arch/family.h"

#include <stdlib.h>
#include <string.h>

/* Whether a layer is not attention. list: layer_types, or NULL. transformers before 5 calls layers
 * of Mamba "mamba" and "attention". */
static mha_status find_mixer(const mhai_config *config, const mhai_mixing *mixing,
                             const json_t *list, int64_t layer, bool *mixes)
{
    if (!list) return mixing->usual(config, layer, mixes);
    const char *type = json_string_value(json_array_get(list, (size_t)layer));
    const bool space = mixing->mixer.mixer == MHA_MIXER_STATE_SPACE;
    *mixes = type && (strcmp(type, mixing->type) == 0 || (space && strcmp(type, "mamba") == 0));
    if (*mixes || (type && (strcmp(type, "full_attention") == 0 ||
                            (space && strcmp(type, "attention") == 0))))
        return MHA_OK;
    return mhai_path_fail(MHA_ERR_UNSUPPORTED, config->path,
                          "'layer_types' of layer %lld is '%s'; known: full_attention, %s",
                          (long long)layer, type ? mhai_show_name(type).text : "", mixing->type);
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
        bool mixes;
        MHA_TRY(find_mixer(config, mixing, list, i, &mixes));
        plan->layers[i] = mixes ? mixing->mixer : mixing->attention;
        plan->layers[i].struct_size = sizeof *plan->layers;
        if (plan->layers[i].flags & MHA_LAYER_QK_NORM)
            plan->layers[i].qk_norm_epsilon = plan->desc.norm_epsilon;
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
    for (int64_t i = 0; i < L; i++) {
        const bool mixes = plan->layers[i].mixer;
        plan->head_lists[i] = mixes ? heads : d->num_heads;
        plan->head_lists[L + i] = mixes ? mixing->kv_heads : d->kv_heads;
    }
    d->layer_heads = plan->head_lists;
    d->layer_kv_heads = plan->head_lists + L;
    if (heads > d->num_heads) d->num_heads = heads;
    /* each layer has its own number */
    if (d->num_heads % d->kv_heads != 0) d->kv_heads = d->num_heads;
    return MHA_OK;
}

/* ---- Mamba-2 --------------------------------------------------------------------------------- */

/* JSON has no infinity, so transformers 5 writes an object. */
static mha_status read_limit(const mhai_config *config, mha_layer_desc *space)
{
    static const char key[] = "time_step_limit";
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

/* Read the size of heads. If it is absent or "auto", the heads together are mamba_expand times as
 * wide as the model. */
static mha_status read_head_dim(const mhai_config *config, int64_t width, int64_t heads,
                                int64_t *size)
{
    static const char key[] = "mamba_d_head";
    const char *text = json_string_value(json_object_get(config->root, key));
    int64_t expand;
    MHA_TRY(mhai_config_optional(config, "mamba_expand", 1, MHAI_MOST_WIDTH, 2, &expand));
    *size = expand * width / heads;
    if (!text || strcmp(text, "auto") != 0)
        MHA_TRY(mhai_config_optional(config, key, 1, MHAI_MOST_WIDTH, *size, size));
    if (*size * heads == expand * width) return MHA_OK;
    return mhai_config_fail(
        MHA_ERR_MODEL, config, key,
        "is %lld and 'mamba_n_heads' %lld; their product must be 'mamba_expand' "
        "%lld times 'hidden_size' %lld",
        (long long)*size, (long long)heads, (long long)expand, (long long)width);
}

mha_status mhai_read_state_spaces(const mhai_config *config, mhai_mixing *mixing,
                                  mhai_family_plan *plan)
{
    static const char *const refused[] = {"mamba_proj_bias", NULL};
    const struct {
        const char *key;
        int64_t most, usual;
    } sizes[] = {{"mamba_n_heads", MHAI_MOST_WIDTH, 128},
                 {"mamba_n_groups", MHAI_MOST_WIDTH, 1},
                 {"mamba_d_state", MHAI_MOST_WIDTH, 256},
                 {"mamba_d_conv", MHA_CONVOLUTION_MOST, 4}};
    int64_t n[4], size;
    bool biased;
    for (int i = 0; i < 4; i++)
        MHA_TRY(
            mhai_config_optional(config, sizes[i].key, 1, sizes[i].most, sizes[i].usual, &n[i]));
    if (n[0] % n[1] != 0)
        return mhai_config_fail(MHA_ERR_MODEL, config, sizes[0].key,
                                "is %lld, expected a multiple of '%s', %lld", (long long)n[0],
                                mhai_config_name(config, sizes[1].key).text, (long long)n[1]);
    MHA_TRY(read_head_dim(config, plan->desc.embed_dim, n[0], &size));
    MHA_TRY(mhai_config_refuse(config, refused));
    MHA_TRY(mhai_config_bool(config, "mamba_conv_bias", true, &biased));
    if (!biased)
        return mhai_config_fail(MHA_ERR_UNSUPPORTED, config, "mamba_conv_bias",
                                "is false, which is not supported");
    mixing->type = "linear_attention";
    mixing->mixer = (mha_layer_desc){.mixer = MHA_MIXER_STATE_SPACE,
                                     .key_dim = n[2],
                                     .value_dim = size,
                                     .conv_kernel = (int32_t)n[3]};
    mixing->heads = n[0];
    mixing->kv_heads = n[1];
    MHA_TRY(read_limit(config, &mixing->mixer));
    return mhai_read_mixing(config, mixing, plan);
}
