/* The kernels of int8 arithmetic, compiled for avx512 with VNNI. */
#define MHAI_ISA_SUFFIX avx512
#define MHAI_INT8_HOW "the tiled path with products of bytes (VNNI)"
#include "kernels/simd/int8_avx512.h"

#include "kernels/tmpl/int8_table_tmpl.c"
