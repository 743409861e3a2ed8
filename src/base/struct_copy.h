/* mha_struct_read() for structs that begin with struct_size. */
#ifndef MHAI_STRUCT_COPY_H
#define MHAI_STRUCT_COPY_H

#include <multihead/base.h>

MHA_NODISCARD mha_status mhai_struct_copy(const char *name, void *own, size_t own_size,
                                          size_t first_size, const void *caller);

#endif
