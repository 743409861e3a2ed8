/* See model_config.h. */
#include "model/model_config.h"

#include "io/file.h"

#include <multihead/component.h>

#include <math.h>

static const json_t *find(const mhai_config *config, const char *key)
{
    const json_t *value = json_object_get(config->root, key);
    return json_is_null(value) ? NULL : value;
}

static mha_status missing(const mhai_config *config, const char *key)
{
    return mha_fail(MHA_ERR_MODEL,
                    "%s: '%s' is missing; take the config.json that came with the "
                    "weights",
                    mhai_show_path(config->path).text, key);
}

mha_status mhai_config_count(const mhai_config *config, const char *key, int64_t low, int64_t high,
                             int64_t *value)
{
    const json_t *found = find(config, key);
    if (!found) return missing(config, key);
    if (!json_is_integer(found))
        return mha_fail(MHA_ERR_MODEL, "%s: '%s' is not a whole number",
                        mhai_show_path(config->path).text, key);
    *value = (int64_t)json_integer_value(found);
    if (*value < low || *value > high)
        return mha_fail(MHA_ERR_MODEL, "%s: '%s' is %lld, expected %lld..%lld",
                        mhai_show_path(config->path).text, key, (long long)*value, (long long)low,
                        (long long)high);
    return MHA_OK;
}

mha_status mhai_config_number(const mhai_config *config, const char *key, double fallback,
                              double *value)
{
    const json_t *found = find(config, key);
    *value = found ? json_number_value(found) : fallback;
    if (found && !json_is_number(found))
        return mha_fail(MHA_ERR_MODEL, "%s: '%s' is not a number",
                        mhai_show_path(config->path).text, key);
    if (!(*value >= 0) || isinf(*value))
        return mha_fail(MHA_ERR_MODEL, "%s: '%s' is %g, expected a finite number from 0 on",
                        mhai_show_path(config->path).text, key, *value);
    return MHA_OK;
}

mha_status mhai_config_text(const mhai_config *config, const char *key, const char *fallback,
                            const char **value)
{
    const json_t *found = find(config, key);
    if (!found && !fallback) return missing(config, key);
    if (found && !json_is_string(found))
        return mha_fail(MHA_ERR_MODEL, "%s: '%s' is not a text", mhai_show_path(config->path).text,
                        key);
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
    return mha_fail(MHA_ERR_UNSUPPORTED,
                    "%s: '%s' is set, and models that use it are not supported",
                    mhai_show_path(config->path).text, key);
}
