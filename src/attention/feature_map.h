/* The feature map of linear attention that comes with the library. */
#ifndef MHAI_FEATURE_MAP_H
#define MHAI_FEATURE_MAP_H

#include <stdint.h>

/* elu(x) + 1 element by element; a mha_feature_map_fn, so feature_dim is head_dim and user unused.
 * Non-finite elements give NaN. Relative error at most 2.5 u for x >= -87. */
void mhai_feature_map_elu(void *user, const float *rows, int64_t count, int64_t head_dim,
                          float *features, int64_t feature_dim);

#endif
