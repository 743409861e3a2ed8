/* This library's own family: every field of a description, by name. */
#include "io/file.h"
#include "model/arch/family.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const mhai_weight_name own_names[] = {MHAI_NAME(NULL, NULL)};
static const char *const norms[] = {MHA_NORM_NAMES};
static const char *const positions[] = {MHA_ENCODING_NAMES};
static const char *const feed_forwards[] = {MHA_FEED_FORWARD_NAMES};

static const struct {
    const char *name;
    uint32_t flag;
} flags[] = {{"causal", MHA_TRANSFORMER_CAUSAL},
             {"post_norm", MHA_TRANSFORMER_POST_NORM},
             {"embedding_norm", MHA_TRANSFORMER_EMBEDDING_NORM},
             {"bias", MHA_TRANSFORMER_BIAS},
             {"cross_attention", MHA_TRANSFORMER_CROSS},
             {"tied", MHA_TRANSFORMER_TIED},
             {"no_output", MHA_TRANSFORMER_NO_OUTPUT},
             {"qkv_bias", MHA_TRANSFORMER_QKV_BIAS},
             {"out_bias", MHA_TRANSFORMER_OUT_BIAS},
             {"ff_bias", MHA_TRANSFORMER_FF_BIAS},
             {"branch_norm", MHA_TRANSFORMER_BRANCH_NORM},
             {"parallel", MHA_TRANSFORMER_PARALLEL},
             {"padding", MHA_TRANSFORMER_PADDING},
             {"no_input_norm", MHA_TRANSFORMER_NO_INPUT_NORM},
             {"no_norm_bias", MHA_TRANSFORMER_NO_NORM_BIAS},
             {"one_norm", MHA_TRANSFORMER_ONE_NORM},
             {"logit_bias", MHA_TRANSFORMER_LOGIT_BIAS},
             {"relative_norm", MHA_TRANSFORMER_RELATIVE_NORM}};

enum { FLAGS = sizeof flags / sizeof flags[0] };

static const struct {
    const char *name;
    size_t offset;
    float usual;
} scales[] = {{"embed_scale", offsetof(mha_transformer_desc, embed_scale), 1},
              {"logit_softcap", offsetof(mha_transformer_desc, logit_softcap), 0},
              {"residual_scale", offsetof(mha_transformer_desc, residual_scale), 1},
              {"logit_scale", offsetof(mha_transformer_desc, logit_scale), 1},
              {"cross_scale", offsetof(mha_transformer_desc, cross_scale), 0}};

enum { SCALES = sizeof scales / sizeof scales[0] };

static bool fits_own(const mha_transformer_desc *d)
{
    (void)d;
    return true;
}

static bool put_list(json_t *root, const char *key, const int64_t *numbers, int64_t count)
{
    json_t *list = json_array();
    for (int64_t i = 0; list && i < count; i++)
        if (json_array_append_new(list, json_integer(numbers[i])) != 0) {
            json_decref(list);
            return false;
        }
    return mhai_put(root, key, list);
}

