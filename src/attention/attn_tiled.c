/* The tiled path: online softmax over key blocks. Memory does not depend on T or S, except when
 * threads share the keys of a few queries (attn_split.c).
 *
 * Work is divided into chunks of query rows of one key/value head. A chunk packs one key block at a
 * time and runs its strips of rows over it (attn_walk.c):
 *
 *   for each key block:  for each strip that sees it:  (pack)  scores -> mask -> softmax -> + P V
 *
 * Each output row has one owner, and its arithmetic depends only on the positions of its keys.
 * Results therefore do not depend on the division into chunks, strips and threads. Other outputs of
 * probabilities need additional passes with the final maximum and sum of each row. */
#include "attention/attn_split.h"

#include "base/checked.h"

#include <multihead/component.h>

#include <math.h>
#include <string.h>

/* With at most this many keys, the next item's rows are prefetched only into L2 unless they are
 * contiguous: with 128 tokens 3 KB apart, this takes 6 % less time. For contiguous rows and for
 * blocks of 512 keys, prefetching into L1 is 1 to 2 % faster. */
enum { FETCH_L2_KEYS = 256 };

typedef struct tiled_job {
    mhai_attn_walk walk;
    mhai_attn_kept kept; /* m NULL: not requested */
} tiled_job;

static void start_outputs(void *user, mhai_attn_chunk *c, mhai_attn_workspace *w)
{
    const mhai_attn_walk *walk = ((const mhai_attn_item *)user)->walk;
    memset(w->o, 0, (size_t)(c->rows * mhai_attn_padded_values(walk->p)) * sizeof(float));
}

/* The factors that a strip's tile returns, and the dropout that it applies. */
typedef struct strip_extras {
    mhai_dropout dropout;
    float alpha[MHAI_MAX_ROWS];
} strip_extras;

static void set_extras(const mhai_attn_walk *walk, const mhai_attn_chunk *c,
                       const mhai_attn_workspace *w, const mhai_attn_block *block,
                       mhai_attn_strip *s, strip_extras *extras)
{
    s->tile.alpha = walk->p->shaw_values.data ? extras->alpha : NULL;
    if (walk->p->dropout > 0) {
        mhai_attn_set_dropout(walk, c, w, block, s, &extras->dropout);
        s->tile.dropout = &extras->dropout;
    }
}

static struct mhai_fetch_run fetch_run(const mha_tensor *x, int64_t b, int64_t h, int64_t first,
                                       int64_t rows)
{
    return (struct mhai_fetch_run){mhai_attn_row(x, b, h, first), x->stride[2], rows};
}

/* Prefetch the keys and values of the block at key, up to the end of the sequence. */
static void fetch_block(const mhai_attn_problem *p, const mhai_attn_chunk *c, int64_t key,
                        mhai_fetch *fetch)
{
    const int64_t rows = mhai_min_i64(MHAI_KEY_BLOCK, c->seq.S - key);
    fetch->runs[1] = fetch_run(&p->k, c->seq.batch, c->hk, c->seq.k0 + key, rows);
    fetch->runs[2] = fetch_run(&p->v, c->seq.batch, c->hk, c->seq.k0 + key, rows);
}

/* Prefetch the queries and the first block of an item. */
static void fetch_item(const mhai_attn_walk *walk, int64_t item, mhai_fetch *fetch)
{
    const mhai_attn_problem *p = walk->p;
    const mhai_attn_chunk n = mhai_attn_chunk_of_item(walk, item);
    const int64_t query = n.first % n.width, begin = mhai_attn_window(p, &n.seq, query).begin;
    fetch->runs[0] = fetch_run(&p->q, n.seq.batch, n.head0 + n.first / n.width, n.seq.q0 + query,
                               mhai_min_i64(n.rows, n.width - query));
    fetch_block(p, &n, begin / MHAI_KEY_BLOCK * MHAI_KEY_BLOCK, fetch);
    fetch->run = 0;
}

