/* Sums of probabilities across rows: the mean over heads, and what each key receives. Each output
 * element has one owner, which adds in one order. */
#include "attention/attn_tiles.h"

#include "base/checked.h"

#include <multihead/component.h>

typedef struct sums_job {
    const mhai_attn_walk *walk;
    const mhai_attn_kept *kept;
} sums_job;

/* ---- the average over heads ------------------------------------------------------------------ */

static void restore_chunk(void *user, const mhai_attn_chunk *c, mhai_attn_workspace *w)
{
    const sums_job *job = user;
    mhai_attn_restore_rows(job->kept, job->walk->p, c, w);
}

static float *average_row(const mhai_attn_problem *p, const mhai_attn_sequence *seq, int64_t t)
{
    const mha_tensor *x = &p->want.average;
    return (float *)x->data + seq->batch * x->stride[0] + (seq->q0 + t) * x->stride[1];
}

/* The rows of a strip come head after head, so each element takes its heads in order. */
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

/* Items are runs of queries of one sequence; every head of each. */
static void run_average(void *argument, int64_t item, int worker)
{
    sums_job *job = argument;
    const mhai_attn_walk *walk = job->walk;
    const mhai_attn_problem *p = walk->p;
    const int64_t most = walk->tiling.average_queries, pieces = mhai_ceil_div(p->T, most);
    const mhai_attn_sequence seq = mhai_attn_sequence_of(p, item / pieces);
    const int64_t first = item % pieces * most, queries = mhai_min_i64(most, seq.T - first);
    const mhai_attn_visitor visitor = {.user = job, .chunk = restore_chunk, .strip = average_strip};
    mhai_attn_workspace w = mhai_attn_workspace_of(walk, worker);
    for (int64_t t = first; t < first + queries; t++)
        for (int64_t s = 0; s < p->S; s++) average_row(p, &seq, t)[s] = 0;
    for (int64_t hk = 0; queries > 0 && hk < p->Hk; hk++) {
        mhai_attn_chunk c = {
            .seq = seq, .hk = hk, .head0 = hk * p->group, .query0 = first, .width = queries};
        for (; c.first < p->group * queries; c.first += walk->tiling.chunk_rows) {
            c.rows = mhai_min_i64(walk->tiling.chunk_rows, p->group * queries - c.first);
            mhai_attn_walk_chunk(walk, &c, &w, &visitor);
        }
    }
    for (int64_t t = first; p->H > 0 && t < first + queries; t++)
        for (int64_t s = 0; s < p->S; s++) average_row(p, &seq, t)[s] /= (float)p->H;
}

/* ---- what each key receives ------------------------------------------------------------------ */

typedef struct column_sums {
    const sums_job *job;
    const mhai_attn_key_item *item;
    int64_t head; /* whose sums are under way; -1: none yet */
} column_sums;

static float *column_row(const mhai_attn_problem *p, const mhai_attn_key_item *item, int64_t h)
{
    const mha_tensor *x = &p->want.column_sums;
    return (float *)x->data + item->seq.batch * x->stride[0] + h * x->stride[1] + item->seq.k0 +
           item->key;
}

static int64_t columns_of(const mhai_attn_key_item *item)
{
    return mhai_max_i64(0, mhai_min_i64(MHAI_KEY_BLOCK, item->seq.stored - item->key));
}

/* Write the sums of the head under way and begin with those of another. */
static void next_head(column_sums *x, const mhai_attn_workspace *w, int64_t head)
{
    if (x->head >= 0) {
        float *out = column_row(x->job->walk->p, x->item, x->head);
        for (int64_t j = 0; j < columns_of(x->item); j++) out[j] = (float)w->columns[j];
    }
    for (int j = 0; j < MHAI_KEY_BLOCK; j++) w->columns[j] = 0;
    x->head = head;
}

static void start_columns(void *user, const mhai_attn_chunk *c, mhai_attn_workspace *w)
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
        if (w->head[s->first + r] != x->head) next_head(x, w, w->head[s->first + r]);
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
    column_sums x = {.job = job, .item = &at, .head = -1};
    const mhai_attn_visitor visitor = {.user = &x, .chunk = start_columns, .strip = columns_strip};
    for (int64_t h = at.hk * p->group; h < (at.hk + 1) * p->group; h++)
        for (int64_t j = 0; j < columns_of(&at); j++) column_row(p, &at, h)[j] = 0;
    mhai_attn_walk_keys(job->walk, &at, &w, &visitor);
    next_head(&x, &w, -1);
}

/* ---- both ------------------------------------------------------------------------------------ */

void mhai_attn_run_sums(mha_context *context, const mhai_attn_walk *walk,
                        const mhai_attn_kept *kept)
{
    const mhai_attn_problem *p = walk->p;
    sums_job job = {.walk = walk, .kept = kept};
    if (mhai_attn_wants(&p->want.average))
        mha_parallel_for(context, p->B * mhai_ceil_div(p->T, walk->tiling.average_queries),
                         run_average, &job);
    if (mhai_attn_wants(&p->want.column_sums))
        mha_parallel_for(context, mhai_attn_key_items(walk), run_columns, &job);
}
