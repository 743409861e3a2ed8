/* Tensor data in the mapping of a safetensors file. */
#ifndef MHAI_SAFETENSORS_DATA_H
#define MHAI_SAFETENSORS_DATA_H

#include <multihead/io.h>

/* The first byte of a tensor, which may be unaligned. Valid while the file is open. */
const unsigned char *mhai_safetensors_data(const mha_safetensors *file, int64_t index);

#endif
