/* Sums of probabilities over rows: the mean over heads, and the weight that each key receives. Each
 * output element has one owner and a fixed order of additions. */
#include "attention/attn_tiles.h"

#include "base/checked.h"

#include <multihead/component.h>

#include <string.h>

typedef struct sums_job {
    const mhai_attn_walk *walk;
    const mhai_attn_kept *kept;
} sums_job;

/* ---- the average over heads ------------------------------------------------------------------ */

static void restore_chunk(void *user, mhai_attn_chunk *c, mhai_attn_workspace *w)
{
    const sums_job *job = user;
    mhai_attn_restore_rows(job->kept, job->walk->p, c, w);
}

static float *average_row(const mhai_attn_problem *p, const mhai_attn_sequence *seq, int64_t t)
{
    const mha_tensor *x = &p->want.average;
    return (float *)x->data + seq->batch * x->stride[0] + (seq->q0 + t) * x->stride[1];
}

/* The rows of a strip are ordered by head, so each element adds heads in order. */
static void average_strip(void *user, const mhai_attn_chunk *c, mhai_attn_workspace *w,
                          const mhai_attn_block *block, mhai_attn_strip *s)
{
    const sums_job *job = user;
    const mhai_attn_walk *walk = job->walk;
    mhai_dropout dropout;
    walk->kernels->tile_probabilities(&s->tile);
    if (walk->p->want.dropped) {
        mhai_attn_set_dropout(walk, c, w, block, s, &dropout);
        s->tile.dropout = &dropout;
        walk->kernels->tile_drop(&s->tile);
    }
    for (int r = 0; r < s->tile.rows; r++) {
        float *out = average_row(walk->p, &c->seq, w->query[s->first + r]) + block->key;
        const float *in = s->tile.s + r * MHAI_SCORE_STRIDE;
        for (int j = s->tile.begin; j < s->tile.end; j++) out[j] += in[j];
    }
}

/* Return the number of queries of an item. Set *c to a chunk with these queries. Its heads and rows
 * are not set. */
static int64_t average_item(const mhai_attn_walk *walk, int64_t item, mhai_attn_chunk *c)
{
    const mhai_attn_problem *p = walk->p;
    const int64_t most = walk->tiling.average_queries, pieces = mhai_ceil_div(p->T, most);
    *c = (mhai_attn_chunk){.seq = mhai_attn_sequence_of(p, item / pieces)};
    c->query0 = item % pieces * most;
    c->width = mhai_max_i64(0, mhai_min_i64(most, c->seq.T - c->query0));
    return c->width;
}

static void begin_average(const mhai_attn_problem *p, const mhai_attn_chunk *c)
{
    for (int64_t t = c->query0; t < c->query0 + c->width; t++)
        for (int64_t s = 0; s < p->S; s++) average_row(p, &c->seq, t)[s] = 0;
}

static void end_average(const mhai_attn_problem *p, const mhai_attn_chunk *c)
{
    for (int64_t t = c->query0; p->H > 0 && t < c->query0 + c->width; t++)
        for (int64_t s = 0; s < p->S; s++) average_row(p, &c->seq, t)[s] /= (float)p->H;
}

/* Items are runs of queries of one sequence, each with all its heads. */
static void run_average(void *argument, int64_t item, int worker)
{
    sums_job *job = argument;
    const mhai_attn_walk *walk = job->walk;
    const mhai_attn_problem *p = walk->p;
    const mhai_attn_visitor visitor = {.user = job, .chunk = restore_chunk, .strip = average_strip};
    mhai_attn_workspace w = mhai_attn_workspace_of(walk, worker);
    mhai_attn_chunk all;
    if (average_item(walk, item, &all) == 0) return;
    begin_average(p, &all);
    for (int64_t hk = 0; hk < p->Hk; hk++) {
        mhai_attn_chunk c = all;
        c.hk = hk;
        c.head0 = hk * p->group;
        for (; c.first < p->group * c.width; c.first += walk->tiling.chunk_rows) {
            c.rows = mhai_min_i64(walk->tiling.chunk_rows, p->group * c.width - c.first);
            mhai_attn_walk_chunk(walk, &c, &w, &visitor);
        }
    }
    end_average(p, &all);
}

/* ---- the average, in the forward pass -------------------------------------------------------- */

int64_t mhai_attn_average_items(const mhai_attn_problem *p, const mhai_attn_tiling *tiling)
{
    return p->B * mhai_ceil_div(p->T, tiling->average_queries);
}

void mhai_attn_keep_scores(const mhai_attn_walk *walk, const mhai_attn_workspace *w,
                           const mhai_attn_block *block, mhai_attn_strip *s)
{
    const int64_t at = block->key / MHAI_KEY_BLOCK * walk->tiling.scored_rows + s->first;
    s->tile.scores = w->scores + at * MHAI_SCORE_STRIDE;
    for (int r = 0; r < s->tile.rows; r++)
        w->scored[at + r] = (mhai_attn_range){s->tile.begin, s->tile.end};
}

