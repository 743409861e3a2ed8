/* Cells: a worker's memory, loading of rows and keys, and the computation
 * (attn_backward_cells.h). */
#include "attention/attn_backward_cells.h"

#include "base/checked.h"
#include "base/context.h"

#include <multihead/component.h>

#include <math.h>
#include <string.h>

static const double log2_e = 1.4426950408889634;

/* ---- memory ---------------------------------------------------------------------------------- */

static void lay_out_rows(const mhai_attn_problem *p, mhai_carver *c, mhai_cells_space *w)
{
    mhai_attn_workspace *r = &w->rows;
    r->head = mhai_carve(c, MHAI_CELL_QUERIES, sizeof(int64_t));
    r->query = mhai_carve(c, MHAI_CELL_QUERIES, sizeof(int64_t));
    r->limit = mhai_carve(c, MHAI_CELL_QUERIES, sizeof(mhai_attn_range));
    r->window = mhai_carve(c, MHAI_CELL_QUERIES, sizeof(mhai_attn_range));
    r->keep = mhai_carve(c, MHAI_MAX_ROWS * MHAI_KEY_BLOCK, 1);
    r->relative = mhai_carve(c, mhai_attn_has_relative(p) ? MHAI_CELL_KEYS + MHAI_CELL_QUERIES : 0,
                             sizeof(float));
    r->relative_at =
        mhai_carve(c, mhai_attn_has_relative(p) ? MHAI_CELL_QUERIES : 0, sizeof(int64_t));
    r->shaw_keys =
        mhai_carve(c, MHAI_CELL_QUERIES * mhai_attn_padded_shaw(&p->shaw_keys), sizeof(float));
    w->lse = mhai_carve(c, MHAI_CELL_QUERIES, sizeof(float));
    w->delta = mhai_carve(c, MHAI_CELL_QUERIES, sizeof(float));
    w->gate = mhai_carve(c, MHAI_CELL_QUERIES, sizeof(float));
    w->bad = mhai_carve(c, MHAI_KEY_BLOCK, 1);
    w->diagonal = mhai_carve(c, MHAI_CELL_KEYS + MHAI_CELL_QUERIES, sizeof(double));
}

/* Sizes cannot overflow: constants of this library or attn_check.c (Shaw
 * tables) bound all factors. */
static mhai_cells_space lay_out(const mhai_cells_job *job, unsigned char *memory)
{
    const mhai_attn_problem *p = job->p;
    const int64_t D = mhai_cells_padded(p->D), Dv = mhai_cells_padded(p->Dv);
    const int64_t keys = mhai_attn_padded_shaw(&p->shaw_keys),
                  values = mhai_attn_padded_shaw(&p->shaw_values);
    mhai_cells_space w = {.bytes = 0};
    mhai_carver c = {memory, 0};
    mhai_cells_space *own = mhai_carve(&c, 1, sizeof w);
    lay_out_rows(p, &c, &w);
    w.q = mhai_carve(&c, MHAI_CELL_QUERIES * p->D, sizeof(float));
    w.g = mhai_carve(&c, MHAI_CELL_QUERIES * p->Dv, sizeof(float));
    w.q_panels = mhai_carve(&c, MHAI_KEY_BLOCK * D, sizeof(float));
    w.g_panels = mhai_carve(&c, MHAI_KEY_BLOCK * Dv, sizeof(float));
    w.k_panels = mhai_carve(&c, MHAI_CELL_KEYS * p->D, sizeof(float));
    w.v_panels = mhai_carve(&c, MHAI_CELL_KEYS * p->Dv, sizeof(float));
    w.k_values = mhai_carve(&c, MHAI_KEY_BLOCK * D, sizeof(float));
    w.p = mhai_carve(&c, MHAI_CELL_QUERIES * MHAI_SCORE_STRIDE, sizeof(float));
    w.x = mhai_carve(&c, MHAI_CELL_QUERIES * MHAI_SCORE_STRIDE, sizeof(float));
    w.slope =
        mhai_carve(&c, p->softcap > 0 ? MHAI_CELL_QUERIES * MHAI_SCORE_STRIDE : 0, sizeof(float));
    w.dk = mhai_carve(&c, MHAI_CELL_KEYS * D, sizeof(float));
    w.dv = mhai_carve(&c, MHAI_CELL_KEYS * Dv, sizeof(float));
    w.dq = mhai_carve(&c, job->held * D, sizeof(float));
    w.shaw_x = mhai_carve(&c, MHAI_CELL_QUERIES * keys, sizeof(float));
    w.shaw_g = mhai_carve(&c, MHAI_CELL_QUERIES * values, sizeof(float));
    w.shaw_p = mhai_carve(&c, MHAI_CELL_QUERIES * values, sizeof(float));
    w.bias =
        mhai_carve(&c, job->x->bias.data ? MHAI_CELL_QUERIES * MHAI_CELL_KEYS : 0, sizeof(double));
    const bool weights = mhai_backward_has_weights(job->x);
    w.weights = mhai_carve(&c, weights ? MHAI_MAX_ROWS * MHAI_SCORE_STRIDE : 0, sizeof(float));
    w.weight_sums = mhai_carve(&c, weights ? MHAI_CELL_QUERIES : 0, sizeof(double));
    w.bytes = c.used;
    if (own) *own = w;
    return w;
}

