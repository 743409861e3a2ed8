/* The rotation in a GGUF file: its width, factors and scaling. */
#include "io/file.h"
#include "model/gguf_reading.h"

#include <multihead/component.h>

#include <math.h>
#include <string.h>

/* Read how many elements of a head are rotated. */
static mha_status read_width(const mhai_gguf_reading *r, int64_t *rotated)
{
    const int64_t heads = mhai_gguf_count(r, "num_attention_heads");
    const int64_t width = mhai_gguf_count(r, "head_dim") ? mhai_gguf_count(r, "head_dim")
                          : heads > 0                    ? mhai_gguf_count(r, "hidden_size") / heads
                                                         : 0;
    mha_gguf_value value;
    json_t *number;
    double part = 1;
    *rotated = width;
    if (mhai_gguf_key(r, "rope.dimension_count", &value)) {
        MHA_TRY(mhai_gguf_number(r, &value, false, &number));
        *rotated = (int64_t)json_integer_value(number);
        json_decref(number);
        if (*rotated < 1 || (width > 0 && *rotated > width))
            return mhai_path_fail(MHA_ERR_MODEL, r->path,
                                  "'%s' is %lld, expected 1..%lld, the size of a head", value.key,
                                  (long long)*rotated, (long long)width);
        /* add 0.5, because a quotient rounded down would lose one element */
        if (*rotated < width) part = ((double)*rotated + 0.5) / (double)width;
        if (!mhai_put_text(r->names, "partial_rotary_factor", value.key))
            return MHA_NO_MEMORY("model");
    }
    return mhai_put(r->root, "partial_rotary_factor", json_real(part)) &&
                   mhai_put(r->root, "rotary_pct", json_real(part))
               ? MHA_OK
               : MHA_NO_MEMORY("model");
}

/* Create rope_scaling, which the functions below fill in, with the names of
 * its fields for messages. */
static mha_status begin_scaling(const mhai_gguf_reading *r, const char *type, json_t **scaling)
{
    *scaling = json_object();
    return mhai_put(r->root, "rope_scaling", *scaling) &&
                   mhai_put_text(*scaling, "rope_type", type) &&
                   json_object_set_nocheck(*scaling, MHAI_CONFIG_NAMES, r->names) == 0
               ? MHA_OK
               : MHA_NO_MEMORY("model");
}

/* Recover Llama 3's scaling. llama.cpp's converters replace it by the resulting factor of each
 * pair, always with low 1, high 4 and 8192 positions.
 *
 * They compute in float32 (unit roundoff u). The turns of a pair over these positions have a
 * relative error of at most 20 u: 16 u from base^(2 i / R), whose exponent is up to 13, and 4 u
 * from four more operations. For slow pairs, the slope of the factor f in the turns is at most
 * f / 3. The quotient adds 4 u. */
static mha_status read_factors(const mhai_gguf_reading *r, int64_t rotated, bool *found)
{
    static const double low = 1, high = 4, length = 8192, pi = 3.14159265358979323846;
    const json_t *given = json_object_get(r->root, "rope_theta");
    const double base = given ? json_number_value(given) : 1e4;
    const int64_t at = mha_gguf_find(r->file, "rope_freqs.weight");
    mha_gguf_tensor factors;
    float last, factor;
    json_t *scaling;
    *found = at >= 0;
    if (!*found) return MHA_OK;
    MHA_TRY(mha_gguf_describe(r->file, at, &factors));
    bool same = strcmp(r->name, "llama") == 0 && factors.type == MHA_GGUF_F32 &&
                factors.count == rotated / 2 && base > 1;
    if (same) MHA_TRY(mha_gguf_read(r->file, at, factors.count - 1, 1, &last));
    same = same && last >= 1 && last <= 1e6F;
    for (int64_t i = 0; same && i < factors.count; i++) {
        const double turns =
            length / (2 * pi) * mha_exp(-2 * (double)i / (double)rotated * mha_log(base));
        const double fast = fmin(fmax((turns - low) / (high - low), 0), 1);
        const double exact = 1 / ((1 - fast) / (double)last + fast);
        MHA_TRY(mha_gguf_read(r->file, at, i, 1, &factor));
        same = fabs((double)factor / exact - 1) <= (20 * (double)last / 3 + 4) * 0x1p-24;
    }
    if (!same)
        return mhai_path_fail(MHA_ERR_UNSUPPORTED, r->path,
                              "the factors of 'rope_freqs.weight' are not those of Llama 3.1 (low "
                              "1, high 4, 8192 positions); use the model's folder");
    MHA_TRY(begin_scaling(r, "llama3", &scaling));
    return mhai_put(scaling, "factor", json_real((double)last)) &&
                   mhai_put_text(r->names, "factor", factors.name) &&
                   mhai_put(scaling, "low_freq_factor", json_real(low)) &&
                   mhai_put(scaling, "high_freq_factor", json_real(high)) &&
                   mhai_put_count(scaling, "original_max_position_embeddings", (int64_t)length)
               ? MHA_OK
               : MHA_NO_MEMORY("model");
}

