/* The kernels, compiled as portable C. */
#define MHAI_ISA_SUFFIX portable
#define MHAI_ISA_VALUE MHA_ISA_PORTABLE
#include "kernels/simd/simd_portable.h"

#include "kernels/tmpl/table_tmpl.c"