/* ---- layers -------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    uint32_t flag;
} layer_flags[] = {{"scale_given", MHA_LAYER_SCALE_GIVEN},
                   {"window", MHA_LAYER_WINDOW},
                   {"qk_norm", MHA_LAYER_QK_NORM},
                   {"qk_norm_row", MHA_LAYER_QK_NORM_ROW},
                   {"rope_exact_ramp", MHA_LAYER_ROPE_EXACT_RAMP},
                   {"sinks", MHA_LAYER_SINKS},
                   {"alibi", MHA_LAYER_ALIBI},
                   {"no_rope", MHA_LAYER_NO_ROPE},
                   {"rope_interleaved", MHA_LAYER_ROPE_INTERLEAVED},
                   {"output_gate", MHA_LAYER_OUTPUT_GATE},
                   {"branch_norm", MHA_LAYER_BRANCH_NORM},
                   {"no_feed_forward", MHA_LAYER_NO_FEED_FORWARD},
                   {"no_attention_norm", MHA_LAYER_NO_ATTENTION_NORM},
                   {"content_to_position", MHA_LAYER_CONTENT_TO_POSITION},
                   {"position_to_content", MHA_LAYER_POSITION_TO_CONTENT},
                   {"relative_shared", MHA_LAYER_RELATIVE_SHARED},
                   {"relative_table", MHA_LAYER_RELATIVE_TABLE},
                   {"v_norm", MHA_LAYER_V_NORM},
                   {"output_scale", MHA_LAYER_OUTPUT_SCALE}};

#define AT(name) #name, offsetof(mha_layer_desc, name)

static const struct {
    const char *name;
    size_t offset;
    int64_t low, high;
} layer_counts[] = {{AT(left_keys), -1, INT64_MAX},
                    {AT(right_keys), -1, INT64_MAX},
                    {AT(sink_keys), 0, INT64_MAX},
                    {AT(t5_buckets), 0, MHAI_MOST_WIDTH},
                    {AT(t5_max_distance), 0, INT64_MAX},
                    {AT(rotary_dim), 0, MHAI_MOST_WIDTH},
                    {AT(rope_original_length), 0, INT64_MAX},
                    {AT(key_dim), 0, MHAI_MOST_WIDTH},
                    {AT(value_dim), 0, MHAI_MOST_WIDTH},
                    {AT(latent_dim), 0, MHAI_MOST_WIDTH},
                    {AT(query_latent_dim), 0, MHAI_MOST_WIDTH},
                    {AT(shared_dim), 0, MHAI_MOST_WIDTH},
                    {AT(gate_rank), 0, MHAI_MOST_WIDTH},
                    {AT(relative_rows), 0, MHAI_MOST_WIDTH},
                    {AT(relative_buckets), 0, MHAI_MOST_WIDTH},
                    {AT(relative_max_distance), 0, INT32_MAX},
                    {AT(head_dim), 0, MHAI_MOST_WIDTH},
                    {AT(ff_dim), 0, MHAI_MOST_WIDTH},
                    {AT(kv_back), 0, MHAI_MOST_LAYERS},
                    {AT(rope_pairs), 0, MHAI_MOST_WIDTH},
                    {AT(input_dim), 0, MHAI_MOST_WIDTH}};

static const struct {
    const char *name;
    size_t offset;
} layer_reals[] = {{AT(scale)},     {AT(softcap)},        {AT(qk_norm_epsilon)},
                   {AT(rope_base)}, {AT(rope_factor)},    {AT(rope_low)},
                   {AT(rope_high)}, {AT(rope_amplitude)}, {AT(step_least)},
                   {AT(step_most)}, {AT(strength_scale)}, {AT(head_norm_epsilon)}};

enum {
    LAYER_FLAGS = sizeof layer_flags / sizeof layer_flags[0],
    LAYER_COUNTS = sizeof layer_counts / sizeof layer_counts[0],
    LAYER_REALS = sizeof layer_reals / sizeof layer_reals[0]
};

static const char *const qk_norms[] = {"rms", "l2"};
static const char *const scalings[] = {"linear", "llama3", "yarn", "long"};
static const char *const mixers[] = {"attention", "gated_delta", "short_convolution",
                                     "state_space"};

enum { SCALINGS = sizeof scalings / sizeof scalings[0], MIXERS = sizeof mixers / sizeof mixers[0] };

/* ---- experts --------------------------------------------------------------------------------- */

#define OF_EXPERTS(name) #name, offsetof(mha_experts_desc, name)

static const struct {
    const char *name;
    size_t offset;
    int64_t low, high;
} expert_counts[] = {{OF_EXPERTS(count), 1, MHA_EXPERTS_MOST},
                     {OF_EXPERTS(used), 1, MHA_EXPERTS_MOST},
                     {OF_EXPERTS(ff_dim), 1, MHAI_MOST_WIDTH},
                     {OF_EXPERTS(shared_dim), 0, MHAI_MOST_WIDTH}};

static const struct {
    const char *name;
    uint32_t flag;
} expert_flags[] = {{"sigmoid", MHA_EXPERTS_SIGMOID},
                    {"normalised", MHA_EXPERTS_NORMALISED},
                    {"score_bias", MHA_EXPERTS_SCORE_BIAS},
                    {"shared_gate", MHA_EXPERTS_SHARED_GATE},
                    {"bias", MHA_EXPERTS_BIAS},
                    {"group_pairs", MHA_EXPERTS_GROUP_PAIRS}};

