/* A worker's memory and the rows of a chunk in it: positions, visible keys, queries, and the sums
 * by distance for Shaw's relative positions. */
#include "attention/attn_tiles.h"

#include "base/checked.h"
#include "base/math.h"

#include <math.h>
#include <string.h>

static const double log2_e = 1.4426950408889634;

/* ---- memory -------------------------------------------------------------------------------- */

int64_t mhai_attn_padded_values(const mhai_attn_problem *p)
{
    return mhai_round_up(p->Dv, MHAI_PANEL);
}

/* Columns of a row's table of distances. */
int64_t mhai_attn_padded_shaw(const mha_tensor *table)
{
    return table->data ? mhai_round_up(table->shape[0], MHAI_PANEL) : 0;
}

/* Each run of consecutive queries of one head needs a table of terms by distance. */
static int64_t relative_floats(const mhai_attn_problem *p, const mhai_attn_tiling *tiling)
{
    if (!mhai_attn_has_relative(p)) return 0;
    return tiling->runs * MHAI_KEY_BLOCK + tiling->chunk_rows;
}

/* See attn_tiles.h. Sizes cannot overflow: constants of this library or attn_check.c (Shaw
 * tables) bound all factors. */
mhai_attn_workspace mhai_attn_lay_out(const mhai_attn_problem *p, const mhai_attn_tiling *tiling,
                                      int tile_rows, unsigned char *memory)
{
    mhai_attn_workspace w = {0};
    const int64_t rows = tiling->chunk_rows;
    mhai_carver c = {memory, 0};
    int64_t shaw_keys = mhai_attn_padded_shaw(&p->shaw_keys),
            shaw_values = mhai_attn_padded_shaw(&p->shaw_values);
    mhai_attn_workspace *own = mhai_carve(&c, 1, sizeof w);
    w.q = mhai_carve(&c, rows * p->D, sizeof(float));
    w.o = mhai_carve(&c, rows * mhai_attn_padded_values(p), sizeof(float));
    w.m = mhai_carve(&c, rows, sizeof(float));
    w.l = mhai_carve(&c, rows, sizeof(float));
    w.k = mhai_carve(&c, MHAI_KEY_BLOCK * p->D, sizeof(float));
    w.v = mhai_carve(&c, MHAI_KEY_BLOCK * mhai_attn_padded_values(p), sizeof(float));
    w.s = mhai_carve(&c, (int64_t)tile_rows * MHAI_SCORE_STRIDE, sizeof(float));
    w.head = mhai_carve(&c, rows, sizeof(int64_t));
    w.query = mhai_carve(&c, rows, sizeof(int64_t));
    w.limit = mhai_carve(&c, rows, sizeof(mhai_attn_range));
    w.window = mhai_carve(&c, rows, sizeof(mhai_attn_range));
    w.bad_query = mhai_carve(&c, rows, 1);
    w.bad_key = mhai_carve(&c, MHAI_KEY_BLOCK, 1);
    w.bad_value = mhai_carve(&c, MHAI_KEY_BLOCK, 1);
    w.visible = mhai_carve(&c, (int64_t)MHAI_MAX_ROWS * MHAI_KEY_BLOCK, 1);
    w.keep = mhai_carve(&c, (int64_t)MHAI_MAX_ROWS * MHAI_KEY_BLOCK, 1);
    w.relative_at = mhai_carve(&c, mhai_attn_has_relative(p) ? rows : 0, sizeof(int64_t));
    w.relative = mhai_carve(&c, relative_floats(p, tiling), sizeof(float));
    w.shaw_keys = mhai_carve(&c, rows * shaw_keys, sizeof(float));
    w.shaw_values = mhai_carve(&c, rows * shaw_values, sizeof(float));
    w.shaw_panels =
        mhai_carve(&c, mhai_max_i64(shaw_keys * p->D, shaw_values * mhai_attn_padded_values(p)),
                   sizeof(float));
    bool statistics = mhai_attn_wants_statistics(&p->want);
    w.entropy = mhai_carve(&c, statistics ? rows : 0, sizeof(double));
    w.largest = mhai_carve(&c, statistics ? rows : 0, sizeof(float));
    w.log_sum = mhai_carve(&c, statistics ? rows : 0, sizeof(float));
    w.largest_key = mhai_carve(&c, statistics ? rows : 0, sizeof(int64_t));
    const int64_t scored = tiling->scored_rows * mhai_ceil_div(p->S, MHAI_KEY_BLOCK);
    w.scores = mhai_carve(&c, scored * MHAI_SCORE_STRIDE, sizeof(float));
    w.scored = mhai_carve(&c, scored, sizeof(mhai_attn_range));
    w.columns = mhai_carve(&c, p->want.column_sums.data ? MHAI_KEY_BLOCK : 0, sizeof(double));
    const int64_t runs = p->pages ? MHAI_BLOCK_RUNS + MHAI_RUNS_AHEAD : 0;
    w.key_runs = mhai_carve(&c, runs, sizeof(mhai_run));
    w.value_runs = mhai_carve(&c, runs, sizeof(mhai_run));
    w.run = mhai_carve(&c, p->pages ? MHAI_RUN * mhai_attn_padded_values(p) : 0, sizeof(float));
    w.gathered = mhai_carve(&c, mhai_attn_gathered_bytes(p), 1);
    w.bytes = c.used;
    if (own) *own = w;
    return w;
}

