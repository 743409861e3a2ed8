/* See struct_copy.h. The rule is that of Linux' copy_struct_from_user: append only, zero keeps the
 * old meaning, and a set field that this build does not know is an error, never ignored. */
#include "base/struct_copy.h"

#include <multihead/component.h>

#include <string.h>

mha_status mhai_struct_copy(const char *name, void *own, size_t own_size, size_t first_size,
                            const void *caller)
{
    memset(own, 0, own_size);
    if (!caller) return MHA_OK;
    uint32_t size;
    memcpy(&size, caller, sizeof size);
    if (size < first_size)
        return mha_fail(MHA_ERR_ARGUMENT, "%s: struct_size is %u, set it to sizeof(%s)", name,
                        (unsigned)size, name);
    for (size_t i = own_size; i < size; i++)
        if (((const unsigned char *)caller)[i] != 0)
            return mha_fail(MHA_ERR_UNSUPPORTED,
                            "%s: byte %zu is set, but this library knows only %zu bytes of it",
                            name, i, own_size);
    memcpy(own, caller, size < own_size ? size : own_size);
    return MHA_OK;
}
