/* Structs that grow: read a caller's struct of an older or newer size into this build's. */
#ifndef MHAI_STRUCT_COPY_H
#define MHAI_STRUCT_COPY_H

#include <multihead/base.h>

/* Copy the caller's struct (NULL: all defaults) into own, a struct of own_size bytes whose first
 * field is struct_size. Fields the caller does not know become zero; fields we do not know must be
 * zero. Errors: MHA_ERR_ARGUMENT (struct_size missing or smaller than first_size, the size of the
 * first version), MHA_ERR_UNSUPPORTED (an unknown field is set). */
MHA_NODISCARD mha_status mhai_struct_copy(const char *name, void *own, size_t own_size,
                                          size_t first_size, const void *caller);

#endif
