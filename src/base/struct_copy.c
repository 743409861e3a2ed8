/* See base.h and need.h. The rules are those of copy_struct_from_user() in Linux:
 * fields are only appended, zero means the old behaviour, and a nonzero field that this build
 * does not know is an error. */
#include "base/need.h"

#include <multihead/component.h>

#include <string.h>

/* Fields consist of aligned units of 4 or 8 bytes, so every valid size is a multiple of 8
 * (of 4 with 32-bit pointers). The limit is far above the size of any struct and rejects
 * most uninitialised sizes. */
enum { UNIT = sizeof(void *) < 8 ? 4 : 8, MOST_BYTES = 4096 };

mha_status mha_struct_check_size(const char *name, uint32_t size, size_t least)
{
    if (size >= least && size % UNIT == 0 && size <= MOST_BYTES) return MHA_OK;
    return mha_fail(MHA_ERR_ARGUMENT, "%s: struct_size is %u, set it to sizeof(%s)", name,
                    (unsigned)size, name);
}

mha_status mha_struct_read(const char *name, void *own, size_t own_size, size_t first_size,
                           const void *caller, uint32_t size)
{
    memset(own, 0, own_size);
    if (!caller) return MHA_OK;
    MHA_TRY(mha_struct_check_size(name, size, first_size));
    for (size_t i = own_size; i < size; i++)
        if (((const unsigned char *)caller)[i] != 0)
            return mha_fail(MHA_ERR_UNSUPPORTED,
                            "%s: byte %zu is set, but this library knows only %zu bytes of it",
                            name, i, own_size);
    memcpy(own, caller, size < own_size ? size : own_size);
    return MHA_OK;
}

mha_status mhai_struct_copy(const char *name, void *own, size_t own_size, size_t first_size,
                            const void *caller)
{
    uint32_t size = 0;
    if (caller) memcpy(&size, caller, sizeof size);
    return mha_struct_read(name, own, own_size, first_size, caller, size);
}
