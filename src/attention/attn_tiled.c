/* The tiled path: online softmax over key blocks, in memory that does not depend on T or S.
 *
 * Work is divided into chunks of query rows of one key/value head. A chunk packs one key block at a
 * time and walks its strips of rows over it:
 *
 *   for each key block:  for each strip that sees it:  (pack)  scores -> mask -> softmax -> + P V
 *
 * Each output row has one owner and its arithmetic depends on its keys' positions only, so chunks,
 * strips and threads may be cut anywhere without changing a bit. */
#include "attention/attn_tiles.h"

#include "base/checked.h"
#include "base/context.h"

#include <multihead/component.h>

#include <math.h>
#include <string.h>

/* A chunk packs its key blocks anew, so it should be long (packing 512 keys costs about as much as
 * 15 query rows against them); its q and o should stay in a 1 MiB L2 beside the packed block. */
enum { LONGEST_CHUNK = 768, SHORTEST_CHUNK = 256 };

static const double log2_e = 1.4426950408889634;

typedef struct tiled_job {
    const mhai_attn_problem *p;
    const mhai_kernels *kernels;
    mhai_attn_tiling tiling;
    const int64_t *first_item; /* [B + 1] of each sequence; NULL: all have the same number */
    unsigned char *memory;
    mhai_dropout dropout; /* what all strips share */
} tiled_job;

/* ---- memory -------------------------------------------------------------------------------- */

static int64_t padded_values(const mhai_attn_problem *p)
{
    return mhai_round_up(p->Dv, MHAI_PANEL);
}

/* Columns of a row's table of distances. */
static int64_t padded_shaw(const mha_tensor *table)
{
    return table->data ? mhai_round_up(table->shape[0], MHAI_PANEL) : 0;
}

static void *carve(unsigned char *memory, size_t *used, int64_t count, size_t size)
{
    void *part = memory ? memory + *used : NULL;
    *used += (size_t)mhai_round_up(count * (int64_t)size, 64);
    return part;
}

/* Runs of rows of one head in a chunk, at most: each has a table of distances of its own. */
static int64_t relative_floats(const mhai_attn_problem *p, int64_t rows)
{
    if (!mhai_attn_has_relative(p)) return 0;
    bool ragged = p->query_starts; /* a sequence may be as short as one query */
    int64_t runs = ragged || p->T == 0 ? rows : mhai_min_i64(rows, rows / p->T + 2);
    return runs * MHAI_KEY_BLOCK + rows;
}

/* Lay a workspace out in memory; with memory NULL only its size is of use. Every factor is bounded
 * by constants of this library, or by attn_check.c (Shaw tables). */
static mhai_attn_workspace lay_out(const mhai_attn_problem *p, int64_t rows, int tile_rows,
                                   unsigned char *memory)
{
    mhai_attn_workspace w = {0};
    size_t *used = &w.bytes;
    int64_t shaw_keys = padded_shaw(&p->shaw_keys), shaw_values = padded_shaw(&p->shaw_values);
    w.q = carve(memory, used, rows * p->D, sizeof(float));
    w.o = carve(memory, used, rows * padded_values(p), sizeof(float));
    w.m = carve(memory, used, rows, sizeof(float));
    w.l = carve(memory, used, rows, sizeof(float));
    w.k = carve(memory, used, MHAI_KEY_BLOCK * p->D, sizeof(float));
    w.v = carve(memory, used, MHAI_KEY_BLOCK * padded_values(p), sizeof(float));
    w.s = carve(memory, used, (int64_t)tile_rows * MHAI_SCORE_STRIDE, sizeof(float));
    w.head = carve(memory, used, rows, sizeof(int64_t));
    w.query = carve(memory, used, rows, sizeof(int64_t));
    w.limit = carve(memory, used, rows, sizeof(mhai_attn_range));
    w.window = carve(memory, used, rows, sizeof(mhai_attn_range));
    w.bad_query = carve(memory, used, rows, 1);
    w.bad_key = carve(memory, used, MHAI_KEY_BLOCK, 1);
    w.bad_value = carve(memory, used, MHAI_KEY_BLOCK, 1);
    w.visible = carve(memory, used, (int64_t)MHAI_MAX_ROWS * MHAI_KEY_BLOCK, 1);
    w.keep = carve(memory, used, (int64_t)MHAI_MAX_ROWS * MHAI_KEY_BLOCK, 1);
    w.relative_at = carve(memory, used, mhai_attn_has_relative(p) ? rows : 0, sizeof(int64_t));
    w.relative = carve(memory, used, relative_floats(p, rows), sizeof(float));
    w.shaw_keys = carve(memory, used, rows * shaw_keys, sizeof(float));
    w.shaw_values = carve(memory, used, rows * shaw_values, sizeof(float));
    w.shaw_panels =
        carve(memory, used, mhai_max_i64(shaw_keys * p->D, shaw_values * padded_values(p)),
              sizeof(float));
    return w;
}

