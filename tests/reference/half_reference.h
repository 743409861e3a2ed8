/* f16 and bf16 by their definitions, in double: the reference for the library's conversions.
 */
#ifndef TEST_HALF_REFERENCE_H
#define TEST_HALF_REFERENCE_H

#include <multihead/base.h>

/* The value of a bit pattern of MHA_F16 or MHA_BF16. */
double half_value(mha_dtype type, uint16_t bits);

/* The bit pattern nearest to x, ties to even. It is infinite if x is too large, and some NaN if x
 * is NaN. */
uint16_t half_nearest(mha_dtype type, double x);

bool half_is_nan(mha_dtype type, uint16_t bits);

/* Whether both are NaN or have the same bits. */
bool half_same(mha_dtype type, uint16_t a, uint16_t b);

#endif
