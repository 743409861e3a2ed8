/* A few queries of a few key/value heads would leave threads idle, so threads share the key blocks.
 *
 * Online softmax is sequential: the contribution of a block depends on the maximum so far.
 * The work is therefore divided into three passes. They perform the same operations per
 * block as one thread would:
 *
 *   scores    masked scores of each block, and the maximum of each row    any order
 *   values    p = 2^(score - maximum so far), their sum, and p V          any order
 *   join      o = 2^(old maximum - new) o + p V, likewise the sum         in the order of keys
 *
 * Maxima are exact, so the result is bit-identical to that of one thread. If an element is not
 * finite, the general path recomputes the whole problem. Ranks run the same passes, each over its
 * own key blocks (src/distributed/decode.c). */
#include "attention/attn_split.h"

#include "base/checked.h"

#include <multihead/component.h>

#include <math.h>
#include <string.h>

/* Results of a chunk's block, for the next pass. */
typedef struct split_part {
    float *s;        /* [rows][MHAI_SCORE_STRIDE] scores */
    float *o;        /* [rows][values, padded] p V */
    float *m, *l;    /* [rows] maximum, NaN if the strip of the row sees nothing; sum */
    float *unfinite; /* nonzero: the block needs the general path */
} split_part;

typedef struct split_job {
    const mhai_attn_stretch *stretch;
    bool values; /* second pass */
} split_job;

/* An item of a pass. */
typedef struct split_item {
    const split_job *job;
    int64_t chunk, block;
} split_item;

int64_t mhai_attn_split_part(const mhai_attn_problem *p, const mhai_attn_tiling *tiling)
{
    const int64_t row = MHAI_SCORE_STRIDE + mhai_attn_padded_values(p) + 2;
    return mhai_round_up(tiling->chunk_rows * row + 1, 16);
}

static split_part part_of(const mhai_attn_stretch *stretch, int64_t chunk, int64_t block)
{
    const mhai_attn_walk *walk = stretch->walk;
    const int64_t rows = walk->tiling.chunk_rows, cols = mhai_attn_padded_values(walk->p);
    split_part part;
    part.s = stretch->parts +
             (chunk * stretch->blocks + block) * mhai_attn_split_part(walk->p, &walk->tiling);
    part.o = part.s + rows * MHAI_SCORE_STRIDE;
    part.m = part.o + rows * cols;
    part.l = part.m + rows;
    part.unfinite = part.l + rows;
    return part;
}

/* Update a row's maximum over all earlier keys with the maximum over the next keys. */
static void raise_maximum(float of_keys, float *m)
{
    if (of_keys > *m) *m = of_keys;
}

static bool split_rows(void *user, const mhai_attn_chunk *c, mhai_attn_workspace *w,
                       const mhai_attn_block *block, mhai_attn_strip *strips, int count)
{
    const split_item *item = user;
    const split_job *job = item->job;
    const mhai_attn_walk *walk = job->stretch->walk;
    const int64_t cols = mhai_attn_padded_values(walk->p);
    const split_part part = part_of(job->stretch, item->chunk, item->block);
    const mhai_tile_rows rows = mhai_attn_rows_of(walk->p, c, w, block, count);
    const mhai_tile *tiles[MHAI_ROWS_TILES] = {NULL};
    bool finite;
    for (int i = 0; i < count; i++) {
        mhai_attn_strip *s = &strips[i];
        s->mask.poison = NULL;
        s->tile.mask = s->masked ? &s->mask : NULL;
        s->tile.s = part.s + s->first * MHAI_SCORE_STRIDE;
        s->tile.l = part.l + s->first;
        if (!job->values) s->tile.m = part.m + s->first;
        tiles[i] = &s->tile;
    }
    if (!job->values) {
        walk->kernels->tile_rows_scores(tiles, &rows, &finite);
        return finite;
    }
    walk->kernels->tile_rows_values(tiles, &rows, &finite);
    const float *sums = rows.o;
    for (int i = 0; i < count; i++) {
        const int64_t floats = tiles[i]->rows * cols;
        memcpy(part.o + strips[i].first * cols, sums, (size_t)floats * sizeof *sums);
        sums += floats;
    }
    return finite;
}

static void split_strip(void *user, const mhai_attn_chunk *c, mhai_attn_workspace *w,
                        const mhai_attn_block *block, mhai_attn_strip *s)
{
    const split_item *item = user;
    (void)c, (void)w, (void)block, (void)s;
    *part_of(item->job->stretch, item->chunk, item->block).unfinite = 1;
}

/* Compute the maxima of a chunk's rows over all keys up to the end of a block. */
static void raise_to(const mhai_attn_stretch *stretch, const split_item *item,
                     const mhai_attn_chunk *c, float *m)
{
    const float *before = stretch->before;
    if (before) before += item->chunk * stretch->walk->tiling.chunk_rows;
    for (int64_t r = 0; before && r < c->rows; r++) raise_maximum(before[r], &m[r]);
    for (int64_t b = 0; b <= item->block; b++) {
        const split_part part = part_of(stretch, item->chunk, b);
        for (int64_t r = 0; r < c->rows; r++) raise_maximum(part.m[r], &m[r]);
    }
}

