/* A linear layer in bf16 arithmetic, from the definition in multihead/nn.h, for single outputs. */
#ifndef TEST_BF16_LINEAR_REFERENCE_H
#define TEST_BF16_LINEAR_REFERENCE_H

#include <stdint.h>

/* The order of sums: of mha_linear_create_bf16() or mha_linear_create_tiles(). */
typedef enum bf16_order { BF16_PAIRS, BF16_TILES } bf16_order;

typedef struct bf16_linear_output {
    float y;             /* NaN where x or w is out of range */
    double exact, bound; /* bound of |y - exact|, for x and w before rounding */
} bf16_linear_output;

/* w: a row of W. */
bf16_linear_output bf16_linear_reference(const float *w, const float *x, int64_t inputs, float bias,
                                         bf16_order order);

#endif
