/* Rows of the map of a recurrent layer. A row r = scale q_t is propagated back block by block. For
 * each block of keys:
 *
 *   M = r K_out N      r = diag(end) r - M K_in      N = (I + diag(b) tril(pairs_k, -1))^-1 diag(b)
 *
 * K_out N is computed once for all rows. The term M K_in exists only with the delta rule. */
#include "attention/recurrent.h"
#include "base/checked.h"
#include "base/context.h"
#include "base/need.h"

#include <multihead/component.h>

enum {
    BLOCK_FLOATS = 1 << 20,
    GROUP = 128 /* rows for which a computed block is reused */
};

typedef struct visit {
    const mhai_recurrent *call;
    const mhai_kernels *kernels;
    int64_t b, row, rows, keys; /* number of rows in a block; number of keys of the sequence */
    float *p;                   /* [H,rows,keys] */
    unsigned char *memory;
    size_t worker_bytes;
} visit;

/* A worker's memory; deep is D rounded up to panels. */
typedef struct workspace {
    mhai_recurrent_block x;
    float *r;     /* [GROUP][deep] */
    float *keys;  /* K_out N, transposed: [BLOCK][deep] */
    float *panel; /* the same, [D][32] */
    float *minus; /* -K_out N, then -K_in in panels: [deep / 32][BLOCK][32] */
} workspace;

static workspace carve(const visit *x, void *memory, size_t *bytes)
{
    const int64_t D = x->call->sizes.D, deep = mhai_round_up(D, MHAI_PANEL);
    workspace w = {.x = mhai_recurrent_block_parts(x->call, memory, bytes)};
    mhai_carver c = {memory, *bytes};
    w.r = mhai_carve(&c, GROUP * deep, sizeof(float));
    w.keys = mhai_carve(&c, MHAI_BLOCK * deep, sizeof(float));
    w.panel = mhai_carve(&c, deep * MHAI_PANEL, sizeof(float));
    w.minus = mhai_carve(&c, MHAI_BLOCK * deep, sizeof(float));
    *bytes = c.used;
    return w;
}

/* Rows first .. end - 1 of a head. Some may lie in the current block of keys. */
typedef struct group {
    const visit *x;
    workspace *w;
    int64_t h, first, end;
    int64_t key; /* the first key of the current block */
} group;

static void minus_row(const float *row, int64_t D, int64_t i, float *panels)
{
    for (int64_t d = 0; d < D; d += MHAI_PANEL) {
        const int64_t columns = mhai_min_i64(MHAI_PANEL, D - d);
        float *to = panels + d * MHAI_BLOCK + i * MHAI_PANEL;
        for (int64_t c = 0; c < columns; c++) to[c] = -row[d + c];
    }
}

/* Compute K_out N, from the last key to the first. */
static void make_keys(const group *g)
{
    const mhai_recurrent *call = g->x->call;
    const mhai_recurrent_block *x = &g->w->x;
    const int64_t D = call->sizes.D, deep = mhai_round_up(D, MHAI_PANEL);
    for (int64_t j = MHAI_BLOCK - 1; j >= 0; j--) {
        const int64_t later = MHAI_BLOCK - 1 - j, row = MHAI_BLOCK + j;
        float *keys = g->w->keys + j * deep;
        memcpy(keys, x->out + j * D, (size_t)D * sizeof *keys);
        if (call->delta && later > 0)
            mhai_recurrent_product(g->x->kernels, 1, MHAI_BLOCK,
                                   (mhai_gemm){.inner = later,
                                               .panels = deep / MHAI_PANEL,
                                               .x = x->pairs + (row + 1) * MHAI_BLOCK + j,
                                               .x_stride = MHAI_BLOCK,
                                               .transposed = true,
                                               .w = g->w->minus + (j + 1) * MHAI_PANEL,
                                               .panel_stride = MHAI_BLOCK * MHAI_PANEL,
                                               .out = keys,
                                               .out_stride = deep});
        for (int64_t d = 0; d < D; d++) keys[d] *= x->strength[j];
        if (call->delta) minus_row(keys, D, j, g->w->minus);
    }
    g->x->kernels->pack_panels(&(mhai_pack){
        .out = g->w->panel, .in = g->w->keys, .stride = deep, .rows = MHAI_BLOCK, .cols = D});
}