enum {
    EXPERT_COUNTS = sizeof expert_counts / sizeof expert_counts[0],
    EXPERT_FLAGS = sizeof expert_flags / sizeof expert_flags[0]
};

static bool write_experts(const mha_experts_desc *x, json_t *root)
{
    json_t *object = json_object();
    bool good = mhai_put(root, "experts", object);
    for (int i = 0; good && i < EXPERT_COUNTS; i++) {
        int64_t value;
        memcpy(&value, (const char *)x + expert_counts[i].offset, sizeof value);
        good = mhai_put_count(object, expert_counts[i].name, value);
    }
    for (int i = 0; good && i < EXPERT_FLAGS; i++)
        good = mhai_put_bool(object, expert_flags[i].name, x->flags & expert_flags[i].flag);
    if (x->groups > 1)
        good = good && mhai_put_count(object, "groups", x->groups) &&
               mhai_put_count(object, "groups_used", x->groups_used);
    return good && mhai_put(object, "scale", mhai_json_real(x->scale)) &&
           mhai_put(object, "sum_epsilon", mhai_json_real(x->sum_epsilon));
}

static bool is_expert_key(const char *key)
{
    bool known = strcmp(key, "scale") == 0 || strcmp(key, "sum_epsilon") == 0 ||
                 strcmp(key, "groups") == 0 || strcmp(key, "groups_used") == 0;
    for (int i = 0; i < EXPERT_COUNTS; i++)
        known = known || strcmp(key, expert_counts[i].name) == 0;
    for (int i = 0; i < EXPERT_FLAGS; i++) known = known || strcmp(key, expert_flags[i].name) == 0;
    return known;
}

/* An unknown setting would change the results. */
static mha_status check_keys(const mhai_config *config, json_t *object, bool (*knows)(const char *))
{
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        if (!knows(key))
            return mhai_path_fail(MHA_ERR_UNSUPPORTED, config->path,
                                  "'%s' is not known to this version of multihead",
                                  mhai_show_name(key).text);
    }
    return MHA_OK;
}

static mha_status read_experts(const mhai_config *config, mha_experts_desc *x)
{
    json_t *object = json_object_get(config->root, "experts");
    const mhai_config own = {config->path, object};
    if (!object) return MHA_OK;
    if (!json_is_object(object))
        return mhai_config_fail(MHA_ERR_MODEL, config, "experts", "is not an object");
    MHA_TRY(check_keys(&own, object, is_expert_key));
    for (int i = 0; i < EXPERT_COUNTS; i++) {
        int64_t value;
        MHA_TRY(mhai_config_count(&own, expert_counts[i].name, expert_counts[i].low,
                                  expert_counts[i].high, &value));
        memcpy((char *)x + expert_counts[i].offset, &value, sizeof value);
    }
    for (int i = 0; i < EXPERT_FLAGS; i++) {
        bool set;
        MHA_TRY(mhai_config_bool(&own, expert_flags[i].name, false, &set));
        if (set) x->flags |= expert_flags[i].flag;
    }
    int64_t groups, used;
    MHA_TRY(mhai_config_optional(&own, "groups", 1, UINT16_MAX, 1, &groups));
    MHA_TRY(mhai_config_optional(&own, "groups_used", 1, UINT16_MAX, 1, &used));
    x->groups = (uint16_t)groups;
    x->groups_used = (uint16_t)used;
    MHA_TRY(mhai_config_float(&own, "scale", &x->scale));
    return mhai_config_float(&own, "sum_epsilon", &x->sum_epsilon);
}

/* ---- the settings of a layer ----------------------------------------------------------------- */

