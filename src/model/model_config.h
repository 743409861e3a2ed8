/* Fields of config.json, each checked for presence, type and range. null counts as absent. */
#ifndef MHAI_MODEL_CONFIG_H
#define MHAI_MODEL_CONFIG_H

#include <multihead/base.h>

#include <jansson.h>

typedef struct mhai_config {
    const char *path; /* of the file, for messages */
    const json_t *root;
} mhai_config;

/* A required whole number from low to high. */
MHA_NODISCARD mha_status mhai_config_count(const mhai_config *config, const char *key, int64_t low,
                                           int64_t high, int64_t *value);

/* A finite number from 0 on; fallback if absent. */
MHA_NODISCARD mha_status mhai_config_number(const mhai_config *config, const char *key,
                                            double fallback, double *value);

/* A text; fallback if absent, and if that is NULL, the field is required. The text belongs to
 * root. */
MHA_NODISCARD mha_status mhai_config_text(const mhai_config *config, const char *key,
                                          const char *fallback, const char **value);

/* Refuse a model that has key set to anything but null, false, or an empty list or object: an
 * option that would change its results and that we do not have. */
MHA_NODISCARD mha_status mhai_config_unset(const mhai_config *config, const char *key);

#endif
