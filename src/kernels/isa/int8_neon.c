/* The kernels of int8 arithmetic, compiled for neon. */
#define MHAI_ISA_SUFFIX neon
#define MHAI_INT8_HOW "the tiled path with products of pairs of 16 bits"
#include "kernels/simd/int8_neon.h"

#include "kernels/tmpl/int8_table_tmpl.c"
