/* Masks of a strip of rows against a key block.
 *
 * Causal, lengths and windows allow one interval of keys per row, which costs nothing. Other masks
 * (keys exempt from the window, documents, block patterns, a callback) need one byte per pair, and
 * only where a block is neither fully visible nor fully hidden. */
#include "attention/attn_tiles.h"

#include "base/checked.h"

#include <string.h>

/* ---- a block against a chunk ----------------------------------------------------------------- */

/* Find the sinks and global keys of the block. */
static void find_exempt_keys(const mhai_attn_problem *p, const mhai_attn_sequence *seq,
                             mhai_attn_block *block)
{
    int count = 0;
    block->exempt_begin = block->keys;
    for (int j = 0; j < block->keys; j++) {
        int64_t s = block->key + j;
        if (s < seq->begin) continue;
        if (s >= seq->begin + p->sink_keys &&
            !mhai_attn_flag(&p->global_keys, seq->batch, seq->s0 + s))
            continue;
        if (count == 0) block->exempt_begin = j;
        block->exempt_end = j + 1;
        count++;
    }
    if (count == 0) block->exempt_begin = 0;
    block->exempt_solid = count == block->exempt_end - block->exempt_begin;
}

static void find_documents(const mhai_attn_problem *p, const mhai_attn_sequence *seq,
                           mhai_attn_block *block)
{
    block->least_document = INT32_MAX;
    block->greatest_document = INT32_MIN;
    for (int j = 0; j < block->keys; j++) {
        int32_t d = mhai_attn_i32(&p->key_documents, seq->batch, seq->s0 + block->key + j);
        if (d < block->least_document) block->least_document = d;
        if (d > block->greatest_document) block->greatest_document = d;
    }
}

mhai_attn_block mhai_attn_block_at(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                                   int64_t key)
{
    mhai_attn_block block = {.key = key};
    block.keys = (int)mhai_min_i64(MHAI_KEY_BLOCK, c->limit.end - key);
    block.pack_end = block.keys;
    if (p->window && (key < c->seq.begin + p->sink_keys || p->global_keys.data))
        find_exempt_keys(p, &c->seq, &block);
    if (p->key_documents.data) find_documents(p, &c->seq, &block);
    return block;
}

/* Whether a row of the chunk keeps a pattern block within the key block. Rows with the same head
 * and pattern row are looked up once, so that hidden blocks of a long pattern cost almost
 * nothing. */
static bool pattern_seen(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                         const mhai_attn_block *block)
{
    const mhai_attn_broadcast *x = &p->keep_blocks;
    const int64_t end = c->first + c->rows;
    const int64_t last = (block->key + block->keys - 1) / p->block_keys;
    for (int64_t r = c->first, next; r < end; r = next) {
        int64_t h = c->head0 + r / c->width, i = r % c->width;
        int64_t t = c->list ? c->list[i] - c->seq.q0 : c->query0 + i;
        int64_t row = mhai_attn_pattern_row(p, t),
                end_t = (row + 1) * p->block_queries - c->seq.before;
        next = c->list ? r + 1 : r + mhai_min_i64(end_t - t, c->width - i);
        const uint8_t *keep = (const uint8_t *)x->data + mhai_attn_offset(x, c->seq.batch, h, row);
        for (int64_t cell = block->key / p->block_keys; cell <= last; cell++)
            if (keep[cell * x->stride[3]]) return true;
    }
    return false;
}

bool mhai_attn_block_seen(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                          const mhai_attn_block *block)
{
    if (c->limit.begin >= block->key + block->keys) return false;
    if (p->keep_blocks.data && !pattern_seen(p, c, block)) return false;
    if (!p->window || c->global_query || block->exempt_begin < block->exempt_end) return true;
    return c->window.begin < block->key + block->keys && c->window.end > block->key;
}

/* ---- intervals ------------------------------------------------------------------------------- */

static int inside(int64_t key, const mhai_attn_block *block)
{
    return (int)mhai_max_i64(0, mhai_min_i64(key - block->key, block->keys));
}