/* Make the last tiles of a block prefetch the data that the worker reads next: the chunk's next
 * block, or the queries and first block of the next item. Data that is prefetched earlier would be
 * evicted before use. */
static void plan_fetch(mhai_attn_item *item, const mhai_attn_chunk *c, const mhai_attn_block *block,
                       int64_t first)
{
    const mhai_attn_walk *walk = item->walk;
    const mhai_attn_problem *p = walk->p;
    const int64_t next = block->key + MHAI_KEY_BLOCK;
    const int64_t end = p->window ? c->window.end : c->limit.end;
    const int64_t strips = mhai_ceil_div(c->rows - first, walk->kernels->tile_rows);
    const int64_t fetched =
        strips * mhai_ceil_div(block->keys, MHAI_PANEL) * mhai_fetched_rows(p->D);
    if (fetched > 2 * MHAI_KEY_BLOCK + (next < end ? 0 : c->rows)) return;
    item->planned = block->key;
    item->fetch.run = MHAI_FETCH_RUNS;
    if (p->part || p->pages || p->D != p->Dv || p->q.dtype != MHA_F32 || p->k.dtype != MHA_F32 ||
        p->v.dtype != MHA_F32)
        return;
    if (next < end) {
        fetch_block(p, c, next, &item->fetch);
        item->fetch.run = 1;
    } else if (item->next < walk->tiling.items) {
        fetch_item(walk, item->next, &item->fetch);
    }
}

static void forward_strip(void *user, const mhai_attn_chunk *c, mhai_attn_workspace *w,
                          const mhai_attn_block *block, mhai_attn_strip *s)
{
    mhai_attn_item *item = user;
    const mhai_attn_walk *walk = item->walk;
    strip_extras extras;
    set_extras(walk, c, w, block, s, &extras);
    if (item->planned != block->key) plan_fetch(item, c, block, s->first);
    s->tile.fetch = &item->fetch;
    if (walk->tiling.scored_rows > 0) mhai_attn_keep_scores(walk, w, block, s);
    walk->kernels->tile_forward(&s->tile);
    if (walk->p->shaw_values.data) mhai_attn_add_shaw_values(walk->p, c, w, block, s);
}

static bool forward_rows(void *user, const mhai_attn_chunk *c, mhai_attn_workspace *w,
                         const mhai_attn_block *block, mhai_attn_strip *strips, int count)
{
    const mhai_attn_walk *walk = ((const mhai_attn_item *)user)->walk;
    const mhai_attn_problem *p = walk->p;
    const mhai_tile_rows rows = mhai_attn_rows_of(p, c, w, block, count);
    const mhai_tile *tiles[MHAI_ROWS_TILES] = {NULL};
    strip_extras extras[MHAI_ROWS_TILES];
    bool done;
    for (int i = 0; i < count; i++) {
        mhai_attn_strip *s = &strips[i];
        s->mask.poison = NULL;
        s->tile.mask = s->masked ? &s->mask : NULL;
        set_extras(walk, c, w, block, s, &extras[i]);
        tiles[i] = &s->tile;
    }
    walk->kernels->tile_rows_forward(tiles, &rows, &done);
    for (int i = 0; done && p->shaw_values.data && i < count; i++)
        mhai_attn_add_shaw_values(p, c, w, block, &strips[i]);
    return done;
}

mhai_attn_visitor mhai_attn_forward_visitor(mhai_attn_item *item)
{
    return (mhai_attn_visitor){.options = MHAI_WALK_VALUES,
                               .user = item,
                               .chunk = start_outputs,
                               .strip = forward_strip,
                               .rows = item->walk->tiling.scored_rows > 0 ? NULL : forward_rows};
}

