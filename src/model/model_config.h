/* Reading fields of config.json with checks of presence, type and range (null counts as
 * absent), and writing them. */
#ifndef MHAI_MODEL_CONFIG_H
#define MHAI_MODEL_CONFIG_H

#include "io/file.h"

#include <jansson.h>

typedef struct mhai_config {
    const char *path; /* path of the file, for messages */
    const json_t *root;
} mhai_config;

/* A member of root with the names that messages use for its fields. Present if the configuration
 * does not come from a config.json. Its key is not UTF-8, so no file can contain it. */
#define MHAI_CONFIG_NAMES "\xff"
mhai_shown mhai_config_name(const mhai_config *config, const char *key);

/* mha_fail() with the prefix "PATH: 'KEY' ". */
mha_status mhai_config_fail(mha_status status, const mhai_config *config, const char *key,
                            const char *format, ...) MHA_PRINTF(4, 5);

/* Read a required integer from low to high. */
MHA_NODISCARD mha_status mhai_config_count(const mhai_config *config, const char *key, int64_t low,
                                           int64_t high, int64_t *value);

/* Read a finite number of at least 0; fallback if absent. */
MHA_NODISCARD mha_status mhai_config_number(const mhai_config *config, const char *key,
                                            double fallback, double *value);

/* Read a string, owned by root; fallback if absent. It is required if fallback is NULL. */
MHA_NODISCARD mha_status mhai_config_text(const mhai_config *config, const char *key,
                                          const char *fallback, const char **value);

/* Reject a model that sets an unsupported option, which would change its results. null, false, and
 * empty lists or objects count as unset. */
MHA_NODISCARD mha_status mhai_config_unset(const mhai_config *config, const char *key);

/* The same for a list of keys, ended by NULL. */
MHA_NODISCARD mha_status mhai_config_refuse(const mhai_config *config, const char *const *keys);

bool mhai_config_absent(const mhai_config *config, const char *key);

/* Read an integer from low to high; fallback if absent. */
MHA_NODISCARD mha_status mhai_config_optional(const mhai_config *config, const char *key,
                                              int64_t low, int64_t high, int64_t fallback,
                                              int64_t *value);

MHA_NODISCARD mha_status mhai_config_bool(const mhai_config *config, const char *key, bool fallback,
                                          bool *value);

/* Read a number from low to high that is not 0 as a float. */
MHA_NODISCARD mha_status mhai_config_real(const mhai_config *config, const char *key,
                                          double fallback, double low, double high, float *value);

/* Read any number that is a finite float; 0 if absent. */
MHA_NODISCARD mha_status mhai_config_float(const mhai_config *config, const char *key,
                                           float *value);

/* Return the index of a string among count known values. */
MHA_NODISCARD mha_status mhai_config_choice(const mhai_config *config, const char *key,
                                            const char *fallback, const char *const *known,
                                            int count, int *choice);

/* Set a member of a JSON object; false: out of memory. Consumes value even
 * then. value may be NULL. */
bool mhai_put(json_t *object, const char *key, json_t *value);
bool mhai_put_count(json_t *object, const char *key, int64_t value);
bool mhai_put_bool(json_t *object, const char *key, bool value);
bool mhai_put_text(json_t *object, const char *key, const char *value);
bool mhai_put_list_of_one(json_t *object, const char *key, const char *value);

/* The shortest decimal number that is read back as the same float. */
json_t *mhai_json_real(float value);

#endif
