/* Small random transformers for decoding. */
#ifndef TEST_DECODED_H
#define TEST_DECODED_H

#include "support/rng.h"

#include <multihead/transformer.h>

enum { LENGTH = 40, VOCAB = 19, WIDTH = 24, LAYERS = 3 };

/* A random description with up to LAYERS layers, for sequences of up to LENGTH tokens. Its list of
 * layers is valid until the next call. */
mha_transformer_desc decoded_draw(rng *r, bool cross);

/* Create the transformer with random parameters. */
mha_transformer *decoded_make(const mha_transformer_desc *d, uint64_t seed);

#endif
