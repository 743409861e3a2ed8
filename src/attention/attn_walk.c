/* The two walks over the tiles of a problem (attn_tiles.h). */
#include "attention/attn_tiles.h"

#include "base/checked.h"

#include <multihead/component.h>

/* The largest number of rows for tile_rows_forward with several strips. */
enum { FEW_ROWS = 56 };

/* ---- work items ---------------------------------------------------------------------------- */

/* The sequence of an item: by division or, if lengths differ, by search. */
static int64_t sequence_of_item(const mhai_attn_walk *walk, int64_t *item)
{
    const mhai_attn_problem *p = walk->p;
    if (!walk->first_item) {
        int64_t each = p->Hk * mhai_attn_chunks_of(p, p->T, walk->tiling.chunk_rows),
                b = *item / each;
        *item %= each;
        return b;
    }
    int64_t low = 0, high = p->B; /* first_item[low] <= item < first_item[high] */
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (walk->first_item[middle] <= *item)
            low = middle;
        else
            high = middle;
    }
    *item -= walk->first_item[low];
    return low;
}

/* Items run backwards, because under a causal mask the last rows of a head have the most work. */
mhai_attn_chunk mhai_attn_chunk_of_item(const mhai_attn_walk *walk, int64_t item)
{
    const mhai_attn_problem *p = walk->p;
    int64_t at = walk->tiling.items - 1 - item;
    int64_t b = sequence_of_item(walk, &at);
    mhai_attn_chunk c = {.seq = mhai_attn_sequence_of(p, b)};
    int64_t chunks = mhai_attn_chunks_of(p, c.seq.T, walk->tiling.chunk_rows);
    c.hk = at / chunks;
    c.head0 = c.hk * p->group;
    c.width = c.seq.T;
    c.first = at % chunks * walk->tiling.chunk_rows;
    c.rows = mhai_min_i64(walk->tiling.chunk_rows, p->group * c.seq.T - c.first);
    return c;
}

/* Compute the first item of each sequence of a ragged batch. */
static mha_status index_items(mha_context *context, size_t bytes, mhai_attn_walk *walk)
{
    const mhai_attn_problem *p = walk->p;
    if (bytes == 0) return MHA_OK;
    int64_t *first;
    MHA_TRY(mha_scratch_alloc(context, 1, bytes, &first));
    first[0] = 0;
    for (int64_t b = 0; b < p->B; b++)
        first[b + 1] = first[b] + p->Hk * mhai_attn_chunks_of(p, mhai_attn_sequence_of(p, b).T,
                                                              walk->tiling.chunk_rows);
    walk->first_item = first;
    return MHA_OK;
}

/* The threshold is 2^32 p, rounded down. p = 1 needs a scale of 0, because the threshold does not
 * drop the largest random word. */
mhai_dropout mhai_attn_dropout_of(const mhai_attn_problem *p)
{
    double threshold = (double)p->dropout * 4294967296.0;
    return (mhai_dropout){.seed = {(uint32_t)p->dropout_seed, (uint32_t)(p->dropout_seed >> 32)},
                          .threshold = threshold >= 4294967295.0 ? UINT32_MAX : (uint32_t)threshold,
                          .scale =
                              p->dropout < 1 ? (float)(1.0 / (1.0 - (double)p->dropout)) : 0.0f};
}

mha_status mhai_attn_walk_begin(mha_context *context, const mhai_attn_plan *plan,
                                mhai_attn_walk *walk)
{
    *walk = (mhai_attn_walk){.p = &plan->p,
                             .kernels = plan->kernels,
                             .tiling = plan->tiling,
                             .worker_bytes = plan->scratch.worker,
                             .pairs = mhai_kernels_have_pairs(plan->kernels),
                             .dropout = mhai_attn_dropout_of(&plan->p)};
    MHA_TRY(index_items(context, plan->scratch.index, walk));
    MHA_TRY(mha_scratch_alloc(context, plan->threads, walk->worker_bytes, &walk->memory));
    for (int worker = 0; worker < plan->threads; worker++)
        mhai_attn_lay_out(walk->p, &walk->tiling, walk->kernels->tile_rows,
                          walk->memory + (size_t)worker * walk->worker_bytes);
    return MHA_OK;
}

/* ---- strips -------------------------------------------------------------------------------- */

