/* The rotations of a family's layers, read from config.json. */
#include "io/file.h"
#include "model/arch/family.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const mhai_rope_kind usual_rope = {.base = "rope_theta",
                                          .part = "partial_rotary_factor",
                                          .usual_base = 1e4,
                                          .usual_part = 1,
                                          .scales = true};

const mhai_rope_kind mhai_half_rope = {.base = "rope_theta",
                                       .part = "partial_rotary_factor",
                                       .usual_base = 1e4,
                                       .usual_part = 0.5,
                                       .scales = true};

static bool same_value(const json_t *a, const json_t *b)
{
    if (!json_is_number(a) || !json_is_number(b)) return json_equal(a, b);
    return json_number_value(a) == json_number_value(b);
}

/* One place where config.json may hold a field. */
typedef struct rope_place {
    const mhai_config *config;
    const char *level; /* the name in messages */
    bool passed;       /* transformers reads another level */
} rope_place;

/* Add a field `name` that transformers reads only if no earlier level has it. A value that differs
 * from the earlier one is an error: a reader of config.json may use either. "default" counts as
 * absent. */
static mha_status add_field(const rope_place *place, const char *name, const char *key,
                            json_t *value, json_t *rope)
{
    char taken[64] = "none";
    const json_t *found = json_object_get(rope, key);
    if (found ? same_value(found, value) : !place->passed)
        return json_object_set_nocheck(rope, key, value) == 0 ? MHA_OK : MHA_NO_MEMORY("model");
    if (json_is_string(value) && strcmp(json_string_value(value), "default") == 0) return MHA_OK;
    if (json_is_number(found)) snprintf(taken, sizeof taken, "%.9g", json_number_value(found));
    if (json_is_string(found)) snprintf(taken, sizeof taken, "%.60s", json_string_value(found));
    return mhai_path_fail(MHA_ERR_MODEL, place->config->path,
                          "'%s' in %s differs from the value that transformers uses (%s); keep "
                          "only the value that the model was trained with",
                          mhai_config_name(place->config, name).text, place->level,
                          mhai_show_name(taken).text);
}

static mha_status add_object(const rope_place *place, json_t *object, json_t *rope)
{
    const char *key;
    json_t *value;
    if (object && !json_is_null(object) && !json_is_object(object))
        return mhai_path_fail(MHA_ERR_MODEL, place->config->path, "'%s' is not a JSON object",
                              place->level);
    json_object_foreach(object, key, value)
    {
        if (json_is_object(value) && strcmp(key, MHAI_CONFIG_NAMES) != 0)
            return mhai_path_fail(MHA_ERR_UNSUPPORTED, place->config->path,
                                  "'%s' in %s is an object, which no layer of this model reads",
                                  mhai_show_name(key).text, place->level);
        if (!place->passed || !json_is_null(value))
            MHA_TRY(add_field(place, key, key, value, rope));
    }
    return MHA_OK;
}

/* Add a field at the top level of config.json. */
static mha_status add_outer(const mhai_config *config, const char *name, const char *key,
                            json_t *rope)
{
    const rope_place place = {config, "config.json itself", false};
    if (!name || mhai_config_absent(config, name)) return MHA_OK;
    return add_field(&place, name, key, json_object_get(config->root, name), rope);
}

static mha_status add_usual(const char *key, double value, json_t *rope)
{
    const mhai_config made = {"", rope};
    if (!mhai_config_absent(&made, key)) return MHA_OK;
    return mhai_put(rope, key, json_real(value)) ? MHA_OK : MHA_NO_MEMORY("model");
}

mha_status mhai_require_rope(const mhai_config *config)
{
    const json_t *scaling = json_object_get(config->root, "rope_scaling");
    const bool empty = json_is_object(scaling) && json_object_size(scaling) == 0;
    if (!mhai_config_absent(config, "rope_parameters") ||
        (!mhai_config_absent(config, "rope_scaling") && !empty))
        return MHA_OK;
    return mhai_path_fail(MHA_ERR_MODEL, config->path,
                          "'rope_parameters' and 'rope_scaling' are both missing or empty");
}

