/* The tiled path of the backward: p recomputed from lse, in memory that does not depend on T x S.
 *
 * Everything is made of cells: a chunk of at most CHUNK queries of one head against a block of at
 * most BLOCK keys, both counted from 0, of which a kernel computes c p kept and ds. What becomes of
 * a cell depends on the walk:
 *
 *   keys         for each block of a key/value head, all chunks of its query heads: dv += P^T dO,
 *                dk += dX^T q
 *   queries      for each chunk, all blocks: dq += dX k, and the sums of the parameters
 *   both         the blocks of one key/value head in turn, all chunks: dq, dk and dv at once, which
 *                saves computing cells twice. For many heads, and when no parameters are asked for
 *   bias         the cells that share elements of a bias, in turn
 *
 * Each output has one owner; its sums are chains over the cells' rows or keys, added in the order
 * of the cells, whichever walk they come from. */
#include "attention/attn_backward.h"
#include "attention/attn_tiles.h"
#include "base/checked.h"
#include "base/context.h"

#include <multihead/component.h>

#include <math.h>
#include <string.h>

/* Part of the bits contract. 112 is 8 strips of 14 rows; P, dX, keys, values and their gradients of
 * a cell stay in a 1 MiB L2 for head sizes up to 128. BLOCK is a multiple of 32. */
enum { CHUNK = 112, BLOCK = 256 };

/* Chunks whose parameter sums are kept apart until they are added in order. */
enum { WAVE = 32 };

/* The most floats of dq that a worker holds in the walk of both: 16 MiB. */
static const int64_t most_held = 1 << 22;

static const double log2_e = 1.4426950408889634;

/* Sums of one chunk. */
typedef struct chunk_sums {
    double *t5;                     /* [buckets] */
    float *shaw_keys, *shaw_values; /* [rows padded][D padded], [rows padded][Dv padded] */
    double alibi, gates, scale;
} chunk_sums;

typedef struct back_job {
    const mhai_backward_problem *x;
    const mhai_attn_problem *p;
    const mhai_kernels *kernels;
    unsigned char *memory;
    size_t worker_bytes;
    mhai_attn_walk walk;    /* p, kernels and dropout */
    int64_t chunks, blocks; /* of the longest sequence */
    int64_t held;           /* rows of dq in a workspace */
    bool both;
    /* Shaw's tables packed to be multiplied with rows (by distance), and with sums by distance. */
    float *shaw_keys, *shaw_values, *shaw_keys_rows;
    chunk_sums *sums; /* [WAVE] */
    int64_t wave;     /* first item of the wave at hand */
} back_job;

/* One worker's memory. */
typedef struct workspace {
    mhai_attn_workspace rows; /* what masks need: head, query, limit, window, keep, relative */
    float *q, *g;             /* [CHUNK][D], [CHUNK][Dv]: scaled queries, dO */
    float *q_panels, *g_panels;
    float *lse, *delta, *gate;             /* [CHUNK] */
    float *k_panels, *v_panels, *k_values; /* the block, packed */
    float *p, *x, *slope;                  /* [CHUNK][MHAI_SCORE_STRIDE]: c p kept, ds or dx */
    float *dk, *dv;                        /* [BLOCK][D padded], [BLOCK][Dv padded] */
    float *dq;                             /* [held][D padded] */
    float *shaw_q, *shaw_g;                /* [CHUNK][table padded]: q and dO times the tables */
    float *shaw_x, *shaw_p;                /* likewise: x and p summed by distance */
    double *diagonal;                      /* [BLOCK + CHUNK] ds summed by distance */
    double *bias;                          /* [CHUNK][BLOCK] */
    uint8_t *bad;                          /* [MHAI_KEY_BLOCK] */
    size_t bytes;
} workspace;

/* A chunk with what its cells share. */
typedef struct chunk {
    mhai_attn_chunk c;
    int64_t b, h, t; /* its first query */
} chunk;

/* A cell's visible hull, in keys of the block. */
typedef struct cell {
    mhai_attn_block block;
    int begin, end;
} cell;

/* ---- memory ---------------------------------------------------------------------------------- */

static int64_t padded(int64_t columns)
{
    return mhai_round_up(columns, MHAI_PANEL);
}

static int64_t table_columns(const mha_tensor *table)
{
    return table->data ? padded(table->shape[0]) : 0;
}

static void *carve(unsigned char *memory, size_t *used, int64_t count, size_t size)
{
    void *part = memory ? memory + *used : NULL;
    *used += (size_t)mhai_round_up(count * (int64_t)size, 64);
    return part;
}

static void lay_out_rows(const mhai_attn_problem *p, unsigned char *memory, workspace *w)
{
    size_t *used = &w->bytes;
    mhai_attn_workspace *r = &w->rows;
    r->head = carve(memory, used, CHUNK, sizeof(int64_t));
    r->query = carve(memory, used, CHUNK, sizeof(int64_t));
    r->limit = carve(memory, used, CHUNK, sizeof(mhai_attn_range));
    r->window = carve(memory, used, CHUNK, sizeof(mhai_attn_range));
    r->keep = carve(memory, used, MHAI_MAX_ROWS * MHAI_KEY_BLOCK, 1);
    r->relative = carve(memory, used, mhai_attn_has_relative(p) ? BLOCK + CHUNK : 0, sizeof(float));
    w->lse = carve(memory, used, CHUNK, sizeof(float));
    w->delta = carve(memory, used, CHUNK, sizeof(float));
    w->gate = carve(memory, used, CHUNK, sizeof(float));
    w->bad = carve(memory, used, MHAI_KEY_BLOCK, 1);
    w->diagonal = carve(memory, used, BLOCK + CHUNK, sizeof(double));
}