mhai_attn_workspace mhai_attn_workspace_of(const mhai_attn_walk *walk, int worker)
{
    return *(const mhai_attn_workspace *)(const void *)(walk->memory +
                                                        (size_t)worker * walk->worker_bytes);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Extend a hull, which starts as {INT64_MAX, INT64_MIN}, by a nonempty range. The branches are
 * deliberate: the hull rarely changes, and storing it for every row would cost as much as the
 * rest of placing a row. */
static void widen(mhai_attn_range *hull, int64_t begin, int64_t end)
{
    if (begin >= end) return;
    if (begin < hull->begin) hull->begin = begin;
    if (end > hull->end) hull->end = end;
}

/* Set position and visible keys of row r, which is query i of a head. */
static void place_row(const mhai_attn_problem *p, mhai_attn_chunk *c, mhai_attn_workspace *w,
                      int64_t r, int64_t head, int64_t i)
{
    int64_t t = c->list ? c->list[i] - c->seq.q0 : c->query0 + i;
    w->head[r] = head;
    w->query[r] = t;
    bool global = mhai_attn_flag(&p->global_queries, c->seq.batch, c->seq.q0 + t);
    mhai_attn_range limit = mhai_attn_limit(p, &c->seq, t), window = limit;
    if (p->window && !global) window = mhai_attn_window(p, &c->seq, t);
    w->limit[r] = limit;
    w->window[r] = window;
    widen(&c->limit, limit.begin, limit.end);
    widen(&c->window, window.begin, window.end);
    c->global_query |= global;
}

/* Initialise the softmax without keys, or with only the sink, which has a score but no value. */
static void start_row(const mhai_attn_problem *p, mhai_attn_workspace *w, int64_t r)
{
    w->m[r] = -INFINITY;
    w->l[r] = 0;
    if (!p->sink_logits.data) return;
    float sink = ((const float *)p->sink_logits.data)[w->head[r] * p->sink_logits.stride[0]];
    if (sink == -INFINITY) return;
    w->m[r] = (float)((double)sink * log2_e);
    w->l[r] = 1;
}

void mhai_attn_place_rows(const mhai_attn_walk *walk, mhai_attn_chunk *c, mhai_attn_workspace *w)
{
    const mhai_attn_range none = {INT64_MAX, INT64_MIN}, empty = {0, 0};
    int64_t head = c->rows > 0 ? c->head0 + c->first / c->width : 0;
    int64_t i = c->rows > 0 ? c->first % c->width : 0;
    c->limit = c->window = none;
    c->global_query = false;
    for (int64_t r = 0; r < c->rows; r++) {
        place_row(walk->p, c, w, r, head, i);
        if (++i == c->width) i = 0, head++;
    }
    if (c->limit.begin > c->limit.end) c->limit = empty;
    if (c->window.begin > c->window.end) c->window = empty;
}

float mhai_attn_factor(const mhai_attn_problem *p)
{
    return p->softcap > 0 ? p->scale : (float)((double)p->scale * log2_e);
}

float mhai_attn_lse(float m, float l)
{
    return l == 0 ? -INFINITY : (float)((double)m * 0.6931471805599453 + mhai_log((double)l));
}

/* Load scaled queries into the workspace. */
static void load_queries(const mhai_attn_walk *walk, mhai_attn_chunk *c, mhai_attn_workspace *w)
{
    const mhai_attn_problem *p = walk->p;
    const float factor = p->compute == MHA_COMPUTE_BF16 ? 1 : mhai_attn_factor(p);
    c->bad_query = false;
    for (int64_t r = 0; r < c->rows; r++) {
        const int64_t ahead = r + MHAI_ROWS_AHEAD;
        if (ahead < c->rows)
            mhai_attn_fetch_row(&p->q, c->seq.batch, w->head[ahead], c->seq.q0 + w->query[ahead]);
        start_row(p, w, r);
        bool finite;
        walk->kernels->scale_row(
            w->q + r * p->D, p->q.dtype,
            mhai_attn_data(&p->q, c->seq.batch, w->head[r], c->seq.q0 + w->query[r]), p->D, factor,
            &finite);
        w->bad_query[r] = !finite;
        c->bad_query |= !finite;
    }
}

void mhai_attn_multiply_rows(const mhai_kernels *kernels, int64_t rows, int64_t inner, int64_t cols,
                             const float *x, int64_t x_stride, const float *w, int64_t panel_stride,
                             bool first, float *out, int64_t out_stride)
{
    for (int64_t r = 0; r < rows; r += kernels->tile_rows)
        kernels->gemm_strip(&(mhai_gemm){.rows = (int)mhai_min_i64(kernels->tile_rows, rows - r),
                                         .inner = inner,
                                         .panels = mhai_ceil_div(cols, MHAI_PANEL),
                                         .cols = cols,
                                         .x = x + r * x_stride,
                                         .x_stride = x_stride,
                                         .w = w,
                                         .panel_stride = panel_stride,
                                         .first = first,
                                         .out = out + r * out_stride,
                                         .out_stride = out_stride});
}

/* ---- Shaw's relative positions --------------------------------------------------------------- */

/* Multiply every row by the table of keys, and clear the sums by distance. */
static void start_shaw(const mhai_attn_walk *walk, const mhai_attn_chunk *c, mhai_attn_workspace *w)
{
    const mhai_attn_problem *p = walk->p;
    const mha_tensor *table = &p->shaw_keys;
    if (p->shaw_values.data)
        memset(w->shaw_values, 0,
               (size_t)(c->rows * mhai_attn_padded_shaw(&p->shaw_values)) * sizeof(float));
    if (!table->data) return;
    walk->kernels->pack_panels(&(mhai_pack){.out = w->shaw_panels,
                                            .in = table->data,
                                            .stride = table->stride[0],
                                            .rows = table->shape[0],
                                            .cols = p->D});
    mhai_attn_multiply_rows(walk->kernels, c->rows, p->D, table->shape[0], w->q, p->D,
                            w->shaw_panels, p->D * MHAI_PANEL, true, w->shaw_keys,
                            mhai_attn_padded_shaw(table));
}

void mhai_attn_load_rows(const mhai_attn_walk *walk, mhai_attn_chunk *c, mhai_attn_workspace *w)
{
    load_queries(walk, c, w);
    start_shaw(walk, c, w);
}

/* After a tile, update a row's sums by distance: w = a w + sum of p at that
 * distance, in the order of keys. */
void mhai_attn_add_shaw_values(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                               const mhai_attn_workspace *w, const mhai_attn_block *block,
                               const mhai_attn_strip *strip)
{
    int64_t columns = p->shaw_values.shape[0], farthest = columns / 2;
    for (int r = 0; r < strip->tile.rows; r++) {
        int64_t row = strip->first + r;
        float *sums = w->shaw_values + row * mhai_attn_padded_shaw(&p->shaw_values);
        const float *weights = strip->tile.s + r * MHAI_SCORE_STRIDE;
        for (int64_t i = 0; i < columns; i++) sums[i] *= strip->tile.alpha[r];
        int64_t base = block->key - (w->query[row] + c->seq.offset) + farthest;
        for (int j = strip->tile.begin; j < strip->tile.end; j++)
            sums[mhai_max_i64(0, mhai_min_i64(base + j, columns - 1))] += weights[j];
    }
}

/* Add the sums times the table of values, MHAI_GEMM_BLOCK distances at a time. */
void mhai_attn_finish_shaw_values(const mhai_attn_walk *walk, const mhai_attn_chunk *c,
                                  mhai_attn_workspace *w)
{
    const mha_tensor *table = &walk->p->shaw_values;
    const int64_t rows = table->shape[0];
    for (int64_t i = 0; table->data && i < rows; i += MHAI_GEMM_BLOCK) {
        int64_t inner = mhai_min_i64(MHAI_GEMM_BLOCK, rows - i);
        for (int64_t d = 0; d < walk->p->Dv; d++) /* the table is packed transposed: columns d are
                                                   * outputs */
            for (int64_t j = 0; j < inner; j++)
                w->shaw_panels[d / MHAI_PANEL * inner * MHAI_PANEL + j * MHAI_PANEL +
                               d % MHAI_PANEL] =
                    ((const float *)table->data)[(i + j) * table->stride[0] + d];
        mhai_attn_multiply_rows(walk->kernels, c->rows, inner, walk->p->Dv, w->shaw_values + i,
                                mhai_attn_padded_shaw(table), w->shaw_panels, inner * MHAI_PANEL,
                                false, w->o, mhai_attn_padded_values(walk->p));
    }
}
