/* Replacements for functions of the library in the simulation: attention takes the time of its
 * pairs and touches no memory, and all ranks share large memory, so that a thousand fit in one
 * machine. The linker substitutes them by --wrap for functions of attn_plan.c, split.c and
 * scratch.c. The library itself determines the messages and their order. */
#include "scale.h"

#include "attention/attn_plan.h"
#include "distributed/split.h"

#include <mpi.h>

mha_status __wrap_mhai_attn_forward(mha_context *context, const mhai_attn_call *call);
void __wrap_mhai_copy_rows(const mha_tensor *to, int64_t to_row, const mha_tensor *from,
                           int64_t from_row, const int64_t *shape, int64_t rows);

/* All rows of some heads, or those of a piece. */
mha_status __wrap_mhai_attn_forward(mha_context *context, const mhai_attn_call *call)
{
    const int64_t first = call->part ? call->part->queries_before[0] : 0;
    (void)context;
    scale_compute(scale_pairs(first, first + call->q->shape[2], 0, call->k->shape[2]),
                  call->q->shape[1]);
    return MHA_OK;
}

void __wrap_mhai_copy_rows(const mha_tensor *to, int64_t to_row, const mha_tensor *from,
                           int64_t from_row, const int64_t *shape, int64_t rows)
{
    (void)to, (void)to_row, (void)from, (void)from_row, (void)shape, (void)rows;
}

mha_status __real_mha_scratch_alloc(mha_context *context, int64_t count, size_t size, void *memory);
mha_status __wrap_mha_scratch_alloc(mha_context *context, int64_t count, size_t size, void *memory);

/* Allocations with elements of megabytes are tensors of a rank's heads or messages; tables have
 * small elements. */
mha_status __wrap_mha_scratch_alloc(mha_context *context, int64_t count, size_t size, void *memory)
{
    if (count != 1 || size < 1 << 20) return __real_mha_scratch_alloc(context, count, size, memory);
    *memory = SMPI_SHARED_MALLOC(size);
    return *memory ? MHA_OK : MHA_ERR_NOMEM;
}