/* ---- division of the work ------------------------------------------------------------------ */

static int64_t chunks_of(const mhai_attn_problem *p, int64_t queries, int64_t chunk_rows)
{
    return chunk_rows > 0 ? mhai_ceil_div(p->group * queries, chunk_rows) : 0;
}

mha_status mhai_attn_tile(const mhai_attn_problem *p, int threads, int tile_rows,
                          mhai_attn_tiling *tiling)
{
    mhai_attn_tiling t = {0};
    int64_t rows = p->group * p->T, heads = p->B * p->Hk;
    int64_t chunks = mhai_ceil_div(rows, LONGEST_CHUNK);
    /* More, shorter chunks if there is too little to share out. */
    if (heads > 0 && heads * chunks < 4 * (int64_t)threads && threads > 1) {
        int64_t wanted = mhai_ceil_div(4 * (int64_t)threads, heads);
        int64_t most = mhai_max_i64(1, rows / SHORTEST_CHUNK);
        chunks = mhai_max_i64(chunks, mhai_min_i64(wanted, most));
    }
    if (rows > 0) t.chunk_rows = mhai_round_up(mhai_ceil_div(rows, chunks), tile_rows);
    t.chunk_rows = mhai_min_i64(t.chunk_rows, rows);
    for (int64_t b = 0; b < (p->query_starts ? p->B : p->B > 0); b++) {
        int64_t each = chunks_of(p, mhai_attn_sequence_of(p, b).T, t.chunk_rows), items;
        if (!mhai_mul_i64(p->query_starts ? p->Hk : heads, each, &items) ||
            !mhai_add_i64(t.items, items, &t.items))
            return mha_fail(MHA_ERR_SIZE, "q: the number of pieces of work overflows 64 bits");
    }
    t.worker_bytes = lay_out(p, t.chunk_rows, tile_rows, NULL).bytes;
    *tiling = t;
    return MHA_OK;
}

/* The sequence of an item: by division, or by search where sequences differ. */
static int64_t sequence_of_item(const tiled_job *job, int64_t *item)
{
    const mhai_attn_problem *p = job->p;
    if (!job->first_item) {
        int64_t each = p->Hk * chunks_of(p, p->T, job->tiling.chunk_rows), b = *item / each;
        *item %= each;
        return b;
    }
    int64_t low = 0, high = p->B; /* first_item[low] <= item < first_item[high] */
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (job->first_item[middle] <= *item)
            low = middle;
        else
            high = middle;
    }
    *item -= job->first_item[low];
    return low;
}