mha_status mhai_rope_number(const mhai_config *config, const char *key, double fallback,
                            double *value)
{
    static const char *const places[] = {"rope_scaling", "rope_parameters"};
    *value = fallback;
    for (int i = 0; i < 2; i++) {
        const mhai_config rope = {config->path, json_object_get(config->root, places[i])};
        MHA_TRY(mhai_config_number(&rope, key, *value, value));
    }
    return MHA_OK;
}

/* If the usual part is smaller than the head, transformers does not treat null as absent. */
static mha_status check_part(const mhai_config *config, const mhai_rope_kind *kind, json_t *rope)
{
    static const char part[] = "partial_rotary_factor";
    const mhai_config made = {"", rope};
    if (!(kind->usual_part < 1) || !json_is_null(json_object_get(config->root, part)) ||
        !mhai_config_absent(&made, part))
        return MHA_OK;
    return mhai_config_fail(MHA_ERR_UNSUPPORTED, config, part,
                            "is null; set the fraction of each head that rotates");
}

/* Check fields outside the objects for the types of layers. */
static mha_status check_nested(const mhai_config *config, json_t *objects)
{
    const char *key;
    json_t *value;
    json_object_foreach(objects, key, value)
    {
        if (!json_is_object(value) && !json_is_null(value))
            return mhai_path_fail(MHA_ERR_MODEL, config->path,
                                  "'%s' in rope_parameters belongs to no type of layer; move it "
                                  "into full_attention or sliding_attention",
                                  mhai_show_name(key).text);
    }
    return MHA_OK;
}

/* Collect the fields of a rotation in one object, in transformers' order of precedence: the object
 * for a type of layers, rope_parameters or else rope_scaling, the top level of config.json. */
static mha_status find_rope(const mhai_config *config, const mhai_rope_kind *kind, json_t *rope)
{
    static const char original[] = "original_max_position_embeddings";
    json_t *names = json_object_get(config->root, MHAI_CONFIG_NAMES);
    json_t *scaling = json_object_get(config->root, "rope_scaling");
    json_t *given = json_object_get(config->root, "rope_parameters");
    const rope_place above = {config, "rope_scaling", false};
    const rope_place place = {config, "rope_parameters",
                              !kind->layers && json_object_size(scaling) > 0};
    if (names) {
        json_t *own = json_copy(names),
               *base = kind->base ? json_object_get(names, kind->base) : NULL;
        if (json_object_set_new_nocheck(rope, MHAI_CONFIG_NAMES, own) != 0 ||
            (base && json_object_set(own, "rope_theta", base) != 0))
            return MHA_NO_MEMORY("model");
    }
    if (kind->layers && json_is_object(given)) {
        MHA_TRY(check_nested(config, given));
        given = json_object_get(given, kind->layers);
    }
    if (kind->scales) MHA_TRY(add_object(&above, scaling, rope));
    if (!place.passed) MHA_TRY(add_object(&place, given, rope));
    if (!kind->layers) MHA_TRY(add_outer(config, original, original, rope));
    MHA_TRY(add_outer(config, kind->base, "rope_theta", rope));
    MHA_TRY(add_outer(config, kind->part, "partial_rotary_factor", rope));
    MHA_TRY(check_part(config, kind, rope));
    MHA_TRY(add_usual("rope_theta", kind->usual_base, rope));
    MHA_TRY(add_usual("partial_rotary_factor", kind->usual_part, rope));
    if (kind->layers) return MHA_OK;
    MHA_TRY(add_outer(config, "rope_theta", "rope_theta", rope));
    MHA_TRY(add_outer(config, "partial_rotary_factor", "partial_rotary_factor", rope));
    return place.passed ? add_object(&place, given, rope) : MHA_OK;
}

/* transformers before 4.43 calls rope_type "type". The three positions of "mrope" are equal for
 * texts. */
