/* The tiled path of the backward pass. p is recomputed from lse, so memory does not depend on
 * T x S.
 *
 * A kernel computes c p after dropout and ds for a cell: a chunk of queries of one head against a
 * block of keys (attn_backward_cells.h). There are five walks over cells:
 *
 *   keys         for each block of a key/value head, all chunks of its query heads: dv += P^T dO,
 *                dk += dX^T q
 *   queries      for each chunk, all blocks: dq += dX k, and the sums of parameters
 *   both         for each block of a key/value head, all chunks: dq, dk and dv. Computes each cell
 *                only once. Used with many heads, if no gradients of parameters are requested
 *   bias         for each part of the bias, the cells that share its elements
 *   weights      before the others, if the loss depends on p: for each chunk, all blocks: sum p w
 *
 * Each output has one owner. Every walk adds cells, and the rows or keys in
 * them, in the same order. */
#include "attention/attn_backward_cells.h"
#include "attention/attn_row.h"
#include "base/context.h"

#include <multihead/component.h>

#include <math.h>
#include <string.h>

/* Number of chunks whose parameter sums are stored until they are added in order. */
enum { WAVE = 32 };

/* Limit on the floats of dq that a worker holds in the walk `both`: 16 MiB. */
static const int64_t most_held = 1 << 22;

/* ---- gradients of queries, keys and values --------------------------------------------------- */

/* dq += dX k for the rows of the chunk. Each strip covers only the keys that it sees. */
static void add_queries(const mhai_cells_job *job, const mhai_cells_chunk *c,
                        const mhai_cells_space *w, const mhai_cell *at, float *dq)
{
    const int64_t D = mhai_cells_padded(job->p->D);
    for (int64_t i = 0; i < at->strips; i++) {
        const int64_t first = mhai_cells_strip(c, at, i), begin = at->strip_begin[i];
        job->kernels->add_product(&(mhai_product){.rows = mhai_cells_strip(c, at, i + 1) - first,
                                                  .inner = at->strip_end[i] - begin,
                                                  .cols = job->p->D,
                                                  .a = w->x + first * MHAI_SCORE_STRIDE + begin,
                                                  .a_stride = MHAI_SCORE_STRIDE,
                                                  .b = w->k_values + begin * MHAI_PANEL,
                                                  .panel_stride = MHAI_KEY_BLOCK * MHAI_PANEL,
                                                  .out = dq + first * D,
                                                  .out_stride = D});
    }
}

/* out[key] += sum over the chunk's rows of a[row][key] b[row]. Under a causal mask, keys after the
 * end of a strip are 0 in this strip and all earlier strips, which are skipped. */
static void add_by_key(const mhai_cells_job *job, const mhai_cells_chunk *c, const float *a,
                       const float *b, const mhai_cell *at, int64_t columns, float *out)
{
    int64_t key = at->begin, i = at->stairs ? 0 : at->strips - 1;
    for (int64_t end; i < at->strips; i++, key = end) {
        const int64_t first = at->stairs ? mhai_cells_strip(c, at, i) : 0;
        end = at->stairs ? at->strip_end[i] : at->end;
        if (end == key) continue;
        job->kernels->add_product(&(mhai_product){.rows = end - key,
                                                  .inner = c->c.rows - first,
                                                  .cols = columns,
                                                  .a = a + first * MHAI_SCORE_STRIDE + key,
                                                  .a_stride = MHAI_SCORE_STRIDE,
                                                  .transposed = true,
                                                  .b = b + first * MHAI_PANEL,
                                                  .panel_stride = MHAI_KEY_BLOCK * MHAI_PANEL,
                                                  .out = out + key * mhai_cells_padded(columns),
                                                  .out_stride = mhai_cells_padded(columns)});
    }
}