size_t mhai_cells_space_bytes(const mhai_cells_job *job)
{
    return lay_out(job, NULL).bytes;
}

mha_status mhai_cells_take_spaces(mha_context *context, mhai_cells_job *job)
{
    MHA_TRY(mha_scratch_alloc(context, context->num_threads, job->worker_bytes, &job->memory));
    for (int worker = 0; worker < context->num_threads; worker++)
        lay_out(job, job->memory + (size_t)worker * job->worker_bytes);
    return MHA_OK;
}

mhai_cells_space mhai_cells_space_of(const mhai_cells_job *job, int worker)
{
    return *(const mhai_cells_space *)(const void *)(job->memory +
                                                     (size_t)worker * job->worker_bytes);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static void pack_rows(const mhai_cells_job *job, const mha_tensor *x, const mhai_cells_chunk *c,
                      uint8_t *bad, float *out)
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
                     .any_bad = &any_bad,
                     .half = !job->p->shaw_keys.data && !job->p->shaw_values.data});
}

static void scale_rows(const mhai_cells_job *job, const mha_tensor *x, const mhai_cells_chunk *c,
                       float factor, float *out)
{
    const void *in = mhai_attn_data(x, c->c.seq.batch, c->h, c->c.seq.q0 + c->t);
    job->kernels->scale_rows(&(mhai_pack){.out = out,
                                          .in = in,
                                          .type = x->dtype,
                                          .stride = x->stride[2],
                                          .rows = c->c.rows,
                                          .cols = x->shape[3]},
                             factor);
}

/* Load q and dO of the rows. Rows that are not finite are replaced by 0; their delta is NaN. */
static void load_rows(const mhai_cells_job *job, const mhai_cells_chunk *c, mhai_cells_space *w)
{
    const mhai_attn_problem *p = job->p;
    const int64_t batch = c->c.seq.batch, row = c->c.seq.q0 + c->t;
    const float gate = (float)mhai_backward_gate(p, c->c.seq.b, c->h);
    for (int64_t r = 0; r < c->c.rows; r++) {
        const float lse = *mhai_attn_row(&p->lse, batch, c->h, row + r);
        w->lse[r] = lse == -INFINITY ? INFINITY : (float)((double)lse * log2_e);
        w->delta[r] = (float)mhai_backward_delta(job->x, batch, c->h, row + r);
        w->gate[r] = gate;
    }
    scale_rows(job, &p->q, c, mhai_attn_factor(p), w->q);
    scale_rows(job, &job->x->o_gradient, c, 1, w->g);
}