/* Read one list of LongRoPE's factors. */
static mha_status read_list(const mhai_gguf_reading *r, const char *name, const char *field,
                            json_t *scaling)
{
    const int64_t at = mha_gguf_find(r->file, name);
    mha_gguf_tensor factors;
    json_t *list = json_array();
    if (!mhai_put(scaling, field, list) || !mhai_put_text(r->names, field, name))
        return MHA_NO_MEMORY("model");
    if (at < 0) return mhai_path_fail(MHA_ERR_MODEL, r->path, "weight '%s' is missing", name);
    MHA_TRY(mha_gguf_describe(r->file, at, &factors));
    for (int64_t i = 0; i < factors.count && i < MHAI_MOST_WIDTH; i++) {
        float factor;
        MHA_TRY(mha_gguf_read(r->file, at, i, 1, &factor));
        if (!isfinite(factor)) factor = 0; /* is rejected with the name of the list */
        if (json_array_append_new(list, json_real((double)factor)) != 0)
            return MHA_NO_MEMORY("model");
    }
    return MHA_OK;
}

/* LongRoPE: factors for texts up to the original length, and for longer ones. The keys
 * scaling.type and scaling.factor are absent. */
static mha_status read_long(const mhai_gguf_reading *r)
{
    static const char original[] = "original_max_position_embeddings";
    mha_gguf_value value;
    json_t *scaling;
    if (strcmp(r->name, "phi3") != 0 && strcmp(r->name, "minicpm3") != 0)
        return mhai_path_fail(
            MHA_ERR_UNSUPPORTED, r->path,
            "'rope_factors_long.weight', factors of a rotation by the length of "
            "the text, is supported in phi3 and minicpm3 alone; use the model's folder");
    MHA_TRY(begin_scaling(r, "longrope", &scaling));
    if (mhai_gguf_key(r, "rope.scaling.original_context_length", &value))
        MHA_TRY(mhai_gguf_take(r, &value, false, r->root, original));
    if (mhai_gguf_key(r, "rope.scaling.attn_factor", &value))
        MHA_TRY(mhai_gguf_take(r, &value, true, scaling, "attention_factor"));
    MHA_TRY(read_list(r, "rope_factors_short.weight", "short_factor", scaling));
    return read_list(r, "rope_factors_long.weight", "long_factor", scaling);
}

/* Reject llama.cpp's other rotation factors unless they have no effect. */
static mha_status refuse_others(const mhai_gguf_reading *r, bool yarn)
{
    const bool latent = r->traits & MHAI_GGUF_LATENT;
    const struct {
        const char *key;
        double same;
    } others[] = {{"rope.scaling.alpha", 0},
                  {"rope.scaling.yarn_log_multiplier", 0},
                  {"rope.scaling.yarn_ext_factor", yarn ? 1 : 0},
                  /* transformers stores the amplitude; llama.cpp stores nothing
                   * or a factor of it */
                  {"rope.scaling.yarn_attn_factor", NAN},
                  {"rope.scaling.attn_factor", 1}}; /* supported by YaRN */
    for (int i = 0; i < (yarn ? 4 : 5); i++) {
        mha_gguf_value value;
        double x;
        if (!mhai_gguf_key(r, others[i].key, &value) || (latent && yarn && i == 1)) continue;
        MHA_TRY(mha_gguf_real(&value, 0, &x));
        if (!(x >= others[i].same) || x > others[i].same)
            return mhai_gguf_refuse(r, &value, "is not supported");
    }
    return MHA_OK;
}

/* The scale of scores has a factor (multiplier ln factor + 1)^2. Cosines and sines have none, as if
 * mscale were mscale_all_dim. */
