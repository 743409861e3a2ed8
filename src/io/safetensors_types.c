/* See safetensors_types.h. Types without an mha_dtype are included, so that files with such tensors
 * can be opened and checked. */
#include "io/safetensors_types.h"

#include <string.h>

static const mhai_safetensors_type types[] = {
    {"F32", 32, true, MHA_F32},    {"F64", 64, true, MHA_F64},
    {"F16", 16, true, MHA_F16},    {"BF16", 16, true, MHA_BF16},
    {"I8", 8, true, MHA_I8},       {"U8", 8, true, MHA_U8},
    {"I32", 32, true, MHA_I32},    {"I64", 64, true, MHA_I64},
    {"BOOL", 8, true, MHA_U8}, /* after U8, because u8 is written as the first match */
    {"I16", 16, false, MHA_U8},    {"U16", 16, false, MHA_U8},
    {"U32", 32, false, MHA_U8},    {"U64", 64, false, MHA_U8},
    {"C64", 64, false, MHA_U8},    {"F8_E4M3", 8, false, MHA_U8},
    {"F8_E5M2", 8, false, MHA_U8}, {"F8_E8M0", 8, false, MHA_U8},
    {"F6_E2M3", 6, false, MHA_U8}, {"F6_E3M2", 6, false, MHA_U8},
    {"F4", 4, false, MHA_U8},
};

enum { TYPES = sizeof types / sizeof types[0] };

const mhai_safetensors_type *mhai_safetensors_find_type(const char *name)
{
    for (int i = 0; i < TYPES; i++)
        if (strcmp(types[i].name, name) == 0) return &types[i];
    return NULL;
}

const char *mhai_safetensors_type_name(mha_dtype dtype)
{
    for (int i = 0; i < TYPES; i++)
        if (types[i].known && types[i].dtype == dtype) return types[i].name;
    return NULL;
}
