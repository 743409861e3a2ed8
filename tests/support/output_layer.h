/* A linear layer with weights from a source: the output of a transformer whose only layer has no heads. Inputs are the
 * embeddings, parameter 0 of the source; the weights are another parameter. */
#ifndef TEST_OUTPUT_LAYER_H
#define TEST_OUTPUT_LAYER_H

#include <multihead/transformer.h>

enum { OUTPUT_LAYER_ROWS = 40 };

mha_transformer *output_layer(mha_context *context, int64_t inputs, int64_t outputs,
                              const mha_transformer_source *source);

/* Compute y [count, outputs] of embeddings first, first + 1, ... modulo outputs; count <=
 * OUTPUT_LAYER_ROWS. */
void output_layer_forward(mha_context *context, const mha_transformer *t, int64_t first,
                          int64_t count, float *y);

#endif
