/* A GGUF file while gguf_config.c makes a config.json of its metadata. */
#ifndef MHAI_GGUF_READING_H
#define MHAI_GGUF_READING_H

#include "model/arch/family.h"

#include <multihead/gguf.h>

typedef struct mhai_gguf_reading {
    const mha_gguf *file;
    const char *path;
    const char *name; /* of the architecture: keys begin with it */
    const struct architecture *of;
    json_t *root, *names; /* names: root's, of fields */
} mhai_gguf_reading;

/* A count of root; 0: there is none. */
int64_t mhai_gguf_count(const mhai_gguf_reading *r, const char *field);

/* The value of "llama.KEY"; false: there is none. */
bool mhai_gguf_key(const mhai_gguf_reading *r, const char *key, mha_gguf_value *value);

mha_status mhai_gguf_refuse(const mhai_gguf_reading *r, const mha_gguf_value *value,
                            const char *why);

/* A number, or an array of equal numbers. */
mha_status mhai_gguf_number(const mhai_gguf_reading *r, const mha_gguf_value *value, bool real,
                            json_t **number);

/* Copy a value into a field of object; messages name the key. */
mha_status mhai_gguf_take(const mhai_gguf_reading *r, const mha_gguf_value *value, bool real,
                          json_t *object, const char *field);

/* Set the rotation in root, after its heads and widths. */
mha_status mhai_gguf_rotation(const mhai_gguf_reading *r);

#endif