static mha_status read_type(const mhai_config *rope, bool old, const char *const *types, int count,
                            int *type)
{
    const char *text;
    const bool named = !old || !mhai_config_absent(rope, "rope_type");
    MHA_TRY(mhai_config_choice(rope, named ? "rope_type" : "type", types[0], types, count, type));
    MHA_TRY(mhai_config_text(rope, "type", types[0], &text));
    if (*type == 1) *type = 0;
    if (strcmp(text, types[0]) == 0 || strcmp(text, types[*type]) == 0 ||
        strcmp(text, types[1]) == 0)
        return MHA_OK;
    return mhai_path_fail(MHA_ERR_MODEL, rope->path,
                          "'type' is '%s', rope_type is '%s'; keep only the one that the model was "
                          "trained with",
                          mhai_show_name(text).text, types[*type]);
}

/* The numbers of a head of a layer that may rotate. */
static int64_t rotating_width(const mha_transformer_desc *d, int64_t layer)
{
    if (d->layers && d->layers[layer].latent_dim > 0) return d->layers[layer].shared_dim;
    return mha_transformer_head_dim(d, layer);
}

static mha_status read_float(const mhai_config *rope, const char *key, double fallback,
                             float *value)
{
    double number;
    MHA_TRY(mhai_config_number(rope, key, fallback, &number));
    *value = (float)number;
    return isfinite(*value) ? MHA_OK
                            : mhai_config_fail(MHA_ERR_MODEL, rope, key,
                                               "is %g, which float32 cannot represent", number);
}

/* The factor of cosines and sines in YaRN; 0: the default of mha_layer_desc. */
static mha_status read_amplitude(const mhai_config *config, mha_layer_desc *rope)
{
    double scale, all;
    MHA_TRY(mhai_config_number(config, "mscale", 0, &scale));
    MHA_TRY(mhai_config_number(config, "mscale_all_dim", 0, &all));
    if (!mhai_config_absent(config, "attention_factor"))
        return mhai_config_real(config, "attention_factor", 1, 0, 1e6, &rope->rope_amplitude);
    if (!(scale > 0) || !(all > 0)) return MHA_OK;
    const double step = rope->rope_factor > 1 ? 0.1 * mha_log((double)rope->rope_factor) : 0;
    rope->rope_amplitude = (float)((step * scale + 1) / (step * all + 1));
    return MHA_OK;
}

static mha_status read_scaled(const mhai_config *config, const mha_transformer_desc *d,
                              mha_layer_desc *rope)
{
    const bool yarn = rope->rope_scaling == MHA_ROPE_SCALING_YARN;
    const char *low = yarn ? "beta_slow" : "low_freq_factor";
    const char *high = yarn ? "beta_fast" : "high_freq_factor";
    static const char original[] = "original_max_position_embeddings";
    bool rounds;
    double length;
    MHA_TRY(mhai_config_number(config, original, (double)d->max_length, &length));
    if (!(length >= 1 && length <= MHAI_MOST_POSITIONS))
        return mhai_config_fail(MHA_ERR_MODEL, config, original, "is %g, expected 1..%d", length,
                                MHAI_MOST_POSITIONS);
    rope->rope_original_length = (int64_t)length;
    MHA_TRY(read_float(config, low, 1, &rope->rope_low));
    MHA_TRY(read_float(config, high, yarn ? 32 : 4, &rope->rope_high));
    if (rope->rope_low > 0 && rope->rope_high > 0 &&
        !(yarn ? rope->rope_high >= rope->rope_low : rope->rope_high > rope->rope_low))
        return mhai_config_fail(MHA_ERR_MODEL, config, high, "is %g, expected %s '%s' %g",
                                (double)rope->rope_high, yarn ? "at least" : "more than",
                                mhai_config_name(config, low).text, (double)rope->rope_low);
    if (!yarn) return MHA_OK;
    /* transformers treats null as false */
    MHA_TRY(
        mhai_config_bool(config, "truncate", !json_object_get(config->root, "truncate"), &rounds));
    if (!rounds) rope->flags |= MHA_LAYER_ROPE_EXACT_RAMP;
    return read_amplitude(config, rope);
}