/* Fill the terms by distance for each run of consecutive queries of one head. The first entry of a
 * run is the distance from its last row to key 0 of the block. Earlier rows start at later
 * entries. */
void mhai_attn_fill_relative(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                             const mhai_attn_workspace *w, const mhai_attn_block *block)
{
    int64_t at = 0;
    for (int64_t r = 0, next; r < c->rows; r = next) {
        next = r + 1;
        while (next < c->rows && w->head[next] == w->head[r] &&
               w->query[next] == w->query[next - 1] + 1)
            next++;
        int64_t rel = block->key - (w->query[next - 1] + c->seq.offset);
        int64_t count = block->keys + (next - r) - 1;
        for (int64_t i = 0; i < count; i++)
            w->relative[at + i] = mhai_attn_relative(p, c->seq.b, w->head[r], rel + i);
        for (int64_t i = r; i < next; i++) w->relative_at[i] = at + (next - 1 - i);
        at += MHAI_KEY_BLOCK + (next - r);
    }
}

void mhai_attn_set_score_terms(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                               const mhai_attn_workspace *w, const mhai_attn_block *block,
                               mhai_attn_strip *s)
{
    bool relative = mhai_attn_has_relative(p);
    int64_t table = p->shaw_keys.data ? p->shaw_keys.shape[0] : 0;
    s->mask.softcap = p->softcap;
    s->mask.shaw_last = table - 1;
    for (int r = 0; r < s->tile.rows; r++) {
        int64_t row = s->first + r;
        s->mask.relative[r] = relative ? w->relative + w->relative_at[row] : NULL;
        s->mask.shaw[r] = table ? w->shaw_keys + row * mhai_attn_padded_shaw(&p->shaw_keys) : NULL;
        s->mask.shaw_center[r] = block->key - (w->query[row] + c->seq.offset) + table / 2;
    }
    s->masked |= relative || table || p->softcap > 0;
}

/* Rows per strip if there are as few strips as possible, of nearly equal height. */
static int64_t even_rows(int64_t rows, int64_t most)
{
    return rows > 0 ? mhai_ceil_div(rows, mhai_ceil_div(rows, most)) : 0;
}

int64_t mhai_attn_strip_rows(const mhai_attn_problem *p, int64_t chunk_rows, int64_t tile_rows)
{
    const bool cut = p->keep_blocks.data && p->block_queries >= tile_rows; /* strips may end at any
                                                                            * row */
    return cut ? mhai_min_i64(tile_rows, p->T) : even_rows(chunk_rows, tile_rows);
}

/* Rows of the strip that begins at row `first`. If the blocks of a pattern are at least as high as
 * strips, a strip stays within one row of the pattern, so that it can skip the keys hidden
 * there. */
static int64_t strip_rows(const mhai_attn_walk *walk, const mhai_attn_chunk *c, int64_t first)
{
    const mhai_attn_problem *p = walk->p;
    const int64_t most = walk->kernels->tile_rows;
    int64_t left = c->rows - first;
    if (p->keep_blocks.data && !c->list && p->block_queries >= most) {
        int64_t i = (c->first + first) % c->width, t = c->seq.before + c->query0 + i;
        int64_t same = mhai_min_i64(p->block_queries - t % p->block_queries, c->width - i);
        left = mhai_min_i64(left, same);
    }
    return even_rows(left, most);
}

/* Set up the strip at row `first` of the chunk. Returns false if it sees no key of the block. */
static bool make_strip(const mhai_attn_walk *walk, const mhai_attn_chunk *c,
                       const mhai_attn_workspace *w, const mhai_attn_block *block, bool seen,
                       int64_t first, mhai_attn_strip *s)
{
    const mhai_attn_problem *p = walk->p;
    s->first = first;
    s->tile = (mhai_tile){.rows = (int)strip_rows(walk, c, first),
                          .head_dim = p->D,
                          .value_panels = mhai_attn_padded_values(p) / MHAI_PANEL,
                          .value_dim = p->Dv,
                          .q = w->q + s->first * p->D,
                          .k = w->k,
                          .v = w->v,
                          .s = w->s,
                          .o = w->o + s->first * mhai_attn_padded_values(p),
                          .m = w->m + s->first,
                          .l = w->l + s->first};
    if (!seen || !mhai_attn_mask_strip(p, c, w, block, s)) {
        s->tile.begin = s->tile.end = 0;
        return false;
    }
    mhai_attn_set_score_terms(p, c, w, block, s);
    return true;
}

