/* The element types of safetensors. */
#ifndef MHAI_SAFETENSORS_TYPES_H
#define MHAI_SAFETENSORS_TYPES_H

#include <multihead/base.h>

typedef struct mhai_safetensors_type {
    const char *name;
    int bits;
    bool known; /* mha_dtype has this type */
    mha_dtype dtype;
} mhai_safetensors_type;

/* The type with this name; NULL if the format has none. */
const mhai_safetensors_type *mhai_safetensors_find_type(const char *name);

/* The name used for writing dtype; NULL for an unknown dtype. */
const char *mhai_safetensors_type_name(mha_dtype dtype);

#endif
