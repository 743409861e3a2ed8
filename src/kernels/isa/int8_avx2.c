/* The kernels of int8 arithmetic, compiled for avx2. */
#define MHAI_ISA_SUFFIX avx2
#include "kernels/simd/int8_avx2.h"

#include "kernels/tmpl/int8_linear_tmpl.c"