static void minus_keys(const group *g)
{
    const int64_t D = g->x->call->sizes.D;
    for (int64_t j = 0; j < MHAI_BLOCK; j++)
        minus_row(g->w->x.in + (MHAI_BLOCK + j) * D, D, j, g->w->minus);
}

static float *map_row(const group *g, int64_t row)
{
    return g->x->p + (g->h * g->x->rows + row) * g->x->keys;
}

/* r -= M K_in */
static void erase(const group *g, int64_t row, int64_t count, int64_t keys)
{
    const int64_t deep = mhai_round_up(g->x->call->sizes.D, MHAI_PANEL);
    mhai_recurrent_product(g->x->kernels, count, MHAI_BLOCK,
                           (mhai_gemm){.inner = keys,
                                       .panels = deep / MHAI_PANEL,
                                       .x = map_row(g, row) + g->key,
                                       .x_stride = g->x->keys,
                                       .w = g->w->minus,
                                       .panel_stride = MHAI_BLOCK * MHAI_PANEL,
                                       .out = g->w->r + (row - g->first) * deep,
                                       .out_stride = deep});
}

/* Process a row against the keys of its own block. */
static void run_own(const group *g, int64_t row)
{
    const mhai_recurrent *call = g->x->call;
    const mhai_recurrent_block *x = &g->w->x;
    const int64_t D = call->sizes.D, i = g->x->row + row - g->key;
    float *m = map_row(g, row) + g->key;
    memcpy(m, x->pairs + i * MHAI_BLOCK, (size_t)(i + 1) * sizeof *m);
    for (int64_t j = i; j >= 0; j--) {
        const float *pairs = x->pairs + (MHAI_BLOCK + j) * MHAI_BLOCK;
        m[j] *= x->strength[j];
        for (int64_t l = 0; l < j && call->delta; l++) m[l] -= m[j] * pairs[l];
    }
    memcpy(g->w->r + (row - g->first) * mhai_round_up(D, MHAI_PANEL), x->in + i * D,
           (size_t)D * sizeof(float));
    if (call->delta) erase(g, row, 1, i + 1);
}

/* Process rows against a block of keys that precedes their own blocks. */
static void run_later(const group *g, int64_t row)
{
    const mhai_recurrent *call = g->x->call;
    const int64_t D = call->sizes.D, deep = mhai_round_up(D, MHAI_PANEL), count = g->end - row;
    float *r = g->w->r + (row - g->first) * deep;
    make_keys(g);
    mhai_recurrent_product(g->x->kernels, count, MHAI_GEMM_BLOCK,
                           (mhai_gemm){.inner = D,
                                       .panels = 1,
                                       .x = r,
                                       .x_stride = deep,
                                       .w = g->w->panel,
                                       .first = true,
                                       .out = map_row(g, row) + g->key,
                                       .out_stride = g->x->keys});
    if (g->key == 0) return;
    for (int64_t i = 0; i < count; i++)
        for (int64_t d = 0; d < D; d++)
            r[i * deep + d] *= (float)g->w->x.end[call->channels ? d : 0];
    if (!call->delta) return;
    minus_keys(g);
    erase(g, row, count, MHAI_BLOCK);
}

static int64_t groups_of(const visit *x)
{
    return mhai_ceil_div(x->rows, GROUP);
}

/* Add skip to the diagonal. */
static void add_skip(const group *g)
{
    const mha_tensor *skip = &g->x->call->skip;
    for (int64_t row = g->first; row < g->end && skip->ndim > 0; row++) {
        const int64_t t = g->x->row + row;
        float *m = map_row(g, row) + t;
        *m = (float)((double)*m + mhai_recurrent_number(skip, g->x->b, g->h, t, 0));
    }
}

