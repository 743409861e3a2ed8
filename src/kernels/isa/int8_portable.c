/* The kernels of int8 arithmetic, compiled for portable. */
#define MHAI_ISA_SUFFIX portable
#define MHAI_INT8_HOW "the tiled path with products of pairs of 16 bits"
#include "kernels/simd/int8_portable.h"

#include "kernels/tmpl/int8_table_tmpl.c"
