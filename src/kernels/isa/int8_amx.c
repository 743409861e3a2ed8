/* The kernels of int8 arithmetic, compiled for avx512 with VNNI and AMX. */
#define MHAI_ISA_SUFFIX amx
#include "kernels/simd/int8_avx512.h"
#include "kernels/simd/tiles.h"

#include "kernels/tmpl/int8_linear_tmpl.c"

/* The same with bf16 in vectors, for tiles that do not give the bits of the definition. */
extern const mhai_int8_kernels mhai_int8_kernels_amx_int8;
const mhai_int8_kernels mhai_int8_kernels_amx_int8 = {.group = GROUP,
                                                      .row_stride = ROW_STRIDE,
                                                      .strip_rows = STRIP_ROWS,
                                                      .int8_inputs = int8_inputs,
                                                      .int8_product = int8_product,
                                                      .bf16_product = bf16_vector_product};