static void run_group(void *argument, int64_t item, int worker)
{
    const visit *x = argument;
    const size_t floats = (size_t)(MHAI_BLOCK * mhai_round_up(x->call->sizes.D, MHAI_PANEL));
    size_t bytes;
    workspace w = carve(x, x->memory + (size_t)worker * x->worker_bytes, &bytes);
    group g = {.x = x, .w = &w, .h = item / groups_of(x), .first = item % groups_of(x) * GROUP};
    g.end = mhai_min_i64(x->rows, g.first + GROUP);
    for (int64_t row = g.first; row < g.end; row++)
        memset(map_row(&g, row), 0, (size_t)x->keys * sizeof(float));
    memset(w.keys, 0, floats * sizeof(float));
    memset(w.minus, 0, floats * sizeof(float));
    g.key = (x->row + g.end - 1) / MHAI_BLOCK * MHAI_BLOCK;
    for (; g.key >= 0; g.key -= MHAI_BLOCK) {
        const int64_t next = mhai_max_i64(g.first, g.key + MHAI_BLOCK - x->row),
                      later = mhai_min_i64(next, g.end),
                      own = mhai_max_i64(g.first, g.key - x->row);
        mhai_recurrent_block_load(x->call, x->kernels, x->b, g.h, g.key, own < later, &w.x);
        if (later < g.end) run_later(&g, later);
        if (own < later && x->call->delta) minus_keys(&g);
        for (int64_t row = own; row < later; row++) run_own(&g, row);
    }
    add_skip(&g);
}

static mha_status visit_block(mha_context *context, visit *x, mha_rows_fn fn, void *user)
{
    const mhai_recurrent *call = x->call;
    const mha_tensor p =
        mha_tensor_contiguous(x->p, MHA_F32, 3, (int64_t[]){call->H, x->rows, x->keys});
    mha_parallel_for(context, call->H * groups_of(x), run_group, x);
    return fn(user, x->b, x->row, &p);
}

static mha_status visit_all(mha_context *context, visit *x, int64_t block, mha_rows_fn fn,
                            void *user)
{
    const mhai_recurrent *call = x->call;
    int64_t cells;
    if (!mhai_mul_i64(call->H, call->T, &cells) || !mhai_mul_i64(cells, block, &cells))
        return mha_fail(MHA_ERR_SIZE, "%lld rows of %lld heads are too many", (long long)block,
                        (long long)call->H);
    MHA_TRY(mha_scratch_alloc(context, cells, sizeof(float), &x->p));
    carve(x, NULL, &x->worker_bytes);
    MHA_TRY(mha_scratch_alloc(context, context->num_threads, x->worker_bytes, &x->memory));
    for (x->b = 0; x->b < call->B; x->b++) {
        x->keys = mhai_recurrent_length(call, x->b);
        for (x->row = 0; x->row < x->keys; x->row += x->rows) {
            x->rows = mhai_min_i64(block, x->keys - x->row);
            MHA_TRY(visit_block(context, x, fn, user));
        }
    }
    return MHA_OK;
}

mha_status mha_recurrent_visit_rows(mha_context *context, const mha_recurrent_desc *desc,
                                    const mha_tensor *q, const mha_tensor *k, int64_t heads,
                                    int64_t block_rows, mha_rows_fn fn, void *user)
{
    mhai_recurrent call;
    MHA_NEED("mha_recurrent_visit_rows", context, q, k);
    visit x = {.call = &call, .kernels = mhai_kernels_for(context->isa)};
    if (!fn) return mha_fail(MHA_ERR_NULL, "mha_recurrent_visit_rows: fn is NULL");
    MHA_TRY(mhai_check_range("block_rows", block_rows, 0, INT64_MAX));
    MHA_TRY(mhai_check_range("heads", heads, 1, INT64_MAX));
    MHA_TRY(mhai_recurrent_check(desc, q, k, NULL, NULL, heads, &call));
    if (call.T == 0 || call.B == 0) return MHA_OK;
    int64_t block = block_rows;
    if (block == 0) block = mhai_max_i64(MHAI_BLOCK, BLOCK_FLOATS / call.T / heads);
    const mha_scratch_mark mark = mha_scratch_top(context);
    return mha_scratch_end(context, mark,
                           visit_all(context, &x, mhai_min_i64(block, call.T), fn, user));
}
