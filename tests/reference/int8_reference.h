/* Attention in int8 arithmetic, from the definition in multihead/attention.h and docs/numerics.md
 * 4, a row at a time by plain loops. What decides how a number is rounded to a small one is done in
 * f32, operation by operation as the definition says; everything else in integers and double. */
#ifndef TEST_INT8_REFERENCE_H
#define TEST_INT8_REFERENCE_H

#include "reference/kinds_reference.h"

typedef struct int8_row {
    int64_t value_dim;
    double *o, *o_bound; /* [Dv] the quantised computation, and what f32 may add to its error */
    double lse, lse_bound;
    double *o_error, lse_error; /* [Dv] bounds of the distance to the exact result */
} int8_row;

int8_row int8_row_make(int64_t value_dim);
void int8_row_free(int8_row *row);

/* The row of query t; exact is its kinds_attention_row(). f32 tensors, finite where they are read,
 * without cap, dropout and Shaw's tables. */
void int8_reference_row(const ref_attention *a, int64_t b, int64_t h, int64_t t,
                        const kinds_row *exact, int8_row *row);

#endif