mha_status mhai_read_factors(const mhai_config *config, const char *key, int64_t count,
                             float *factors)
{
    const json_t *list = json_object_get(config->root, key);
    if (!json_is_array(list) || (int64_t)json_array_size(list) != count)
        return mhai_config_fail(MHA_ERR_MODEL, config, key,
                                "is not a list of %lld numbers, one for each pair that rotates",
                                (long long)count);
    for (int64_t i = 0; i < count; i++) {
        const json_t *number = json_array_get(list, (size_t)i);
        factors[i] = (float)json_number_value(number);
        if (!json_is_number(number) || !(factors[i] > 0) || isinf(factors[i]))
            return mhai_config_fail(MHA_ERR_MODEL, config, key,
                                    "holds a value that is not a number above 0, for pair %lld",
                                    (long long)i);
    }
    return MHA_OK;
}

/* LongRoPE. As in transformers the amplitude follows from the factor, and the factor from the
 * lengths. border: the default of the original length. */
static mha_status read_long(const mhai_config *config, const mha_transformer_desc *d,
                            int64_t border, mha_layer_desc *rope)
{
    static const char original[] = "original_max_position_embeddings";
    double length, factor;
    MHA_TRY(mhai_config_number(config, original, (double)border, &length));
    if (!(length >= 2 && length <= MHAI_MOST_POSITIONS))
        return mhai_config_fail(MHA_ERR_MODEL, config, original, "is %g, expected 2..%d", length,
                                MHAI_MOST_POSITIONS);
    MHA_TRY(mhai_config_number(config, "factor", (double)d->max_length / length, &factor));
    const double usual = factor > 1 ? sqrt(1 + mha_log(factor) / mha_log(length)) : 1;
    rope->rope_original_length = (int64_t)length;
    return mhai_config_real(config, "attention_factor", usual, 0, 1e6, &rope->rope_amplitude);
}

/* For an odd number n transformers rotates n + 1 elements with frequencies base^(-2 i / n). An even
 * rotation with base base^((n + 1) / n) has the same frequencies, and llama3 scaling sees the same
 * number of turns. */
static mha_status set_part(const mhai_config *config, const mhai_family *family, int64_t rotated,
                           const char *type, mha_layer_desc *rope)
{
    const double n = (double)rotated, base = (double)rope->rope_base;
    rope->rotary_dim = rotated + rotated % 2;
    if (rotated % 2 == 0) return MHA_OK;
    rope->rope_base = (float)mha_exp((n + 1) / n * mha_log(base));
    if (!family->even && strcmp(type, "yarn") != 0 && strcmp(type, "longrope") != 0 &&
        strcmp(type, "su") != 0 && isfinite(rope->rope_base))
        return MHA_OK;
    return mhai_config_fail(MHA_ERR_UNSUPPORTED, config, "partial_rotary_factor",
                            "rotates an odd number, %lld, of a head's numbers, which is not "
                            "supported in %s models with rope_type '%s' and rope_theta %g",
                            (long long)rotated, family->model_type, type, base);
}

static bool is_proportional(const mhai_config *config)
{
    const char *type = json_string_value(json_object_get(config->root, "rope_type"));
    return type && strcmp(type, "proportional") == 0;
}