void mhai_cells_write_rows(const mhai_cells_job *job, const mha_tensor *out, int64_t batch,
                           int64_t h, int64_t first, int64_t rows, const float *sums, float factor)
{
    job->kernels->write_rows(&(mhai_write){.rows = rows,
                                           .cols = out->shape[3],
                                           .in = sums,
                                           .in_stride = mhai_cells_padded(out->shape[3]),
                                           .out = mhai_attn_row(out, batch, h, first),
                                           .out_stride = out->stride[2],
                                           .factor = factor,
                                           .add = job->x->accumulate});
}

/* ---- sums of the parameters ------------------------------------------------------------------ */

/* Sum ds by distance. Add the sums to the T5 buckets and, times the
 * distance, to the ALiBi slope. */
static void add_by_distance(const mhai_cells_job *job, const mhai_cells_chunk *c,
                            mhai_cells_space *w, const mhai_cell *at, mhai_cells_sums *sums)
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
static void add_by_table_row(const mhai_cells_chunk *c, const mhai_cell *at,
                             const mha_tensor *table, const float *a, float *sums)
{
    int64_t last = table->shape[0] - 1;
    for (int64_t r = 0; r < c->c.rows; r++) {
        const float *from = a + r * MHAI_SCORE_STRIDE;
        float *to = sums + r * mhai_attn_padded_shaw(table);
        int64_t center = at->block.key - (c->t + r + c->c.seq.offset) + table->shape[0] / 2;
        for (int j = at->begin; j < at->end; j++)
            to[mhai_max_i64(0, mhai_min_i64(center + j, last))] += from[j];
    }
}

/* dq += sums by distance times the table, MHAI_GEMM_BLOCK distances at a time. */
static void add_shaw_queries(const mhai_cells_job *job, const mhai_cells_chunk *c,
                             const mhai_cells_rows *to)
{
    const mha_tensor *table = &job->p->shaw_keys;
    const int64_t D = mhai_cells_padded(job->p->D), columns = mhai_attn_padded_shaw(table);
    for (int64_t i = 0; i < columns; i += MHAI_GEMM_BLOCK)
        mhai_attn_multiply_rows(job->kernels, c->c.rows, mhai_min_i64(MHAI_GEMM_BLOCK, columns - i),
                                D, to->shaw_x + i, columns, job->shaw_keys_rows + i * MHAI_PANEL,
                                columns * MHAI_PANEL, false, to->dq, D);
}

/* table[distance] = sum over rows of sums[row][distance] b[row] */
static void add_table(const mhai_cells_job *job, const mhai_cells_chunk *c, const mha_tensor *table,
                      const float *sums, const float *b, int64_t columns, float *out)
{
    memset(out, 0,
           (size_t)(mhai_attn_padded_shaw(table) * mhai_cells_padded(columns)) * sizeof(float));
    job->kernels->add_product(&(mhai_product){.rows = table->shape[0],
                                              .inner = c->c.rows,
                                              .cols = columns,
                                              .a = sums,
                                              .a_stride = mhai_attn_padded_shaw(table),
                                              .transposed = true,
                                              .b = b,
                                              .panel_stride = MHAI_KEY_BLOCK * MHAI_PANEL,
                                              .out = out,
                                              .out_stride = mhai_cells_padded(columns)});
}

/* The gradient of the scale: the sum of q . dX k over the rows. Rows without visible keys add 0,
 * even if their queries are not finite. */