/* The interval of one row. Returns true if it also contains hidden keys,
 * so that bytes are needed. */
static bool row_interval(const mhai_attn_workspace *w, const mhai_attn_block *block, int64_t row,
                         int *begin, int *end)
{
    int limit = inside(w->limit[row].end, block);
    int exempt_begin = block->exempt_begin;
    int exempt_end = block->exempt_end < limit ? block->exempt_end : limit;
    *begin = inside(w->window[row].begin, block);
    *end = inside(w->window[row].end, block);
    if (exempt_begin >= exempt_end) return false;
    if (*begin >= *end) {
        *begin = exempt_begin, *end = exempt_end;
        return !block->exempt_solid;
    }
    if (*begin <= exempt_begin && exempt_end <= *end) return false;
    bool touching = block->exempt_solid && exempt_begin <= *end && *begin <= exempt_end;
    if (exempt_begin < *begin) *begin = exempt_begin;
    if (exempt_end > *end) *end = exempt_end;
    return !touching;
}

/* Narrow a row's interval to the hull of its kept pattern blocks. Returns true if the hull also
 * contains hidden blocks. */
static bool row_pattern(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                        const mhai_attn_workspace *w, const mhai_attn_block *block, int64_t row,
                        int *begin, int *end)
{
    const mhai_attn_broadcast *x = &p->keep_blocks;
    const uint8_t *keep =
        (const uint8_t *)x->data +
        mhai_attn_offset(x, c->seq.batch, w->head[row], mhai_attn_pattern_row(p, w->query[row]));
    bool holes = false, gap = false;
    int first = *end, last = *begin;
    for (int j = *begin; j < *end;) {
        int64_t cell = (block->key + j) / p->block_keys;
        int next = inside(mhai_min_i64((cell + 1) * p->block_keys, block->key + *end), block);
        if (keep[cell * x->stride[3]]) {
            if (first == *end) first = j;
            holes |= gap;
            last = next;
        } else {
            gap = first != *end;
        }
        j = next;
    }
    *begin = first < last ? first : 0;
    *end = first < last ? last : 0;
    return holes;
}

/* Whether all rows of a strip have the same row of the pattern. */
static bool one_pattern_row(const mhai_attn_problem *p, const mhai_attn_workspace *w,
                            const mhai_attn_strip *strip)
{
    const int64_t *head = w->head + strip->first, *query = w->query + strip->first;
    const int64_t row = mhai_attn_pattern_row(p, query[0]);
    for (int r = 1; r < strip->tile.rows; r++)
        if (head[r] != head[0] || mhai_attn_pattern_row(p, query[r]) != row) return false;
    return true;
}

/* If pattern blocks are whole panels, find the runs of panels that a pattern row keeps. */
static void find_runs(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                      const mhai_attn_workspace *w, const mhai_attn_block *block,
                      const mhai_attn_strip *strip, mhai_tile_mask *mask)
{
    const mhai_attn_broadcast *x = &p->keep_blocks;
    const int64_t row = mhai_attn_pattern_row(p, w->query[strip->first]);
    const uint8_t *keep =
        (const uint8_t *)x->data + mhai_attn_offset(x, c->seq.batch, w->head[strip->first], row);
    bool open = false;
    mask->runs = 0;
    for (int j = 0; j < block->keys;) {
        const int64_t cell = (block->key + j) / p->block_keys;
        const int next =
            inside(mhai_min_i64((cell + 1) * p->block_keys, block->key + block->keys), block);
        const bool kept = keep[cell * x->stride[3]];
        if (kept && !open) mask->run_begin[mask->runs++] = j;
        if (kept) mask->run_end[mask->runs - 1] = next;
        open = kept;
        j = next;
    }
}

