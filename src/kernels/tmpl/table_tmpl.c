/* All kernels of one instruction set, and their table. Included by isa/isa_*.c, which first include
 * the set's simd header. All code here and in included files must be static. Otherwise the linker
 * could use code compiled with machine flags on machines without these instructions. */
#include "base/half.h"
#include "base/philox.h"
#include "kernels/kernels.h"

#include <string.h>

#include "kernels/tmpl/types_tmpl.c"

#include "kernels/tmpl/math_tmpl.c"

#include "kernels/tmpl/block_tmpl.c"

#include "kernels/tmpl/act_tmpl.c"
#include "kernels/tmpl/gemm_tmpl.c"
#include "kernels/tmpl/runs_tmpl.c"

#include "kernels/tmpl/pack_tmpl.c"
#include "kernels/tmpl/rows_tmpl.c"
#include "kernels/tmpl/stored_tmpl.c"

#include "kernels/tmpl/norm_tmpl.c"
#include "kernels/tmpl/recurrent_tmpl.c"
#include "kernels/tmpl/value_tmpl.c"

#include "kernels/tmpl/tile_fwd_tmpl.c"
#include "kernels/tmpl/tile_rows_tmpl.c"

#include "kernels/tmpl/one_block_tmpl.c"

#include "kernels/tmpl/lanes_tmpl.c"

#include "kernels/tmpl/bf16_tmpl.c"

#include "kernels/tmpl/tile_bwd_tmpl.c"

_Static_assert((int)TILE_ROWS <= (int)MHAI_MAX_ROWS, "raise MHAI_MAX_ROWS");
_Static_assert((int)TILE_ROWS >= (int)MHAI_LEAST_ROWS, "lower MHAI_LEAST_ROWS");
_Static_assert(MHAI_PANEL % (TILE_VECTORS * VF_LANES) == 0, "register blocks must fill panels");

#define TABLE_(suffix) mhai_kernels_##suffix
#define TABLE(suffix) TABLE_(suffix)
extern const mhai_kernels TABLE(MHAI_ISA_SUFFIX);
const mhai_kernels TABLE(MHAI_ISA_SUFFIX) = {
    .isa = MHAI_ISA_VALUE,
    .tile_rows = TILE_ROWS,
    .block_rows = BLOCK_ROWS,
#define MHAI_KERNEL(name, arguments) .name = name,
#include "kernels/kernels.inc"
#undef MHAI_KERNEL
};
