/* See attn_backward_share.h. */
#include "attention/attn_backward_share.h"

#include "base/context.h"

#include <multihead/component.h>

bool mhai_backward_shares(const mhai_backward_plan *plan)
{
    return plan->backend->path == MHA_PATH_TILED;
}

mha_status mhai_backward_share_begin(mha_context *context, const mhai_backward_plan *plan,
                                     mhai_backward_share *share)
{
    *share = (mhai_backward_share){.plan = *plan, .part = *plan->x.p.part};
    mhai_backward_problem *x = &share->plan.x;
    mhai_cells_job *job = &share->job;
    x->p.part = &share->part;
    *job = mhai_cells_job_of(context, x);
    job->both = false;
    job->held = MHAI_CELL_QUERIES;
    job->worker_bytes = mhai_cells_space_bytes(job);
    MHA_TRY(mhai_backward_take_rows(context, x, &share->room));
    MHA_TRY(mhai_cells_take_spaces(context, job));
    MHA_TRY(mhai_cells_pack_tables(context, job));
    if (!mhai_backward_has_sums(x)) return MHA_OK;
    return mhai_cells_take_sums(context, job, x->p.B * x->p.H * job->chunks, &job->sums);
}

void mhai_backward_share_queries(mha_context *context, mhai_backward_share *share)
{
    mhai_backward_problem *x = &share->plan.x;
    mhai_backward_prepare(context, x, share->room);
    if (mhai_backward_has_weights(x)) {
        mhai_cells_walk_weights(context, &share->job);
        mhai_backward_join_weights(x);
    }
    if (x->q.data || share->job.sums)
        mha_parallel_for(context, x->p.B * x->p.H * share->job.chunks, mhai_cells_run_queries,
                         &share->job);
}

void mhai_backward_share_sum(const mhai_backward_share *share, int64_t heads, int64_t first,
                             int64_t b, int64_t h, bool again, const mhai_backward_sums *to)
{
    const mhai_backward_problem *x = &share->plan.x;
    const mhai_cells_job *job = &share->job;
    const int64_t chunks = mhai_ceil_div(mhai_attn_sequence_of(&x->p, b).T, MHAI_CELL_QUERIES);
    if (again) {
        mhai_backward_add_sink_weights(x, b, h, &to->sinks[first + h]);
        return;
    }
    for (int64_t i = 0; job->sums && i < chunks; i++)
        mhai_cells_add_sums(job, heads, b, first + h,
                            &job->sums[(b * x->p.H + h) * job->chunks + i], to);
    if (to->sinks) mhai_backward_add_sink(x, b, h, &to->sinks[first + h]);
}

/* ---- keys ------------------------------------------------------------------------------------ */

typedef struct keys {
    const mhai_cells_job *job;
    const mhai_backward_block *blocks;
} keys;

static void run_block(void *argument, int64_t i, int worker)
{
    const keys *of = argument;
    const mhai_backward_block *block = &of->blocks[i];
    const mhai_attn_sequence seq = mhai_attn_sequence_of(of->job->p, block->b);
    const mhai_cells_rows none = {.dq = NULL};
    mhai_cells_space w = mhai_cells_space_of(of->job, worker);
    if (seq.T == 0 || block->key >= seq.S) return;
    w.dk = block->dk;
    w.dv = block->dv;
    mhai_cells_load_block(of->job, &w, &seq, 0, block->key, false);
    mhai_cells_add_head(of->job, &w, &seq, 0, block->key, &none);
}

void mhai_backward_share_keys(mha_context *context, mhai_backward_share *share,
                              const mhai_backward_block *blocks, int64_t count)
{
    mhai_backward_problem *x = &share->plan.x;
    x->k = x->p.k, x->v = x->p.v;
    mha_parallel_for(context, count, run_block, &(keys){&share->job, blocks});
}

/* ---- the bias -------------------------------------------------------------------------------- */

void mhai_backward_share_bias(mha_context *context, mhai_backward_share *share)
{
    mha_parallel_for(context, mhai_cells_bias_items(&share->job), mhai_cells_run_bias, &share->job);
}

void mhai_backward_share_add_bias(const mhai_backward_share *share, int64_t b, int64_t h,
                                  int64_t item, double *sums, int worker)
{
    mhai_cells_space w = mhai_cells_space_of(&share->job, worker);
    const mhai_bias_item of = mhai_cells_bias_item(&share->job, item);
    mhai_cells_add_bias(&share->job, &w, b, h, &of, sums);
}