static mha_status read_multiplier(const mhai_gguf_reading *r, json_t *scaling)
{
    static const char key[] = "rope.scaling.yarn_log_multiplier";
    mha_gguf_value value;
    double x = 0;
    if (json_object_get(scaling, "attention_factor") &&
        mhai_gguf_key(r, "rope.scaling.attn_factor", &value))
        return mhai_gguf_refuse(r, &value, "is not supported");
    if (mhai_gguf_key(r, key, &value)) MHA_TRY(mha_gguf_real(&value, 0, &x));
    if (!(x >= 0) || isinf(x)) return mhai_gguf_refuse(r, &value, "is not a number of 0 or more");
    return mhai_put(scaling, "attention_factor", json_real(1)) &&
                   mhai_put(scaling, "mscale_all_dim", json_real(10 * x))
               ? MHA_OK
               : MHA_NO_MEMORY("model");
}

/* Read YaRN's numbers. Missing ones have the same defaults as in this library. attn_factor
 * multiplies the amplitude. */
static mha_status read_yarn(const mhai_gguf_reading *r, json_t *scaling)
{
    /* gpt-oss was trained with a ramp whose ends are not rounded; files do not say it */
    if (strcmp(r->name, "gpt-oss") == 0 && !mhai_put_bool(scaling, "truncate", false))
        return MHA_NO_MEMORY("model");
    static const struct {
        const char *key, *field;
    } numbers[] = {{"rope.scaling.original_context_length", "original_max_position_embeddings"},
                   {"rope.scaling.yarn_beta_fast", "beta_fast"},
                   {"rope.scaling.yarn_beta_slow", "beta_slow"},
                   {"rope.scaling.attn_factor", "attention_factor"}};
    mha_gguf_value value;
    for (int i = 0; i < 4; i++)
        if (mhai_gguf_key(r, numbers[i].key, &value))
            MHA_TRY(mhai_gguf_take(r, &value, i > 0, scaling, numbers[i].field));
    if (r->traits & MHAI_GGUF_LATENT) return read_multiplier(r, scaling);
    const json_t *times = json_object_get(scaling, "attention_factor");
    const double factor = json_real_value(json_object_get(scaling, "factor"));
    const double usual = factor > 1 ? 0.1 * mha_log(factor) + 1 : 1;
    return !times ||
                   mhai_put(scaling, "attention_factor", json_real(json_real_value(times) * usual))
               ? MHA_OK
               : MHA_NO_MEMORY("model");
}

/* Read the scaling. As in llama.cpp, its default type is linear. */
static mha_status read_scaling(const mhai_gguf_reading *r, bool factors)
{
    const char *text = "linear";
    size_t size = 6;
    char type[8] = "";
    mha_gguf_value value, scale;
    json_t *scaling;
    const bool typed = mhai_gguf_key(r, "rope.scaling.type", &value);
    const bool scaled =
        mhai_gguf_key(r, "rope.scaling.factor", &scale) ||
        mhai_gguf_key(r, "rope.scale_linear", &scale); /* in files older than scaling.type */
    if (typed) MHA_TRY(mha_gguf_string(&value, 0, &text, &size));
    memcpy(type, text, size < sizeof type ? size : 0);
    const bool yarn = strcmp(type, "yarn") == 0;
    MHA_TRY(refuse_others(r, yarn));
    if ((!typed && !scaled) || strcmp(type, "none") == 0) return MHA_OK;
    if (factors || !scaled || (!yarn && strcmp(type, "linear") != 0))
        return mhai_path_fail(
            MHA_ERR_UNSUPPORTED, r->path,
            "'%s.rope.scaling.type' is not supported here; known: none, linear and yarn with a "
            "factor and without rope_freqs.weight; use the model's folder",
            r->name);
    MHA_TRY(begin_scaling(r, type, &scaling));
    MHA_TRY(mhai_gguf_take(r, &scale, true, scaling, "factor"));
    return yarn ? read_yarn(r, scaling) : MHA_OK;
}

mha_status mhai_gguf_rotation(const mhai_gguf_reading *r)
{
    int64_t rotated;
    bool factors;
    MHA_TRY(read_width(r, &rotated));
    if (mha_gguf_find(r->file, "rope_factors_long.weight") >= 0) return read_long(r);
    MHA_TRY(read_factors(r, rotated, &factors));
    return read_scaling(r, factors);
}
