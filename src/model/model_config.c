/* See model_config.h. */
#include "model/model_config.h"

#include <multihead/component.h>

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const json_t *find(const mhai_config *config, const char *key)
{
    const json_t *value = json_object_get(config->root, key);
    return json_is_null(value) ? NULL : value;
}

mhai_shown mhai_config_name(const mhai_config *config, const char *key)
{
    const json_t *names = json_object_get(config->root, MHAI_CONFIG_NAMES);
    const char *own = json_string_value(json_object_get(names, key));
    return mhai_show_name(own ? own : key);
}

mha_status mhai_config_fail(mha_status status, const mhai_config *config, const char *key,
                            const char *format, ...)
{
    char text[512]; /* mha_fail() keeps this many bytes */
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return mhai_path_fail(status, config->path, "'%s' %s", mhai_config_name(config, key).text,
                          text);
}

static mha_status missing(const mhai_config *config, const char *key)
{
    return mhai_config_fail(MHA_ERR_MODEL, config, key,
                            "is missing; use the config.json that came with the weights");
}

mha_status mhai_config_count(const mhai_config *config, const char *key, int64_t low, int64_t high,
                             int64_t *value)
{
    const json_t *found = find(config, key);
    if (!found) return missing(config, key);
    if (!json_is_integer(found))
        return mhai_config_fail(MHA_ERR_MODEL, config, key, "is not a whole number");
    *value = (int64_t)json_integer_value(found);
    if (*value < low || *value > high)
        return mhai_config_fail(MHA_ERR_MODEL, config, key, "is %lld, expected %lld..%lld",
                                (long long)*value, (long long)low, (long long)high);
    return MHA_OK;
}

mha_status mhai_config_number(const mhai_config *config, const char *key, double fallback,
                              double *value)
{
    const json_t *found = find(config, key);
    *value = found ? json_number_value(found) : fallback;
    if (found && !json_is_number(found))
        return mhai_config_fail(MHA_ERR_MODEL, config, key, "is not a number");
    if (!(*value >= 0) || isinf(*value))
        return mhai_config_fail(MHA_ERR_MODEL, config, key,
                                "is %g, expected a finite number from 0 on", *value);
    return MHA_OK;
}

mha_status mhai_config_text(const mhai_config *config, const char *key, const char *fallback,
                            const char **value)
{
    const json_t *found = find(config, key);
    if (!found && !fallback) return missing(config, key);
    if (found && !json_is_string(found))
        return mhai_config_fail(MHA_ERR_MODEL, config, key, "is not a string");
    *value = found ? json_string_value(found) : fallback;
    return MHA_OK;
}

mha_status mhai_config_unset(const mhai_config *config, const char *key)
{
    const json_t *found = find(config, key);
    if (!found || json_is_false(found)) return MHA_OK;
    if ((json_is_array(found) && json_array_size(found) == 0) ||
        (json_is_object(found) && json_object_size(found) == 0))
        return MHA_OK;
    return mhai_config_fail(MHA_ERR_UNSUPPORTED, config, key,
                            "is set, and models that use it are not supported");
}

bool mhai_config_absent(const mhai_config *config, const char *key)
{
    const json_t *value = json_object_get(config->root, key);
    return !value || json_is_null(value);
}

mha_status mhai_config_optional(const mhai_config *config, const char *key, int64_t low,
                                int64_t high, int64_t fallback, int64_t *value)
{
    *value = fallback;
    return mhai_config_absent(config, key) ? MHA_OK
                                           : mhai_config_count(config, key, low, high, value);
}

mha_status mhai_config_bool(const mhai_config *config, const char *key, bool fallback, bool *value)
{
    const json_t *found = json_object_get(config->root, key);
    *value = mhai_config_absent(config, key) ? fallback : json_is_true(found);
    if (mhai_config_absent(config, key) || json_is_boolean(found)) return MHA_OK;
    return mhai_config_fail(MHA_ERR_MODEL, config, key, "is neither true nor false");
}

mha_status mhai_config_real(const mhai_config *config, const char *key, double fallback, double low,
                            double high, float *value)
{
    double number = 0;
    MHA_TRY(mhai_config_number(config, key, fallback, &number));
    *value = number <= high ? (float)number : 0;
    if (*value > 0 && number >= low && number <= high) return MHA_OK;
    return mhai_config_fail(MHA_ERR_MODEL, config, key, "is %g, expected %s %g, at most %g", number,
                            low > 0 ? "at least" : "more than", low, high);
}

mha_status mhai_config_float(const mhai_config *config, const char *key, float *value)
{
    const json_t *found = find(config, key);
    const double number = found ? json_number_value(found) : 0;
    const double most = 3.4028235e38; /* FLT_MAX in decimal, rounded up */
    *value = 0;
    if (found && (!json_is_number(found) || !(fabs(number) <= most)))
        return mhai_config_fail(MHA_ERR_MODEL, config, key, "is not a number that fits in a float");
    *value = (float)number;
    return MHA_OK;
}

mha_status mhai_config_choice(const mhai_config *config, const char *key, const char *fallback,
                              const char *const *known, int count, int *choice)
{
    const char *text = NULL;
    char list[128] = "";
    MHA_TRY(mhai_config_text(config, key, fallback, &text));
    for (int i = 0; i < count; i++) {
        *choice = i;
        if (strcmp(text, known[i]) == 0) return MHA_OK;
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "", known[i]);
    }
    return mhai_path_fail(MHA_ERR_UNSUPPORTED, config->path, "%s '%s' is not supported; known: %s",
                          mhai_config_name(config, key).text, mhai_show_name(text).text, list);
}

mha_status mhai_config_refuse(const mhai_config *config, const char *const *keys)
{
    for (; *keys; keys++) MHA_TRY(mhai_config_unset(config, *keys));
    return MHA_OK;
}

/* ---- writing ------------------------------------------------------------------------------- */

bool mhai_put(json_t *object, const char *key, json_t *value)
{
    return json_object_set_new(object, key, value) == 0;
}

json_t *mhai_json_real(float value)
{
    char text[40];
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (!(strtof(text, NULL) < value) && !(strtof(text, NULL) > value)) break;
    }
    return json_real(strtod(text, NULL));
}

bool mhai_put_count(json_t *root, const char *key, int64_t value)
{
    return mhai_put(root, key, json_integer(value));
}

bool mhai_put_bool(json_t *root, const char *key, bool value)
{
    return mhai_put(root, key, json_boolean(value));
}

bool mhai_put_text(json_t *root, const char *key, const char *value)
{
    return mhai_put(root, key, json_string(value));
}

bool mhai_put_list_of_one(json_t *root, const char *key, const char *value)
{
    json_t *list = json_array();
    if (list && json_array_append_new(list, json_string(value)) == 0)
        return mhai_put(root, key, list);
    json_decref(list);
    return false;
}
