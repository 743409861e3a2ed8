/* See attn_backward_fold.h. */
#include "attention/attn_backward_fold.h"

#include "base/context.h"

#include <multihead/component.h>

#include <string.h>

bool mhai_backward_folds(const mhai_backward_plan *plan)
{
    const mhai_backward_problem *x = &plan->x;
    return plan->backend->path == MHA_PATH_TILED && !mhai_backward_has_sums(x) && !x->bias.data &&
           !x->sinks.data && !mhai_backward_has_weights(x) && !x->p.shaw_keys.data;
}

mha_status mhai_backward_fold_begin(mha_context *context, const mhai_backward_plan *plan, bool keys,
                                    mhai_backward_fold *fold)
{
    void *memory;
    int64_t floats;
    *fold = (mhai_backward_fold){.plan = *plan, .part = *plan->x.p.part};
    mhai_backward_problem *x = &fold->plan.x;
    x->p.part = &fold->part;
    if (keys) x->k = x->p.k, x->v = x->p.v; /* that they are wanted; they are written elsewhere */
    MHA_TRY(mhai_backward_prepare(context, x));
    fold->job = mhai_cells_job_of(context, x);
    fold->job.held = MHAI_CELL_QUERIES;
    fold->job.worker_bytes = mhai_cells_space_bytes(&fold->job);
    MHA_TRY(mha_scratch_alloc(context, context->num_threads, fold->job.worker_bytes, &memory));
    fold->job.memory = memory;
    MHA_TRY(mhai_cells_pack_tables(context, &fold->job));
    if (!x->q.data) return MHA_OK;
    if (!mhai_mul_i64(x->p.q.shape[0] * x->p.H * x->p.q.shape[2], mhai_cells_padded(x->p.D),
                      &floats))
        return mha_fail(MHA_ERR_SIZE, "q: the sums of its gradient are beyond the address space");
    MHA_TRY(mha_scratch_alloc(context, floats, sizeof *fold->dq, &memory));
    fold->dq = memory;
    memset(fold->dq, 0, (size_t)floats * sizeof *fold->dq);
    return MHA_OK;
}

/* One head of it, contiguous, for any batch and head. */
static void point_at(mha_tensor *x, const void *rows, int64_t count)
{
    x->data = (void *)(uintptr_t)rows;
    x->shape[2] = count;
    x->stride[0] = x->stride[1] = 0;
    x->stride[2] = x->shape[3];
}

void mhai_backward_fold_block(const mhai_backward_fold *fold, const mhai_backward_block *block,
                              int worker)
{
    /* The problem as if these were all the keys that are here. */
    mhai_attn_problem p = fold->plan.x.p;
    mhai_attn_part part = fold->part;
    mhai_cells_job job = fold->job;
    part.first_key = block->first;
    part.keys = block->rows;
    p.part = &part;
    job.p = job.walk.p = &p;
    point_at(&p.k, block->k, block->rows);
    point_at(&p.v, block->v, block->rows);
    const mhai_attn_sequence seq = mhai_attn_sequence_of(&p, block->b);
    if (seq.T == 0 || block->key >= seq.S) return;
    mhai_cells_space w = mhai_cells_space_of(&job, worker);
    w.dk = block->dk;
    w.dv = block->dv;
    mhai_cells_load_block(&job, &w, &seq, block->hk, block->key, fold->dq != NULL);
    for (int64_t h = block->head_begin; h < block->head_end; h++)
        mhai_cells_add_head(&job, &w, &seq, h, block->key,
                            fold->dq ? fold->dq + ((seq.batch * p.H + h) * p.q.shape[2] + seq.q0) *
                                                      mhai_cells_padded(p.D)
                                     : NULL);
}

void mhai_backward_fold_finish(const mhai_backward_fold *fold)
{
    const mhai_attn_problem *p = &fold->plan.x.p;
    const int64_t rows = p->q.shape[2];
    for (int64_t i = 0; fold->dq && i < p->q.shape[0] * p->H; i++)
        mhai_cells_write_rows(&fold->job, &fold->plan.x.q, i / p->H, i % p->H, 0, rows,
                              fold->dq + i * rows * mhai_cells_padded(p->D), p->scale);
}