/* Omit the parameters that a layer does not have. */
static bool write_layer(const mha_layer_desc *l, json_t *root)
{
    bool good = !(l->flags & MHA_LAYER_QK_NORM) ||
                mhai_put_text(root, "qk_norm_kind", qk_norms[l->qk_norm]);
    if (l->rope_scaling)
        good = good && mhai_put_text(root, "rope_scaling", scalings[l->rope_scaling]);
    if (l->mixer)
        good = good && mhai_put_text(root, "mixer", mixers[l->mixer]) &&
               mhai_put_count(root, "conv_kernel", l->conv_kernel);
    for (int i = 0; i < LAYER_FLAGS; i++)
        if (l->flags & layer_flags[i].flag)
            good = good && mhai_put_bool(root, layer_flags[i].name, true);
    for (int i = 0; i < LAYER_COUNTS; i++) {
        int64_t value;
        memcpy(&value, (const char *)l + layer_counts[i].offset, sizeof value);
        if (value) good = good && mhai_put_count(root, layer_counts[i].name, value);
    }
    for (int i = 0; i < LAYER_REALS; i++) {
        float value;
        memcpy(&value, (const char *)l + layer_reals[i].offset, sizeof value);
        if (value < 0 || value > 0)
            good = good && mhai_put(root, layer_reals[i].name, mhai_json_real(value));
    }
    return good && (l->experts.count == 0 || write_experts(&l->experts, root));
}

static bool write_layers(const mha_transformer_desc *d, json_t *root)
{
    json_t *list = json_array();
    bool good = mhai_put(root, "layers", list);
    for (int64_t i = 0; good && i < d->num_layers; i++) {
        json_t *layer = json_object();
        good = json_array_append_new(list, layer) == 0 && write_layer(&d->layers[i], layer);
    }
    return good;
}

static bool is_layer_key(const char *key)
{
    bool known = strcmp(key, "qk_norm_kind") == 0 || strcmp(key, "rope_scaling") == 0 ||
                 strcmp(key, "mixer") == 0 || strcmp(key, "conv_kernel") == 0 ||
                 strcmp(key, "experts") == 0;
    for (int i = 0; i < LAYER_FLAGS; i++) known = known || strcmp(key, layer_flags[i].name) == 0;
    for (int i = 0; i < LAYER_COUNTS; i++) known = known || strcmp(key, layer_counts[i].name) == 0;
    for (int i = 0; i < LAYER_REALS; i++) known = known || strcmp(key, layer_reals[i].name) == 0;
    return known;
}

static mha_status read_layer(const mhai_config *config, mha_layer_desc *l)
{
    int kind;
    *l = (mha_layer_desc){.struct_size = sizeof *l};
    MHA_TRY(mhai_config_choice(config, "qk_norm_kind", qk_norms[0], qk_norms, 2, &kind));
    l->qk_norm = (mha_qk_norm_kind)kind;
    MHA_TRY(mhai_config_choice(config, "rope_scaling", scalings[0], scalings, SCALINGS, &kind));
    l->rope_scaling = (mha_rope_scaling)kind;
    MHA_TRY(mhai_config_choice(config, "mixer", mixers[0], mixers, MIXERS, &kind));
    l->mixer = (mha_mixer)kind;
    int64_t kernel;
    MHA_TRY(mhai_config_optional(config, "conv_kernel", 1, MHA_CONVOLUTION_MOST, 0, &kernel));
    l->conv_kernel = (int32_t)kernel;
    for (int i = 0; i < LAYER_FLAGS; i++) {
        bool set;
        MHA_TRY(mhai_config_bool(config, layer_flags[i].name, false, &set));
        if (set) l->flags |= layer_flags[i].flag;
    }
    for (int i = 0; i < LAYER_COUNTS; i++) {
        int64_t value;
        MHA_TRY(mhai_config_optional(config, layer_counts[i].name, layer_counts[i].low,
                                     layer_counts[i].high, 0, &value));
        memcpy((char *)l + layer_counts[i].offset, &value, sizeof value);
    }
    for (int i = 0; i < LAYER_REALS; i++) {
        float value;
        MHA_TRY(mhai_config_float(config, layer_reals[i].name, &value));
        memcpy((char *)l + layer_reals[i].offset, &value, sizeof value);
    }
    return read_experts(config, &l->experts);
}