/* Set positions and visible keys of the rows. In a plain problem, no row sees more keys than the
 * last. */
static void place_rows(const mhai_cells_job *job, mhai_cells_chunk *c, mhai_cells_space *w)
{
    if (!job->plain) {
        mhai_attn_place_rows(&job->walk, &c->c, &w->rows);
        return;
    }
    c->c.limit = (mhai_attn_range){0, 0};
    if (c->c.rows > 0) c->c.limit = mhai_attn_limit(job->p, &c->c.seq, c->t + c->c.rows - 1);
}

mhai_cells_chunk mhai_cells_load_chunk(const mhai_cells_job *job, mhai_cells_space *w, int64_t b,
                                       int64_t h, int64_t t, bool panels)
{
    const mhai_attn_problem *p = job->p;
    mhai_cells_chunk c = {.c = {.seq = mhai_attn_sequence_of(p, b), .hk = h / p->group}};
    c.b = b, c.h = h, c.t = t;
    c.c.rows = c.c.width = mhai_min_i64(MHAI_CELL_QUERIES, c.c.seq.T - t);
    c.c.head0 = h, c.c.query0 = t;
    place_rows(job, &c, w);
    if (c.c.rows > 0) load_rows(job, &c, w);
    if (panels && c.c.rows > 0) {
        pack_rows(job, &p->q, &c, w->bad, w->q_panels);
        pack_rows(job, &job->x->o_gradient, &c, w->bad, w->g_panels);
    }
    int64_t keys = mhai_attn_padded_shaw(&p->shaw_keys),
            values = mhai_attn_padded_shaw(&p->shaw_values);
    if (keys)
        mhai_attn_multiply_rows(job->kernels, c.c.rows, p->D, keys, w->q, p->D, job->shaw_keys,
                                p->D * MHAI_PANEL, true, w->rows.shaw_keys, keys);
    if (values)
        mhai_attn_multiply_rows(job->kernels, c.c.rows, p->Dv, values, w->g, p->Dv,
                                job->shaw_values, p->Dv * MHAI_PANEL, true, w->shaw_g, values);
    return c;
}

/* ---- keys ------------------------------------------------------------------------------------ */

static mhai_pack pack_of(const mha_tensor *x, const mhai_attn_sequence *seq, int64_t hk,
                         int64_t key, mhai_cells_space *w, float *out, bool *any_bad)
{
    return (mhai_pack){.out = out,
                       .in = mhai_attn_data(x, seq->batch, hk, seq->k0 + key),
                       .type = x->dtype,
                       .stride = x->stride[2],
                       .rows = mhai_min_i64(MHAI_CELL_KEYS, seq->S - key),
                       .cols = x->shape[3],
                       .bad = w->bad,
                       .any_bad = any_bad,
                       .half = true};
}

void mhai_cells_load_block(const mhai_cells_job *job, mhai_cells_space *w,
                           const mhai_attn_sequence *seq, int64_t hk, int64_t key, bool rows)
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

/* Set all inputs of a strip's scores and values except visibility. */
static void set_terms(const mhai_cells_job *job, const mhai_cells_chunk *c,
                      const mhai_cells_space *w, const mhai_attn_block *block, mhai_attn_strip *s,
                      mhai_shaw_back *shaw)
{
    const mha_tensor *values = &job->p->shaw_values;
    mhai_attn_set_score_terms(job->p, &c->c, &w->rows, block, s);
    s->mask.poison = NULL;
    if (!values->data) return;
    shaw->last = values->shape[0] - 1;
    for (int r = 0; r < s->tile.rows; r++) {
        const int64_t row = s->first + r;
        shaw->table[r] = w->shaw_g + row * mhai_attn_padded_shaw(values);
        shaw->center[r] = block->key - (c->t + row + c->c.seq.offset) + values->shape[0] / 2;
    }
}

/* Plain problems: count the visible keys of each row of a strip in a block. Return the count of the
 * last row, which sees the most. */