static void run_part(void *argument, int64_t at, int worker)
{
    const split_job *job = argument;
    const mhai_attn_stretch *stretch = job->stretch;
    split_item item = {job, at / stretch->blocks, at % stretch->blocks};
    const mhai_attn_visitor visitor = {.user = &item, .strip = split_strip, .rows = split_rows};
    mhai_attn_workspace w = mhai_attn_workspace_of(stretch->walk, worker);
    mhai_attn_chunk c = mhai_attn_chunk_of_item(stretch->walk, item.chunk);
    mhai_attn_place_rows(stretch->walk, &c, &w);
    mhai_attn_load_rows(stretch->walk, &c, &w);
    if (job->values) raise_to(stretch, &item, &c, w.m);
    mhai_attn_walk_block(stretch->walk, &c, &w, (stretch->first + item.block) * MHAI_KEY_BLOCK,
                         &visitor);
}

static bool run_pass(mha_context *context, const mhai_attn_stretch *stretch, bool values)
{
    split_job job = {stretch, values};
    const int64_t parts = stretch->walk->tiling.items * stretch->blocks;
    mha_parallel_for(context, parts, run_part, &job);
    for (int64_t i = 0; i < parts; i++)
        if (*part_of(stretch, 0, i).unfinite != 0) return false;
    return true;
}

bool mhai_attn_stretch_scores(mha_context *context, const mhai_attn_stretch *stretch)
{
    const mhai_attn_tiling *tiling = &stretch->walk->tiling;
    for (int64_t i = 0; i < tiling->items * stretch->blocks; i++) {
        const split_part part = part_of(stretch, 0, i);
        for (int64_t r = 0; r < tiling->chunk_rows; r++) part.m[r] = NAN;
        *part.unfinite = 0;
    }
    return run_pass(context, stretch, false);
}

bool mhai_attn_stretch_values(mha_context *context, const mhai_attn_stretch *stretch)
{
    return run_pass(context, stretch, true);
}

void mhai_attn_stretch_maxima(const mhai_attn_stretch *stretch, float *maxima)
{
    const mhai_attn_tiling *tiling = &stretch->walk->tiling;
    for (int64_t i = 0; i < tiling->items; i++, maxima += tiling->chunk_rows) {
        for (int64_t r = 0; r < tiling->chunk_rows; r++) maxima[r] = -INFINITY;
        for (int64_t b = 0; b < stretch->blocks; b++)
            for (int64_t r = 0; r < tiling->chunk_rows; r++)
                raise_maximum(part_of(stretch, i, b).m[r], &maxima[r]);
    }
}

void mhai_attn_stretch_join(const mhai_attn_stretch *stretch, int64_t item,
                            const mhai_attn_chunk *c, mhai_attn_workspace *w)
{
    const mhai_attn_walk *walk = stretch->walk;
    const int64_t cols = mhai_attn_padded_values(walk->p);
    for (int64_t b = 0; b < stretch->blocks; b++) {
        const split_part part = part_of(stretch, item, b);
        for (int64_t r = 0; r < c->rows; r++) {
            if (isnan(part.m[r])) continue;
            const float old = w->m[r];
            raise_maximum(part.m[r], &w->m[r]);
            walk->kernels->join_row(w->o + r * cols, part.o + r * cols, cols, old, w->m[r],
                                    part.l[r], &w->l[r]);
        }
    }
}

mha_status mhai_attn_split(mha_context *context, const mhai_attn_walk *walk,
                           void (*finish)(void *user, const mhai_attn_chunk *c,
                                          mhai_attn_workspace *w),
                           void *user, bool *done)
{
    const mhai_attn_tiling *tiling = &walk->tiling;
    mhai_attn_stretch all = {.walk = walk, .blocks = tiling->split_blocks};
    *done = false;
    MHA_TRY(mha_scratch_alloc(context, tiling->split_floats, sizeof(float), &all.parts));
    if (!mhai_attn_stretch_scores(context, &all) || !mhai_attn_stretch_values(context, &all))
        return MHA_OK;
    mhai_attn_workspace w = mhai_attn_workspace_of(walk, 0);
    for (int64_t i = 0; i < tiling->items; i++) {
        mhai_attn_chunk c = mhai_attn_chunk_of_item(walk, i);
        mhai_attn_place_rows(walk, &c, &w);
        mhai_attn_load_rows(walk, &c, &w);
        memset(w.o, 0, (size_t)(c.rows * mhai_attn_padded_values(walk->p)) * sizeof *w.o);
        mhai_attn_stretch_join(&all, i, &c, &w);
        finish(user, &c, &w);
    }
    *done = true;
    return MHA_OK;
}