/* Read parameters of layers other than projections. They are absent if no layer has them. */
static mha_status read_layers(const mhai_config *config, mhai_family_plan *plan)
{
    mha_transformer_desc *d = &plan->desc;
    const json_t *list = json_object_get(config->root, "layers");
    if (mhai_config_absent(config, "layers")) return MHA_OK;
    if (!json_is_array(list) || (int64_t)json_array_size(list) != d->num_layers)
        return mhai_path_fail(MHA_ERR_MODEL, config->path,
                              "'layers' is not a list of %lld objects, one for each layer",
                              (long long)d->num_layers);
    plan->layers = calloc((size_t)d->num_layers, sizeof *plan->layers);
    if (!plan->layers) return mha_fail(MHA_ERR_NOMEM, "checkpoint: cannot allocate its tables");
    for (int64_t i = 0; i < d->num_layers; i++) {
        char where[256];
        json_t *object = json_array_get(list, (size_t)i);
        const mhai_config layer = {where, object};
        snprintf(where, sizeof where, "%s: layers[%lld]", mhai_show_path(config->path).text,
                 (long long)i);
        if (!json_is_object(object)) return mha_fail(MHA_ERR_MODEL, "%s: is not an object", where);
        MHA_TRY(check_keys(&layer, object, is_layer_key));
        MHA_TRY(read_layer(&layer, &plan->layers[i]));
    }
    d->layers = plan->layers;
    return MHA_OK;
}

/* ---- the model ----------------------------------------------------------------------------- */

/* The number of divisors in each of the lists of rope_factors; 0: there are none. */
static int64_t count_factors(const mha_transformer_desc *d)
{
    for (int64_t i = 0; d->layers && i < d->num_layers; i++)
        if (d->layers[i].rope_scaling == MHA_ROPE_SCALING_LONG) {
            const int64_t rotated = d->layers[i].rotary_dim;
            return (rotated ? rotated : mha_transformer_head_dim(d, i)) / 2;
        }
    return 0;
}

static bool write_factors(const mha_transformer_desc *d, json_t *root)
{
    const int64_t count = 2 * count_factors(d);
    json_t *list = count ? json_array() : NULL;
    if (count == 0) return true;
    for (int64_t i = 0; list && i < count; i++)
        if (json_array_append_new(list, mhai_json_real(d->rope_factors[i])) != 0) {
            json_decref(list);
            return false;
        }
    return mhai_put(root, "rope_factors", list);
}

static mha_status read_factors(const mhai_config *config, mhai_family_plan *plan)
{
    const int64_t count = 2 * count_factors(&plan->desc);
    if (count == 0) return MHA_OK;
    plan->rope_factors = calloc((size_t)count, sizeof *plan->rope_factors);
    if (!plan->rope_factors) return MHA_NO_MEMORY("model");
    plan->desc.rope_factors = plan->rope_factors;
    return mhai_read_factors(config, "rope_factors", count, plan->rope_factors);
}

static bool write_own(const mha_transformer_desc *d, json_t *root)
{
    bool good =
        (d->type_count == 0 || mhai_put_count(root, "type_count", d->type_count)) &&
        (d->feature_dim == 0 || mhai_put_count(root, "feature_dim", d->feature_dim)) &&
        (d->grid_rows == 0 || (mhai_put_count(root, "grid_rows", d->grid_rows) &&
                               mhai_put_count(root, "grid_cols", d->grid_cols) &&
                               mhai_put_count(root, "grid_first", d->grid_first))) &&
        (!d->layers || write_layers(d, root)) && write_factors(d, root) &&
        (!d->layer_heads || (put_list(root, "layer_heads", d->layer_heads, d->num_layers) &&
                             put_list(root, "layer_kv_heads", d->layer_kv_heads, d->num_layers))) &&
        mhai_put_list_of_one(root, "architectures", "MultiheadTransformer") &&
        mhai_put_count(root, "vocab_size", d->vocab_size) &&
        mhai_put_count(root, "max_length", d->max_length) &&
        mhai_put_count(root, "embed_dim", d->embed_dim) &&
        mhai_put_count(root, "num_layers", d->num_layers) &&
        mhai_put_count(root, "num_heads", d->num_heads) &&
        mhai_put_count(root, "kv_heads", d->kv_heads) &&
        mhai_put_count(root, "head_dim", d->head_dim) &&
        mhai_put_count(root, "ff_dim", d->ff_dim) &&
        mhai_put_count(root, "memory_dim", d->memory_dim) &&
        (d->token_dim == d->embed_dim || mhai_put_count(root, "token_dim", d->token_dim)) &&
        mhai_put_text(root, "norm", norms[d->norm]) &&
        mhai_put_text(root, "positions", positions[d->positions]) &&
        mhai_put_text(root, "feed_forward", feed_forwards[d->feed_forward]) &&
        mhai_put(root, "norm_epsilon", mhai_json_real(d->norm_epsilon)) &&
        mhai_put(root, "rope_base", mhai_json_real(d->rope_base));
    for (int i = 0; i < SCALES; i++) {
        float value;
        memcpy(&value, (const char *)d + scales[i].offset, sizeof value);
        if (value < scales[i].usual || value > scales[i].usual)
            good = good && mhai_put(root, scales[i].name, mhai_json_real(value));
    }
    if (mhai_desc_has(d, MHA_TRANSFORMER_PADDING))
        good = good && mhai_put_count(root, "padding_token", d->padding_token);
    for (int i = 0; i < FLAGS; i++) /* write newer fields only if set, so that older versions can
                                     * read the file */
        if (mhai_desc_has(d, flags[i].flag) || flags[i].flag <= MHA_TRANSFORMER_NO_OUTPUT)
            good = good && mhai_put_bool(root, flags[i].name, mhai_desc_has(d, flags[i].flag));
    return good;
}

