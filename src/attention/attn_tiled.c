/* The tiled path: online softmax over key blocks, in memory that does not depend on T or S.
 *
 * Work is divided into chunks of query rows of one key/value head. A chunk packs one key block at a
 * time and walks its strips of rows over it:
 *
 *   for each key block:  pack K and V;  for each strip:  scores -> mask -> softmax step -> + P V
 *
 * Each output row has one owner and its arithmetic depends on its keys' positions only, so chunks,
 * strips and threads may be cut anywhere without changing a bit. */
#include "attention/attn.h"

#include "base/checked.h"
#include "base/context.h"

#include <multihead/component.h>

#include <math.h>
#include <string.h>

/* A chunk packs its key blocks anew, so it should be long (packing 512 keys costs about as much as
 * 15 query rows against them); its q and o should stay in a 1 MiB L2 beside the packed block. */
enum { LONGEST_CHUNK = 768, SHORTEST_CHUNK = 256 };

/* One worker's memory. */
typedef struct workspace {
    float *q, *o, *m, *l; /* [chunk_rows][D], [chunk_rows][Dv padded], [chunk_rows] twice */
    float *k, *v, *s;     /* packed block, strip of scores */
    int64_t *end;         /* [chunk_rows] keys that a row sees */
    uint8_t *bad_query;   /* [chunk_rows] */
    uint8_t *bad_key, *bad_value, *visible;
    size_t bytes;
} workspace;

typedef struct tiled_job {
    const mhai_attn_problem *p;
    const mhai_kernels *kernels;
    mhai_attn_tiling tiling;
    unsigned char *memory;
} tiled_job;

typedef struct chunk {
    int64_t b, hk;
    int64_t first, rows; /* of the key/value head's rows */
    int64_t end;         /* keys that some row sees */
    bool bad_query;      /* some query is not finite */
} chunk;

static int64_t padded_values(const mhai_attn_problem *p)
{
    return mhai_round_up(p->Dv, MHAI_PANEL);
}

static void *carve(unsigned char *memory, size_t *used, int64_t count, size_t size)
{
    void *part = memory ? memory + *used : NULL;
    *used += (size_t)mhai_round_up(count * (int64_t)size, 64);
    return part;
}

/* Lay a workspace out in memory; with memory NULL only its size is of use. No product can
 * overflow: every factor is bounded by constants of this library. */
static workspace lay_out(const mhai_attn_problem *p, int64_t rows, int tile_rows,
                         unsigned char *memory)
{
    workspace w = {0};
    size_t *used = &w.bytes;
    w.q = carve(memory, used, rows * p->D, sizeof(float));
    w.o = carve(memory, used, rows * padded_values(p), sizeof(float));
    w.m = carve(memory, used, rows, sizeof(float));
    w.l = carve(memory, used, rows, sizeof(float));
    w.k = carve(memory, used, MHAI_KEY_BLOCK * p->D, sizeof(float));
    w.v = carve(memory, used, MHAI_KEY_BLOCK * padded_values(p), sizeof(float));
    w.s = carve(memory, used, (int64_t)tile_rows * MHAI_SCORE_STRIDE, sizeof(float));
    w.end = carve(memory, used, rows, sizeof(int64_t));
    w.bad_query = carve(memory, used, rows, 1);
    w.bad_key = carve(memory, used, MHAI_KEY_BLOCK, 1);
    w.bad_value = carve(memory, used, MHAI_KEY_BLOCK, 1);
    w.visible = carve(memory, used, (int64_t)MHAI_MAX_ROWS * MHAI_KEY_BLOCK, 1);
    return w;
}

mha_status mhai_attn_tile(const mhai_attn_problem *p, int threads, int tile_rows,
                          mhai_attn_tiling *tiling)
{
    mhai_attn_tiling t = {.rows = p->group * p->T};
    int64_t heads = p->B * p->Hk;
    t.chunks = mhai_ceil_div(t.rows, LONGEST_CHUNK);
    /* More, shorter chunks if there is too little to share out. */
    if (heads > 0 && heads * t.chunks < 4 * (int64_t)threads && threads > 1) {
        int64_t wanted = mhai_ceil_div(4 * (int64_t)threads, heads);
        int64_t most = mhai_max_i64(1, t.rows / SHORTEST_CHUNK);
        t.chunks = mhai_max_i64(t.chunks, mhai_min_i64(wanted, most));
    }
    t.chunk_rows = t.chunks > 0 ? mhai_round_up(mhai_ceil_div(t.rows, t.chunks), tile_rows) : 0;
    t.chunks = t.chunk_rows > 0 ? mhai_ceil_div(t.rows, t.chunk_rows) : 0;
    if (!mhai_mul_i64(heads, t.chunks, &t.items))
        return mha_fail(MHA_ERR_SIZE, "q: the number of pieces of work overflows 64 bits");
    t.chunk_rows = mhai_min_i64(t.chunk_rows, t.rows);
    t.worker_bytes = lay_out(p, t.chunk_rows, tile_rows, NULL).bytes;
    *tiling = t;
    return MHA_OK;
}

