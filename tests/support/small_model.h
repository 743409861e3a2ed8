/* A small random transformer and a batch for it, for tests of code that runs transformers. */
#ifndef TEST_SMALL_MODEL_H
#define TEST_SMALL_MODEL_H

#include "support/rng.h"

#include <multihead/transformer.h>

enum { SMALL_B = 3, SMALL_T = 10, SMALL_ROWS = SMALL_B * SMALL_T, SMALL_WIDTH = 32 };
enum { SMALL_LAYERS = 3, SMALL_HEADS = 4, SMALL_SIZE = 8 }; /* maxima */

typedef struct small_model {
    mha_transformer *t;
    mha_transformer_desc desc;
    int64_t B, T, width; /* width: of a row of the output */
    int32_t ids[SMALL_ROWS];
    int64_t lengths[SMALL_B];
    float output_data[SMALL_ROWS * SMALL_WIDTH];
    mha_tensor tokens, output;
    mha_transformer_input input;
} small_model;

/* Complete the description and create a transformer without special values: no norm is 1 and no
 * bias is 0. */
mha_transformer *random_transformer(mha_context *context, rng *r, mha_transformer_desc *desc);

/* A transformer whose parameters are normal with this deviation. */
mha_transformer *normal_transformer(mha_context *context, rng r, float deviation,
                                    const mha_transformer_desc *desc);

/* The gradient of all parameters, for the loss of expect_slope(). Checks that one and three threads give the
 * same bits. The caller frees it. */
float *loss_gradient(mha_transformer *t, const mha_tensor *tokens, const mha_tensor *numbers);

/* The same tokens [B, T] below vocab_size in every run. */
mha_tensor fixed_tokens(int32_t *ids, int64_t B, int64_t T, int64_t vocab_size);

/* Compare a parameter's gradient with the slope of a loss, the sum of the output of tokens [B, T] times
 * numbers [B, T, width], along random signs times step. The bound is a share of the gradient's norm, for the
 * third derivative, and errors of 2^-21 of the loss's terms, which add like a random walk. */
void expect_slope(mha_context *context, mha_transformer *t, const mha_tensor *tokens,
                  const mha_tensor *numbers, const mha_parameter *p, rng *r, float step,
                  double share, const float *gradient);

/* flags: mha_transformer_desc.flags in addition to random ones; decoders are causal and have an output. Blocks, norms,
 * positions, groups of heads and settings of layers are random. */
small_model *small_model_make(mha_context *context, rng *r, uint32_t flags);
void small_model_free(small_model *m);

/* Run the model on its batch into output_data. */
void small_model_run(mha_context *context, small_model *m, mha_activations *a);

#endif
