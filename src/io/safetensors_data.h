/* Data of a safetensors file in the mapping. */
#ifndef MHAI_SAFETENSORS_DATA_H
#define MHAI_SAFETENSORS_DATA_H

#include <multihead/io.h>

/* The first byte of tensor index, aligned or not; valid while the file is open. */
const unsigned char *mhai_safetensors_data(const mha_safetensors *file, int64_t index);

#endif