/* The head and query of row r of the chunk. */
static inline int64_t row_head(const mhai_attn_problem *p, const chunk *c, int64_t r)
{
    return c->hk * p->group + (c->first + r) / p->T;
}

static inline int64_t row_query(const mhai_attn_problem *p, const chunk *c, int64_t r)
{
    return (c->first + r) % p->T;
}

/* Late rows first: under a causal mask they have the most to do. */
static chunk chunk_of_item(const tiled_job *job, int64_t item)
{
    const mhai_attn_problem *p = job->p;
    int64_t heads = p->B * p->Hk;
    int64_t index = job->tiling.chunks - 1 - item / heads;
    chunk c = {.b = item % heads / p->Hk, .hk = item % heads % p->Hk};
    c.first = index * job->tiling.chunk_rows;
    c.rows = mhai_min_i64(job->tiling.chunk_rows, job->tiling.rows - c.first);
    return c;
}

/* Queries scaled into the workspace, row states at their start. */
static void load_rows(const tiled_job *job, chunk *c, workspace *w)
{
    const mhai_attn_problem *p = job->p;
    const float factor = (float)((double)p->scale * 1.4426950408889634); /* log2 e */
    for (int64_t r = 0; r < c->rows; r++) {
        int64_t t = row_query(p, c, r);
        bool finite;
        job->kernels->scale_row(w->q + r * p->D, mhai_attn_row(&p->q, c->b, row_head(p, c, r), t),
                                p->D, factor, &finite);
        w->bad_query[r] = !finite;
        c->bad_query |= !finite;
        w->end[r] = mhai_attn_row_end(p, c->b, t);
        c->end = mhai_max_i64(c->end, w->end[r]);
        w->m[r] = -INFINITY;
        w->l[r] = 0;
    }
    memset(w->o, 0, (size_t)(c->rows * padded_values(p)) * sizeof(float));
}

static mhai_pack pack_of(const mha_tensor *x, const chunk *c, int64_t key, int64_t keys, float *out,
                         uint8_t *bad, bool *any_bad)
{
    return (mhai_pack){.out = out,
                       .in = mhai_attn_row(x, c->b, c->hk, key),
                       .stride = x->stride[2],
                       .rows = keys,
                       .cols = x->shape[3],
                       .bad = bad,
                       .any_bad = any_bad};
}

static bool pack_keys(const tiled_job *job, const chunk *c, workspace *w, int64_t key, int64_t keys)
{
    bool any_bad = false;
    mhai_pack pack = pack_of(&job->p->k, c, key, keys, w->k, w->bad_key, &any_bad);
    job->kernels->pack_panels(&pack);
    return any_bad;
}

static bool pack_values(const tiled_job *job, const chunk *c, workspace *w, int64_t key,
                        int64_t keys)
{
    bool any_bad = false;
    mhai_pack pack = pack_of(&job->p->v, c, key, keys, w->v, w->bad_value, &any_bad);
    job->kernels->pack_values(&pack);
    return any_bad;
}

/* A strip against a block: everything a kernel call points to. */
typedef struct strip {
    mhai_tile tile;
    mhai_tile_mask mask;
    mhai_poison poison;
    int64_t first; /* row of the chunk */
} strip;

/* What the rows of a strip see of the block's keys. Returns whether a mask is needed. */
static bool set_ranges(const workspace *w, int64_t key, int keys, strip *s)
{
    bool partial = false;
    s->tile.end = 0;
    for (int r = 0; r < s->tile.rows; r++) {
        int64_t end = w->end[s->first + r] - key;
        s->mask.begin[r] = 0;
        s->mask.end[r] = (int)mhai_max_i64(0, mhai_min_i64(end, keys));
        if (s->mask.end[r] > s->tile.end) s->tile.end = s->mask.end[r];
    }
    for (int r = 0; r < s->tile.rows; r++) partial |= s->mask.end[r] != s->tile.end;
    return partial;
}

static void set_dense_masks(const mhai_attn_problem *p, const chunk *c, int64_t key, strip *s)
{
    s->mask.keep_stride = p->keep.stride[3];
    s->mask.bias_stride = p->bias.stride[3];
    for (int r = 0; r < s->tile.rows; r++) {
        int64_t h = row_head(p, c, s->first + r), t = row_query(p, c, s->first + r);
        s->mask.keep[r] = NULL;
        s->mask.bias[r] = NULL;
        if (p->keep.data)
            s->mask.keep[r] = (const uint8_t *)p->keep.data +
                              mhai_attn_offset(&p->keep, c->b, h, t) + key * p->keep.stride[3];
        if (p->bias.data)
            s->mask.bias[r] = (const float *)p->bias.data + mhai_attn_offset(&p->bias, c->b, h, t) +
                              key * p->bias.stride[3];
    }
}

/* Strip number i against the block at key; false if it sees none of it. bad: something in the
 * block or among the chunk's queries is not finite. */
