/* See attn_backward_fold.h. */
#include "attention/attn_backward_fold.h"

#include "base/context.h"

#include <multihead/component.h>

#include <string.h>

bool mhai_backward_folds(const mhai_backward_plan *plan)
{
    return plan->backend->path == MHA_PATH_TILED;
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
        MHA_TRY(take_columns(context, p, mhai_attn_padded_shaw(&p->shaw_keys), &rows->shaw_x));
    if (x->shaw_values.data)
        MHA_TRY(take_columns(context, p, mhai_attn_padded_shaw(&p->shaw_values), &rows->shaw_p));
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
    if (rows.shaw_x) rows.shaw_x += first * mhai_attn_padded_shaw(&p->shaw_keys);
    if (rows.shaw_p) rows.shaw_p += first * mhai_attn_padded_shaw(&p->shaw_values);
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

/* ---- keys at hand ---------------------------------------------------------------------------- */

/* The fold's job, as if some keys were all that are here. */
typedef struct sight {
    mhai_attn_problem p;
    mhai_attn_part part;
    mhai_cells_job job;
} sight;

static void see(const mhai_backward_fold *fold, const mha_tensor *k, const mha_tensor *v,
                int64_t first, sight *s)
{
    s->p = fold->plan.x.p;
    s->part = fold->part;
    s->job = fold->job;
    s->p.k = *k;
    s->p.v = *v;
    s->part.first_key = first;
    s->part.keys = k->shape[2];
    s->p.part = &s->part;
    s->job.p = s->job.walk.p = &s->p;
}

/* One head of a block, contiguous, for any batch and head. */
static mha_tensor head_of(const mha_tensor *x, const void *rows, int64_t count)
{
    mha_tensor head = *x;
    head.data = (void *)(uintptr_t)rows;
    head.shape[2] = count;
    head.stride[0] = head.stride[1] = 0;
    head.stride[2] = x->shape[3];
    return head;
}

void mhai_backward_fold_block(const mhai_backward_fold *fold, const mhai_backward_block *block,
                              int worker)
{
    const mhai_attn_problem *p = &fold->plan.x.p;
    const mha_tensor k = head_of(&p->k, block->k, block->rows),
                     v = head_of(&p->v, block->v, block->rows);
    sight s;
    see(fold, &k, &v, block->first, &s);
    const mhai_attn_sequence seq = mhai_attn_sequence_of(&s.p, block->b);
    if (seq.T == 0 || block->key >= seq.S) return;
    mhai_cells_space w = mhai_cells_space_of(&s.job, worker);
    w.dk = block->dk;
    w.dv = block->dv;
    mhai_cells_load_block(&s.job, &w, &seq, block->hk, block->key, fold->rows.dq != NULL);
    for (int64_t h = block->head_begin; h < block->head_end; h++) {
        const mhai_cells_rows rows = rows_of(fold, &seq, h);
        mhai_cells_add_head(&s.job, &w, &seq, h, block->key, &rows);
    }
}

void mhai_backward_fold_weights(mha_context *context, mhai_backward_fold *fold, const mha_tensor *k,
                                const mha_tensor *v)
{
    sight s;
    see(fold, k, v, 0, &s);
    mhai_cells_walk_weights(context, &s.job);
    mhai_backward_join_weights(&fold->plan.x);
}

void mhai_backward_fold_bias(mha_context *context, const mhai_backward_fold *fold,
                             const mha_tensor *k, const mha_tensor *v)
{
    sight s;
    see(fold, k, v, 0, &s);
    mha_parallel_for(context, mhai_cells_bias_items(&s.job), mhai_cells_run_bias, &s.job);
}

void mhai_backward_fold_add_bias(const mhai_backward_fold *fold, const mha_tensor *k,
                                 const mha_tensor *v, int64_t b, int64_t h, int64_t item,
                                 double *sums, int worker)
{
    sight s;
    see(fold, k, v, 0, &s);
    mhai_cells_space w = mhai_cells_space_of(&s.job, worker);
    const mhai_bias_item of = mhai_cells_bias_item(&s.job, item);
    mhai_cells_add_bias(&s.job, &w, b, h, &of, sums);
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

void mhai_backward_fold_sum(const mhai_backward_fold *fold, int64_t b, int64_t h, bool again,
                            const mhai_backward_sums *to)
{
    const mhai_backward_problem *x = &fold->plan.x;
    const mhai_attn_sequence seq = mhai_attn_sequence_of(&x->p, b);
    const mhai_cells_rows rows = rows_of(fold, &seq, h);
    if (again) {
        mhai_backward_add_sink_weights(x, b, h, &to->sinks[h]);
        return;
    }
    for (int64_t i = 0; rows.sums && i < mhai_ceil_div(seq.T, MHAI_CELL_QUERIES); i++)
        mhai_cells_add_sums(&fold->job, b, h, &rows.sums[i], to);
    if (to->sinks) mhai_backward_add_sink(x, b, h, &to->sinks[h]);
}
