/* Rows of elements from one type to another; half.h documents the rounding. */
#ifndef MHAI_CONVERT_H
#define MHAI_CONVERT_H

#include <multihead/base.h>

/* n contiguous elements of f32, f16 or bf16 to f32, exactly; and back, rounded. */
void mhai_widen(mha_dtype type, const void *in, int64_t n, float *out);
void mhai_narrow(mha_dtype type, void *out, const float *in, int64_t n);

#endif
