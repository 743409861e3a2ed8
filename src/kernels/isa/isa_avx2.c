/* The kernels, compiled for avx2. */
#define MHAI_ISA_SUFFIX avx2
#define MHAI_ISA_VALUE MHA_ISA_AVX2
#include "kernels/simd/simd_avx2.h"

#include "kernels/tmpl/table_tmpl.c"