/* Every factor is bounded by constants of this library, or by attn_check.c (Shaw tables). */
static workspace lay_out(const back_job *job, unsigned char *memory)
{
    const mhai_attn_problem *p = job->p;
    const int64_t D = padded(p->D), Dv = padded(p->Dv);
    const int64_t keys = table_columns(&p->shaw_keys), values = table_columns(&p->shaw_values);
    workspace w = {.bytes = 0};
    size_t *used = &w.bytes;
    lay_out_rows(p, memory, &w);
    w.q = carve(memory, used, CHUNK * p->D, sizeof(float));
    w.g = carve(memory, used, CHUNK * p->Dv, sizeof(float));
    w.q_panels = carve(memory, used, MHAI_KEY_BLOCK * D, sizeof(float));
    w.g_panels = carve(memory, used, MHAI_KEY_BLOCK * Dv, sizeof(float));
    w.k_panels = carve(memory, used, BLOCK * p->D, sizeof(float));
    w.v_panels = carve(memory, used, BLOCK * p->Dv, sizeof(float));
    w.k_values = carve(memory, used, MHAI_KEY_BLOCK * D, sizeof(float));
    w.p = carve(memory, used, CHUNK * MHAI_SCORE_STRIDE, sizeof(float));
    w.x = carve(memory, used, CHUNK * MHAI_SCORE_STRIDE, sizeof(float));
    w.slope = carve(memory, used, p->softcap > 0 ? CHUNK * MHAI_SCORE_STRIDE : 0, sizeof(float));
    w.dk = carve(memory, used, BLOCK * D, sizeof(float));
    w.dv = carve(memory, used, BLOCK * Dv, sizeof(float));
    w.dq = carve(memory, used, job->held * D, sizeof(float));
    w.shaw_q = carve(memory, used, CHUNK * keys, sizeof(float));
    w.shaw_x = carve(memory, used, CHUNK * keys, sizeof(float));
    w.shaw_g = carve(memory, used, CHUNK * values, sizeof(float));
    w.shaw_p = carve(memory, used, CHUNK * values, sizeof(float));
    w.bias = carve(memory, used, job->x->bias.data ? CHUNK * BLOCK : 0, sizeof(double));
    return w;
}