static double scale_share(const mhai_cells_job *job, const mhai_cells_chunk *c,
                          const mhai_cells_space *w, const float *sums)
{
    double sum = 0;
    for (int64_t r = 0; r < c->c.rows; r++) {
        const float *dq = sums + r * mhai_cells_padded(job->p->D);
        const float *q = mhai_attn_read(&job->p->q, c->c.seq.batch, c->h, c->c.seq.q0 + c->t + r,
                                        w->q + r * job->p->D); /* overwrites the scaled queries,
                                                                * which are no longer needed */
        for (int64_t d = 0; d < job->p->D; d++)
            if (dq[d] != 0) sum += (double)q[d] * (double)dq[d];
    }
    return sum;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* The same arrays, starting at row t of a sequence, the first row of a chunk. */
static mhai_cells_rows rows_from(const mhai_cells_job *job, const mhai_cells_rows *all, int64_t t)
{
    const mhai_attn_problem *p = job->p;
    mhai_cells_rows rows = *all;
    if (rows.dq) rows.dq += t * mhai_cells_padded(p->D);
    if (rows.shaw_x) rows.shaw_x += t * mhai_attn_padded_shaw(&p->shaw_keys);
    if (rows.shaw_p) rows.shaw_p += t * mhai_attn_padded_shaw(&p->shaw_values);
    if (rows.sums) rows.sums += t / MHAI_CELL_QUERIES;
    return rows;
}

/* Add a cell with visible pairs and a loaded block to its rows and, if requested, to its keys. */
static void add_cell(const mhai_cells_job *job, const mhai_cells_chunk *c, mhai_cells_space *w,
                     int64_t key, bool keys, const mhai_cells_rows *to)
{
    const mhai_backward_problem *x = job->x;
    const mhai_attn_problem *p = job->p;
    mhai_cell at;
    if (!mhai_cells_run(job, c, w, key, to->sums && x->gates.data ? &to->sums->gates : NULL, &at))
        return;
    if (to->sums || to->shaw_x || (keys && !at.stairs)) mhai_cells_clear(c, w, &at);
    if (to->sums) add_by_distance(job, c, w, &at, to->sums);
    if (to->shaw_p) add_by_table_row(c, &at, &p->shaw_values, w->p, to->shaw_p);
    if (keys && x->v.data) add_by_key(job, c, w->p, w->g_panels, &at, p->Dv, w->dv);
    mhai_cells_pass_cap(job, c, w, &at);
    if (keys && x->k.data) add_by_key(job, c, w->x, w->q_panels, &at, p->D, w->dk);
    if (to->dq) add_queries(job, c, w, &at, to->dq);
    if (to->shaw_x) add_by_table_row(c, &at, &p->shaw_keys, w->x, to->shaw_x);
}

void mhai_cells_add_head(const mhai_cells_job *job, mhai_cells_space *w,
                         const mhai_attn_sequence *seq, int64_t h, int64_t key,
                         const mhai_cells_rows *rows)
{
    for (int64_t t = 0; t < seq->T; t += MHAI_CELL_QUERIES) {
        const mhai_cells_chunk c = mhai_cells_load_chunk(job, w, seq->b, h, t, true);
        const mhai_cells_rows to = rows_from(job, rows, t);
        add_cell(job, &c, w, key, true, &to);
    }
}

static bool has_tables(const mhai_backward_problem *x)
{
    return x->shaw_keys.data || x->shaw_values.data;
}

static void finish_chunk(const mhai_cells_job *job, const mhai_cells_chunk *c, mhai_cells_space *w,
                         const mhai_cells_rows *of)
{
    const mhai_backward_problem *x = job->x;
    const mhai_attn_problem *p = job->p;
    if (of->dq) add_shaw_queries(job, c, of);
    if (x->scale.data) of->sums->scale = scale_share(job, c, w, of->dq);
    if (x->shaw_keys.data)
        add_table(job, c, &p->shaw_keys, of->shaw_x, w->q_panels, p->D, of->sums->shaw_keys);
    if (x->shaw_values.data)
        add_table(job, c, &p->shaw_values, of->shaw_p, w->g_panels, p->Dv, of->sums->shaw_values);
    if (x->q.data)
        mhai_cells_write_rows(job, &x->q, c->c.seq.batch, c->h, c->c.seq.q0 + c->t, c->c.rows,
                              of->dq, p->scale);
}

static void clear_rows(const mhai_cells_job *job, int64_t rows, const mhai_cells_rows *of)
{
    const mhai_attn_problem *p = job->p;
    const struct {
        float *first;
        int64_t columns;
    } all[] = {{of->dq, mhai_cells_padded(p->D)},
               {of->shaw_x, mhai_attn_padded_shaw(&p->shaw_keys)},
               {of->shaw_p, mhai_attn_padded_shaw(&p->shaw_values)}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].first) memset(all[i].first, 0, (size_t)(rows * all[i].columns) * sizeof(float));
    if (!of->sums) return;
    of->sums->alibi = of->sums->gates = of->sums->scale = 0;
    if (of->sums->t5) memset(of->sums->t5, 0, (size_t)p->t5_table.shape[0] * sizeof(double));
}