/* Set the remaining arguments of a strip, once the block is packed and checked for non-finite
 * elements. */
static void arm_strip(const mhai_attn_walk *walk, const mhai_attn_chunk *c,
                      const mhai_attn_workspace *w, const mhai_attn_block *block,
                      mhai_attn_strip *s)
{
    const mhai_attn_problem *p = walk->p;
    s->mask.poison = NULL;
    if (block->bad || c->bad_query) {
        s->poison = (mhai_poison){
            .bad_query = w->bad_query + s->first,
            .bad_key = w->bad_key,
            .bad_value = w->bad_value,
            .values = mhai_attn_data(&p->v, c->seq.batch, c->hk, c->seq.k0 + block->key),
            .value_type = p->v.dtype,
            .value_stride = p->v.stride[2],
            .value_runs = p->pages ? w->value_runs : NULL,
            .value_dim = p->Dv,
            .visible = w->visible};
        s->mask.poison = &s->poison;
    }
    s->tile.mask = s->masked || s->mask.poison ? &s->mask : NULL;
}

/* Narrow a block to the keys that the window and begin allow for any row of the chunk. */
static void narrow_block(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                         mhai_attn_block *block)
{
    if (!p->window && !p->key_begins) return;
    if (p->window && (c->global_query || block->exempt_begin < block->exempt_end)) return;
    const int64_t begin = mhai_max_i64(0, c->window.begin - block->key);
    block->pack_begin = (int)mhai_min_i64(begin / MHAI_PANEL * MHAI_PANEL, block->keys);
    block->pack_end =
        (int)mhai_max_i64(block->pack_begin, mhai_min_i64(block->keys, c->window.end - block->key));
}

/* runs: the runs of the block in pages, or NULL. */
static mhai_pack pack_of(const mha_tensor *x, const mhai_run *runs, const mhai_attn_chunk *c,
                         const mhai_attn_block *block, float *out, uint8_t *bad, bool *any_bad)
{
    const int64_t first = c->seq.k0 + block->key + block->pack_begin;
    return (mhai_pack){.out = out,
                       .runs = runs ? runs + block->pack_begin / MHAI_RUN : NULL,
                       .in = mhai_attn_data(x, c->seq.batch, c->hk, first),
                       .type = x->dtype,
                       .stride = x->stride[2],
                       .rows = block->pack_end - block->pack_begin,
                       .cols = x->shape[3],
                       .bad = bad + block->pack_begin,
                       .any_bad = any_bad};
}

/* Pack the block's keys, and its values if requested, for the first strip that needs them. */
static void pack_block(const mhai_attn_walk *walk, const mhai_attn_chunk *c, mhai_attn_workspace *w,
                       bool values, mhai_attn_block *block)
{
    if (block->packed) return;
    block->packed = true;
    const bool pages = walk->p->pages;
    const int64_t first = block->pack_begin;
    mhai_pack pack = pack_of(&walk->p->k, pages ? w->key_runs : NULL, c, block,
                             w->k + first * walk->p->D, w->bad_key, &block->bad);
    pack.whole = true; /* the finite elements of a non-finite key might overflow to -inf, as if it
                        * were hidden */
    const bool bf16 = walk->p->compute == MHA_COMPUTE_BF16;
    if (bf16)
        walk->kernels->bf16_keys(&pack, walk->pairs);
    else
        walk->kernels->pack_panels(&pack);
    if (!values) return;
    pack = pack_of(&walk->p->v, pages ? w->value_runs : NULL, c, block, w->v, w->bad_value,
                   &block->bad);
    if (bf16) {
        walk->kernels->bf16_values(&pack, first, walk->pairs);
        return;
    }
    pack.out += first * MHAI_PANEL;
    walk->kernels->pack_values(&pack);
}