/* The rows of a chunk are ordered by head, so each element adds heads in order. */
static void add_scored(const mhai_attn_walk *walk, const mhai_attn_chunk *c,
                       const mhai_attn_workspace *w)
{
    for (int64_t r = 0; r < c->rows; r++) {
        float *out = average_row(walk->p, &c->seq, w->query[r]);
        for (int64_t key = 0; key < c->limit.end; key += MHAI_KEY_BLOCK) {
            const int64_t at = key / MHAI_KEY_BLOCK * walk->tiling.scored_rows + r;
            const mhai_attn_range of = w->scored[at];
            walk->kernels->add_probabilities(out + key + of.begin,
                                             w->scores + at * MHAI_SCORE_STRIDE + of.begin,
                                             of.end - of.begin, w->m[r], w->l[r]);
        }
    }
}

void mhai_attn_run_scored(const mhai_attn_walk *walk, int64_t item, int worker,
                          mhai_attn_forward_chunk *forward, void *user)
{
    const mhai_attn_problem *p = walk->p;
    const int64_t most = walk->tiling.scored_rows, blocks = mhai_ceil_div(p->S, MHAI_KEY_BLOCK);
    mhai_attn_workspace w = mhai_attn_workspace_of(walk, worker);
    mhai_attn_chunk all;
    if (average_item(walk, item, &all) == 0) return;
    begin_average(p, &all);
    for (int64_t hk = 0; hk < p->Hk; hk++)
        for (int64_t first = 0; first < p->group * all.width; first += most) {
            mhai_attn_chunk c = all;
            c.hk = hk;
            c.head0 = hk * p->group;
            c.first = first;
            c.rows = mhai_min_i64(most, p->group * c.width - first);
            memset(w.scored, 0, (size_t)(blocks * most) * sizeof *w.scored);
            forward(user, &c, &w);
            add_scored(walk, &c, &w);
        }
    end_average(p, &all);
}

/* ---- column sums ----------------------------------------------------------------------------- */

typedef struct column_sums {
    const sums_job *job;
    const mhai_attn_key_item *item;
    int64_t columns; /* of the item */
    int64_t head;    /* the current head */
} column_sums;

static void begin_head(const column_sums *x, const mhai_attn_workspace *w)
{
    mhai_attn_begin_columns(x->job->walk->p, &x->item->seq, x->head, x->item->key, x->columns,
                            w->columns);
}

static void end_head(const column_sums *x, const mhai_attn_workspace *w)
{
    mhai_attn_end_columns(x->job->walk->p, &x->item->seq, x->head, x->item->key, x->columns,
                          w->columns);
}

/* Advance to a later head. Heads whose rows do not see the block are skipped. */
static void go_to_head(column_sums *x, const mhai_attn_workspace *w, int64_t head)
{
    while (x->head < head) {
        end_head(x, w);
        x->head++;
        begin_head(x, w);
    }
}

static void start_columns(void *user, mhai_attn_chunk *c, mhai_attn_workspace *w)
{
    const column_sums *x = user;
    mhai_attn_restore_rows(x->job->kept, x->job->walk->p, c, w);
}

static void columns_strip(void *user, const mhai_attn_chunk *c, mhai_attn_workspace *w,
                          const mhai_attn_block *block, mhai_attn_strip *s)
{
    column_sums *x = user;
    (void)c;
    (void)block;
    x->job->walk->kernels->tile_probabilities(&s->tile);
    for (int r = 0; r < s->tile.rows; r++) {
        const float *in = s->tile.s + r * MHAI_SCORE_STRIDE;
        go_to_head(x, w, w->head[s->first + r]);
        for (int j = s->tile.begin; j < s->tile.end; j++) w->columns[j] += (double)in[j];
    }
}

/* Items are key blocks of the key/value heads. */
static void run_columns(void *argument, int64_t item, int worker)
{
    const sums_job *job = argument;
    const mhai_attn_problem *p = job->walk->p;
    const mhai_attn_key_item at = mhai_attn_key_item_at(job->walk, item);
    mhai_attn_workspace w = mhai_attn_workspace_of(job->walk, worker);
    column_sums x = {.job = job, .item = &at, .head = at.hk * p->group};
    const mhai_attn_visitor visitor = {.user = &x, .chunk = start_columns, .strip = columns_strip};
    x.columns = mhai_max_i64(0, mhai_min_i64(MHAI_KEY_BLOCK, at.seq.stored - at.key));
    if (x.columns == 0) return;
    begin_head(&x, &w);
    mhai_attn_walk_keys(job->walk, &at, &w, &visitor);
    go_to_head(&x, &w, (at.hk + 1) * p->group - 1);
    end_head(&x, &w);
}

/* ---- both outputs ---------------------------------------------------------------------------- */

mha_status mhai_attn_run_sums(mha_context *context, const mhai_attn_walk *walk,
                              const mhai_attn_kept *kept)
{
    const mhai_attn_problem *p = walk->p;
    sums_job job = {.walk = walk, .kept = kept};
    if (mhai_attn_wants(&p->want.average) && walk->tiling.scored_rows == 0)
        mha_parallel_for(context, mhai_attn_average_items(p, &walk->tiling), run_average, &job);
    if (!mhai_attn_wants(&p->want.column_sums)) return MHA_OK;
    return mhai_attn_run_columns(context, p, p->B * p->Hk * mhai_attn_key_items(walk), run_columns,
                                 &job);
}