/* The first pairs of a head rotate with the frequencies of whole heads. */
static mha_status read_proportional(const mhai_config *config, int64_t width, mha_layer_desc *rope)
{
    static const char part[] = "partial_rotary_factor";
    double share;
    MHA_TRY(mhai_config_real(config, "rope_theta", 1e4, 1, 1e30, &rope->rope_base));
    MHA_TRY(mhai_config_real(config, "factor", 1, 1e-6, 1e6, &rope->rope_factor));
    MHA_TRY(mhai_config_number(config, part, 1, &share));
    rope->rotary_dim = width;
    rope->rope_pairs = share <= 1 ? (int64_t)(share * (double)width / 2) : 0;
    if (rope->rope_pairs > 0 && width % 2 == 0) return MHA_OK;
    return mhai_config_fail(MHA_ERR_MODEL, config, part,
                            "is %g, expected a number up to 1 that rotates 1 pair or more of a "
                            "head's %lld numbers, an even number",
                            share, (long long)width);
}

/* Dynamic scaling (NTK) changes the base only for texts beyond max_position_embeddings; longer
 * texts are rejected. */
static mha_status read_rotation(const mhai_config *config, const mhai_family *family, bool old,
                                const mha_transformer_desc *d, int64_t layer, mha_layer_desc *rope)
{
    const bool partial = family->partial;
    static const char *const types[] = {"default", "mrope", "dynamic",  "linear",
                                        "llama3",  "yarn",  "longrope", "su"};
    static const char part[] = "partial_rotary_factor";
    const double width = (double)rotating_width(d, layer);
    double share;
    int type;
    *rope = (mha_layer_desc){.struct_size = sizeof *rope};
    if (family->proportional && is_proportional(config))
        return read_proportional(config, (int64_t)width, rope);
    MHA_TRY(read_type(config, old, types, family->lengths ? 8 : family->longrope ? 7 : 6, &type));
    MHA_TRY(read_float(config, "rope_theta", 1e4, &rope->rope_base));
    if (!(rope->rope_base >= 1))
        return mhai_config_fail(MHA_ERR_MODEL, config, "rope_theta", "is %g, expected 1 or more",
                                (double)rope->rope_base);
    MHA_TRY(mhai_config_number(config, part, 1, &share));
    if (family->proportional && type == 0) share = 1; /* as in transformers */
    const int64_t rotated = (int64_t)(width * fmin(share, 1));
    if ((share < 1 && !partial) || share > 1 || rotated < 1)
        return mhai_config_fail(share <= 1 && !partial ? MHA_ERR_UNSUPPORTED : MHA_ERR_MODEL,
                                config, part,
                                "rotates %g of a head's %g numbers; this kind of model rotates %s",
                                floor(width * share), width, partial ? "1 or more" : "whole heads");
    if (rotated % 2 && !(share < 1))
        return mhai_path_fail(MHA_ERR_MODEL, config->path,
                              "heads have %lld numbers, an odd one, which cannot rotate in pairs",
                              (long long)rotated);
    if (share < 1) MHA_TRY(set_part(config, family, rotated, types[type], rope));
    if (type < 3) return MHA_OK;
    rope->rope_scaling = (mha_rope_scaling)(type - 3);
    if (type > 5 ||
        (family->lengths && type > 4)) { /* transformers calls any of Phi 3's longrope */
        rope->rope_scaling = MHA_ROPE_SCALING_LONG;
        return read_long(config, d, family->lengths ? 4096 : d->max_length, rope);
    }
    if (mhai_config_absent(config, "factor"))
        return mhai_path_fail(MHA_ERR_MODEL, config->path,
                              "'factor' is missing beside rope_type '%s'", types[type]);
    MHA_TRY(mhai_config_real(config, "factor", 1, 1e-6, 1e6, &rope->rope_factor));
    return type == 3 ? MHA_OK : read_scaled(config, d, rope);
}

/* The divisors of frequencies in LongRoPE, for texts up to the original length and for longer
 * ones. */
static mha_status read_factor_lists(const mhai_config *config, const mha_layer_desc *rope,
                                    mhai_family_plan *plan)
{
    const mha_transformer_desc *d = &plan->desc;
    const int64_t width = rotating_width(d, 0);
    const int64_t pairs = (rope->rotary_dim ? rope->rotary_dim : width) / 2;
    if (rope->rope_scaling != MHA_ROPE_SCALING_LONG) return MHA_OK;
    plan->rope_factors = calloc((size_t)pairs, 2 * sizeof *plan->rope_factors);
    if (!plan->rope_factors) return MHA_NO_MEMORY("model");
    plan->desc.rope_factors = plan->rope_factors;
    MHA_TRY(mhai_read_factors(config, "short_factor", pairs, plan->rope_factors));
    return mhai_read_factors(config, "long_factor", pairs, plan->rope_factors + pairs);
}

