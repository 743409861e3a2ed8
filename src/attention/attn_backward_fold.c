/* See attn_backward_fold.h. */
#include "attention/attn_backward_fold.h"

#include "base/context.h"

#include <multihead/component.h>

#include <string.h>

bool mhai_backward_folds(const mhai_backward_plan *plan)
{
    const mhai_backward_problem *x = &plan->x;
    return plan->backend->path == MHA_PATH_TILED && !x->bias.data && !mhai_backward_has_weights(x);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* So many numbers for each row. */
static mha_status take_columns(mha_context *context, const mhai_attn_problem *p, int64_t columns,
                               float **taken)
{
    void *memory;
    int64_t floats;
    if (!mhai_mul_i64(p->q.shape[0] * p->H * p->q.shape[2], columns, &floats))
        return mha_fail(MHA_ERR_SIZE, "q: the sums of its rows are beyond the address space");
    MHA_TRY(mha_scratch_alloc(context, floats, sizeof **taken, &memory));
    *taken = memory;
    return MHA_OK;
}

static mha_status take_rows(mha_context *context, mhai_backward_fold *fold)
{
    const mhai_backward_problem *x = &fold->plan.x;
    const mhai_attn_problem *p = &x->p;
    mhai_cells_rows *rows = &fold->rows;
    void *memory;
    if (x->q.data || x->scale.data)
        MHA_TRY(take_columns(context, p, mhai_cells_padded(p->D), &rows->dq));
    if (p->shaw_keys.data && (rows->dq || x->shaw_keys.data))
        MHA_TRY(take_columns(context, p, mhai_cells_table_columns(&p->shaw_keys), &rows->shaw_x));
    if (x->shaw_values.data)
        MHA_TRY(take_columns(context, p, mhai_cells_table_columns(&p->shaw_values), &rows->shaw_p));
    MHA_TRY(mha_scratch_alloc(context, p->B + 1, sizeof *fold->chunks, &memory));
    fold->chunks = memory;
    fold->chunks[0] = 0;
    for (int64_t b = 0; b < p->B; b++)
        fold->chunks[b + 1] =
            fold->chunks[b] + mhai_ceil_div(mhai_attn_sequence_of(p, b).T, MHAI_CELL_QUERIES);
    const int64_t chunks = p->H * fold->chunks[p->B];
    if (mhai_backward_has_sums(x))
        MHA_TRY(mhai_cells_take_sums(context, &fold->job, chunks, &rows->sums));
    mhai_cells_clear_rows(&fold->job, p->q.shape[0] * p->H * p->q.shape[2], chunks, rows);
    return MHA_OK;
}

/* Those of a head of a sequence. */
static mhai_cells_rows rows_of(const mhai_backward_fold *fold, const mhai_attn_sequence *seq,
                               int64_t h)
{
    const mhai_attn_problem *p = &fold->plan.x.p;
    const int64_t first = (seq->batch * p->H + h) * p->q.shape[2] + seq->q0;
    const int64_t *chunks = fold->chunks + seq->b;
    mhai_cells_rows rows = fold->rows;
    if (rows.dq) rows.dq += first * mhai_cells_padded(p->D);
    if (rows.shaw_x) rows.shaw_x += first * mhai_cells_table_columns(&p->shaw_keys);
    if (rows.shaw_p) rows.shaw_p += first * mhai_cells_table_columns(&p->shaw_values);
    if (rows.sums) rows.sums += chunks[0] * p->H + h * (chunks[1] - chunks[0]);
    return rows;
}

mha_status mhai_backward_fold_begin(mha_context *context, const mhai_backward_plan *plan, bool keys,
                                    mhai_backward_fold *fold)
{
    void *memory;
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
    return take_rows(context, fold);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

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
    mhai_cells_load_block(&job, &w, &seq, block->hk, block->key, fold->rows.dq != NULL);
    for (int64_t h = block->head_begin; h < block->head_end; h++) {
        const mhai_cells_rows rows = rows_of(fold, &seq, h);
        mhai_cells_add_head(&job, &w, &seq, h, block->key, &rows);
    }
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Items are chunks of all query heads of all sequences. */
static void finish_chunk(void *argument, int64_t item, int worker)
{
    const mhai_backward_fold *fold = argument;
    const mhai_attn_problem *p = &fold->plan.x.p;
    const int64_t head = item / fold->job.chunks, h = head % p->H,
                  t = item % fold->job.chunks * MHAI_CELL_QUERIES;
    const mhai_attn_sequence seq = mhai_attn_sequence_of(p, head / p->H);
    if (t >= seq.T) return;
    const mhai_cells_rows rows = rows_of(fold, &seq, h);
    mhai_cells_finish_chunk(&fold->job, &seq, h, t, &rows, worker);
}

void mhai_backward_fold_finish(mha_context *context, const mhai_backward_fold *fold)
{
    const mhai_attn_problem *p = &fold->plan.x.p;
    if (fold->rows.dq || fold->rows.sums)
        mha_parallel_for(context, p->B * p->H * fold->job.chunks, finish_chunk,
                         (void *)(uintptr_t)fold);
}

void mhai_backward_fold_sum(const mhai_backward_fold *fold, int64_t b, int64_t h,
                            const mhai_backward_sums *to)
{
    const mhai_attn_sequence seq = mhai_attn_sequence_of(&fold->plan.x.p, b);
    const mhai_cells_rows rows = rows_of(fold, &seq, h);
    for (int64_t i = 0; rows.sums && i < mhai_ceil_div(seq.T, MHAI_CELL_QUERIES); i++)
        mhai_cells_add_sums(&fold->job, b, h, &rows.sums[i], to);
    if (to->sinks) mhai_backward_add_sink(&fold->plan.x, b, h, &to->sinks[h]);
}