static workspace workspace_of(const back_job *job, int worker)
{
    return lay_out(job, job->memory + (size_t)worker * job->worker_bytes);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* out[r] = x[r] W for the rows of a chunk, W packed. */
static void multiply_rows(const back_job *job, int64_t rows, int64_t inner, int64_t cols,
                          const float *x, int64_t x_stride, const float *w, int64_t panel_stride,
                          bool first, float *out, int64_t out_stride)
{
    for (int64_t r = 0; r < rows; r += job->kernels->tile_rows)
        job->kernels->gemm_strip(
            &(mhai_gemm){.rows = (int)mhai_min_i64(job->kernels->tile_rows, rows - r),
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

static void pack_rows(const back_job *job, const mha_tensor *x, const chunk *c, uint8_t *bad,
                      float *out)
{
    bool any_bad = false;
    job->kernels->pack_values(
        &(mhai_pack){.out = out,
                     .in = mhai_attn_data(x, c->c.seq.batch, c->h, c->c.seq.q0 + c->t),
                     .type = x->dtype,
                     .stride = x->stride[2],
                     .rows = c->c.rows,
                     .cols = x->shape[3],
                     .bad = bad,
                     .any_bad = &any_bad});
}

/* A row's numbers, q and dO; what is not finite becomes 0, and delta says so. */
static void load_row(const back_job *job, const chunk *c, workspace *w, int64_t r)
{
    const mhai_attn_problem *p = job->p;
    const float factor = p->softcap > 0 ? p->scale : (float)((double)p->scale * log2_e);
    const int64_t batch = c->c.seq.batch, row = c->c.seq.q0 + c->t + r;
    float lse = *mhai_attn_row(&p->lse, batch, c->h, row);
    bool finite;
    w->lse[r] = lse == -INFINITY ? INFINITY : (float)((double)lse * log2_e);
    w->delta[r] = (float)mhai_backward_delta(job->x, batch, c->h, row);
    w->gate[r] = (float)mhai_backward_gate(p, batch, c->h);
    job->kernels->scale_row(w->q + r * p->D, p->q.dtype, mhai_attn_data(&p->q, batch, c->h, row),
                            p->D, factor, &finite);
    job->kernels->scale_row(w->g + r * p->Dv, job->x->o_gradient.dtype,
                            mhai_attn_data(&job->x->o_gradient, batch, c->h, row), p->Dv, 1,
                            &finite);
}

/* The chunk of at most CHUNK queries from t on. panels: q and dO are wanted on the right side of
 * products, too. */
static chunk load_chunk(const back_job *job, workspace *w, int64_t b, int64_t h, int64_t t,
                        bool panels)
{
    const mhai_attn_problem *p = job->p;
    chunk c = {.c = {.seq = mhai_attn_sequence_of(p, b), .hk = h / p->group}};
    c.b = b, c.h = h, c.t = t;
    c.c.rows = c.c.width = mhai_min_i64(CHUNK, c.c.seq.T - t);
    c.c.head0 = h, c.c.query0 = t;
    mhai_attn_place_rows(&job->walk, &c.c, &w->rows);
    for (int64_t r = 0; r < c.c.rows; r++) load_row(job, &c, w, r);
    if (panels && c.c.rows > 0) {
        pack_rows(job, &p->q, &c, w->bad, w->q_panels);
        pack_rows(job, &job->x->o_gradient, &c, w->bad, w->g_panels);
    }
    int64_t keys = table_columns(&p->shaw_keys), values = table_columns(&p->shaw_values);
    if (keys)
        multiply_rows(job, c.c.rows, p->D, keys, w->q, p->D, job->shaw_keys, p->D * MHAI_PANEL,
                      true, w->shaw_q, keys);
    if (values)
        multiply_rows(job, c.c.rows, p->Dv, values, w->g, p->Dv, job->shaw_values,
                      p->Dv * MHAI_PANEL, true, w->shaw_g, values);
    return c;
}

/* ---- keys ------------------------------------------------------------------------------------ */

static mhai_pack pack_of(const mha_tensor *x, const mhai_attn_sequence *seq, int64_t hk,
                         int64_t key, workspace *w, float *out, bool *any_bad)
{
    return (mhai_pack){.out = out,
                       .in = mhai_attn_data(x, seq->batch, hk, seq->k0 + key),
                       .type = x->dtype,
                       .stride = x->stride[2],
                       .rows = mhai_min_i64(BLOCK, seq->S - key),
                       .cols = x->shape[3],
                       .bad = w->bad,
                       .any_bad = any_bad};
}

/* The block of keys and values from key on; keys on the right side of products too, if wanted. */
static void load_block(const back_job *job, workspace *w, const mhai_attn_sequence *seq, int64_t hk,
                       int64_t key, bool rows)
{
    bool any_bad = false;
    mhai_pack pack = pack_of(&job->p->k, seq, hk, key, w, w->k_panels, &any_bad);
    job->kernels->pack_panels(&pack);
    pack = pack_of(&job->p->v, seq, hk, key, w, w->v_panels, &any_bad);
    job->kernels->pack_panels(&pack);
    if (!rows) return;
    pack = pack_of(&job->p->k, seq, hk, key, w, w->k_values, &any_bad);
    job->kernels->pack_values(&pack);
}

/* ---- cells ----------------------------------------------------------------------------------- */

/* Terms by distance; the table begins with the distance of the chunk's last row to key 0. */
static void fill_relative(const mhai_attn_problem *p, const chunk *c, mhai_attn_workspace *w,
                          const mhai_attn_block *block)
{
    int64_t last = c->t + c->c.rows - 1, rel = block->key - (last + c->c.seq.offset);
    for (int64_t i = 0; i < block->keys + c->c.rows - 1; i++)
        w->relative[i] = mhai_attn_relative(p, c->c.seq.batch, c->h, rel + i);
}

/* Everything that goes with a strip's scores and values, apart from what the rows see. */
static void set_terms(const back_job *job, const chunk *c, const workspace *w,
                      const mhai_attn_block *block, mhai_attn_strip *s, mhai_tile_back *back)
{
    const mhai_attn_problem *p = job->p;
    bool relative = mhai_attn_has_relative(p);
    const mha_tensor *keys = &p->shaw_keys, *values = &p->shaw_values;
    s->mask.softcap = p->softcap;
    s->mask.poison = NULL;
    s->mask.shaw_last = keys->data ? keys->shape[0] - 1 : 0;
    back->shaw_last = values->data ? values->shape[0] - 1 : 0;
    for (int r = 0; r < s->tile.rows; r++) {
        int64_t row = s->first + r, rel = block->key - (c->t + row + c->c.seq.offset);
        s->mask.relative[r] = relative ? w->rows.relative + (c->c.rows - 1 - row) : NULL;
        s->mask.shaw[r] = keys->data ? w->shaw_q + row * table_columns(keys) : NULL;
        s->mask.shaw_center[r] = rel + (keys->data ? keys->shape[0] / 2 : 0);
        back->shaw[r] = values->data ? w->shaw_g + row * table_columns(values) : NULL;
        back->shaw_center[r] = rel + (values->data ? values->shape[0] / 2 : 0);
    }
    s->masked |= relative || keys->data || p->softcap > 0;
}

/* Rows first .. first + rows - 1 of the cell; false if they see nothing of the block. */
static bool run_strip(const back_job *job, const chunk *c, workspace *w, const cell *at,
                      int64_t first, int rows, float *share, mhai_attn_strip *s)
{
    const mhai_attn_problem *p = job->p;
    mhai_dropout dropout;
    s->first = first;
    s->tile = (mhai_tile){.rows = rows,
                          .head_dim = p->D,
                          .q = w->q + first * p->D,
                          .k = w->k_panels,
                          .s = w->p + first * MHAI_SCORE_STRIDE};
    if (!mhai_attn_mask_strip(p, &c->c, &w->rows, &at->block, s)) return false;
    mhai_tile_back back = {.value_dim = p->Dv,
                           .g = w->g + first * p->Dv,
                           .v = w->v_panels,
                           .x = w->x + first * MHAI_SCORE_STRIDE,
                           .slope = w->slope ? w->slope + first * MHAI_SCORE_STRIDE : NULL,
                           .lse = w->lse + first,
                           .delta = w->delta + first,
                           .gate = w->gate + first,
                           .share = share};
    set_terms(job, c, w, &at->block, s, &back);
    s->tile.mask = s->masked ? &s->mask : NULL;
    if (p->dropout > 0) {
        mhai_attn_set_dropout(&job->walk, &c->c, &w->rows, &at->block, s, &dropout);
        s->tile.dropout = &dropout;
    }
    back.tile = s->tile;
    job->kernels->tile_backward(&back);
    return true;
}

/* What strips did not compute of the cell's hull is 0. */
static void clear_around(const workspace *w, int64_t first, int rows, int begin, int end,
                         const cell *at)
{
    for (int64_t r = first; r < first + rows; r++) {
        float *p = w->p + r * MHAI_SCORE_STRIDE, *x = w->x + r * MHAI_SCORE_STRIDE;
        for (int j = at->begin; j < begin; j++) p[j] = x[j] = 0;
        for (int j = end; j < at->end; j++) p[j] = x[j] = 0;
    }
}

/* Compute P and ds of the chunk against the block at key, which is packed; the gates' share is
 * added to *share, in the order of the rows. False if nothing is visible. */
static bool run_cell(const back_job *job, const chunk *c, workspace *w, int64_t key, double *share,
                     cell *at)
{
    mhai_attn_chunk cut = c->c;
    cut.limit.end = mhai_min_i64(cut.limit.end, key + BLOCK);
    if (cut.limit.end <= key) return false;
    *at = (cell){.block = mhai_attn_block_at(job->p, &cut, key)};
    if (!mhai_attn_block_seen(job->p, &c->c, &at->block)) return false;
    if (mhai_attn_has_relative(job->p)) fill_relative(job->p, c, &w->rows, &at->block);
    int64_t strips = mhai_ceil_div(c->c.rows, job->kernels->tile_rows);
    int begin[CHUNK], end[CHUNK]; /* of each strip */
    at->begin = BLOCK;
    for (int64_t i = 0; i < strips; i++) {
        int64_t first = i * c->c.rows / strips;
        int rows = (int)((i + 1) * c->c.rows / strips - first);
        float shares[MHAI_MAX_ROWS];
        mhai_attn_strip s;
        bool seen = run_strip(job, c, w, at, first, rows, shares, &s);
        begin[i] = seen ? s.tile.begin : 0;
        end[i] = seen ? s.tile.end : 0;
        if (!seen) continue;
        for (int r = 0; share && r < rows; r++) *share += (double)shares[r];
        if (begin[i] < at->begin) at->begin = begin[i];
        if (end[i] > at->end) at->end = end[i];
    }
    if (at->begin >= at->end) return false;
    for (int64_t i = 0; i < strips; i++) {
        int64_t first = i * c->c.rows / strips;
        clear_around(w, first, (int)((i + 1) * c->c.rows / strips - first),
                     end[i] > 0 ? begin[i] : at->end, end[i] > 0 ? end[i] : at->end, at);
    }
    return true;
}

/* ds -> dx */
static void pass_cap(const back_job *job, const chunk *c, const workspace *w, const cell *at)
{
    if (!(job->p->softcap > 0)) return;
    for (int64_t r = 0; r < c->c.rows; r++) {
        float *x = w->x + r * MHAI_SCORE_STRIDE;
        const float *slope = w->slope + r * MHAI_SCORE_STRIDE;
        for (int j = at->begin; j < at->end; j++) x[j] = x[j] == 0 ? 0 : x[j] * slope[j];
    }
}

/* ---- gradients of queries, keys and values --------------------------------------------------- */

/* dq += dX k for the rows of the chunk. */
static void add_queries(const back_job *job, const chunk *c, const workspace *w, const cell *at,
                        float *dq)
{
    multiply_rows(job, c->c.rows, at->end - at->begin, padded(job->p->D), w->x + at->begin,
                  MHAI_SCORE_STRIDE, w->k_values + at->begin * MHAI_PANEL,
                  MHAI_KEY_BLOCK * MHAI_PANEL, false, dq, padded(job->p->D));
}

/* out[key] += sum over the chunk's rows of a[row][key] b[row]. */
static void add_by_key(const back_job *job, const chunk *c, const float *a, const float *b,
                       const cell *at, int64_t columns, float *out)
{
    job->kernels->gemm_transposed(
        &(mhai_gemm_transposed){.rows = c->c.rows,
                                .cols = at->end - at->begin,
                                .a = a + at->begin,
                                .a_stride = MHAI_SCORE_STRIDE,
                                .b = b,
                                .panels = padded(columns) / MHAI_PANEL,
                                .panel_stride = MHAI_KEY_BLOCK * MHAI_PANEL,
                                .out = out + at->begin * padded(columns),
                                .out_stride = padded(columns)});
}

static void write_rows(const mhai_backward_problem *x, const mha_tensor *out, int64_t batch,
                       int64_t h, int64_t first, int64_t rows, const float *sums, double factor)
{
    for (int64_t r = 0; r < rows; r++) {
        float *to = mhai_attn_row(out, batch, h, first + r);
        for (int64_t d = 0; d < out->shape[3]; d++)
            mhai_backward_write(x, to + d, (double)sums[r * padded(out->shape[3]) + d] * factor);
    }
}

static void write_queries(const back_job *job, const chunk *c, const float *dq)
{
    write_rows(job->x, &job->x->q, c->c.seq.batch, c->h, c->c.seq.q0 + c->t, c->c.rows, dq,
               (double)job->p->scale);
}

/* One block of keys of a key/value head, with everything that sees it. dq, if not NULL: of all the
 * rows of the head, added to. */
static void run_block(const back_job *job, workspace *w, const mhai_attn_sequence *seq, int64_t hk,
                      int64_t key, float *dq)
{
    const mhai_backward_problem *x = job->x;
    const mhai_attn_problem *p = job->p;
    const int64_t stored = mhai_backward_stored_keys(p, seq->b);
    memset(w->dk, 0, (size_t)(BLOCK * padded(p->D)) * sizeof(float));
    memset(w->dv, 0, (size_t)(BLOCK * padded(p->Dv)) * sizeof(float));
    if (key < seq->S) load_block(job, w, seq, hk, key, dq != NULL);
    for (int64_t h = hk * p->group; key < seq->S && h < (hk + 1) * p->group; h++)
        for (int64_t t = 0; t < seq->T; t += CHUNK) {
            cell at;
            chunk c = load_chunk(job, w, seq->b, h, t, true);
            if (!run_cell(job, &c, w, key, NULL, &at)) continue;
            if (x->v.data) add_by_key(job, &c, w->p, w->g_panels, &at, p->Dv, w->dv);
            pass_cap(job, &c, w, &at);
            if (x->k.data) add_by_key(job, &c, w->x, w->q_panels, &at, p->D, w->dk);
            if (dq) add_queries(job, &c, w, &at, dq + (h % p->group * seq->T + t) * padded(p->D));
        }
    int64_t rows = mhai_min_i64(BLOCK, stored - key), first = seq->k0 + key;
    if (x->k.data) write_rows(x, &x->k, seq->batch, hk, first, rows, w->dk, (double)p->scale);
    if (x->v.data) write_rows(x, &x->v, seq->batch, hk, first, rows, w->dv, 1);
}

/* Items are blocks of all key/value heads of all sequences. */
static void run_keys(void *argument, int64_t item, int worker)
{
    const back_job *job = argument;
    int64_t head = item / job->blocks, b = head / job->p->Hk, key = item % job->blocks * BLOCK;
    mhai_attn_sequence seq = mhai_attn_sequence_of(job->p, b);
    workspace w = workspace_of(job, worker);
    if (key < mhai_backward_stored_keys(job->p, b))
        run_block(job, &w, &seq, head % job->p->Hk, key, NULL);
}

/* Items are key/value heads of all sequences. */
static void run_both(void *argument, int64_t item, int worker)
{
    const back_job *job = argument;
    const mhai_attn_problem *p = job->p;
    int64_t b = item / p->Hk, hk = item % p->Hk, D = padded(p->D);
    mhai_attn_sequence seq = mhai_attn_sequence_of(p, b);
    workspace w = workspace_of(job, worker);
    memset(w.dq, 0, (size_t)(p->group * seq.T * D) * sizeof(float));
    for (int64_t key = 0; key < mhai_backward_stored_keys(p, b); key += BLOCK)
        run_block(job, &w, &seq, hk, key, w.dq);
    for (int64_t i = 0; i < p->group; i++)
        write_rows(job->x, &job->x->q, seq.batch, hk * p->group + i, seq.q0, seq.T,
                   w.dq + i * seq.T * D, (double)p->scale);
}

/* ---- sums of the parameters ------------------------------------------------------------------ */

/* ds by distance, then by T5's buckets and times the distance. */
static void add_by_distance(const back_job *job, const chunk *c, workspace *w, const cell *at,
                            chunk_sums *sums)
{
    const mhai_attn_problem *p = job->p;
    const int64_t rows = c->c.rows, count = rows - 1 + at->end;
    if (!job->x->t5.data && !job->x->alibi.data) return;
    for (int64_t i = 0; i < count; i++) w->diagonal[i] = 0;
    for (int64_t r = 0; r < rows; r++) {
        const float *x = w->x + r * MHAI_SCORE_STRIDE;
        double *to = w->diagonal + (rows - 1 - r);
        for (int j = at->begin; j < at->end; j++) to[j] += (double)x[j];
    }
    int64_t rel = at->block.key - (c->t + rows - 1 + c->c.seq.offset);
    for (int64_t i = 0; i < count; i++) {
        if (w->diagonal[i] == 0) continue;
        if (job->x->alibi.data) sums->alibi -= w->diagonal[i] * fabs((double)(rel + i));
        if (job->x->t5.data)
            sums->t5[mhai_attn_t5_bucket(rel + i, p->t5_table.shape[0], p->t5_max_distance,
                                         p->t5_one_sided)] += w->diagonal[i];
    }
}

/* sums[row][clip(distance)] += a[row][key], keys in order. */
static void add_by_table_row(const chunk *c, const cell *at, const mha_tensor *table,
                             const float *a, float *sums)
{
    int64_t last = table->shape[0] - 1;
    for (int64_t r = 0; r < c->c.rows; r++) {
        const float *from = a + r * MHAI_SCORE_STRIDE;
        float *to = sums + r * table_columns(table);
        int64_t center = at->block.key - (c->t + r + c->c.seq.offset) + table->shape[0] / 2;
        for (int j = at->begin; j < at->end; j++)
            to[mhai_max_i64(0, mhai_min_i64(center + j, last))] += from[j];
    }
}

/* dq += sums by distance times the table, MHAI_GEMM_BLOCK distances at a time. */
static void add_shaw_queries(const back_job *job, const chunk *c, const workspace *w)
{
    const mha_tensor *table = &job->p->shaw_keys;
    const int64_t D = padded(job->p->D), columns = table_columns(table);
    for (int64_t i = 0; i < columns; i += MHAI_GEMM_BLOCK)
        multiply_rows(job, c->c.rows, mhai_min_i64(MHAI_GEMM_BLOCK, columns - i), D, w->shaw_x + i,
                      columns, job->shaw_keys_rows + i * MHAI_PANEL, columns * MHAI_PANEL, false,
                      w->dq, D);
}

/* table[distance] = sum over rows of sums[row][distance] b[row] */
static void add_table(const back_job *job, const chunk *c, const mha_tensor *table,
                      const float *sums, const float *b, int64_t columns, float *out)
{
    memset(out, 0, (size_t)(table_columns(table) * padded(columns)) * sizeof(float));
    job->kernels->gemm_transposed(
        &(mhai_gemm_transposed){.rows = c->c.rows,
                                .cols = table->shape[0],
                                .a = sums,
                                .a_stride = table_columns(table),
                                .b = b,
                                .panels = padded(columns) / MHAI_PANEL,
                                .panel_stride = MHAI_KEY_BLOCK * MHAI_PANEL,
                                .out = out,
                                .out_stride = padded(columns)});
}

/* q . dX k of every row: what the scale multiplies. Rows that see nothing are 0 there, and their
 * queries may hold anything. */
static double scale_share(const back_job *job, const chunk *c, const workspace *w)
{
    double sum = 0;
    for (int64_t r = 0; r < c->c.rows; r++) {
        const float *dq = w->dq + r * padded(job->p->D);
        const float *q = mhai_attn_row(&job->p->q, c->c.seq.batch, c->h, c->c.seq.q0 + c->t + r);
        for (int64_t d = 0; d < job->p->D; d++)
            if (dq[d] != 0) sum += (double)q[d] * (double)dq[d];
    }
    return sum;
}

/* ---- queries --------------------------------------------------------------------------------- */

static void run_query_cell(const back_job *job, const chunk *c, workspace *w, int64_t key,
                           chunk_sums *sums)
{
    const mhai_attn_problem *p = job->p;
    cell at;
    load_block(job, w, &c->c.seq, c->c.hk, key, true);
    if (!run_cell(job, c, w, key, job->x->gates.data ? &sums->gates : NULL, &at)) return;
    add_by_distance(job, c, w, &at, sums);
    pass_cap(job, c, w, &at);
    add_queries(job, c, w, &at, w->dq);
    if (p->shaw_keys.data) add_by_table_row(c, &at, &p->shaw_keys, w->x, w->shaw_x);
    if (job->x->shaw_values.data) add_by_table_row(c, &at, &p->shaw_values, w->p, w->shaw_p);
}

/* Items are chunks of all query heads of all sequences. */
static void run_queries(void *argument, int64_t i, int worker)
{
    const back_job *job = argument;
    const mhai_backward_problem *x = job->x;
    const mhai_attn_problem *p = job->p;
    int64_t item = job->wave + i, head = item / job->chunks, t = item % job->chunks * CHUNK;
    workspace w = workspace_of(job, worker);
    chunk_sums none = {0}, *sums = job->sums ? &job->sums[i] : &none;
    sums->alibi = sums->gates = sums->scale = 0;
    if (t >= mhai_attn_sequence_of(p, head / p->H).T) return;
    chunk c =
        load_chunk(job, &w, head / p->H, head % p->H, t, x->shaw_keys.data || x->shaw_values.data);
    if (x->t5.data) memset(sums->t5, 0, (size_t)p->t5_table.shape[0] * sizeof(double));
    memset(w.dq, 0, (size_t)(c.c.rows * padded(p->D)) * sizeof(float));
    memset(w.shaw_x, 0, (size_t)(c.c.rows * table_columns(&p->shaw_keys)) * sizeof(float));
    memset(w.shaw_p, 0, (size_t)(c.c.rows * table_columns(&p->shaw_values)) * sizeof(float));
    for (int64_t key = 0; key < c.c.limit.end; key += BLOCK) run_query_cell(job, &c, &w, key, sums);
    add_shaw_queries(job, &c, &w);
    if (x->scale.data) sums->scale = scale_share(job, &c, &w);
    if (x->shaw_keys.data)
        add_table(job, &c, &p->shaw_keys, w.shaw_x, w.q_panels, p->D, sums->shaw_keys);
    if (x->shaw_values.data)
        add_table(job, &c, &p->shaw_values, w.shaw_p, w.g_panels, p->Dv, sums->shaw_values);
    if (x->q.data) write_queries(job, &c, w.dq);
}

static void sum_table(const mha_tensor *table, int64_t columns, double factor, const float *from,
                      double *to)
{
    for (int64_t i = 0; i < table->shape[0]; i++)
        for (int64_t d = 0; d < columns; d++)
            to[i * columns + d] += (double)from[i * padded(columns) + d] * factor;
}

/* The sums of a wave of chunks, in their order. */
static void sum_wave(const back_job *job, int64_t items)
{
    const mhai_attn_problem *p = job->p;
    const mhai_backward_sums *to = &job->x->sums;
    for (int64_t i = 0; i < items; i++) {
        const chunk_sums *from = &job->sums[i];
        int64_t head = (job->wave + i) / job->chunks, h = head % p->H;
        mhai_attn_sequence seq = mhai_attn_sequence_of(p, head / p->H);
        if ((job->wave + i) % job->chunks * CHUNK >= seq.T) continue;
        if (to->alibi) to->alibi[seq.batch * p->H + h] += from->alibi;
        if (to->gates) to->gates[seq.batch * p->H + h] += from->gates;
        if (to->scale) to->scale[0] += from->scale;
        for (int64_t j = 0; to->t5 && j < p->t5_table.shape[0]; j++)
            to->t5[j * p->H + h] += from->t5[j];
        if (to->shaw_keys)
            sum_table(&p->shaw_keys, p->D, (double)p->scale, from->shaw_keys, to->shaw_keys);
        if (to->shaw_values)
            sum_table(&p->shaw_values, p->Dv, 1, from->shaw_values, to->shaw_values);
    }
}

static void walk_queries(mha_context *context, back_job *job)
{
    int64_t items = job->p->B * job->p->H * job->chunks, wave = job->sums ? WAVE : items;
    for (job->wave = 0; job->wave < items; job->wave += wave) {
        int64_t count = mhai_min_i64(wave, items - job->wave);
        mha_parallel_for(context, count, run_queries, job);
        if (job->sums) sum_wave(job, count);
    }
}

/* ---- the dense bias -------------------------------------------------------------------------- */

/* Which part of the bias an item owns; a range of more than one sequence, head, chunk or block is
 * what its elements are broadcast over. */
typedef struct bias_item {
    mhai_attn_range b, h, chunk, block;
    bool by_row, by_key; /* has elements for each query, for each key */
} bias_item;

static mhai_attn_range whole(int64_t count)
{
    return (mhai_attn_range){0, count};
}

/* Pieces along each axis: sequences, heads, chunks, blocks. A ragged batch is one batch to the
 * bias, but its sequences have queries of their own. */
static void bias_pieces(const back_job *job, int64_t pieces[4])
{
    const mhai_attn_problem *p = job->p;
    mhai_backward_bias bias = mhai_backward_bias_of(job->x);
    bool by_row = bias.shape[2] != 1;
    pieces[0] = (p->query_starts ? by_row : bias.shape[0] != 1) ? p->B : 1;
    pieces[1] = bias.shape[1] != 1 ? p->H : 1;
    pieces[2] = by_row ? job->chunks : 1;
    pieces[3] = bias.shape[3] != 1 ? job->blocks : 1;
}

static bias_item bias_item_at(const back_job *job, int64_t item)
{
    const int64_t counts[4] = {job->p->B, job->p->H, job->chunks, job->blocks};
    mhai_backward_bias bias = mhai_backward_bias_of(job->x);
    mhai_attn_range range[4];
    int64_t pieces[4];
    bias_pieces(job, pieces);
    for (int i = 3; i >= 0; i--) {
        int64_t at = item % pieces[i];
        item /= pieces[i];
        /* An axis of one piece is all of it: of length 1, or broadcast. */
        range[i] = pieces[i] == 1 ? whole(counts[i]) : (mhai_attn_range){at, at + 1};
    }
    return (bias_item){range[0], range[1],           range[2],
                       range[3], bias.shape[2] != 1, bias.shape[3] != 1};
}

static void add_bias_cell(const chunk *c, const workspace *w, const cell *at, const bias_item *item)
{
    for (int64_t r = 0; r < c->c.rows; r++) {
        const float *x = w->x + r * MHAI_SCORE_STRIDE;
        double *to = w->bias + (item->by_row ? r * BLOCK : 0);
        for (int j = at->begin; j < at->end; j++) to[item->by_key ? j : 0] += (double)x[j];
    }
}

/* Write the elements that the item owns. */
static void write_bias(const back_job *job, const workspace *w, const bias_item *item)
{
    mhai_backward_bias bias = mhai_backward_bias_of(job->x);
    mhai_attn_sequence seq = {.T = job->p->T};
    if (job->p->B > 0) seq = mhai_attn_sequence_of(job->p, item->b.begin);
    int64_t t = item->chunk.begin * CHUNK, key = item->block.begin * BLOCK;
    int64_t rows = item->by_row ? mhai_min_i64(CHUNK, seq.T - t) : 1;
    int64_t keys = item->by_key ? mhai_min_i64(BLOCK, job->p->S - key) : 1;
    int64_t row = item->by_row ? seq.q0 + t : 0;
    float *out = (float *)job->x->bias.data + seq.batch * bias.stride[0] * (bias.shape[0] != 1) +
                 item->h.begin * bias.stride[1] * (bias.shape[1] != 1) + row * bias.stride[2] +
                 (item->by_key ? key : 0) * bias.stride[3];
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < keys; j++)
            mhai_backward_write(job->x, out + r * bias.stride[2] + j * bias.stride[3],
                                w->bias[r * BLOCK + j]);
}

static void run_bias(void *argument, int64_t index, int worker)
{
    const back_job *job = argument;
    const mhai_attn_problem *p = job->p;
    workspace w = workspace_of(job, worker);
    bias_item item = bias_item_at(job, index);
    memset(w.bias, 0, CHUNK * BLOCK * sizeof(double));
    for (int64_t b = item.b.begin; b < item.b.end; b++)
        for (int64_t h = item.h.begin; h < item.h.end; h++)
            for (int64_t i = item.chunk.begin; i < item.chunk.end; i++) {
                mhai_attn_sequence seq = mhai_attn_sequence_of(p, b);
                if (i * CHUNK >= seq.T) break;
                chunk c = load_chunk(job, &w, b, h, i * CHUNK, false);
                for (int64_t j = item.block.begin; j < item.block.end; j++) {
                    cell at;
                    if (j * BLOCK >= c.c.limit.end) break;
                    load_block(job, &w, &seq, c.c.hk, j * BLOCK, false);
                    if (run_cell(job, &c, &w, j * BLOCK, NULL, &at))
                        add_bias_cell(&c, &w, &at, &item);
                }
            }
    write_bias(job, &w, &item);
}

/* ---- the call -------------------------------------------------------------------------------- */

/* dq, dk and dv together: only if that leaves no thread idle for long. */
static bool choose_both(const mhai_backward_problem *x, int threads)
{
    const mhai_attn_problem *p = &x->p;
    int64_t heads = p->B * p->Hk, held = p->group * p->T * padded(p->D);
    if (!x->q.data || (!x->k.data && !x->v.data) || mhai_backward_has_sums(x)) return false;
    if (p->shaw_keys.data) return false; /* dq has sums by distance, too */
    return held <= most_held && (heads % threads == 0 || heads >= 4 * (int64_t)threads);
}

static back_job job_of(const mhai_backward_problem *x, mha_isa isa, int threads)
{
    const mhai_attn_problem *p = &x->p;
    back_job job = {.x = x, .p = p, .kernels = mhai_kernels_for(isa)};
    job.walk = (mhai_attn_walk){.p = p, .kernels = job.kernels, .dropout = mhai_attn_dropout_of(p)};
    job.chunks = mhai_ceil_div(p->T, CHUNK);
    job.blocks = mhai_ceil_div(p->S, BLOCK);
    job.both = choose_both(x, threads);
    job.held = job.both ? mhai_max_i64(CHUNK, p->group * p->T) : CHUNK;
    job.worker_bytes = lay_out(&job, NULL).bytes;
    return job;
}

mhai_backward_tiling mhai_backward_tile(const mhai_backward_problem *x, mha_isa isa, int threads)
{
    back_job job = job_of(x, isa, threads);
    const mhai_attn_problem *p = &x->p;
    bool queries = (x->q.data && !job.both) || mhai_backward_has_sums(x);
    bool keys = !job.both && (x->k.data || x->v.data);
    mhai_backward_tiling tiling = {.key_block = BLOCK,
                                   .row_block = job.kernels->tile_rows,
                                   .worker_bytes = job.worker_bytes,
                                   .both = job.both};
    int64_t pieces[4];
    bias_pieces(&job, pieces);
    if (job.both) tiling.items += p->B * p->Hk;
    if (queries) tiling.items += p->B * p->H * job.chunks;
    if (keys) tiling.items += p->B * p->Hk * job.blocks;
    if (x->bias.data) tiling.items += pieces[0] * pieces[1] * pieces[2] * pieces[3];
    return tiling;
}

/* Shaw's tables, packed once for all chunks. */
static mha_status pack_tables(mha_context *context, back_job *job)
{
    const mhai_attn_problem *p = job->p;
    const struct {
        const mha_tensor *table;
        float **by_distance, **rows;
    } all[] = {{&p->shaw_keys, &job->shaw_keys, &job->shaw_keys_rows},
               {&p->shaw_values, &job->shaw_values, NULL}};
    for (int i = 0; i < 2; i++) {
        const mha_tensor *table = all[i].table;
        if (!table->data) continue;
        int64_t n = table_columns(table), columns = table->shape[1];
        void *memory;
        MHA_TRY(mha_scratch_alloc(context, n * columns, sizeof(float), &memory));
        *all[i].by_distance = memory;
        job->kernels->pack_panels(&(mhai_pack){.out = memory,
                                               .in = table->data,
                                               .stride = table->stride[0],
                                               .rows = table->shape[0],
                                               .cols = columns});
        if (!all[i].rows) continue;
        MHA_TRY(mha_scratch_alloc(context, n * padded(columns), sizeof(float), &memory));
        float *rows = *all[i].rows = memory;
        memset(rows, 0, (size_t)(n * padded(columns)) * sizeof(float));
        for (int64_t r = 0; r < table->shape[0]; r++)
            for (int64_t d = 0; d < columns; d++)
                rows[d / MHAI_PANEL * n * MHAI_PANEL + r * MHAI_PANEL + d % MHAI_PANEL] =
                    ((const float *)table->data)[r * table->stride[0] + d];
    }
    return MHA_OK;
}

static mha_status take_sums(mha_context *context, back_job *job)
{
    const mhai_backward_problem *x = job->x;
    const mhai_attn_problem *p = job->p;
    void *memory;
    if (!mhai_backward_has_sums(x)) return MHA_OK;
    MHA_TRY(mha_scratch_alloc(context, WAVE, sizeof(chunk_sums), &memory));
    job->sums = memory;
    for (int i = 0; i < WAVE; i++) {
        job->sums[i] = (chunk_sums){.t5 = NULL};
        if (x->t5.data) {
            MHA_TRY(mha_scratch_alloc(context, p->t5_table.shape[0], sizeof(double), &memory));
            job->sums[i].t5 = memory;
        }
        if (x->shaw_keys.data) {
            MHA_TRY(mha_scratch_alloc(context, table_columns(&p->shaw_keys) * padded(p->D),
                                      sizeof(float), &memory));
            job->sums[i].shaw_keys = memory;
        }
        if (x->shaw_values.data) {
            MHA_TRY(mha_scratch_alloc(context, table_columns(&p->shaw_values) * padded(p->Dv),
                                      sizeof(float), &memory));
            job->sums[i].shaw_values = memory;
        }
    }
    return MHA_OK;
}

mha_status mhai_backward_tiled(mha_context *context, const mhai_backward_problem *x)
{
    const mhai_attn_problem *p = &x->p;
    back_job job = job_of(x, context->isa, context->num_threads);
    void *memory;
    MHA_TRY(mha_scratch_alloc(context, context->num_threads, job.worker_bytes, &memory));
    job.memory = memory;
    MHA_TRY(pack_tables(context, &job));
    MHA_TRY(take_sums(context, &job)); /* the last that may fail; nothing is written yet */
    if (job.both) {
        mha_parallel_for(context, p->B * p->Hk, run_both, &job);
    } else {
        if (x->q.data || mhai_backward_has_sums(x)) walk_queries(context, &job);
        if (x->k.data || x->v.data)
            mha_parallel_for(context, p->B * p->Hk * job.blocks, run_keys, &job);
    }
    if (x->bias.data) {
        int64_t pieces[4];
        bias_pieces(&job, pieces);
        mha_parallel_for(context, pieces[0] * pieces[1] * pieces[2] * pieces[3], run_bias, &job);
    }
    return MHA_OK;
}