static mha_status read_own_kinds(const mhai_config *config, mha_transformer_desc *d)
{
    int norm, position, feed_forward;
    int64_t padding;
    MHA_TRY(mhai_config_choice(config, "norm", NULL, norms, 3, &norm));
    MHA_TRY(mhai_config_choice(config, "positions", NULL, positions, 4, &position));
    MHA_TRY(mhai_config_choice(config, "feed_forward", feed_forwards[0], feed_forwards,
                               sizeof feed_forwards / sizeof *feed_forwards, &feed_forward));
    d->norm = (mha_norm)norm;
    d->positions = (mha_position_encoding)position;
    d->feed_forward = (mha_feed_forward)feed_forward;
    MHA_TRY(mhai_config_real(config, "norm_epsilon", 1e-5, 0, 1, &d->norm_epsilon));
    MHA_TRY(mhai_config_real(config, "rope_base", 1e4, 1, 3e38, &d->rope_base));
    for (int i = 0; i < SCALES; i++) {
        float value;
        MHA_TRY(mhai_config_float(config, scales[i].name, &value));
        memcpy((char *)d + scales[i].offset, &value, sizeof value);
    }
    MHA_TRY(mhai_config_optional(config, "padding_token", 0, INT32_MAX, 0, &padding));
    d->padding_token = (int32_t)padding;
    for (int i = 0; i < FLAGS; i++) {
        bool set;
        MHA_TRY(mhai_config_bool(config, flags[i].name, false, &set));
        if (set) d->flags |= flags[i].flag;
    }
    return MHA_OK;
}

/* Read num_layers integers of 0 .. most. */
static mha_status read_list(const mhai_config *config, const char *key, int64_t count, int64_t most,
                            int64_t *numbers)
{
    const json_t *list = json_object_get(config->root, key);
    if (!json_is_array(list) || (int64_t)json_array_size(list) != count)
        return mhai_config_fail(MHA_ERR_MODEL, config, key,
                                "is not a list of %lld numbers, one for each layer",
                                (long long)count);
    for (int64_t i = 0; i < count; i++) {
        const json_t *value = json_array_get(list, (size_t)i);
        numbers[i] = (int64_t)json_integer_value(value);
        if (!json_is_integer(value) || numbers[i] < 0 || numbers[i] > most)
            return mhai_config_fail(MHA_ERR_MODEL, config, key,
                                    "number %lld is not a whole number from 0 to %lld",
                                    (long long)i, (long long)most);
    }
    return MHA_OK;
}

