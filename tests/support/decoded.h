/* Random transformers that can be decoded, small ones. */
#ifndef TEST_DECODED_H
#define TEST_DECODED_H

#include "support/rng.h"

#include <multihead/transformer.h>

enum { LENGTH = 40, VOCAB = 19, WIDTH = 24, LAYERS = 3 };

/* Of up to LAYERS layers, for sequences of up to LENGTH tokens; lists of layers are this function's
 * until its next call. */
mha_transformer_desc decoded_draw(rng *r, bool cross);

/* With random numbers. */
mha_transformer *decoded_make(const mha_transformer_desc *d, uint64_t seed);

#endif