static int see_strip(const mhai_cells_job *job, const mhai_cells_chunk *c, const mhai_cell *at,
                     int64_t first, int rows, int ends[MHAI_MAX_ROWS])
{
    for (int r = 0; r < rows; r++) {
        const int64_t end = mhai_attn_limit(job->p, &c->c.seq, c->t + first + r).end;
        ends[r] = (int)mhai_max_i64(0, mhai_min_i64(end - at->block.key, at->block.keys));
    }
    return ends[rows - 1];
}

/* Other problems: mask the strip, and set the terms of its scores. */
static bool mask_strip(const mhai_cells_job *job, const mhai_cells_chunk *c, mhai_cells_space *w,
                       const mhai_cell *at, mhai_attn_strip *s, mhai_tile_back *back,
                       mhai_shaw_back *shaw, mhai_dropout *dropout)
{
    s->tile = back->tile;
    if (!mhai_attn_mask_strip(job->p, &c->c, &w->rows, &at->block, s)) return false;
    set_terms(job, c, w, &at->block, s, shaw);
    if (job->p->shaw_values.data) back->shaw = shaw;
    s->tile.mask = s->masked ? &s->mask : NULL;
    if (job->p->dropout > 0) {
        mhai_attn_set_dropout(&job->walk, &c->c, &w->rows, &at->block, s, dropout);
        s->tile.dropout = dropout;
    }
    back->tile = s->tile;
    return true;
}

/* Gradients of the loss with respect to p, for keys begin .. end - 1 of a row, relative to key.
 * Where p is 0, they are set to 0, so that hidden keys have no effect. */
static void read_weights(const mhai_backward_problem *x, const mhai_cells_chunk *c, int64_t row,
                         int64_t key, const float *p, int begin, int end, double *w)
{
    const mha_tensor *each = &x->probabilities_gradient, *mean = &x->average_gradient;
    const double heads = (double)(x->p.part ? x->p.part->H : x->p.H);
    for (int j = begin; j < end; j++) w[j] = 0;
    if (each->data) {
        const int64_t step = each->stride[3];
        const float *from = mhai_attn_row(each, c->c.seq.batch, c->h, row) + key * step;
        for (int j = begin; j < end; j++) w[j] = (double)from[j * step];
    }
    if (mean->data) {
        const int64_t step = mean->stride[2];
        const float *from = (const float *)mean->data + c->c.seq.batch * mean->stride[0] +
                            row * mean->stride[1] + key * step;
        for (int j = begin; j < end; j++) w[j] += (double)from[j * step] / heads;
    }
    for (int j = begin; j < end; j++) w[j] = p[j] == 0 ? 0 : w[j];
}

/* begin is a multiple of LANES, so each key always has the same lane. */
static double sum_weights(const float *p, const double *w, int begin, int end)
{
    enum { LANES = 8 };
    double sum[LANES] = {0}, all = 0;
    int j = begin;
    for (; j + LANES <= end; j += LANES)
        for (int i = 0; i < LANES; i++) sum[i] += (double)p[j + i] * w[j + i];
    for (int i = 0; j + i < end; i++) sum[i] += (double)p[j + i] * w[j + i];
    for (int i = 0; i < LANES; i++) all += sum[i];
    return all;
}

/* For a loss that depends on p: add p w to ds, or only sum it. p is computed by a separate product,
 * as in the forward pass, and is 0 for hidden keys. */
