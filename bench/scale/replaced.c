/* What the simulation has instead of the library's: folding a block into the rows takes the time of its pairs and
 * touches nothing, and a message's memory is the same for all ranks, so that a thousand of them fit in one machine.
 * The linker takes these for the functions of attn_fold.c and, by --wrap, of attn_plan.c and scratch.c. Messages, their
 * order and all that decides on them are the library's own. */
#include "scale.h"

#include "attention/attn_fold.h"

#include <mpi.h>

bool mhai_attn_folds(const mhai_attn_problem *p, const mhai_attn_backend *backend)
{
    (void)p, (void)backend;
    return true;
}

mha_status mhai_attn_fold_bytes(const mhai_attn_plan *plan, size_t *bytes)
{
    const mhai_attn_problem *p = &plan->p;
    *bytes = (size_t)(p->B * p->H * p->q.shape[2] * (p->Dv + 2)) * sizeof(float);
    return MHA_OK;
}

mha_status mhai_attn_fold_begin(mha_context *context, const mhai_attn_plan *plan,
                                mhai_attn_fold *fold)
{
    (void)context;
    *fold = (mhai_attn_fold){.plan = *plan, .part = *plan->p.part, .rows = plan->p.q.shape[2]};
    return MHA_OK;
}

/* Heads are shared out over turns. */
void mhai_attn_fold_keys(mha_context *context, mhai_attn_fold *fold, const mhai_attn_keys *keys,
                         int64_t count, int64_t turn, int64_t turns)
{
    const int64_t query = fold->part.queries_before[0];
    (void)context, (void)turn;
    double pairs = 0;
    for (int64_t i = 0; i < count; i++)
        pairs += scale_pairs(query, query + fold->rows, keys[i].first + keys[i].begin,
                             keys[i].first + keys[i].end);
    scale_compute(pairs / (double)turns, fold->plan.p.H);
}

mha_status __wrap_mhai_attn_forward(mha_context *context, const mhai_attn_call *call);

/* A rank that has all rows of some heads. */
mha_status __wrap_mhai_attn_forward(mha_context *context, const mhai_attn_call *call)
{
    const int64_t rows = call->q->shape[2];
    (void)context;
    scale_compute(scale_pairs(0, rows, 0, rows), call->q->shape[1]);
    return MHA_OK;
}

/* Of decoding, which is not simulated. */
void mhai_attn_fold_place(mhai_attn_fold *fold, const mhai_attn_keys *keys)
{
    (void)fold, (void)keys;
}

void mhai_attn_fold_stretch(mha_context *context, mhai_attn_fold *fold,
                            const mhai_attn_stretch *stretch)
{
    (void)context, (void)fold, (void)stretch;
}

void mhai_attn_fold_finish(mha_context *context, mhai_attn_fold *fold)
{
    (void)context, (void)fold;
}

mha_status __real_mha_scratch_alloc(mha_context *context, int64_t count, size_t size,
                                    void **memory);
mha_status __wrap_mha_scratch_alloc(mha_context *context, int64_t count, size_t size,
                                    void **memory);

/* The blocks of a ring, and tensors of heads that are exchanged, are single elements of megabytes; tables have
 * small ones. */
mha_status __wrap_mha_scratch_alloc(mha_context *context, int64_t count, size_t size, void **memory)
{
    if (count != 1 || size < 1 << 20) return __real_mha_scratch_alloc(context, count, size, memory);
    *memory = SMPI_SHARED_MALLOC(size);
    return *memory ? MHA_OK : MHA_ERR_NOMEM;
}