void mhai_attn_write_rows(const mhai_attn_walk *walk, const mhai_attn_chunk *c,
                          const mhai_attn_workspace *w)
{
    const mhai_attn_problem *p = walk->p;
    for (int64_t r = 0; r < c->rows; r++) {
        int64_t h = w->head[r], t = c->seq.q0 + w->query[r], ahead = r + MHAI_ROWS_AHEAD;
        if (ahead < c->rows)
            mhai_attn_fetch_row(&p->o, c->seq.batch, w->head[ahead], c->seq.q0 + w->query[ahead]);
        float gate = p->gates.data ? mhai_attn_f32(&p->gates, c->seq.b, h) : 1.0f;
        walk->kernels->finish_row(p->o.dtype, mhai_attn_data(&p->o, c->seq.batch, h, t),
                                  w->o + r * mhai_attn_padded_values(p), p->Dv, w->l[r], gate);
        if (p->lse.data)
            *mhai_attn_row(&p->lse, c->seq.batch, h, t) = mhai_attn_lse(w->m[r], w->l[r]);
    }
}

/* Finish a chunk after all its keys. */
static void finish_chunk(void *user, const mhai_attn_chunk *c, mhai_attn_workspace *w)
{
    const tiled_job *job = user;
    mhai_attn_finish_shaw_values(&job->walk, c, w);
    mhai_attn_write_rows(&job->walk, c, w);
    if (job->kept.m) mhai_attn_keep_rows(&job->kept, job->walk.p, c, w);
}

static void run_rows(void *user, int64_t next, mhai_attn_chunk *c, mhai_attn_workspace *w)
{
    const tiled_job *job = user;
    const mhai_attn_walk *walk = &job->walk;
    mhai_attn_item item = {
        .walk = walk, .next = next, .planned = -1, .fetch = {.run = MHAI_FETCH_RUNS}};
    const mhai_attn_visitor visitor = mhai_attn_forward_visitor(&item);
    mhai_attn_walk_chunk(walk, c, w, &visitor);
    finish_chunk(user, c, w);
}

/* Compute a chunk for the average over heads, or of lanes. The next chunk is unknown here. */
static void run_chunk(void *user, mhai_attn_chunk *c, mhai_attn_workspace *w)
{
    const tiled_job *job = user;
    run_rows(user, job->walk.tiling.items, c, w);
}

/* While an item is computed, the next item's queries, keys and values are prefetched. This requires
 * that all rows have the same length (see score_fetching()) and that the item is long enough. */
static void run_one_block(const tiled_job *job, int64_t item, const mhai_attn_chunk *c,
                          const mhai_attn_workspace *w, bool *done)
{
    const mhai_attn_walk *walk = &job->walk;
    mhai_fetch fetch = {.run = MHAI_FETCH_RUNS,
                        .l2 = c->seq.S <= FETCH_L2_KEYS && walk->p->k.stride[2] != walk->p->D};
    if (c->rows > walk->kernels->tile_rows && item + 1 < walk->tiling.items &&
        walk->p->D == walk->p->Dv)
        fetch_item(walk, item + 1, &fetch);
    *done = mhai_attn_one_block(walk, c, w, &fetch);
}

/* Compute a chunk with its outputs. A worker runs consecutive items. */
static void run_chunk_item(void *argument, int64_t item, mhai_attn_workspace *w)
{
    const tiled_job *job = argument;
    mhai_attn_chunk c = mhai_attn_chunk_of_item(&job->walk, item);
    bool done = false;
    if (job->walk.tiling.one_block) run_one_block(job, item, &c, w, &done);
    if (!done) run_rows(argument, item + 1, &c, w);
}

static void run_item(void *argument, int64_t item, int worker)
{
    const tiled_job *job = argument;
    if (job->walk.tiling.scored_rows > 0) {
        mhai_attn_run_scored(&job->walk, item, worker, run_chunk, argument);
        return;
    }
    mhai_attn_workspace w = mhai_attn_workspace_of(&job->walk, worker);
    if (job->walk.tiling.lanes)
        mhai_attn_run_lanes(&job->walk, item, &w, run_chunk, argument);
    else
        run_chunk_item(argument, item, &w);
}