void mhai_attn_set_dropout(const mhai_attn_walk *walk, const mhai_attn_chunk *c,
                           const mhai_attn_workspace *w, const mhai_attn_block *block,
                           const mhai_attn_strip *s, mhai_dropout *dropout)
{
    *dropout = walk->dropout;
    dropout->batch = (uint32_t)c->seq.b;
    dropout->key = block->key;
    for (int r = 0; r < s->tile.rows; r++) {
        dropout->head[r] = (uint32_t)(walk->p->first_head + w->head[s->first + r]);
        dropout->query[r] = (uint32_t)(c->seq.before + w->query[s->first + r]);
    }
}

/* ---- the walks ------------------------------------------------------------------------------- */

/* Whether tile_rows_forward accepts these types and sizes, with its memory in place of a packed
 * block of values. With several strips, it is faster than packing only if keys come from main
 * memory, which excludes short sequences, and if no strip needs a copy of the last columns. */
bool mhai_attn_by_rows(const mhai_attn_problem *p, int64_t rows, int64_t tile_rows)
{
    if (p->compute != MHA_COMPUTE_F32) return false;
    if (p->k.dtype != MHA_F32 || p->v.dtype != MHA_F32) return false;
    if (p->pages && p->Dv % 16 != 0) return false;
    if (p->Dv % MHAI_PANEL != 0) return rows <= tile_rows;
    if (rows <= tile_rows) return true;
    return rows <= FEW_ROWS && p->S > MHAI_KEY_BLOCK &&
           rows * (p->Dv + MHAI_SCORE_STRIDE) <= MHAI_KEY_BLOCK * p->Dv;
}

/* Process all strips of a small chunk at once. Returns false if they must be processed one by one:
 * several strips need separate masks, but there is memory for the mask bytes of only one strip. */
static bool walk_rows(const mhai_attn_walk *walk, const mhai_attn_chunk *c, mhai_attn_workspace *w,
                      const mhai_attn_block *block, const mhai_attn_visitor *visitor)
{
    mhai_attn_strip strips[MHAI_ROWS_TILES];
    float *scores = w->v + c->rows * mhai_attn_padded_values(walk->p);
    int count = 0;
    for (int64_t first = 0; first < c->rows;) {
        mhai_attn_strip *s = &strips[count];
        if (count == MHAI_ROWS_TILES) return false;
        bool sees = make_strip(walk, c, w, block, true, first, s);
        first += s->tile.rows;
        if (!sees) continue;
        if (s->mask.keep[0] == w->keep && s->tile.rows < c->rows) return false;
        if (s->tile.rows < c->rows) s->tile.s = scores + s->first * MHAI_SCORE_STRIDE;
        count++;
    }
    return count == 0 || visitor->rows(visitor->user, c, w, block, strips, count);
}

/* Process all strips of a loaded chunk against one block. */
static void walk_block(const mhai_attn_walk *walk, const mhai_attn_chunk *c, mhai_attn_workspace *w,
                       mhai_attn_block *block, const mhai_attn_visitor *visitor)
{
    const bool all = visitor->options & MHAI_WALK_ALL;
    bool seen = block->keys > 0 && mhai_attn_block_seen(walk->p, c, block);
    if (!seen && !all) return;
    if (seen && walk->p->pages) mhai_attn_find_runs(walk->p, &c->seq, c->hk, block->key, w);
    if (seen && mhai_attn_has_relative(walk->p)) mhai_attn_fill_relative(walk->p, c, w, block);
    if (visitor->rows && !c->bad_query &&
        mhai_attn_by_rows(walk->p, c->rows, walk->kernels->tile_rows) &&
        walk_rows(walk, c, w, block, visitor))
        return;
    mhai_attn_strip s;
    for (int64_t first = 0; first < c->rows; first += s.tile.rows) {
        if (make_strip(walk, c, w, block, seen, first, &s)) {
            pack_block(walk, c, w, visitor->options & MHAI_WALK_VALUES, block);
            arm_strip(walk, c, w, block, &s);
        } else if (!all) {
            continue;
        }
        visitor->strip(visitor->user, c, w, block, &s);
    }
}

void mhai_attn_walk_chunk(const mhai_attn_walk *walk, mhai_attn_chunk *c, mhai_attn_workspace *w,
                          const mhai_attn_visitor *visitor)
{
    mhai_attn_place_rows(walk, c, w);
    mhai_attn_load_rows(walk, c, w);
    if (visitor->chunk) visitor->chunk(visitor->user, c, w);
    const int64_t end = visitor->options & MHAI_WALK_ALL ? walk->p->S : c->limit.end;
    for (int64_t key = 0; key < end; key += MHAI_KEY_BLOCK)
        mhai_attn_walk_block(walk, c, w, key, visitor);
}

