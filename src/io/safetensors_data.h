/* Tensors of a safetensors file, including those whose type has no mha_dtype. */
#ifndef MHAI_SAFETENSORS_DATA_H
#define MHAI_SAFETENSORS_DATA_H

#include "io/safetensors_types.h"

#include <multihead/io.h>

/* The first byte of a tensor, which may be unaligned. Valid while the file is open. */
const unsigned char *mhai_safetensors_data(const mha_safetensors *file, int64_t index);

const mhai_safetensors_type *mhai_safetensors_type_of(const mha_safetensors *file, int64_t index);

/* The shape of a tensor, without its data. The dtype is valid only if the type is known. Errors:
 * MHA_ERR_UNSUPPORTED (more than MHA_MAX_DIMS dimensions). */
MHA_NODISCARD mha_status mhai_safetensors_shape(const mha_safetensors *file, int64_t index,
                                                mha_tensor *tensor);

#endif
