/* The kernels, compiled for avx512. */
#define MHAI_ISA_SUFFIX avx512
#define MHAI_ISA_VALUE MHA_ISA_AVX512
#include "kernels/simd/simd_avx512.h"

#include "kernels/tmpl/table_tmpl.c"