void mhai_cells_run_queries(void *argument, int64_t i, int worker)
{
    const mhai_cells_job *job = argument;
    const mhai_attn_problem *p = job->p;
    const int64_t item = job->wave + i, head = item / job->chunks,
                  t = item % job->chunks * MHAI_CELL_QUERIES;
    const mhai_attn_sequence seq = mhai_attn_sequence_of(p, head / p->H);
    mhai_cells_space w = mhai_cells_space_of(job, worker);
    if (t >= seq.T) return;
    mhai_cells_chunk c = mhai_cells_load_chunk(job, &w, seq.b, head % p->H, t, has_tables(job->x));
    const mhai_cells_rows to = {.dq = w.dq,
                                .shaw_x = p->shaw_keys.data ? w.shaw_x : NULL,
                                .shaw_p = job->x->shaw_values.data ? w.shaw_p : NULL,
                                .sums = job->sums ? &job->sums[i] : NULL};
    clear_rows(job, c.c.rows, &to);
    for (int64_t key = 0; key < c.c.limit.end; key += MHAI_CELL_KEYS) {
        mhai_cells_load_block(job, &w, &seq, c.c.hk, key, true);
        add_cell(job, &c, &w, key, false, &to);
    }
    finish_chunk(job, &c, &w, &to);
}

static void sum_table(const mha_tensor *table, int64_t columns, double factor, const float *from,
                      double *to)
{
    for (int64_t i = 0; i < table->shape[0]; i++)
        for (int64_t d = 0; d < columns; d++)
            to[i * columns + d] += (double)from[i * mhai_cells_padded(columns) + d] * factor;
}

void mhai_cells_add_sums(const mhai_cells_job *job, int64_t heads, int64_t b, int64_t h,
                         const mhai_cells_sums *from, const mhai_backward_sums *to)
{
    const mhai_attn_problem *p = job->p;
    if (to->alibi) to->alibi[b * heads + h] += from->alibi;
    if (to->gates) to->gates[b * heads + h] += from->gates;
    if (to->scale) to->scale[0] += from->scale;
    for (int64_t j = 0; to->t5 && j < p->t5_table.shape[0]; j++)
        to->t5[j * heads + h] += from->t5[j];
    if (to->shaw_keys)
        sum_table(&p->shaw_keys, p->D, (double)p->scale, from->shaw_keys, to->shaw_keys);
    if (to->shaw_values) sum_table(&p->shaw_values, p->Dv, 1, from->shaw_values, to->shaw_values);
}

/* Add the sums of a wave of chunks in order. */
static void sum_wave(const mhai_cells_job *job, int64_t items)
{
    for (int64_t i = 0; i < items; i++) {
        const int64_t item = job->wave + i, b = item / job->chunks / job->p->H;
        if (item % job->chunks * MHAI_CELL_QUERIES < mhai_attn_sequence_of(job->p, b).T)
            mhai_cells_add_sums(job, job->p->H, b, item / job->chunks % job->p->H, &job->sums[i],
                                &job->x->sums);
    }
}

