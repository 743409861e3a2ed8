/* The default feature map of linear attention. */
#ifndef MHAI_FEATURE_MAP_H
#define MHAI_FEATURE_MAP_H

#include <stdint.h>

/* elu(x) + 1 of each element. As a mha_feature_map_fn, it has feature_dim = head_dim and ignores
 * user. Elements that are not finite give NaN. The relative error is at most 2.5 u for x >= -87. */
void mhai_feature_map_elu(void *user, const float *rows, int64_t count, int64_t head_dim,
                          float *features, int64_t feature_dim);

#endif
