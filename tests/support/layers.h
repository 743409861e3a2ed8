/* Random descriptions of a transformer's layers. */
#ifndef TEST_LAYERS_H
#define TEST_LAYERS_H

#include "support/rng.h"

#include <multihead/transformer.h>

/* Draw the biases, the epsilon of norms and the kind of blocks of d, which already has its norm,
 * ff_dim and other flags. */
void blocks_draw(rng *r, mha_transformer_desc *d);

/* Draw layers [d->num_layers] for d, which already has its flags, positions and head_dim. They are
 * smooth, so that differences approximate gradients. Some layers have no settings. */
void layers_draw(rng *r, const mha_transformer_desc *d, mha_layer_desc *layers);

#endif
