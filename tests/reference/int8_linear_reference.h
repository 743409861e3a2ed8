/* A linear layer in int8 arithmetic, from the definition in multihead/transformer.h, for single
 * outputs. Operations that round are single f32 operations; all others are in integers and
 * double. */
#ifndef TEST_INT8_LINEAR_REFERENCE_H
#define TEST_INT8_LINEAR_REFERENCE_H

#include <stdbool.h>
#include <stdint.h>

/* A row of W with `inputs` numbers, and one scale and offset per run. */
typedef struct int8_linear_row {
    int64_t inputs, run;
    const int8_t *number;
    const float *scale, *offset;
    bool has_offsets;
} int8_linear_row;

typedef struct int8_linear_output {
    float y;             /* NaN where a row of x is out of range */
    double exact, bound; /* bound of |y - exact| */
} int8_linear_output;

int8_linear_output int8_linear_reference(const int8_linear_row *w, const float *x, float bias);

#endif
