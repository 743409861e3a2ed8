/* Fields of config.json: read, each checked for presence, type and range, where null counts as
 * absent; and written. */
#ifndef MHAI_MODEL_CONFIG_H
#define MHAI_MODEL_CONFIG_H

#include "io/file.h"

#include <jansson.h>

typedef struct mhai_config {
    const char *path; /* of the file, for messages */
    const json_t *root;
} mhai_config;

/* A member of root: an object with what messages call fields, for what was not read from a
 * config.json. No file has it, since it is not UTF-8. */
#define MHAI_CONFIG_NAMES "\xff"
mhai_shown mhai_config_name(const mhai_config *config, const char *key);

/* mha_fail() with "PATH: 'KEY' " before the text. */
mha_status mhai_config_fail(mha_status status, const mhai_config *config, const char *key,
                            const char *format, ...) MHA_PRINTF(4, 5);

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

/* The same for every key of a list that ends with NULL. */
MHA_NODISCARD mha_status mhai_config_refuse(const mhai_config *config, const char *const *keys);

bool mhai_config_absent(const mhai_config *config, const char *key);

/* A whole number from low to high; fallback if absent. */
MHA_NODISCARD mha_status mhai_config_optional(const mhai_config *config, const char *key,
                                              int64_t low, int64_t high, int64_t fallback,
                                              int64_t *value);

MHA_NODISCARD mha_status mhai_config_bool(const mhai_config *config, const char *key, bool fallback,
                                          bool *value);

/* A number that becomes a float, from low to high and not 0. */
MHA_NODISCARD mha_status mhai_config_real(const mhai_config *config, const char *key,
                                          double fallback, double low, double high, float *value);

/* Any number that becomes a finite float; 0 if absent. */
MHA_NODISCARD mha_status mhai_config_float(const mhai_config *config, const char *key,
                                           float *value);

/* The place of a text field among count known ones. */
MHA_NODISCARD mha_status mhai_config_choice(const mhai_config *config, const char *key,
                                            const char *fallback, const char *const *known,
                                            int count, int *choice);

/* Set a member of a JSON object; false: no memory. value may be NULL and is used up. */
bool mhai_put(json_t *object, const char *key, json_t *value);
bool mhai_put_count(json_t *object, const char *key, int64_t value);
bool mhai_put_bool(json_t *object, const char *key, bool value);
bool mhai_put_text(json_t *object, const char *key, const char *value);
bool mhai_put_list_of_one(json_t *object, const char *key, const char *value);

/* A float as the shortest decimal number that gives it back. */
json_t *mhai_json_real(float value);

#endif