void mhai_attn_walk_block(const mhai_attn_walk *walk, const mhai_attn_chunk *c,
                          mhai_attn_workspace *w, int64_t key, const mhai_attn_visitor *visitor)
{
    mhai_attn_block block = {.key = key};
    if (key < c->limit.end) block = mhai_attn_block_at(walk->p, c, key);
    narrow_block(walk->p, c, &block);
    walk_block(walk, c, w, &block, visitor);
}

mhai_tile_rows mhai_attn_rows_of(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                                 const mhai_attn_workspace *w, const mhai_attn_block *block,
                                 int strips)
{
    const int64_t first = c->seq.k0 + block->key;
    if (p->pages)
        return (mhai_tile_rows){.key_runs = w->key_runs,
                                .value_runs = w->value_runs,
                                .run = w->run,
                                .keys = block->keys,
                                .tiles = strips,
                                .panel = w->k,
                                .o = w->v};
    return (mhai_tile_rows){.k = mhai_attn_row(&p->k, c->seq.batch, c->hk, first),
                            .v = mhai_attn_row(&p->v, c->seq.batch, c->hk, first),
                            .k_stride = p->k.stride[2],
                            .v_stride = p->v.stride[2],
                            .keys = block->keys,
                            .readable = mhai_attn_readable(p, &c->seq, block->key),
                            .tiles = strips,
                            .panel = w->k,
                            .o = w->v};
}

int64_t mhai_attn_key_items(const mhai_attn_walk *walk)
{
    return mhai_ceil_div(walk->p->S, MHAI_KEY_BLOCK);
}

mhai_attn_key_item mhai_attn_key_item_at(const mhai_attn_walk *walk, int64_t item)
{
    const mhai_attn_problem *p = walk->p;
    const int64_t blocks = mhai_attn_key_items(walk);
    return (mhai_attn_key_item){.seq = mhai_attn_sequence_of(p, item / blocks / p->Hk),
                                .hk = item / blocks % p->Hk,
                                .key = item % blocks * MHAI_KEY_BLOCK};
}

/* Returns false if no row of a chunk sees a key of the block, judging by the first and last query.
 * Under a window or a causal mask, this makes the cost of a walk proportional to its pairs. */
static bool chunk_near(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                       const mhai_attn_block *block)
{
    const bool one_head = c->first / c->width == (c->first + c->rows - 1) / c->width;
    int64_t first = one_head ? c->first % c->width : 0;
    int64_t last = one_head ? (c->first + c->rows - 1) % c->width : c->width - 1;
    if (mhai_attn_limit(p, &c->seq, last).end <= block->key) return false;
    if (!p->window || p->global_queries.data || block->exempt_begin < block->exempt_end)
        return true;
    return first + c->seq.offset - p->left_keys < block->key + block->keys &&
           last + c->seq.offset + p->right_keys >= block->key;
}

void mhai_attn_walk_keys(const mhai_attn_walk *walk, const mhai_attn_key_item *item,
                         mhai_attn_workspace *w, const mhai_attn_visitor *visitor)
{
    const mhai_attn_problem *p = walk->p;
    const int64_t rows = p->group * item->seq.T, most = walk->tiling.chunk_rows;
    mhai_attn_chunk c = {.seq = item->seq,
                         .hk = item->hk,
                         .head0 = item->hk * p->group,
                         .width = item->seq.T,
                         .limit = {0, item->seq.S}};
    if (item->key >= item->seq.S) return;
    mhai_attn_block block = mhai_attn_block_at(p, &c, item->key);
    for (c.first = 0; c.first < rows; c.first += most) {
        c.rows = mhai_min_i64(most, rows - c.first);
        if (!chunk_near(p, &c, &block)) continue;
        mhai_attn_place_rows(walk, &c, w);
        if (!mhai_attn_block_seen(p, &c, &block)) continue;
        mhai_attn_load_rows(walk, &c, w);
        if (visitor->chunk) visitor->chunk(visitor->user, &c, w);
        walk_block(walk, &c, w, &block, visitor);
    }
}
