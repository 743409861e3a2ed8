/* Attention maps from .npy files of any program. */
#ifndef CLI_MAP_ARRAYS_H
#define CLI_MAP_ARRAYS_H

#include "common/exits.h"

#include <stdint.h>

/* The shape [L,H,T,S] of an array [T,S], [H,T,S] or [L,H,T,S]. A batch axis of 1 may precede or
 * follow L, as in numpy.stack() of the maps that transformers returns. Errors name path. */
cli_exit map_arrays_shape(const char *path, const mha_tensor *tensor, int64_t shape[4]);

/* Element i of a contiguous array of f16, f32 or f64. */
float map_arrays_element(const mha_tensor *tensor, int64_t i);

#endif