static mha_status read_kind(const mhai_config *config, const mhai_rope_kind *kind, int64_t layer,
                            mhai_family_plan *plan, mha_layer_desc *rope)
{
    const mhai_family *family;
    json_t *fields = json_object();
    const mhai_config found = {config->path, fields};
    mha_status status = fields ? mhai_family_find(config, false, &family) : MHA_NO_MEMORY("model");
    if (status == MHA_OK && !kind) kind = family->rope ? family->rope : &usual_rope;
    if (status == MHA_OK) status = find_rope(config, kind, fields);
    if (status == MHA_OK)
        status = read_rotation(&found, family, !kind->layers, &plan->desc, layer, rope);
    if (status == MHA_OK && kind->layers && (rope->flags & MHA_LAYER_ROPE_EXACT_RAMP))
        status = mhai_config_fail(MHA_ERR_UNSUPPORTED, &found, "truncate",
                                  "of '%s' is not true; transformers ignores it there, so remove "
                                  "it",
                                  kind->layers);
    if (status == MHA_OK) status = read_factor_lists(&found, rope, plan);
    json_decref(fields);
    return status;
}

void mhai_set_rotation(mha_layer_desc *layer, const mha_layer_desc *rope)
{
    layer->flags |= rope->flags;
    layer->rotary_dim = rope->rotary_dim;
    layer->rope_pairs = rope->rope_pairs;
    layer->rope_base = rope->rope_base;
    layer->rope_factor = rope->rope_factor;
    layer->rope_scaling = rope->rope_scaling;
    layer->rope_low = rope->rope_low;
    layer->rope_high = rope->rope_high;
    layer->rope_amplitude = rope->rope_amplitude;
    layer->rope_original_length = rope->rope_original_length;
}

mha_status mhai_read_rope(const mhai_config *config, mhai_family_plan *plan)
{
    mha_layer_desc rope;
    MHA_TRY(read_kind(config, NULL, 0, plan, &rope));
    plan->desc.rope_base = rope.rope_base;
    if (!rope.rotary_dim && rope.rope_factor == 0 && !rope.rope_scaling && !plan->layers)
        return MHA_OK;
    MHA_TRY(mhai_plan_layers(plan));
    for (int64_t i = 0; i < plan->desc.num_layers; i++)
        if (!plan->layers[i].mixer && !(plan->layers[i].flags & MHA_LAYER_NO_ROPE))
            mhai_set_rotation(&plan->layers[i], &rope);
    return MHA_OK;
}

mha_status mhai_read_ropes(const mhai_config *config, const mhai_rope_kind kinds[2],
                           mhai_family_plan *plan)
{
    MHA_TRY(mhai_plan_layers(plan));
    for (int kind = 0; kind < 2; kind++) {
        mha_layer_desc rope;
        const int64_t layers = plan->desc.num_layers;
        int64_t first = 0;
        while (first < layers - 1 && mhai_slides(plan, first) != kind) first++;
        MHA_TRY(read_kind(config, &kinds[kind], first, plan, &rope));
        for (int64_t i = first; i < layers; i++) {
            if (mhai_slides(plan, i) != kind) continue;
            if (plan->layers[i].head_dim != plan->layers[first].head_dim)
                return mhai_path_fail(
                    MHA_ERR_UNSUPPORTED, config->path,
                    "heads of layers %lld and %lld, which rotate alike, differ in "
                    "size",
                    (long long)first, (long long)i);
            mhai_set_rotation(&plan->layers[i], &rope);
        }
    }
    return MHA_OK;
}