/* Require num_heads to be the largest number of any layer: no weight would confirm a larger one. */
mha_status mhai_read_heads(const mhai_config *config, mhai_family_plan *plan)
{
    mha_transformer_desc *d = &plan->desc;
    int64_t most = 1;
    if (mhai_config_absent(config, "layer_heads") && mhai_config_absent(config, "layer_kv_heads"))
        return MHA_OK;
    plan->head_lists = calloc((size_t)d->num_layers, 2 * sizeof *plan->head_lists);
    if (!plan->head_lists) return mha_fail(MHA_ERR_NOMEM, "checkpoint: cannot allocate its tables");
    int64_t *heads = plan->head_lists, *kv = heads + d->num_layers;
    MHA_TRY(read_list(config, "layer_heads", d->num_layers, d->num_heads, heads));
    MHA_TRY(read_list(config, "layer_kv_heads", d->num_layers, d->num_heads, kv));
    for (int64_t i = 0; i < d->num_layers; i++)
        if (heads[i] > most) most = heads[i];
    d->layer_heads = heads;
    d->layer_kv_heads = kv;
    if (most == d->num_heads || mhai_desc_has(d, MHA_TRANSFORMER_CROSS)) return MHA_OK;
    return mhai_path_fail(MHA_ERR_MODEL, config->path,
                          "'num_heads' is %lld, but no layer has more than %lld",
                          (long long)d->num_heads, (long long)most);
}

static mha_status read_own(const mhai_config *config, mhai_family_plan *plan)
{
    mha_transformer_desc *d = &plan->desc;
    MHA_TRY(mhai_config_count(config, "vocab_size", 1, MHAI_MOST_ENTRIES, &d->vocab_size));
    MHA_TRY(mhai_config_count(config, "max_length", 1, MHAI_MOST_POSITIONS, &d->max_length));
    MHA_TRY(mhai_config_count(config, "embed_dim", 1, MHAI_MOST_WIDTH, &d->embed_dim));
    MHA_TRY(mhai_config_count(config, "num_layers", 1, MHAI_MOST_LAYERS, &d->num_layers));
    MHA_TRY(mhai_config_count(config, "num_heads", 1, MHAI_MOST_WIDTH, &d->num_heads));
    MHA_TRY(mhai_config_optional(config, "kv_heads", 1, MHAI_MOST_WIDTH, 0, &d->kv_heads));
    MHA_TRY(mhai_config_optional(config, "head_dim", 1, MHAI_MOST_WIDTH, 0, &d->head_dim));
    MHA_TRY(mhai_config_optional(config, "ff_dim", 0, MHAI_MOST_WIDTH, 0, &d->ff_dim));
    MHA_TRY(mhai_config_optional(config, "memory_dim", 0, MHAI_MOST_WIDTH, 0, &d->memory_dim));
    MHA_TRY(mhai_config_optional(config, "token_dim", 0, MHAI_MOST_WIDTH, 0, &d->token_dim));
    MHA_TRY(mhai_config_optional(config, "type_count", 0, MHAI_MOST_ENTRIES, 0, &d->type_count));
    MHA_TRY(mhai_config_optional(config, "feature_dim", 0, MHAI_MOST_WIDTH, 0, &d->feature_dim));
    MHA_TRY(mhai_config_optional(config, "grid_rows", 0, MHAI_MOST_WIDTH, 0, &d->grid_rows));
    MHA_TRY(mhai_config_optional(config, "grid_cols", 0, MHAI_MOST_WIDTH, 0, &d->grid_cols));
    MHA_TRY(mhai_config_optional(config, "grid_first", 0, MHAI_MOST_WIDTH, 0, &d->grid_first));
    MHA_TRY(read_own_kinds(config, d));
    MHA_TRY(mhai_read_heads(config, plan));
    MHA_TRY(read_layers(config, plan));
    return read_factors(config, plan);
}

static bool ignores_none(const mhai_family_plan *plan, const char *name)
{
    (void)plan;
    (void)name;
    return false;
}

static const mhai_shape_keys own_keys = {"embed_dim",  "num_layers", "num_heads",
                                         "max_length", "kv_heads",   "causal"};

const mhai_family mhai_family_multihead = {.model_type = "multihead",
                                           .keys = &own_keys,
                                           .bias_key = "bias",
                                           .grouped = true,
                                           .layers = "layers.",
                                           .prefix = "",
                                           .names = own_names,
                                           .fits = fits_own,
                                           .write = write_own,
                                           .read = read_own,
                                           .ignores = ignores_none};