static void weigh_strip(const mhai_cells_job *job, const mhai_cells_chunk *c,
                        const mhai_cells_space *w, const mhai_cell *at, const mhai_attn_strip *s)
{
    double given[MHAI_CELL_KEYS];
    float ones[MHAI_MAX_ROWS];
    mhai_tile tile = s->tile;
    for (int r = 0; r < tile.rows; r++) ones[r] = 1;
    tile.s = w->weights;
    tile.m = w->lse + s->first;
    tile.l = ones;
    job->kernels->tile_probabilities(&tile);
    if (tile.dropout && job->x->dropped) job->kernels->tile_drop(&tile);
    for (int64_t r = 0; r < tile.rows; r++) {
        const int64_t row = s->first + r;
        const float *p = w->weights + r * MHAI_SCORE_STRIDE;
        float *ds = w->x + row * MHAI_SCORE_STRIDE;
        if (isnan(w->delta[row])) continue;
        read_weights(job->x, c, c->c.seq.q0 + c->t + row, at->block.key, p, tile.begin, tile.end,
                     given);
        if (job->summing) w->weight_sums[row] += sum_weights(p, given, tile.begin, tile.end);
        for (int j = tile.begin; j < tile.end && !job->summing; j++)
            ds[j] = (float)((double)ds[j] + (double)p[j] * given[j]);
    }
}

/* Compute strip i of the cell. Store the range of keys that it sees; 0 .. 0 if none. */
static void run_strip(const mhai_cells_job *job, const mhai_cells_chunk *c, mhai_cells_space *w,
                      int64_t i, float *share, mhai_cell *at)
{
    const mhai_attn_problem *p = job->p;
    const int64_t first = mhai_cells_strip(c, at, i);
    const int rows = (int)(mhai_cells_strip(c, at, i + 1) - first);
    int ends[MHAI_MAX_ROWS];
    mhai_attn_strip s;
    mhai_shaw_back shaw;
    mhai_dropout dropout;
    mhai_tile_back back = {.tile = {.rows = rows,
                                    .head_dim = p->D,
                                    .q = w->q + first * p->D,
                                    .k = w->k_panels,
                                    .s = w->p + first * MHAI_SCORE_STRIDE},
                           .value_dim = p->Dv,
                           .g = w->g + first * p->Dv,
                           .v = w->v_panels,
                           .x = w->x + first * MHAI_SCORE_STRIDE,
                           .slope = w->slope ? w->slope + first * MHAI_SCORE_STRIDE : NULL,
                           .lse = w->lse + first,
                           .delta = w->delta + first,
                           .gate = w->gate + first,
                           .share = share};
    s.first = first;
    at->strip_begin[i] = at->strip_end[i] = 0;
    if (job->plain) {
        back.ends = ends;
        back.tile.end = see_strip(job, c, at, first, rows, ends);
        if (back.tile.end == 0) return;
    } else if (!mask_strip(job, c, w, at, &s, &back, &shaw, &dropout)) {
        return;
    }
    at->strip_begin[i] = back.tile.begin;
    at->strip_end[i] = back.tile.end;
    if (!job->summing) job->kernels->tile_backward(&back);
    if (mhai_backward_has_weights(job->x)) weigh_strip(job, c, w, at, &s);
}

void mhai_cells_clear(const mhai_cells_chunk *c, const mhai_cells_space *w, const mhai_cell *at)
{
    for (int64_t i = 0; i < at->strips; i++)
        for (int64_t r = mhai_cells_strip(c, at, i); r < mhai_cells_strip(c, at, i + 1); r++) {
            float *p = w->p + r * MHAI_SCORE_STRIDE, *x = w->x + r * MHAI_SCORE_STRIDE;
            for (int j = at->begin; j < at->strip_begin[i]; j++) p[j] = x[j] = 0;
            for (int j = at->strip_end[i]; j < at->end; j++) p[j] = x[j] = 0;
        }
}

/* Find the hull of the strips' ranges, and whether their ends are non-decreasing. A strip that sees
 * no keys gets an empty range at the beginning of the hull. */
static void find_hull(mhai_cell *at)
{
    at->begin = MHAI_CELL_KEYS;
    at->end = 0;
    for (int i = 0; i < at->strips; i++) {
        if (at->strip_end[i] == 0) continue;
        if (at->strip_begin[i] < at->begin) at->begin = at->strip_begin[i];
        if (at->strip_end[i] > at->end) at->end = at->strip_end[i];
    }
    at->stairs = true;
    for (int i = 0; i < at->strips; i++) {
        if (at->strip_end[i] == 0) at->strip_begin[i] = at->strip_end[i] = at->begin;
        at->stairs &= at->strip_begin[i] == at->begin;
        if (i > 0) at->stairs &= at->strip_end[i] >= at->strip_end[i - 1];
    }
}