static bool make_strip(const tiled_job *job, const chunk *c, const workspace *w, int64_t key,
                       int keys, int64_t i, bool bad, strip *s)
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
    bool masked = set_ranges(w, key, keys, s);
    if (s->tile.end == 0) return false;
    if (!masked && !bad && !p->keep.data && !p->bias.data) return true;
    set_dense_masks(p, c, key, s);
    s->poison = (mhai_poison){.bad_query = w->bad_query + s->first,
                              .bad_key = w->bad_key,
                              .bad_value = w->bad_value,
                              .values = mhai_attn_row(&p->v, c->b, c->hk, key),
                              .value_stride = p->v.stride[2],
                              .value_dim = p->Dv,
                              .visible = w->visible};
    s->mask.poison = bad ? &s->poison : NULL;
    s->tile.mask = &s->mask;
    return true;
}

static void forward_blocks(const tiled_job *job, const chunk *c, workspace *w)
{
    int64_t strips = mhai_ceil_div(c->rows, job->kernels->tile_rows);
    for (int64_t key = 0; key < c->end; key += MHAI_KEY_BLOCK) {
        int keys = (int)mhai_min_i64(MHAI_KEY_BLOCK, c->end - key);
        bool bad = pack_keys(job, c, w, key, keys);
        bad |= pack_values(job, c, w, key, keys);
        bad |= c->bad_query;
        for (int64_t i = 0; i < strips; i++) {
            strip s;
            if (make_strip(job, c, w, key, keys, i, bad, &s)) job->kernels->tile_forward(&s.tile);
        }
    }
}

static void write_rows(const tiled_job *job, const chunk *c, const workspace *w)
{
    const mhai_attn_problem *p = job->p;
    for (int64_t r = 0; r < c->rows; r++) {
        int64_t h = row_head(p, c, r), t = row_query(p, c, r);
        job->kernels->finish_row(mhai_attn_row(&p->o, c->b, h, t), w->o + r * padded_values(p),
                                 p->Dv, w->l[r]);
        if (p->lse.data) { /* m is in units of log2 e */
            double lse = ((double)w->m[r] + log2((double)w->l[r])) * 0.6931471805599453;
            *mhai_attn_row(&p->lse, c->b, h, t) = w->l[r] == 0 ? -INFINITY : (float)lse;
        }
    }
}

/* The columns of one strip that lie in the block at key: probabilities, then zeros. */
static void write_strip_probabilities(const tiled_job *job, const chunk *c, const strip *s,
                                      bool seen, int64_t key, int64_t keys)
{
    const mhai_attn_problem *p = job->p;
    int64_t end = seen ? s->tile.end : 0;
    for (int r = 0; r < s->tile.rows; r++) {
        int64_t h = row_head(p, c, s->first + r), t = row_query(p, c, s->first + r);
        float *out = mhai_attn_row(&p->probabilities, c->b, h, t) + key;
        if (end > 0) memcpy(out, s->tile.s + r * MHAI_SCORE_STRIDE, (size_t)end * sizeof(float));
        if (end < keys) memset(out + end, 0, (size_t)(keys - end) * sizeof(float));
    }
}

/* A second pass, now that m and l are known: the same scores again, to the bit. */
static void write_probabilities(const tiled_job *job, const chunk *c, workspace *w)
{
    int64_t strips = mhai_ceil_div(c->rows, job->kernels->tile_rows);
    for (int64_t key = 0; key < job->p->S; key += MHAI_KEY_BLOCK) {
        int64_t keys = mhai_min_i64(MHAI_KEY_BLOCK, job->p->S - key);
        int visible = (int)mhai_max_i64(0, mhai_min_i64(keys, c->end - key));
        bool bad = visible > 0 && pack_keys(job, c, w, key, visible);
        bad |= c->bad_query;
        for (int64_t i = 0; i < strips; i++) {
            strip s;
            bool seen = make_strip(job, c, w, key, visible, i, bad, &s);
            if (seen) job->kernels->tile_probabilities(&s.tile);
            write_strip_probabilities(job, c, &s, seen, key, keys);
        }
    }
}

static void run_item(void *argument, int64_t item, int worker)
{
    const tiled_job *job = argument;
    workspace w = lay_out(job->p, job->tiling.chunk_rows, job->kernels->tile_rows,
                          job->memory + (size_t)worker * job->tiling.worker_bytes);
    chunk c = chunk_of_item(job, item);
    load_rows(job, &c, &w);
    forward_blocks(job, &c, &w);
    write_rows(job, &c, &w);
    if (job->p->probabilities.data) write_probabilities(job, &c, &w);
}

mha_status mhai_attn_tiled(mha_context *context, const mhai_attn_problem *p)
{
    tiled_job job = {.p = p, .kernels = mhai_kernels_for(context->isa)};
    MHA_TRY(mhai_attn_tile(p, context->num_threads, job.kernels->tile_rows, &job.tiling));
    mha_scratch_mark mark = mha_scratch_top(context);
    void *memory;
    MHA_TRY(mha_scratch_alloc(context, context->num_threads, job.tiling.worker_bytes, &memory));
    job.memory = memory;
    mha_parallel_for(context, job.tiling.items, run_item, &job);
    mha_scratch_release(context, mark);
    return MHA_OK;
}
