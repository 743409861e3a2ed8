/* Checks of arguments. */
#ifndef MHAI_BASE_NEED_H
#define MHAI_BASE_NEED_H

#include <multihead/component.h>

/* mha_struct_read() for structs that begin with struct_size. */
MHA_NODISCARD mha_status mhai_struct_copy(const char *name, void *own, size_t own_size,
                                          size_t first_size, const void *caller);

/* MHA_ERR_UNSUPPORTED if flags of the struct or function `of` are unknown, or a reserved field is
 * set. */
mha_status mhai_check_flags(const char *of, uint32_t flags, uint32_t known);
mha_status mhai_check_reserved(const char *of, uint32_t reserved);

mha_status mhai_range_fail(const char *name, int64_t index, int64_t value, int64_t least,
                           int64_t most);

/* MHA_ERR_ARGUMENT unless least <= value <= most (INT64_MAX: no limit); an entry is name[index]. */
static inline mha_status mhai_check_entry(const char *name, int64_t index, int64_t value,
                                          int64_t least, int64_t most)
{
    return value >= least && value <= most ? MHA_OK
                                           : mhai_range_fail(name, index, value, least, most);
}

static inline mha_status mhai_check_range(const char *name, int64_t value, int64_t least,
                                          int64_t most)
{
    return mhai_check_entry(name, -1, value, least, most);
}

#endif
