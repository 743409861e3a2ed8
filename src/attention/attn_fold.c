/* See attn_fold.h. The sums of rows are stored outside the workspaces, which point to them. */
#include "attention/attn_fold.h"

#include "base/checked.h"

#include <multihead/component.h>

#include <string.h>

bool mhai_attn_folds(const mhai_attn_problem *p, const mhai_attn_backend *backend)
{
    return backend->path == MHA_PATH_TILED && p->compute == MHA_COMPUTE_F32 &&
           !mhai_attn_needs_kept(p) && !mhai_attn_wants(&p->want.average) &&
           !mhai_attn_wants(&p->want.scores);
}

/* Number of floats of a row's sums. */
static int64_t floats_of_row(const mhai_attn_problem *p)
{
    return mhai_attn_padded_values(p) + 2 + mhai_attn_padded_shaw(&p->shaw_values);
}

static int64_t count_rows(const mhai_attn_problem *p)
{
    return p->q.shape[0] * p->H * p->q.shape[2];
}

mha_status mhai_attn_fold_bytes(const mhai_attn_plan *plan, size_t *bytes)
{
    int64_t floats;
    if (!mhai_mul_i64(count_rows(&plan->p), floats_of_row(&plan->p), &floats) ||
        !mhai_mul_size((size_t)floats, sizeof(float), bytes))
        return mha_fail(MHA_ERR_SIZE, "q: the sums of its rows are beyond the address space");
    return MHA_OK;
}

mha_status mhai_attn_fold_begin(mha_context *context, const mhai_attn_plan *plan,
                                mhai_attn_fold *fold)
{
    size_t bytes = 0;
    *fold = (mhai_attn_fold){.plan = *plan, .part = *plan->p.part, .rows = count_rows(&plan->p)};
    fold->plan.p.part = &fold->part;
    MHA_TRY(mhai_attn_fold_bytes(plan, &bytes));
    MHA_TRY(mhai_attn_walk_begin(context, &fold->plan, &fold->walk));
    MHA_TRY(mha_scratch_alloc(context, 1, bytes, &fold->o));
    fold->m = fold->o + fold->rows * mhai_attn_padded_values(&plan->p);
    fold->l = fold->m + fold->rows;
    fold->shaw = fold->l + fold->rows;
    return MHA_OK;
}

/* ---- a chunk --------------------------------------------------------------------------------- */

/* Index of a chunk's first row, counted over all items. */
static int64_t place_of(const mhai_attn_problem *p, const mhai_attn_chunk *c)
{
    const int64_t before = p->query_starts ? c->seq.q0 : c->seq.b * p->T;
    return before * p->H + c->hk * p->group * c->seq.T + c->first;
}

/* Point the workspace to the sums of the fold. */
static void point_at_sums(const mhai_attn_fold *fold, const mhai_attn_chunk *c,
                          mhai_attn_workspace *w)
{
    const mhai_attn_problem *p = &fold->plan.p;
    const int64_t place = place_of(p, c);
    w->o = fold->o + place * mhai_attn_padded_values(p);
    w->m = fold->m + place;
    w->l = fold->l + place;
    w->shaw_values = fold->shaw + place * mhai_attn_padded_shaw(&p->shaw_values);
}

/* Load the rows. New rows start with sums over no keys; others continue. */
static void load_rows(const mhai_attn_fold *fold, mhai_attn_chunk *c, mhai_attn_workspace *w)
{
    const mhai_attn_problem *p = &fold->plan.p;
    const size_t rows = (size_t)c->rows * sizeof(float);
    const mhai_attn_workspace fresh = *w;
    mhai_attn_load_rows(&fold->walk, c, w);
    point_at_sums(fold, c, w);
    if (fold->begun) return;
    memset(w->o, 0, rows * (size_t)mhai_attn_padded_values(p));
    memcpy(w->m, fresh.m, rows);
    memcpy(w->l, fresh.l, rows);
    memset(w->shaw_values, 0, rows * (size_t)mhai_attn_padded_shaw(&p->shaw_values));
}

