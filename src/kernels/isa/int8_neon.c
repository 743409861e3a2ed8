/* The kernels of int8 arithmetic, compiled for neon. */
#define MHAI_ISA_SUFFIX neon
#include "kernels/simd/int8_neon.h"

#include "kernels/tmpl/int8_linear_tmpl.c"