bool mhai_cells_run(const mhai_cells_job *job, const mhai_cells_chunk *c, mhai_cells_space *w,
                    int64_t key, double *share, mhai_cell *at)
{
    mhai_attn_chunk cut = c->c;
    cut.limit.end = mhai_min_i64(cut.limit.end, key + MHAI_CELL_KEYS);
    if (cut.limit.end <= key) return false;
    at->block = mhai_attn_block_at(job->p, &cut, key);
    if (!mhai_attn_block_seen(job->p, &c->c, &at->block)) return false;
    if (mhai_attn_has_relative(job->p))
        mhai_attn_fill_relative(job->p, &c->c, &w->rows, &at->block);
    at->strips = (int)mhai_ceil_div(c->c.rows, job->kernels->tile_rows);
    for (int64_t i = 0; i < at->strips; i++) {
        const int64_t rows = mhai_cells_strip(c, at, i + 1) - mhai_cells_strip(c, at, i);
        float shares[MHAI_MAX_ROWS];
        run_strip(job, c, w, i, share ? shares : NULL, at);
        for (int64_t r = 0; share && at->strip_end[i] > 0 && r < rows; r++)
            *share += (double)shares[r];
    }
    find_hull(at);
    return at->begin < at->end;
}

void mhai_cells_sum_weights(const mhai_cells_job *job, const mhai_cells_chunk *c,
                            mhai_cells_space *w, int64_t key)
{
    mhai_cell at;
    mhai_cells_run(job, c, w, key, NULL, &at);
}

bool mhai_cells_plain(const mhai_attn_problem *p)
{
    const int takes = MHAI_USES(causal) | MHAI_USES(key_lengths) | MHAI_USES(ragged) |
                      MHAI_USES(sink_logits) | MHAI_USES(gates);
    return !(p->uses & ~takes);
}

void mhai_cells_pass_cap(const mhai_cells_job *job, const mhai_cells_chunk *c,
                         const mhai_cells_space *w, const mhai_cell *at)
{
    if (!(job->p->softcap > 0)) return;
    for (int64_t i = 0; i < at->strips; i++)
        for (int64_t r = mhai_cells_strip(c, at, i); r < mhai_cells_strip(c, at, i + 1); r++) {
            float *x = w->x + r * MHAI_SCORE_STRIDE;
            const float *slope = w->slope + r * MHAI_SCORE_STRIDE;
            for (int j = at->strip_begin[i]; j < at->strip_end[i]; j++)
                x[j] = x[j] == 0 ? 0 : x[j] * slope[j];
        }
}

/* ---- Shaw's tables --------------------------------------------------------------------------- */

mha_status mhai_cells_pack_tables(mha_context *context, mhai_cells_job *job)
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
        int64_t n = mhai_attn_padded_shaw(table), columns = table->shape[1];
        MHA_TRY(mha_scratch_alloc(context, n * columns, sizeof(float), all[i].by_distance));
        job->kernels->pack_panels(&(mhai_pack){.out = *all[i].by_distance,
                                               .in = table->data,
                                               .stride = table->stride[0],
                                               .rows = table->shape[0],
                                               .cols = columns});
        if (!all[i].rows) continue;
        MHA_TRY(
            mha_scratch_zeros(context, n * mhai_cells_padded(columns), sizeof(float), all[i].rows));
        float *rows = *all[i].rows;
        for (int64_t r = 0; r < table->shape[0]; r++)
            for (int64_t d = 0; d < columns; d++)
                rows[d / MHAI_PANEL * n * MHAI_PANEL + r * MHAI_PANEL + d % MHAI_PANEL] =
                    ((const float *)table->data)[r * table->stride[0] + d];
    }
    return MHA_OK;
}