static void place(mhai_attn_problem *p, mhai_attn_part *part, const mhai_attn_keys *keys)
{
    p->k = keys->k;
    p->v = keys->v;
    part->first_key = keys->first;
    part->keys = keys->end;
}

typedef struct keys_job {
    const mhai_attn_fold *fold;
    const mhai_attn_keys *keys; /* NULL: none */
} keys_job;

/* The walk reads a copy of the problem, in which the keys are replaced. */
static void fold_item(void *argument, int64_t i, int worker)
{
    const keys_job *job = argument;
    const mhai_attn_fold *fold = job->fold;
    mhai_attn_part part = fold->part;
    mhai_attn_problem p = fold->plan.p;
    mhai_attn_walk walk = fold->walk;
    walk.p = &p;
    p.part = &part;
    mhai_attn_item item = {
        .walk = &walk, .next = walk.tiling.items, .planned = -1, .fetch = {.run = MHAI_FETCH_RUNS}};
    const mhai_attn_visitor visitor = mhai_attn_forward_visitor(&item);
    mhai_attn_workspace w = mhai_attn_workspace_of(&walk, worker);
    mhai_attn_chunk c = mhai_attn_chunk_of_item(&walk, i);
    mhai_attn_place_rows(&walk, &c, &w);
    int64_t begin = 0, end = 0;
    if (job->keys) {
        place(&p, &part, job->keys);
        c.seq = mhai_attn_sequence_of(&p, c.seq.b);
        begin = mhai_max_i64(0, job->keys->begin - c.seq.k0);
        end = mhai_min_i64(c.limit.end, job->keys->end - c.seq.k0);
    }
    if (begin < end || !fold->begun) load_rows(fold, &c, &w);
    for (int64_t key = begin; key < end; key += MHAI_KEY_BLOCK)
        mhai_attn_walk_block(&walk, &c, &w, key, &visitor);
}

void mhai_attn_fold_keys(mha_context *context, mhai_attn_fold *fold, const mhai_attn_keys *keys)
{
    mha_parallel_for(context, fold->walk.tiling.items, fold_item, &(keys_job){fold, keys});
    fold->begun = true;
}

void mhai_attn_fold_place(mhai_attn_fold *fold, const mhai_attn_keys *keys)
{
    place(&fold->plan.p, &fold->part, keys);
}

typedef struct stretch_job {
    const mhai_attn_fold *fold;
    const mhai_attn_stretch *stretch;
} stretch_job;

static void join_item(void *argument, int64_t i, int worker)
{
    const stretch_job *job = argument;
    mhai_attn_workspace w = mhai_attn_workspace_of(&job->fold->walk, worker);
    mhai_attn_chunk c = mhai_attn_chunk_of_item(&job->fold->walk, i);
    mhai_attn_place_rows(&job->fold->walk, &c, &w);
    load_rows(job->fold, &c, &w);
    mhai_attn_stretch_join(job->stretch, i, &c, &w);
}

void mhai_attn_fold_stretch(mha_context *context, mhai_attn_fold *fold,
                            const mhai_attn_stretch *stretch)
{
    stretch_job job = {fold, stretch};
    mha_parallel_for(context, fold->walk.tiling.items, join_item, &job);
    fold->begun = true;
}

static void finish_item(void *argument, int64_t i, int worker)
{
    const mhai_attn_fold *fold = argument;
    mhai_attn_workspace w = mhai_attn_workspace_of(&fold->walk, worker);
    mhai_attn_chunk c = mhai_attn_chunk_of_item(&fold->walk, i);
    mhai_attn_place_rows(&fold->walk, &c, &w);
    point_at_sums(fold, &c, &w);
    mhai_attn_finish_shaw_values(&fold->walk, &c, &w);
    mhai_attn_write_rows(&fold->walk, &c, &w);
}

/* If no keys arrived, the rows are not initialised yet. */
void mhai_attn_fold_finish(mha_context *context, mhai_attn_fold *fold)
{
    if (!fold->begun) mhai_attn_fold_keys(context, fold, NULL);
    mha_parallel_for(context, fold->walk.tiling.items, finish_item, fold);
}
