/* Few queries of so few key/value heads that threads would be idle: they share the key blocks.
 *
 * The online softmax goes from block to block, and what a block adds depends on the maximum up to
 * it. So there are three passes, each with exactly the operations that one thread would perform per
 * block, in an order that does not affect results:
 *
 *   scores    of each block, masked, and each row's maximum in it       any order
 *   values    p = 2^(score - maximum so far), their sum, and p V         any order
 *   join      o = 2^(old maximum - new) o + p V, likewise the sum        in the order of keys
 *
 * Maxima are exact, so the bits are those of one thread. With non-finite elements everything
 * is recomputed on the general path, which handles them. */
#include "attention/attn_tiles.h"

#include "base/checked.h"

#include <multihead/component.h>

#include <math.h>
#include <string.h>

/* What a block of a chunk leaves for the next pass. */
typedef struct split_part {
    float *s;        /* [rows][MHAI_SCORE_STRIDE] scores */
    float *o;        /* [rows][values, padded] p V */
    float *m, *l;    /* [rows] maximum, NaN where the row's strip sees nothing; sum */
    float *unfinite; /* not 0: it must be done in the usual way */
} split_part;

typedef struct split_job {
    const mhai_attn_walk *walk;
    float *memory;
    bool values; /* the pass at hand */
} split_job;

/* One item of a pass. */
typedef struct split_item {
    const split_job *job;
    int64_t chunk, block;
} split_item;

int64_t mhai_attn_split_part(const mhai_attn_problem *p, const mhai_attn_tiling *tiling)
{
    const int64_t row = MHAI_SCORE_STRIDE + mhai_attn_padded_values(p) + 2;
    return mhai_round_up(tiling->chunk_rows * row + 1, 16);
}

static split_part part_of(const split_job *job, int64_t chunk, int64_t block)
{
    const mhai_attn_tiling *tiling = &job->walk->tiling;
    const int64_t rows = tiling->chunk_rows, cols = mhai_attn_padded_values(job->walk->p);
    split_part part;
    part.s = job->memory +
             (chunk * tiling->split_blocks + block) * mhai_attn_split_part(job->walk->p, tiling);
    part.o = part.s + rows * MHAI_SCORE_STRIDE;
    part.m = part.o + rows * cols;
    part.l = part.m + rows;
    part.unfinite = part.l + rows;
    return part;
}

/* m = the maximum of the row up to and with this block, whose rows have those before it. */
static void raise_maximum(const split_part *part, int64_t row, float *m)
{
    if (part->m[row] > *m) *m = part->m[row];
}

static bool split_rows(void *user, const mhai_attn_chunk *c, mhai_attn_workspace *w,
                       const mhai_attn_block *block, mhai_attn_strip *strips, int count)
{
    const split_item *item = user;
    const split_job *job = item->job;
    const int64_t cols = mhai_attn_padded_values(job->walk->p);
    const split_part part = part_of(job, item->chunk, item->block);
    const mhai_tile_rows rows = mhai_attn_rows_of(job->walk->p, c, w, block, count);
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
        job->walk->kernels->tile_rows_scores(tiles, &rows, &finite);
        return finite;
    }
    job->walk->kernels->tile_rows_values(tiles, &rows, &finite);
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
    *part_of(item->job, item->chunk, item->block).unfinite = 1;
}

static void run_part(void *argument, int64_t at, int worker)
{
    const split_job *job = argument;
    const int64_t blocks = job->walk->tiling.split_blocks;
    split_item item = {job, at / blocks, at % blocks};
    const mhai_attn_visitor visitor = {.user = &item, .strip = split_strip, .rows = split_rows};
    mhai_attn_workspace w = mhai_attn_workspace_of(job->walk, worker);
    mhai_attn_chunk c = mhai_attn_chunk_of_item(job->walk, item.chunk);
    mhai_attn_place_rows(job->walk, &c, &w);
    mhai_attn_load_rows(job->walk, &c, &w);
    for (int64_t b = 0; job->values && b <= item.block; b++) {
        const split_part part = part_of(job, item.chunk, b);
        for (int64_t r = 0; r < c.rows; r++) raise_maximum(&part, r, &w.m[r]);
    }
    mhai_attn_walk_block(job->walk, &c, &w, item.block * MHAI_KEY_BLOCK, &visitor);
}

static bool all_finite(const split_job *job)
{
    const mhai_attn_tiling *tiling = &job->walk->tiling;
    for (int64_t i = 0; i < tiling->items * tiling->split_blocks; i++)
        if (*part_of(job, 0, i).unfinite != 0) return false;
    return true;
}

/* The blocks of a chunk, whose rows have been loaded, one after the other. */
static void join_parts(const split_job *job, int64_t chunk, const mhai_attn_chunk *c,
                       mhai_attn_workspace *w)
{
    const int64_t cols = mhai_attn_padded_values(job->walk->p);
    memset(w->o, 0, (size_t)(c->rows * cols) * sizeof *w->o);
    for (int64_t b = 0; b < job->walk->tiling.split_blocks; b++) {
        const split_part part = part_of(job, chunk, b);
        for (int64_t r = 0; r < c->rows; r++) {
            if (isnan(part.m[r])) continue;
            const float old = w->m[r];
            raise_maximum(&part, r, &w->m[r]);
            job->walk->kernels->join_row(w->o + r * cols, part.o + r * cols, cols, old, w->m[r],
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
    const int64_t parts = tiling->items * tiling->split_blocks;
    split_job job = {.walk = walk};
    void *memory;
    *done = false;
    MHA_TRY(mha_scratch_alloc(context, tiling->split_floats, sizeof(float), &memory));
    job.memory = memory;
    for (int64_t i = 0; i < parts; i++) {
        const split_part part = part_of(&job, 0, i);
        for (int64_t r = 0; r < tiling->chunk_rows; r++) part.m[r] = NAN;
        *part.unfinite = 0;
    }
    mha_parallel_for(context, parts, run_part, &job);
    if (!all_finite(&job)) return MHA_OK;
    job.values = true;
    mha_parallel_for(context, parts, run_part, &job);
    if (!all_finite(&job)) return MHA_OK;
    mhai_attn_workspace w = mhai_attn_workspace_of(walk, 0);
    for (int64_t i = 0; i < tiling->items; i++) {
        mhai_attn_chunk c = mhai_attn_chunk_of_item(walk, i);
        mhai_attn_place_rows(walk, &c, &w);
        mhai_attn_load_rows(walk, &c, &w);
        join_parts(&job, i, &c, &w);
        finish(user, &c, &w);
    }
    *done = true;
    return MHA_OK;
}
