/* The kernels of int8 arithmetic for one instruction set, and their table; included by
 * isa/int8_*.c. As in table_tmpl.c only static code may stand here. */
#include "base/half.h"
#include "kernels/int8.h"

#include <string.h>

#include "kernels/tmpl/types_tmpl.c"

#include "kernels/tmpl/int8_block_tmpl.c"
#include "kernels/tmpl/int8_pack_tmpl.c"

#include "kernels/tmpl/int8_tile_tmpl.c"

#include "kernels/tmpl/int8_linear_tmpl.c"

#define TABLE_(suffix) mhai_int8_kernels_##suffix
#define TABLE(suffix) TABLE_(suffix)
extern const mhai_int8_kernels TABLE(MHAI_ISA_SUFFIX);
const mhai_int8_kernels TABLE(MHAI_ISA_SUFFIX) = {
    .reason = "int8 arithmetic was asked for: " MHAI_INT8_HOW,
    .group = GROUP,
    .row_stride = ROW_STRIDE,
    .strip_rows = BLOCK_ROWS,
#define MHAI_KERNEL(name, arguments) .name = name,
#include "kernels/int8.inc"
#undef MHAI_KERNEL
};
