/* Conversion of rows between element types; half.h documents the rounding. */
#ifndef MHAI_CONVERT_H
#define MHAI_CONVERT_H

#include <multihead/base.h>

/* Convert n contiguous elements: f32, f16 or bf16 to f32, exactly, or f32
 * to one of them, rounded. */
void mhai_widen(mha_dtype type, const void *in, int64_t n, float *out);
void mhai_narrow(mha_dtype type, void *out, const float *in, int64_t n);

#endif