mha_status mhai_cells_take_sums(mha_context *context, const mhai_cells_job *job, int64_t count,
                                mhai_cells_sums **sums)
{
    const mhai_backward_problem *x = job->x;
    const mhai_attn_problem *p = job->p;
    const int64_t keys = mhai_attn_padded_shaw(&p->shaw_keys) * mhai_cells_padded(p->D);
    const int64_t values = mhai_attn_padded_shaw(&p->shaw_values) * mhai_cells_padded(p->Dv);
    const int64_t buckets = p->t5_table.shape[0];
    double *t5 = NULL;
    float *shaw_keys = NULL, *shaw_values = NULL;
    MHA_TRY(mha_scratch_alloc(context, count, sizeof **sums, sums));
    /* The tables exist in memory, so these sizes cannot overflow. */
    if (x->t5.data)
        MHA_TRY(mha_scratch_alloc(context, count, (size_t)buckets * sizeof(double), &t5));
    if (x->shaw_keys.data)
        MHA_TRY(mha_scratch_alloc(context, count, (size_t)keys * sizeof(float), &shaw_keys));
    if (x->shaw_values.data)
        MHA_TRY(mha_scratch_alloc(context, count, (size_t)values * sizeof(float), &shaw_values));
    for (int64_t i = 0; i < count; i++)
        (*sums)[i] =
            (mhai_cells_sums){.t5 = t5 ? t5 + i * buckets : NULL,
                              .shaw_keys = shaw_keys ? shaw_keys + i * keys : NULL,
                              .shaw_values = shaw_values ? shaw_values + i * values : NULL};
    return MHA_OK;
}