mha_status mhai_tiled_run(mha_context *context, const mhai_attn_plan *plan)
{
    const mhai_attn_tiling *t = &plan->tiling;
    tiled_job job = {0};
    MHA_TRY(mhai_attn_walk_begin(context, plan, &job.walk));
    if (t->kept_rows > 0) {
        MHA_TRY(mha_scratch_alloc(context, 1, plan->scratch.kept, &job.kept.m));
        job.kept.l = job.kept.m + t->kept_rows;
    }
    bool done = false;
    if (t->split_blocks > 0)
        MHA_TRY(mhai_attn_split(context, &job.walk, finish_chunk, &job, &done));
    if (done)
        ; /* done by threads that share keys */
    else if (t->alone)
        for (int64_t item = 0; item < t->forward_items; item++) run_item(&job, item, 0);
    else
        mha_parallel_for(context, t->forward_items, run_item, &job);
    mhai_attn_run_outputs(context, &job.walk, &job.kept);
    return mhai_attn_run_sums(context, &job.walk, &job.kept);
}

/* ---- the back end ---------------------------------------------------------------------------- */

const char *mhai_tiled_refuses(const mha_context *context, const mhai_attn_problem *p)
{
    (void)context;
    return p->D <= MHA_TILED_MAX_HEAD_DIM && p->Dv <= MHA_TILED_MAX_HEAD_DIM
               ? NULL
               : "a head size above 256 is beyond the tiled path";
}

/* The reason in the plan: how keys and values are read, and which passes follow. */
static const char *reason_of(const mhai_attn_plan *plan, bool in_place)
{
    if (plan->tiling.scored_rows > 0)
        return MHAI_TILED_REASON
            "; it keeps the scores of a chunk of rows until their average over "
            "heads can be taken";
    if (plan->tiling.lanes)
        return MHAI_TILED_REASON "; with so few keys, one kernel call computes up to 16 heads";
    if (plan->tiling.one_block)
        return MHAI_TILED_REASON
            "; the keys are one block, so each strip of rows is finished at once";
    if (mhai_attn_passes(&plan->p, true, plan->tiling.scored_rows > 0) > 0)
        return MHAI_TILED_REASON "; optional outputs take further passes over the scores";
    if (in_place)
        return MHAI_TILED_REASON "; with so few queries it reads finite keys and values in place";
    return plan->account.reason;
}

mha_status mhai_tiled_plan(const mha_context *context, mhai_attn_plan *plan)
{
    const mhai_attn_problem *p = &plan->p;
    const mhai_attn_tiling *t = &plan->tiling;
    mha_attention_plan *account = &plan->account;
    MHA_TRY(mhai_attn_divide(context, plan));
    const int tile_rows = plan->kernels->tile_rows;
    const int64_t queries = mhai_min_i64(t->average_queries, p->T);
    const int64_t chunk =
        t->scored_rows ? mhai_min_i64(t->scored_rows, p->group * queries) : t->chunk_rows;
    const bool in_place = t->items > 0 && p->S > 0 && !t->scored_rows && !t->one_block &&
                          !t->lanes && mhai_attn_by_rows(p, chunk, tile_rows);
    account->row_block =
        t->lanes ? mhai_min_i64(p->T, MHAI_LANE_ROWS) : mhai_attn_strip_rows(p, chunk, tile_rows);
    account->reason = reason_of(plan, in_place);
    if (in_place) account->flags |= MHA_PLAN_KEYS_IN_PLACE;
    if (t->one_block || t->lanes) account->flags |= MHA_PLAN_ONE_BLOCK;
    if (t->split_blocks > 0) {
        account->work_items = t->items * t->split_blocks;
        account->flags |= MHA_PLAN_KEYS_SHARED;
    }
    return MHA_OK;
}