/* Items are taken backwards: under a causal mask the late rows of a head have the most to do. */
static mhai_attn_chunk chunk_of_item(const tiled_job *job, int64_t item)
{
    const mhai_attn_problem *p = job->p;
    int64_t at = job->tiling.items - 1 - item;
    int64_t b = sequence_of_item(job, &at);
    mhai_attn_chunk c = {.seq = mhai_attn_sequence_of(p, b)};
    int64_t chunks = chunks_of(p, c.seq.T, job->tiling.chunk_rows);
    c.hk = at / chunks;
    c.first = at % chunks * job->tiling.chunk_rows;
    c.rows = mhai_min_i64(job->tiling.chunk_rows, p->group * c.seq.T - c.first);
    return c;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static mhai_attn_range hull(mhai_attn_range a, mhai_attn_range b)
{
    if (a.begin >= a.end) return b;
    if (b.begin >= b.end) return a;
    return (mhai_attn_range){mhai_min_i64(a.begin, b.begin), mhai_max_i64(a.end, b.end)};
}

/* Where row r stands and what it sees. */
static void place_row(const mhai_attn_problem *p, mhai_attn_chunk *c, mhai_attn_workspace *w,
                      int64_t r)
{
    int64_t t = (c->first + r) % c->seq.T;
    w->head[r] = c->hk * p->group + (c->first + r) / c->seq.T;
    w->query[r] = t;
    w->limit[r] = mhai_attn_limit(p, &c->seq, t);
    bool global = mhai_attn_flag(&p->global_queries, c->seq.batch, c->seq.q0 + t);
    w->window[r] = global ? w->limit[r] : mhai_attn_window(p, &c->seq, t);
    c->limit = hull(c->limit, w->limit[r]);
    c->window = hull(c->window, w->window[r]);
    c->global_query |= global;
}

/* The softmax starts without keys, or with the sink: a key of score sink and no value. */
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

/* Queries scaled into the workspace. With a cap, scores take on the unit log2 e only after it. */
static void load_rows(const tiled_job *job, mhai_attn_chunk *c, mhai_attn_workspace *w)
{
    const mhai_attn_problem *p = job->p;
    const float factor = p->softcap > 0 ? p->scale : (float)((double)p->scale * log2_e);
    for (int64_t r = 0; r < c->rows; r++) {
        place_row(p, c, w, r);
        start_row(p, w, r);
        bool finite;
        job->kernels->scale_row(
            w->q + r * p->D, p->q.dtype,
            mhai_attn_data(&p->q, c->seq.batch, w->head[r], c->seq.q0 + w->query[r]), p->D, factor,
            &finite);
        w->bad_query[r] = !finite;
        c->bad_query |= !finite;
    }
    memset(w->o, 0, (size_t)(c->rows * padded_values(p)) * sizeof(float));
}

/* out[r] = x[r] W for the rows of a chunk, W packed; each product is one chain over inner. */
static void multiply_rows(const tiled_job *job, int64_t rows, int64_t inner, int64_t cols,
                          const float *x, int64_t x_stride, const float *panels, float *out,
                          int64_t out_stride, bool first)
{
    for (int64_t r = 0; r < rows; r += job->kernels->tile_rows)
        job->kernels->gemm_strip(
            &(mhai_gemm){.rows = (int)mhai_min_i64(job->kernels->tile_rows, rows - r),
                         .inner = inner,
                         .panels = mhai_ceil_div(cols, MHAI_PANEL),
                         .cols = cols,
                         .x = x + r * x_stride,
                         .x_stride = x_stride,
                         .w = panels,
                         .panel_stride = inner * MHAI_PANEL,
                         .first = first,
                         .out = out + r * out_stride,
                         .out_stride = out_stride});
}

/* ---- Shaw's relative positions --------------------------------------------------------------- */

/* Every row's products with the table of keys; sums by distance at 0. */
static void start_shaw(const tiled_job *job, const mhai_attn_chunk *c, mhai_attn_workspace *w)
{
    const mhai_attn_problem *p = job->p;
    const mha_tensor *table = &p->shaw_keys;
    if (p->shaw_values.data)
        memset(w->shaw_values, 0, (size_t)(c->rows * padded_shaw(&p->shaw_values)) * sizeof(float));
    if (!table->data) return;
    job->kernels->pack_panels(&(mhai_pack){.out = w->shaw_panels,
                                           .in = table->data,
                                           .stride = table->stride[0],
                                           .rows = table->shape[0],
                                           .cols = p->D});
    multiply_rows(job, c->rows, p->D, table->shape[0], w->q, p->D, w->shaw_panels, w->shaw_keys,
                  padded_shaw(table), true);
}

/* After a tile: a row's sums by distance, w = a w + sum of p at that distance, keys in order. */
static void add_shaw_values(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                            const mhai_attn_workspace *w, const mhai_attn_block *block,
                            const mhai_attn_strip *strip)
{
    int64_t columns = p->shaw_values.shape[0], farthest = columns / 2;
    for (int r = 0; r < strip->tile.rows; r++) {
        int64_t row = strip->first + r;
        float *sums = w->shaw_values + row * padded_shaw(&p->shaw_values);
        const float *weights = strip->tile.s + r * MHAI_SCORE_STRIDE;
        for (int64_t i = 0; i < columns; i++) sums[i] *= strip->tile.alpha[r];
        int64_t base = block->key - (w->query[row] + c->seq.offset) + farthest;
        for (int j = strip->tile.begin; j < strip->tile.end; j++)
            sums[mhai_max_i64(0, mhai_min_i64(base + j, columns - 1))] += weights[j];
    }
}

/* The table of values times the sums, MHAI_GEMM_BLOCK distances at a time. */
static void finish_shaw_values(const tiled_job *job, const mhai_attn_chunk *c,
                               mhai_attn_workspace *w)
{
    const mha_tensor *table = &job->p->shaw_values;
    const int64_t rows = table->shape[0];
    for (int64_t i = 0; table->data && i < rows; i += MHAI_GEMM_BLOCK) {
        int64_t inner = mhai_min_i64(MHAI_GEMM_BLOCK, rows - i);
        for (int64_t d = 0; d < job->p->Dv; d++) /* packed transposed: outputs are columns d */
            for (int64_t j = 0; j < inner; j++)
                w->shaw_panels[d / MHAI_PANEL * inner * MHAI_PANEL + j * MHAI_PANEL +
                               d % MHAI_PANEL] =
                    ((const float *)table->data)[(i + j) * table->stride[0] + d];
        multiply_rows(job, c->rows, inner, job->p->Dv, w->shaw_values + i, padded_shaw(table),
                      w->shaw_panels, w->o, padded_values(job->p), false);
    }
}

/* ---- strips -------------------------------------------------------------------------------- */

/* Terms by distance for each run of rows of one head. A run's table begins with the distance of its
 * last row to the block's key 0; earlier rows read it from further on. */
static void fill_relative(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                          mhai_attn_workspace *w, const mhai_attn_block *block)
{
    int64_t at = 0;
    for (int64_t r = 0, next; r < c->rows; r = next) {
        next = r + 1;
        while (next < c->rows && w->head[next] == w->head[r]) next++;
        int64_t rel = block->key - (w->query[next - 1] + c->seq.offset);
        int64_t count = block->keys + (next - r) - 1;
        for (int64_t i = 0; i < count; i++)
            w->relative[at + i] = mhai_attn_relative(p, c->seq.batch, w->head[r], rel + i);
        for (int64_t i = r; i < next; i++) w->relative_at[i] = at + (next - 1 - i);
        at += MHAI_KEY_BLOCK + (next - r);
    }
}

/* Everything that goes with scores, apart from what the rows see. */
static void set_score_terms(const tiled_job *job, const mhai_attn_chunk *c,
                            const mhai_attn_workspace *w, const mhai_attn_block *block,
                            mhai_attn_strip *s)
{
    const mhai_attn_problem *p = job->p;
    bool relative = mhai_attn_has_relative(p);
    int64_t table = p->shaw_keys.data ? p->shaw_keys.shape[0] : 0;
    s->mask.softcap = p->softcap;
    s->mask.shaw_last = table - 1;
    for (int r = 0; r < s->tile.rows; r++) {
        int64_t row = s->first + r;
        s->mask.relative[r] = relative ? w->relative + w->relative_at[row] : NULL;
        s->mask.shaw[r] = table ? w->shaw_keys + row * padded_shaw(&p->shaw_keys) : NULL;
        s->mask.shaw_center[r] = block->key - (w->query[row] + c->seq.offset) + table / 2;
    }
    s->masked |= relative || table || p->softcap > 0;
}

/* Strip number i of the chunk against a block; false if it sees none of it. */
static bool make_strip(const tiled_job *job, const mhai_attn_chunk *c, const mhai_attn_workspace *w,
                       const mhai_attn_block *block, int64_t i, mhai_attn_strip *s)
{
    const mhai_attn_problem *p = job->p;
    int64_t strips = mhai_ceil_div(c->rows, job->kernels->tile_rows);
    s->first = i * c->rows / strips;
    s->tile = (mhai_tile){.rows = (int)((i + 1) * c->rows / strips - s->first),
                          .head_dim = p->D,
                          .value_panels = padded_values(p) / MHAI_PANEL,
                          .q = w->q + s->first * p->D,
                          .k = w->k,
                          .v = w->v,
                          .s = w->s,
                          .o = w->o + s->first * padded_values(p),
                          .m = w->m + s->first,
                          .l = w->l + s->first};
    if (!mhai_attn_mask_strip(p, c, w, block, s)) return false;
    set_score_terms(job, c, w, block, s);
    return true;
}

/* Now that the block is packed, and known to be finite or not. */
static void arm_strip(const tiled_job *job, const mhai_attn_chunk *c, const mhai_attn_workspace *w,
                      const mhai_attn_block *block, mhai_attn_strip *s)
{
    const mhai_attn_problem *p = job->p;
    s->mask.poison = NULL;
    if (block->bad || c->bad_query) {
        s->poison = (mhai_poison){
            .bad_query = w->bad_query + s->first,
            .bad_key = w->bad_key,
            .bad_value = w->bad_value,
            .values = mhai_attn_data(&p->v, c->seq.batch, c->hk, c->seq.k0 + block->key),
            .value_type = p->v.dtype,
            .value_stride = p->v.stride[2],
            .value_dim = p->Dv,
            .visible = w->visible};
        s->mask.poison = &s->poison;
    }
    s->tile.mask = s->masked || s->mask.poison ? &s->mask : NULL;
}

static mhai_pack pack_of(const mha_tensor *x, const mhai_attn_chunk *c,
                         const mhai_attn_block *block, float *out, uint8_t *bad, bool *any_bad)
{
    return (mhai_pack){.out = out,
                       .in = mhai_attn_data(x, c->seq.batch, c->hk, c->seq.k0 + block->key),
                       .type = x->dtype,
                       .stride = x->stride[2],
                       .rows = block->keys,
                       .cols = x->shape[3],
                       .bad = bad,
                       .any_bad = any_bad};
}

/* Pack the block's keys, and its values if wanted, when the first strip needs them. */
static void pack_block(const tiled_job *job, const mhai_attn_chunk *c, mhai_attn_workspace *w,
                       bool values, mhai_attn_block *block)
{
    if (block->packed) return;
    block->packed = true;
    mhai_pack pack = pack_of(&job->p->k, c, block, w->k, w->bad_key, &block->bad);
    job->kernels->pack_panels(&pack);
    if (!values) return;
    pack = pack_of(&job->p->v, c, block, w->v, w->bad_value, &block->bad);
    job->kernels->pack_values(&pack);
}

/* ---- forward ------------------------------------------------------------------------------- */

static void set_dropout(const tiled_job *job, const mhai_attn_chunk *c,
                        const mhai_attn_workspace *w, const mhai_attn_block *block,
                        const mhai_attn_strip *s, mhai_dropout *dropout)
{
    *dropout = job->dropout;
    dropout->batch = (uint32_t)c->seq.b;
    dropout->key = block->key;
    for (int r = 0; r < s->tile.rows; r++) {
        dropout->head[r] = (uint32_t)w->head[s->first + r];
        dropout->query[r] = (uint32_t)w->query[s->first + r];
    }
}

static void forward_strip(const tiled_job *job, const mhai_attn_chunk *c, mhai_attn_workspace *w,
                          mhai_attn_block *block, mhai_attn_strip *s)
{
    mhai_dropout dropout;
    float alpha[MHAI_MAX_ROWS];
    pack_block(job, c, w, true, block);
    arm_strip(job, c, w, block, s);
    s->tile.alpha = alpha;
    if (job->p->dropout > 0) {
        set_dropout(job, c, w, block, s, &dropout);
        s->tile.dropout = &dropout;
    }
    job->kernels->tile_forward(&s->tile);
    if (job->p->shaw_values.data) add_shaw_values(job->p, c, w, block, s);
}

static void forward_blocks(const tiled_job *job, const mhai_attn_chunk *c, mhai_attn_workspace *w)
{
    int64_t strips = mhai_ceil_div(c->rows, job->kernels->tile_rows);
    for (int64_t key = 0; key < c->limit.end; key += MHAI_KEY_BLOCK) {
        mhai_attn_block block = mhai_attn_block_at(job->p, c, key);
        if (!mhai_attn_block_seen(job->p, c, &block)) continue;
        if (mhai_attn_has_relative(job->p)) fill_relative(job->p, c, w, &block);
        for (int64_t i = 0; i < strips; i++) {
            mhai_attn_strip s;
            if (make_strip(job, c, w, &block, i, &s)) forward_strip(job, c, w, &block, &s);
        }
    }
}

static void write_rows(const tiled_job *job, const mhai_attn_chunk *c, const mhai_attn_workspace *w)
{
    const mhai_attn_problem *p = job->p;
    for (int64_t r = 0; r < c->rows; r++) {
        int64_t h = w->head[r], t = c->seq.q0 + w->query[r];
        float gate = p->gates.data ? mhai_attn_f32(&p->gates, c->seq.batch, h) : 1.0f;
        job->kernels->finish_row(p->o.dtype, mhai_attn_data(&p->o, c->seq.batch, h, t),
                                 w->o + r * padded_values(p), p->Dv, w->l[r], gate);
        if (p->lse.data) { /* m is in units of log2 e */
            double lse = ((double)w->m[r] + log2((double)w->l[r])) * 0.6931471805599453;
            *mhai_attn_row(&p->lse, c->seq.batch, h, t) = w->l[r] == 0 ? -INFINITY : (float)lse;
        }
    }
}

/* ---- probabilities --------------------------------------------------------------------------- */

/* The columns of one strip that lie in a block of the output: probabilities, and zeros around. */
static void write_strip_probabilities(const tiled_job *job, const mhai_attn_chunk *c,
                                      const mhai_attn_workspace *w, const mhai_attn_strip *s,
                                      bool seen, int64_t key, int64_t columns)
{
    const mha_tensor *p = &job->p->probabilities;
    int64_t begin = seen ? s->tile.begin : 0, end = seen ? s->tile.end : 0;
    for (int r = 0; r < s->tile.rows; r++) {
        int64_t row = s->first + r;
        float *out = mhai_attn_row(p, c->seq.batch, w->head[row], c->seq.q0 + w->query[row]) + key;
        const float *in = s->tile.s + r * MHAI_SCORE_STRIDE;
        for (int64_t j = 0; j < begin; j++) out[j] = 0;
        for (int64_t j = begin; j < end; j++) out[j] = in[j];
        for (int64_t j = end; j < columns; j++) out[j] = 0;
    }
}

/* A second pass, now that m and l are known: the same scores again, to the bit. */
static void write_probabilities(const tiled_job *job, const mhai_attn_chunk *c,
                                mhai_attn_workspace *w)
{
    int64_t strips = mhai_ceil_div(c->rows, job->kernels->tile_rows);
    for (int64_t key = 0; key < job->p->S; key += MHAI_KEY_BLOCK) {
        int64_t columns = mhai_min_i64(MHAI_KEY_BLOCK, job->p->S - key);
        mhai_attn_block block = {.key = key};
        if (key < c->limit.end) block = mhai_attn_block_at(job->p, c, key);
        if (mhai_attn_has_relative(job->p)) fill_relative(job->p, c, w, &block);
        for (int64_t i = 0; i < strips; i++) {
            mhai_attn_strip s;
            bool seen = make_strip(job, c, w, &block, i, &s);
            if (seen) {
                pack_block(job, c, w, false, &block);
                arm_strip(job, c, w, &block, &s);
                job->kernels->tile_probabilities(&s.tile);
            }
            write_strip_probabilities(job, c, w, &s, seen, key, columns);
        }
    }
}

/* ---- the call ------------------------------------------------------------------------------ */

static void run_item(void *argument, int64_t item, int worker)
{
    const tiled_job *job = argument;
    mhai_attn_workspace w = lay_out(job->p, job->tiling.chunk_rows, job->kernels->tile_rows,
                                    job->memory + (size_t)worker * job->tiling.worker_bytes);
    mhai_attn_chunk c = chunk_of_item(job, item);
    load_rows(job, &c, &w);
    start_shaw(job, &c, &w);
    forward_blocks(job, &c, &w);
    finish_shaw_values(job, &c, &w);
    write_rows(job, &c, &w);
    if (job->p->probabilities.data) write_probabilities(job, &c, &w);
}

/* Where each sequence of a ragged batch begins among the items. */
static mha_status index_items(mha_context *context, tiled_job *job)
{
    const mhai_attn_problem *p = job->p;
    void *memory;
    if (!p->query_starts) return MHA_OK;
    MHA_TRY(mha_scratch_alloc(context, p->B + 1, sizeof(int64_t), &memory));
    int64_t *first = memory;
    first[0] = 0;
    for (int64_t b = 0; b < p->B; b++)
        first[b + 1] =
            first[b] + p->Hk * chunks_of(p, mhai_attn_sequence_of(p, b).T, job->tiling.chunk_rows);
    job->first_item = first;
    return MHA_OK;
}

/* The threshold is 2^32 p, rounded down; p = 1 drops everything, the last word by its scale of 0.
 */
static mhai_dropout dropout_of(const mhai_attn_problem *p)
{
    double threshold = (double)p->dropout * 4294967296.0;
    return (mhai_dropout){.seed = {(uint32_t)p->dropout_seed, (uint32_t)(p->dropout_seed >> 32)},
                          .threshold = threshold >= 4294967295.0 ? UINT32_MAX : (uint32_t)threshold,
                          .scale =
                              p->dropout < 1 ? (float)(1.0 / (1.0 - (double)p->dropout)) : 0.0f};
}

static mha_status run(mha_context *context, tiled_job *job)
{
    void *memory;
    MHA_TRY(index_items(context, job));
    MHA_TRY(mha_scratch_alloc(context, context->num_threads, job->tiling.worker_bytes, &memory));
    job->memory = memory;
    mha_parallel_for(context, job->tiling.items, run_item, job);
    return MHA_OK;
}

mha_status mhai_attn_tiled(mha_context *context, const mhai_attn_problem *p)
{
    tiled_job job = {.p = p, .kernels = mhai_kernels_for(context->isa), .dropout = dropout_of(p)};
    MHA_TRY(mhai_attn_tile(p, context->num_threads, job.kernels->tile_rows, &job.tiling));
    mha_scratch_mark mark = mha_scratch_top(context);
    mha_status status = run(context, &job);
    mha_scratch_release(context, mark);
    return status;
}
