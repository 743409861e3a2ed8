/* Random descriptions of a transformer's layers. */
#ifndef TEST_LAYERS_H
#define TEST_LAYERS_H

#include "support/rng.h"

#include <multihead/transformer.h>

/* Draw the biases, the epsilon of norms and the kind of blocks of d, which already has its norm,
 * ff_dim and other flags. */
void blocks_draw(rng *r, mha_transformer_desc *d);

/* Draw the divisors of rotations that depend on the length, for heads of up to 2 LAYERS_PAIRS. */
enum { LAYERS_PAIRS = 8, LAYERS_BORDER = 6 };
void factors_draw(rng *r, float factors[2 * LAYERS_PAIRS]);

/* Draw layers [d->num_layers] for d, which already has its flags, positions and head_dim. They are
 * smooth, so that differences approximate gradients. Some layers have no settings. With
 * d->rope_factors, some have rotations that change above LAYERS_BORDER tokens. */
void layers_draw(rng *r, const mha_transformer_desc *d, mha_layer_desc *layers);

#endif