static void walk_queries(mha_context *context, mhai_cells_job *job)
{
    int64_t items = job->p->B * job->p->H * job->chunks, wave = job->sums ? WAVE : items;
    for (job->wave = 0; job->wave < items; job->wave += wave) {
        int64_t count = mhai_min_i64(wave, items - job->wave);
        mha_parallel_for(context, count, mhai_cells_run_queries, job);
        if (job->sums) sum_wave(job, count);
    }
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* Run a block of keys of a key/value head against all queries that see it. dq has all rows of the
 * head (NULL: not requested). */
static void run_block(const mhai_cells_job *job, mhai_cells_space *w, const mhai_attn_sequence *seq,
                      int64_t hk, int64_t key, float *dq)
{
    const mhai_backward_problem *x = job->x;
    const mhai_attn_problem *p = job->p;
    const int64_t stored = mhai_backward_stored_keys(p, seq->b);
    const int64_t keys = mhai_min_i64(MHAI_CELL_KEYS, mhai_max_i64(stored, seq->S) - key);
    memset(w->dk, 0, (size_t)(keys * mhai_cells_padded(p->D)) * sizeof(float));
    memset(w->dv, 0, (size_t)(keys * mhai_cells_padded(p->Dv)) * sizeof(float));
    if (key < seq->S) mhai_cells_load_block(job, w, seq, hk, key, dq != NULL);
    for (int64_t i = 0; key < seq->S && i < p->group; i++) {
        const mhai_cells_rows rows = {.dq = dq ? dq + i * seq->T * mhai_cells_padded(p->D) : NULL};
        mhai_cells_add_head(job, w, seq, hk * p->group + i, key, &rows);
    }
    int64_t rows = mhai_min_i64(MHAI_CELL_KEYS, stored - key), first = seq->k0 + key;
    if (x->k.data) mhai_cells_write_rows(job, &x->k, seq->batch, hk, first, rows, w->dk, p->scale);
    if (x->v.data) mhai_cells_write_rows(job, &x->v, seq->batch, hk, first, rows, w->dv, 1);
}

/* Items are blocks of all key/value heads of all sequences. */
static void run_keys(void *argument, int64_t item, int worker)
{
    const mhai_cells_job *job = argument;
    int64_t head = item / job->blocks, b = head / job->p->Hk,
            key = item % job->blocks * MHAI_CELL_KEYS;
    mhai_attn_sequence seq = mhai_attn_sequence_of(job->p, b);
    mhai_cells_space w = mhai_cells_space_of(job, worker);
    if (key < mhai_backward_stored_keys(job->p, b))
        run_block(job, &w, &seq, head % job->p->Hk, key, NULL);
}

/* Items are key/value heads of all sequences. */
static void run_both(void *argument, int64_t item, int worker)
{
    const mhai_cells_job *job = argument;
    const mhai_attn_problem *p = job->p;
    int64_t b = item / p->Hk, hk = item % p->Hk, D = mhai_cells_padded(p->D);
    mhai_attn_sequence seq = mhai_attn_sequence_of(p, b);
    mhai_cells_space w = mhai_cells_space_of(job, worker);
    memset(w.dq, 0, (size_t)(p->group * seq.T * D) * sizeof(float));
    for (int64_t key = 0; key < mhai_backward_stored_keys(p, b); key += MHAI_CELL_KEYS)
        run_block(job, &w, &seq, hk, key, w.dq);
    for (int64_t i = 0; i < p->group; i++)
        mhai_cells_write_rows(job, &job->x->q, seq.batch, hk * p->group + i, seq.q0, seq.T,
                              w.dq + i * seq.T * D, p->scale);
}

/* ---- sums of p w ----------------------------------------------------------------------------- */

/* Items are chunks of all query heads of all sequences. */
static void run_weights(void *argument, int64_t item, int worker)
{
    const mhai_cells_job *job = argument;
    const mhai_attn_problem *p = job->p;
    const int64_t head = item / job->chunks, t = item % job->chunks * MHAI_CELL_QUERIES;
    const mhai_attn_sequence seq = mhai_attn_sequence_of(p, head / p->H);
    mhai_cells_space w = mhai_cells_space_of(job, worker);
    if (t >= seq.T) return;
    mhai_cells_chunk c = mhai_cells_load_chunk(job, &w, head / p->H, head % p->H, t, false);
    memset(w.weight_sums, 0, MHAI_CELL_QUERIES * sizeof(double));
    for (int64_t key = 0; key < c.c.limit.end; key += MHAI_CELL_KEYS) {
        mhai_cells_load_block(job, &w, &seq, c.c.hk, key, false);
        mhai_cells_sum_weights(job, &c, &w, key);
    }
    memcpy(job->x->weight_sums + (seq.batch * p->H + c.h) * p->q.shape[2] + seq.q0 + t,
           w.weight_sums, (size_t)c.c.rows * sizeof(double));
}

void mhai_cells_walk_weights(mha_context *context, mhai_cells_job *job)
{
    job->summing = true;
    mha_parallel_for(context, job->p->B * job->p->H * job->chunks, run_weights, job);
    job->summing = false;
}

/* ---- the call -------------------------------------------------------------------------------- */

/* Whether to compute dq, dk and dv in one walk. Its work items are key/value heads, which must be
 * numerous or divide evenly among the threads. */
static bool choose_both(const mhai_backward_problem *x, int threads)
{
    const mhai_attn_problem *p = &x->p;
    int64_t heads = p->B * p->Hk, held = p->group * p->T * mhai_cells_padded(p->D);
    if (!x->q.data || (!x->k.data && !x->v.data) || mhai_backward_has_sums(x)) return false;
    if (p->shaw_keys.data) return false; /* dq also has sums by distance */
    return held <= most_held && (heads % threads == 0 || heads >= 4 * (int64_t)threads);
}

mhai_cells_job mhai_cells_job_of(const mha_context *context, const mhai_backward_problem *x)
{
    const mhai_attn_problem *p = &x->p;
    mhai_cells_job job = {.x = x, .p = p, .kernels = mhai_kernels_for(context->isa)};
    job.walk = (mhai_attn_walk){.p = p, .kernels = job.kernels, .dropout = mhai_attn_dropout_of(p)};
    job.chunks = mhai_ceil_div(p->T, MHAI_CELL_QUERIES);
    job.blocks = mhai_ceil_div(p->S, MHAI_CELL_KEYS);
    job.plain = mhai_cells_plain(p) && !mhai_backward_has_weights(x);
    job.both = choose_both(x, context->num_threads);
    job.held = job.both ? mhai_max_i64(MHAI_CELL_QUERIES, p->group * p->T) : MHAI_CELL_QUERIES;
    job.worker_bytes = mhai_cells_space_bytes(&job);
    return job;
}

/* Number of work items of each walk; 0: no walk. */
typedef struct walks {
    int64_t weights, both, queries, keys, bias;
} walks;

static walks walks_of(const mhai_cells_job *job)
{
    const mhai_backward_problem *x = job->x;
    const mhai_attn_problem *p = job->p;
    const bool queries = (x->q.data && !job->both) || mhai_backward_has_sums(x);
    const bool keys = !job->both && (x->k.data || x->v.data);
    return (walks){.weights = mhai_backward_has_weights(x) ? p->B * p->H * job->chunks : 0,
                   .both = job->both ? p->B * p->Hk : 0,
                   .queries = queries ? p->B * p->H * job->chunks : 0,
                   .keys = keys ? p->B * p->Hk * job->blocks : 0,
                   .bias = x->bias.data ? mhai_cells_bias_items(job) : 0};
}

/* Scratch of mhai_cells_pack_tables() and mhai_cells_take_sums(). */
static size_t shared_bytes(const mhai_backward_problem *x)
{
    const mhai_attn_problem *p = &x->p;
    int64_t keys = mhai_attn_padded_shaw(&p->shaw_keys);
    int64_t values = mhai_attn_padded_shaw(&p->shaw_values);
    int64_t D = mhai_cells_padded(p->D), Dv = mhai_cells_padded(p->Dv);
    size_t bytes = mhai_backward_piece(keys * (p->D + D) + values * p->Dv, sizeof(float)) + 3 * 64;
    if (!mhai_backward_has_sums(x)) return bytes;
    bytes += mhai_backward_piece(WAVE, sizeof(mhai_cells_sums));
    if (x->t5.data) bytes += WAVE * mhai_backward_piece(p->t5_table.shape[0], sizeof(double));
    if (x->shaw_keys.data) bytes += WAVE * mhai_backward_piece(keys * D, sizeof(float));
    if (x->shaw_values.data) bytes += WAVE * mhai_backward_piece(values * Dv, sizeof(float));
    return bytes;
}

/* ---- the back end ---------------------------------------------------------------------------- */

mha_status mhai_tiled_plan_backward(const mha_context *context, mhai_backward_plan *plan)
{
    const mhai_cells_job job = mhai_cells_job_of(context, &plan->x);
    const walks w = walks_of(&job);
    plan->both = job.both;
    plan->worker_bytes = job.worker_bytes;
    plan->shared_bytes = shared_bytes(&plan->x);
    plan->account.isa = context->isa;
    plan->account.key_block = MHAI_CELL_KEYS;
    plan->account.row_block = job.kernels->tile_rows;
    plan->account.work_items = w.weights + w.both + w.queries + w.keys + w.bias;
    plan->walks = (w.both > 0) + (w.queries > 0) + (w.keys > 0) + (w.bias > 0);
    return MHA_OK;
}

mha_status mhai_tiled_run_backward(mha_context *context, mhai_backward_plan *plan)
{
    mhai_cells_job job = mhai_cells_job_of(context, &plan->x);
    const walks w = walks_of(&job);
    MHA_TRY(mhai_cells_take_spaces(context, &job));
    MHA_TRY(mhai_cells_pack_tables(context, &job));
    if (mhai_backward_has_sums(&plan->x))
        MHA_TRY(mhai_cells_take_sums(context, &job, WAVE, &job.sums));
    /* may fail, so it runs before any output is written */
    if (w.weights > 0) mhai_cells_walk_weights(context, &job);
    if (w.weights > 0) mhai_backward_join_weights(&plan->x);
    if (w.both > 0) mha_parallel_for(context, w.both, run_both, &job);
    if (w.queries > 0) walk_queries(context, &job);
    if (w.keys > 0) mha_parallel_for(context, w.keys, run_keys, &job);
    if (w.bias > 0) mha_parallel_for(context, w.bias, mhai_cells_run_bias, &job);
    return MHA_OK;
}
