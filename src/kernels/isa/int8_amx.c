/* The kernels of int8 arithmetic, compiled for avx512 with VNNI and AMX. */
#define MHAI_ISA_SUFFIX amx
#include "kernels/simd/int8_avx512.h"
#include "kernels/simd/tiles.h"

#include "kernels/tmpl/int8_linear_tmpl.c"
