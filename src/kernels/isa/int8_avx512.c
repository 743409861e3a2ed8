/* The kernels of int8 arithmetic, compiled for avx512 with VNNI. */
#define MHAI_ISA_SUFFIX avx512
#include "kernels/simd/int8_avx512.h"

#include "kernels/tmpl/int8_linear_tmpl.c"
