/* Attention in int8 arithmetic: what a descriptor may ask of it, and the pass. */
#ifndef MHAI_ATTN_INT8_H
#define MHAI_ATTN_INT8_H

#include "attention/attn.h"
#include "kernels/int8.h"

/* Refuse what it does not do. */
MHA_NODISCARD mha_status mhai_attn_int8_check(const mhai_attn_problem *problem);

MHA_NODISCARD mha_status mhai_attn_int8(mha_context *context, const mhai_attn_problem *problem);

/* Scratch of each worker beside that of the tiled path. */
size_t mhai_attn_int8_bytes(const mhai_attn_problem *problem, const mhai_attn_tiling *tiling,
                            const mhai_int8_kernels *kernels);

#endif
