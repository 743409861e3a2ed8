/* The kernels, compiled for neon. */
#define MHAI_ISA_SUFFIX neon
#define MHAI_ISA_VALUE MHA_ISA_NEON
#include "kernels/simd/simd_neon.h"

#include "kernels/tmpl/table_tmpl.c"
