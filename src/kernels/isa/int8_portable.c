/* The kernels of int8 arithmetic, compiled as portable C. */
#define MHAI_ISA_SUFFIX portable
#include "kernels/simd/int8_portable.h"

#include "kernels/tmpl/int8_linear_tmpl.c"