/* Clip the runs to the tile. The runs that remain may end before the tile does. */
static void trim_runs(mhai_tile *tile, mhai_tile_mask *mask)
{
    int runs = 0;
    for (int i = 0; i < mask->runs; i++) {
        const int begin = mask->run_begin[i] > tile->begin ? mask->run_begin[i] : tile->begin;
        const int end = mask->run_end[i] < tile->end ? mask->run_end[i] : tile->end;
        if (begin >= end) continue;
        mask->run_begin[runs] = begin;
        mask->run_end[runs++] = end;
    }
    mask->runs = runs;
    tile->begin = runs > 0 ? mask->run_begin[0] : 0;
    tile->end = runs > 0 ? mask->run_end[runs - 1] : 0;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static bool window_keeps(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                         const mhai_attn_workspace *w, int64_t row, int64_t s)
{
    return (s >= w->window[row].begin && s < w->window[row].end) ||
           s < c->seq.begin + p->sink_keys ||
           mhai_attn_flag(&p->global_keys, c->seq.batch, c->seq.s0 + s);
}

/* Call the callback for a strip, once per run of consecutive queries of one head. */
static void call_back(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                      const mhai_attn_workspace *w, const mhai_attn_block *block,
                      const mhai_attn_strip *strip)
{
    const int64_t *head = w->head + strip->first, *query = w->query + strip->first;
    for (int r = 0, next; r < strip->tile.rows; r = next) {
        next = r + 1;
        while (next < strip->tile.rows && head[next] == head[r] &&
               query[next] == query[next - 1] + 1)
            next++;
        p->callback(p->callback_user, c->seq.b, p->first_head + head[r], c->seq.before + query[r],
                    next - r, block->key + strip->tile.begin, strip->tile.end - strip->tile.begin,
                    w->keep + r * MHAI_KEY_BLOCK + strip->tile.begin, MHAI_KEY_BLOCK);
    }
}

static void compose_row(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                        const mhai_attn_workspace *w, const mhai_attn_block *block,
                        const mhai_attn_strip *strip, int r, bool exempt, bool documents,
                        bool pattern)
{
    int64_t row = strip->first + r, t = w->query[row];
    uint8_t *keep = w->keep + r * MHAI_KEY_BLOCK;
    int begin = strip->mask.begin[r], end = strip->mask.end[r];
    for (int j = begin; exempt && j < end; j++)
        keep[j] = keep[j] && window_keeps(p, c, w, row, block->key + j);
    if (documents) {
        int32_t own = mhai_attn_i32(&p->query_documents, c->seq.batch, c->seq.q0 + t);
        for (int j = begin; j < end; j++)
            keep[j] = keep[j] && own == mhai_attn_i32(&p->key_documents, c->seq.batch,
                                                      c->seq.s0 + block->key + j);
    }
    if (pattern) {
        const mhai_attn_broadcast *x = &p->keep_blocks;
        const uint8_t *cells =
            (const uint8_t *)x->data +
            mhai_attn_offset(x, c->seq.batch, w->head[row], mhai_attn_pattern_row(p, t));
        for (int j = begin; j < end; j++)
            keep[j] = keep[j] && cells[(block->key + j) / p->block_keys * x->stride[3]];
    }
    if (p->keep_mask.data) {
        const uint8_t *dense =
            (const uint8_t *)p->keep_mask.data +
            mhai_attn_offset(&p->keep_mask, c->seq.batch, w->head[row], c->seq.q0 + t) +
            block->key * p->keep_mask.stride[3];
        for (int j = begin; j < end; j++) keep[j] = keep[j] && dense[j * p->keep_mask.stride[3]];
    }
}

static int between(int least, int x, int most)
{
    return x < least ? least : x > most ? most : x;
}

/* ---- a strip --------------------------------------------------------------------------------- */

/* Compare the documents of strip and block: -1 none in common, 0 all equal, 1 mixed. */
static int compare_documents(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                             const mhai_attn_workspace *w, const mhai_attn_block *block,
                             const mhai_attn_strip *strip)
{
    int32_t least = INT32_MAX, greatest = INT32_MIN;
    for (int r = 0; r < strip->tile.rows; r++) {
        int64_t t = c->seq.q0 + w->query[strip->first + r];
        int32_t own = mhai_attn_i32(&p->query_documents, c->seq.batch, t);
        if (own < least) least = own;
        if (own > greatest) greatest = own;
    }
    if (greatest < block->least_document || least > block->greatest_document) return -1;
    return !(least == greatest && block->least_document == block->greatest_document);
}

static void point_at_dense(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                           const mhai_attn_workspace *w, const mhai_attn_block *block, bool bytes,
                           mhai_attn_strip *strip)
{
    mhai_tile_mask *mask = &strip->mask;
    mask->keep_stride = bytes ? 1 : p->keep_mask.stride[3];
    mask->bias_stride = p->bias.stride[3];
    mask->bias_type = p->bias.dtype;
    for (int r = 0; r < strip->tile.rows; r++) {
        int64_t h = w->head[strip->first + r], t = c->seq.q0 + w->query[strip->first + r];
        mask->keep[r] = bytes ? w->keep + r * MHAI_KEY_BLOCK : NULL;
        if (!bytes && p->keep_mask.data)
            mask->keep[r] = (const uint8_t *)p->keep_mask.data +
                            mhai_attn_offset(&p->keep_mask, c->seq.batch, h, t) +
                            block->key * p->keep_mask.stride[3];
        mask->bias[r] = NULL;
        if (p->bias.data)
            mask->bias[r] =
                mhai_attn_element(&p->bias, mhai_attn_offset(&p->bias, c->seq.batch, h, t) +
                                                block->key * p->bias.stride[3]);
    }
}

bool mhai_attn_mask_strip(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                          const mhai_attn_workspace *w, const mhai_attn_block *block,
                          mhai_attn_strip *strip)
{
    mhai_tile *tile = &strip->tile;
    mhai_tile_mask *mask = &strip->mask;
    int documents = p->key_documents.data ? compare_documents(p, c, w, block, strip) : 0;
    if (documents < 0) return false;
    const bool panels =
        p->keep_blocks.data && p->block_keys % MHAI_PANEL == 0 && one_pattern_row(p, w, strip);
    bool exempt = false, pattern = false;
    tile->begin = block->keys;
    tile->end = 0;
    mask->runs = 0;
    if (panels) find_runs(p, c, w, block, strip, mask);
    for (int r = 0; r < tile->rows; r++) {
        int64_t row = strip->first + r;
        exempt |= row_interval(w, block, row, &mask->begin[r], &mask->end[r]);
        if (p->keep_blocks.data && !panels)
            pattern |= row_pattern(p, c, w, block, row, &mask->begin[r], &mask->end[r]);
        if (mask->begin[r] >= mask->end[r]) continue;
        if (mask->begin[r] < tile->begin) tile->begin = mask->begin[r];
        if (mask->end[r] > tile->end) tile->end = mask->end[r];
    }
    if (tile->begin >= tile->end) return false;
    tile->begin -= tile->begin % MHAI_PANEL;
    if (panels) trim_runs(tile, mask);
    if (tile->begin >= tile->end) return false;
    bool partial = mask->runs > 1;
    if (mask->runs == 1) mask->runs = 0;
    for (int r = 0; r < tile->rows; r++) {
        mask->begin[r] = between(tile->begin, mask->begin[r], tile->end);
        mask->end[r] = between(mask->begin[r], mask->end[r], tile->end);
        partial |= mask->begin[r] != tile->begin || mask->end[r] != tile->end;
    }
    bool bytes = exempt || documents || pattern || p->callback;
    if (bytes) {
        if (p->callback)
            call_back(p, c, w, block, strip);
        else
            memset(w->keep, 1, (size_t)tile->rows * MHAI_KEY_BLOCK);
        for (int r = 0; r < tile->rows; r++)
            compose_row(p, c, w, block, strip, r, exempt, documents, pattern);
    }
    point_at_dense(p, c, w, block, bytes, strip);
    strip->masked = partial || bytes || p->keep_mask.data || p->bias.data;
    return true;
}
