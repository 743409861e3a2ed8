/* Creating a cache, appending to it, and attention with it. */
#include "cache/kv_cache.h"

#include "attention/attn_plan.h"
#include "base/checked.h"
#include "base/context.h"
#include "base/need.h"
#include "base/tensor.h"

#include <multihead/component.h>

#include <string.h>

enum { WINDOW_PAGE = 32 }; /* default: a panel of keys, which wastes little memory */

/* ---- creation ------------------------------------------------------------------------------ */

static mha_status check_window(mha_kv_cache_desc *d)
{
    if (d->window < 0 || d->sink_keys < 0 || d->max_append < 0)
        return mha_fail(
            MHA_ERR_ARGUMENT,
            "mha_kv_cache_desc: window %lld, sink_keys %lld, max_append %lld; expected 0 "
            "or more",
            (long long)d->window, (long long)d->sink_keys, (long long)d->max_append);
    if (d->window == 0 && (d->sink_keys > 0 || d->max_append > 0))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_kv_cache_desc: sink_keys and max_append require window");
    if (d->max_append == 0) d->max_append = d->window;
    d->max_append = mhai_min_i64(d->max_append, d->capacity);
    return MHA_OK;
}

/* Powers of channels require whole runs. */
static mha_status check_channels(const mha_kv_cache_desc *d)
{
    if (d->key_scales != MHA_KV_SCALES_CHANNEL) return MHA_OK;
    if (d->type != MHA_I8)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_kv_cache_desc: MHA_KV_SCALES_CHANNEL requires type i8, not %s",
                        mha_dtype_name(d->type));
    if (d->page_size % MHAI_RUN == 0 || d->page_size >= d->capacity) return MHA_OK;
    return mha_fail(MHA_ERR_UNSUPPORTED,
                    "mha_kv_cache_desc: page_size is %lld, MHA_KV_SCALES_CHANNEL requires a "
                    "multiple of %d, or the whole capacity",
                    (long long)d->page_size, MHAI_RUN);
}

/* Fill in the defaults. */
static mha_status check_desc(mha_kv_cache_desc *d)
{
    MHA_TRY(mhai_check_flags("mha_kv_cache_desc", d->flags, 0));
    MHA_TRY(mhai_check_reserved("mha_kv_cache_desc", d->reserved ? d->reserved : d->reserved2));
    MHA_TRY(
        mhai_check_range("mha_kv_cache_desc: key_scales", d->key_scales, 0, MHA_KV_SCALES_CHANNEL));
    if (d->type != MHA_F32 && d->type != MHA_F16 && d->type != MHA_BF16 && d->type != MHA_I8)
        return mha_fail(MHA_ERR_DTYPE,
                        "mha_kv_cache_desc: type is %s, expected f32, f16, bf16 or i8",
                        mha_dtype_name(d->type));
    if (d->value_head_dim == 0) d->value_head_dim = d->head_dim;
    MHA_TRY(mhai_check_range("mha_kv_cache_desc: batch", d->batch, 1, INT64_MAX));
    MHA_TRY(mhai_check_range("mha_kv_cache_desc: kv_heads", d->kv_heads, 1, INT64_MAX));
    MHA_TRY(mhai_check_range("mha_kv_cache_desc: capacity", d->capacity, 1, INT64_MAX));
    MHA_TRY(mhai_check_range("mha_kv_cache_desc: head_dim", d->head_dim, 1, INT64_MAX));
    MHA_TRY(mhai_check_range("mha_kv_cache_desc: value_head_dim", d->value_head_dim, 1, INT64_MAX));
    if (d->page_size == 0 && d->window > 0) d->page_size = WINDOW_PAGE;
    if (d->page_size == 0 || d->page_size > d->capacity) d->page_size = d->capacity;
    MHA_TRY(mhai_check_range("mha_kv_cache_desc: page_size", d->page_size, 1, INT64_MAX));
    MHA_TRY(check_window(d));
    return check_channels(d);
}

/* The largest number of pages that a sequence can hold: the pages of the sinks and of the window
 * and, during an append, of the new rows. */
static int64_t most_pages(const mha_kv_cache_desc *d)
{
    const int64_t all = mhai_ceil_div(d->capacity, d->page_size);
    if (d->window == 0 || d->window >= d->capacity || d->sink_keys >= d->capacity) return all;
    const uint64_t size = (uint64_t)d->page_size,
                   most = (uint64_t)d->window - 1 + (uint64_t)d->max_append;
    return mhai_min_i64(all, mhai_ceil_div(d->sink_keys, d->page_size) +
                                 (int64_t)(most / size + (most % size != 0)) + 1);
}

/* Bytes of a run of keys. */
static int64_t key_bytes(const mha_kv_cache_desc *d)
{
    return mhai_attn_run_bytes(d->type, d->head_dim, d->key_scales == MHA_KV_SCALES_CHANNEL);
}

static int64_t value_bytes(const mha_kv_cache_desc *d)
{
    return mhai_attn_run_bytes(d->type, d->value_head_dim, false);
}

/* Bytes of a run of keys plus a run of values, without scales. */
static int64_t number_bytes(const mha_kv_cache_desc *d)
{
    const int64_t each = MHAI_RUN * (int64_t)mha_dtype_size(d->type);
    return mhai_round_up(each * d->head_dim, MHAI_LINE) +
           mhai_round_up(each * d->value_head_dim, MHAI_LINE);
}

/* Whether the size of all runs of a head, with scales, fits in int64. */
static bool is_countable(int64_t width)
{
    int64_t numbers;
    return mhai_mul_i64(width, MHAI_RUN * 8, &numbers) && numbers <= PTRDIFF_MAX / 64;
}

/* Number of pages to allocate. A window needs one more, the empty page. */
static int64_t pool_of(const mha_kv_cache_desc *d)
{
    return d->pages + (d->window > 0);
}

/* Bytes of all keys or of all values. */
static bool count_bytes(const mha_kv_cache_desc *d, int64_t run, int64_t *page, int64_t *all)
{
    if (d->page_size > PTRDIFF_MAX - MHAI_RUN) return false;
    return mhai_mul_i64(mhai_ceil_div(d->page_size, MHAI_RUN), d->kv_heads, page) &&
           mhai_mul_i64(*page, run, page) && mhai_mul_i64(*page, pool_of(d), all) &&
           *all <= PTRDIFF_MAX / 32;
}

/* Offsets of the parts of a cache, in bytes. */
typedef struct parts {
    int64_t discarded, references, free_pages, table, keys, values;
} parts;

static bool count_parts(const mha_kv_cache_desc *d, mha_kv_cache_sizes *s, parts *at)
{
    int64_t key_page, value_page, keys, values, longest, table;
    const int64_t entries = d->batch * mhai_ceil_div(d->capacity, d->page_size);
    if (!is_countable(d->head_dim) || !is_countable(d->value_head_dim)) return false;
    if (!count_bytes(d, key_bytes(d), &key_page, &keys) ||
        !count_bytes(d, value_bytes(d), &value_page, &values) ||
        !mhai_mul_i64(d->batch, (int64_t)sizeof(int64_t), &longest) || longest > PTRDIFF_MAX / 32)
        return false;
    at->discarded = longest;
    at->references = at->discarded + longest;
    at->free_pages = at->references + d->pages * (int64_t)sizeof(int32_t);
    at->table = at->free_pages + d->pages * (int64_t)sizeof(int32_t);
    table = at->table + entries * (int64_t)sizeof(int32_t);
    at->keys = mhai_round_up(table, MHAI_LINE);
    at->values = at->keys + keys;
    s->pages = d->pages;
    s->page_bytes = key_page + value_page;
    s->table_bytes = at->keys;
    s->scale_bytes = d->type == MHA_I8
                         ? d->pages * d->kv_heads * mhai_ceil_div(d->page_size, MHAI_RUN) *
                               (key_bytes(d) + value_bytes(d) - number_bytes(d))
                         : 0;
    s->total_bytes = at->values + values; /* including the empty page */
    return true;
}

/* Check that page numbers and indices of table entries fit in int32. */
static mha_status check_pages(mha_kv_cache_desc *d)
{
    int64_t entries;
    const int64_t each = mhai_ceil_div(d->capacity, d->page_size);
    if (!mhai_mul_i64(d->batch, each, &entries) || entries >= INT32_MAX || d->pages >= INT32_MAX)
        return mha_fail(MHA_ERR_SIZE,
                        "mha_kv_cache_desc: %lld sequences of up to %lld pages, and pages is %lld; "
                        "expected at most %d in total: increase page_size or reduce batch",
                        (long long)d->batch, (long long)each, (long long)d->pages, INT32_MAX - 1);
    if (d->pages == 0) d->pages = d->batch * most_pages(d);
    return mhai_check_range("mha_kv_cache_desc: pages", d->pages, 1, INT64_MAX);
}

/* Check a caller's description and fill in its defaults. */
static mha_status plan_cache(const mha_kv_cache_desc *desc, mha_kv_cache_desc *d,
                             mha_kv_cache_sizes *sizes, parts *at)
{
    MHA_TRY(mhai_struct_copy("mha_kv_cache_desc", d, sizeof *d, offsetof(mha_kv_cache_desc, type),
                             desc));
    MHA_TRY(check_desc(d));
    MHA_TRY(check_pages(d));
    *sizes = (mha_kv_cache_sizes){.struct_size = sizeof *sizes};
    if (count_parts(d, sizes, at)) return MHA_OK;
    return mha_fail(MHA_ERR_SIZE,
                    "cache: %lld sequences of %lld heads of %lld positions of %lld + %lld numbers "
                    "do not fit in the address space",
                    (long long)d->batch, (long long)d->kv_heads, (long long)d->capacity,
                    (long long)d->head_dim, (long long)d->value_head_dim);
}

mha_status mha_kv_cache_count(const mha_kv_cache_desc *desc, mha_kv_cache_sizes *sizes)
{
    mha_kv_cache_desc d;
    mha_kv_cache_sizes all;
    parts at;
    MHA_NEED("mha_kv_cache_count", desc, sizes);
    if (sizes->struct_size != sizeof all)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_kv_cache_sizes: struct_size is %u, expected %zu",
                        (unsigned)sizes->struct_size, sizeof all);
    MHA_TRY(plan_cache(desc, &d, &all, &at));
    *sizes = all;
    return MHA_OK;
}

static void place_parts(mha_kv_cache *cache, unsigned char *memory, const parts *at)
{
    const mha_kv_cache_desc *d = &cache->desc;
    cache->memory = memory;
    cache->lengths = (int64_t *)(void *)memory;
    cache->discarded = (int64_t *)(void *)(memory + at->discarded);
    cache->references = (int32_t *)(void *)(memory + at->references);
    cache->free_pages = (int32_t *)(void *)(memory + at->free_pages);
    cache->table = (int32_t *)(void *)(memory + at->table);
    cache->pages = (mhai_attn_pages){.type = d->type,
                                     .keys = memory + at->keys,
                                     .values = memory + at->values,
                                     .key_bytes = key_bytes(d),
                                     .value_bytes = value_bytes(d),
                                     .channels = d->key_scales == MHA_KV_SCALES_CHANNEL,
                                     .pages = pool_of(d),
                                     .page_size = d->page_size,
                                     .table = cache->table,
                                     .entries = mhai_ceil_div(d->capacity, d->page_size)};
}

static void clear_empty_page(const mha_kv_cache *cache)
{
    const mhai_attn_pages *pages = &cache->pages;
    const int64_t runs = mhai_ceil_div(pages->page_size, MHAI_RUN);
    if (cache->desc.window == 0) return;
    for (int64_t h = 0; h < cache->desc.kv_heads; h++) {
        const int64_t first = mhai_attn_page_run(pages, mhai_kv_empty_page(cache), h, 0);
        memset((unsigned char *)(uintptr_t)pages->keys + first * pages->key_bytes, 0,
               (size_t)(runs * pages->key_bytes));
        memset((unsigned char *)(uintptr_t)pages->values + first * pages->value_bytes, 0,
               (size_t)(runs * pages->value_bytes));
    }
}

mha_status mha_kv_cache_create(mha_context *context, const mha_kv_cache_desc *desc,
                               mha_kv_cache **cache)
{
    MHA_NEED("mha_kv_cache_create", context, desc, cache);
    mha_kv_cache_desc d;
    mha_kv_cache_sizes sizes;
    parts at;
    MHA_TRY(plan_cache(desc, &d, &sizes, &at));
    const mha_allocator *a = &context->allocator;
    mha_kv_cache *made;
    MHA_TRY(mhai_take_for("cache", a, 1, sizeof *made, &made));
    *made = (mha_kv_cache){.allocator = *a, .desc = d, .sizes = sizes};
    void *memory = a->alloc(a->user, (size_t)sizes.total_bytes, MHAI_LINE); /* not touched here */
    if (!memory) {
        mhai_give(a, made, 1, sizeof *made);
        return mha_fail(MHA_ERR_NOMEM, "cache: cannot allocate %lld bytes",
                        (long long)sizes.total_bytes);
    }
    place_parts(made, memory, &at);
    clear_empty_page(made);
    mha_kv_cache_reset(made);
    *cache = made;
    return MHA_OK;
}

void mha_kv_cache_destroy(mha_kv_cache *cache)
{
    if (!cache) return;
    mha_allocator a = cache->allocator;
    if (cache->memory) a.release(a.user, cache->memory, (size_t)cache->sizes.total_bytes);
    mhai_give(&a, cache, 1, sizeof *cache);
}

void mha_kv_cache_describe(const mha_kv_cache *cache, mha_kv_cache_desc *desc)
{
    *desc = cache->desc;
    desc->struct_size = sizeof *desc;
}

size_t mha_kv_cache_bytes(const mha_kv_cache *cache)
{
    return (size_t)cache->sizes.total_bytes;
}

/* ---- lengths ------------------------------------------------------------------------------- */

const int64_t *mha_kv_cache_lengths(const mha_kv_cache *cache)
{
    return cache->lengths;
}

void mha_kv_cache_reset(mha_kv_cache *cache)
{
    mhai_kv_pages_reset(cache);
}

/* ---- append -------------------------------------------------------------------------------- */

mha_status mhai_kv_check_sequence(const mhai_kv_rows *rows, int64_t b, int64_t *count)
{
    const int64_t first = mhai_kv_first(rows, b);
    MHA_TRY(mhai_check_entry("firsts", b, first, 0, rows->n));
    *count = mhai_kv_count(rows, b);
    return mhai_check_entry("counts", b, *count, 0, rows->n - first);
}

mha_status mhai_kv_cache_check_rows(const mha_kv_cache *cache, const mhai_kv_rows *rows)
{
    const int64_t capacity = cache->desc.capacity;
    for (int64_t b = 0; b < cache->desc.batch; b++) {
        int64_t count;
        MHA_TRY(mhai_kv_check_sequence(rows, b, &count));
        if (count > capacity - cache->lengths[b])
            return mha_fail(MHA_ERR_SIZE,
                            "cache: sequence %lld holds %lld of %lld positions, %lld more do not "
                            "fit; truncate or reset it, or make a larger cache",
                            (long long)b, (long long)cache->lengths[b], (long long)capacity,
                            (long long)count);
    }
    return mhai_kv_pages_check(cache, rows);
}

typedef void store_row(const mha_kv_cache *cache, int64_t b, int64_t h, int64_t position,
                       mha_dtype type, const void *from);

/* Append rows of all heads to sequence b. */
static void store_rows(const mha_kv_cache *cache, int64_t b, const mhai_kv_rows *rows,
                       const mha_tensor *x, store_row *to)
{
    const int64_t first = mhai_kv_first(rows, b), count = mhai_kv_count(rows, b);
    for (int64_t h = 0; h < cache->desc.kv_heads; h++)
        for (int64_t t = 0; t < count; t++)
            to(cache, b, h, cache->lengths[b] + t, x->dtype,
               (const char *)x->data +
                   (b * x->stride[0] + h * x->stride[1] + (first + t) * x->stride[2]) *
                       (int64_t)mha_dtype_size(x->dtype));
}

mha_status mha_kv_cache_append(mha_kv_cache *cache, const mha_tensor *k, const mha_tensor *v,
                               const int64_t *counts)
{
    return mha_kv_cache_append_rows(cache, k, v, NULL, counts);
}

mha_status mha_kv_cache_append_rows(mha_kv_cache *cache, const mha_tensor *k, const mha_tensor *v,
                                    const int64_t *firsts, const int64_t *counts)
{
    if (!cache) return mha_fail(MHA_ERR_NULL, "mha_kv_cache_append: cache is NULL");
    const mha_kv_cache_desc *d = &cache->desc;
    MHA_TRY(mhai_tensor_check_real("k", k));
    MHA_TRY(mhai_tensor_check_real("v", v));
    MHA_TRY(mhai_tensor_check("k", k, k->dtype, 4,
                              (int64_t[]){d->batch, d->kv_heads, -1, d->head_dim}));
    const int64_t n = k->shape[2];
    MHA_TRY(mhai_tensor_check("v", v, v->dtype, 4,
                              (int64_t[]){d->batch, d->kv_heads, n, d->value_head_dim}));
    MHA_TRY(mhai_tensor_check_last("k", k));
    MHA_TRY(mhai_tensor_check_last("v", v));
    const mhai_kv_rows rows = {n, firsts, counts};
    MHA_TRY(mhai_kv_cache_check_rows(cache, &rows));
    mhai_kv_pages_take(cache, &rows);
    for (int64_t b = 0; b < d->batch; b++) {
        store_rows(cache, b, &rows, k, mhai_kv_store_key);
        store_rows(cache, b, &rows, v, mhai_kv_store_value);
        cache->lengths[b] += mhai_kv_count(&rows, b);
    }
    return MHA_OK;
}

/* ---- attention ----------------------------------------------------------------------------- */

mha_tensor mhai_kv_cache_shape(const mha_kv_cache *cache, int64_t positions, int64_t width)
{
    const int64_t shape[] = {cache->desc.batch, cache->desc.kv_heads, positions, width};
    mha_tensor x = mha_tensor_contiguous(cache->memory, MHA_F32, 4, shape);
    x.stride[0] = x.stride[1] = x.stride[2] = 0;
    return x;
}

static mha_tensor shape_of(const mha_kv_cache *cache, const int64_t *lengths, int64_t width)
{
    int64_t longest = 0;
    for (int64_t b = 0; b < cache->desc.batch; b++) longest = mhai_max_i64(longest, lengths[b]);
    return mhai_kv_cache_shape(cache, longest, width);
}

/* Whether the call depends on the positions of queries. */
static bool reads_positions(const mha_attention_desc *d)
{
    return (d->flags & (MHA_ATTENTION_CAUSAL | MHA_ATTENTION_WINDOW)) || d->alibi_slopes ||
           d->t5_table || d->shaw_keys || d->shaw_values;
}

void mhai_kv_cache_place_queries(mha_attention_desc *desc, const mha_attention_outputs *outputs,
                                 const int64_t *lengths, int64_t B, int64_t T, int64_t *offsets)
{
    const bool reads = reads_positions(desc) || outputs->diagonal || outputs->offset_mass;
    if (!reads || desc->q_offset != 0 || desc->q_offsets) return;
    for (int64_t b = 0; b < B; b++) offsets[b] = lengths[b] - T;
    desc->q_offsets = offsets;
}

/* Set the window of a call. It defaults to the cache's window, and must not exceed it. */
static mha_status take_window(const mha_kv_cache *cache, mha_attention_desc *d,
                              const mha_attention_outputs *wanted)
{
    const mha_kv_cache_desc *c = &cache->desc;
    if (c->window == 0) return MHA_OK;
    if (!(d->flags & MHA_ATTENTION_WINDOW)) {
        if (d->left_keys || d->right_keys || d->sink_keys) return MHA_OK; /* rejected later */
        d->flags |= MHA_ATTENTION_WINDOW;
        d->left_keys = c->window - 1;
        d->right_keys = d->flags & MHA_ATTENTION_CAUSAL ? 0 : -1;
        d->sink_keys = c->sink_keys;
    }
    if (d->left_keys < 0 || d->left_keys >= c->window || d->sink_keys > c->sink_keys)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "left_keys is %lld and sink_keys %lld: this cache keeps a window of %lld, "
                        "a position and %lld left_keys, and %lld sink_keys",
                        (long long)d->left_keys, (long long)d->sink_keys, (long long)c->window,
                        (long long)(c->window - 1), (long long)c->sink_keys);
    if (d->global_keys || d->global_queries || d->key_begins)
        return mha_fail(
            MHA_ERR_UNSUPPORTED,
            "global_keys, global_queries, key_begins: a cache with a window has discarded keys "
            "that these would include; mha_kv_cache_append_rows() omits padding");
    if (wanted && wanted->scores && wanted->score_stage != MHA_SCORES_BIASED)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "scores: a cache with a window has only those of MHA_SCORES_BIASED");
    return MHA_OK;
}

/* Check that the first row of each sequence that is not padding sees no discarded position. */
static mha_status check_window_held(const mha_kv_cache *cache, const mha_attention_desc *d,
                                    const int64_t *firsts)
{
    const int64_t size = cache->desc.page_size;
    for (int64_t b = 0; b < cache->desc.batch; b++) {
        const int64_t first = firsts ? firsts[b] : 0, held = cache->discarded[b] * size;
        const int64_t offset = d->q_offsets ? d->q_offsets[b] : d->q_offset;
        if (held == 0 || offset >= held + d->left_keys - first) continue;
        return mha_fail(
            MHA_ERR_ARGUMENT,
            "cache: the first query of sequence %lld is at position %lld and sees %lld earlier "
            "positions, but those before %lld were discarded; attend after each append",
            (long long)b, (long long)offset, (long long)d->left_keys, (long long)held);
    }
    return MHA_OK;
}

static mha_status check_call(const mha_kv_cache *cache, const mha_attention_desc *d,
                             const mha_tensor *q)
{
    if (d->key_lengths)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_kv_cache_attention: key_lengths are the cache's own; "
                        "leave them NULL");
    if (d->query_starts || d->key_starts || d->sequences)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "mha_kv_cache_attention: a cache does not support ragged batches");
    MHA_TRY(mhai_tensor_check_real("q", q));
    return mhai_tensor_check("q", q, q->dtype, 4,
                             (int64_t[]){cache->desc.batch, -1, -1, cache->desc.head_dim});
}

mha_status mhai_kv_cache_explain(const mha_context *context, const mha_kv_cache *cache,
                                 const int64_t *lengths, const mha_attention_desc *desc,
                                 const mha_tensor *q, const mha_tensor *o,
                                 const mha_attention_outputs *outputs, mha_attention_plan *plan)
{
    const mha_tensor k = shape_of(cache, lengths, cache->desc.head_dim);
    const mha_tensor v = shape_of(cache, lengths, cache->desc.value_head_dim);
    mha_attention_desc d = *desc;
    MHA_TRY(take_window(cache, &d, outputs));
    d.key_lengths = lengths;
    return mhai_attn_explain(
        context, &(mhai_attn_call){&d, q, &k, &v, o, outputs, &cache->pages, NULL}, plan);
}

mha_status mha_kv_cache_attention(mha_context *context, const mha_kv_cache *cache,
                                  const mha_attention_desc *desc, const mha_tensor *q,
                                  const mha_tensor *o, const mha_attention_outputs *outputs)
{
    return mhai_kv_cache_attend(context, cache, desc, NULL, q, o, outputs);
}

mha_status mhai_kv_cache_attend(mha_context *context, const mha_kv_cache *cache,
                                const mha_attention_desc *desc, const int64_t *firsts,
                                const mha_tensor *q, const mha_tensor *o,
                                const mha_attention_outputs *outputs)
{
    MHA_NEED("mha_kv_cache_attention", context, cache);
    mha_attention_desc d;
    mha_attention_outputs wanted;
    void *memory;
    MHA_TRY(mhai_struct_copy("mha_attention_desc", &d, sizeof d,
                             offsetof(mha_attention_desc, left_keys), desc));
    d.struct_size = sizeof d;
    MHA_TRY(mhai_struct_copy("mha_attention_outputs", &wanted, sizeof wanted,
                             offsetof(mha_attention_outputs, average_probabilities), outputs));
    MHA_TRY(check_call(cache, &d, q));
    MHA_TRY(take_window(cache, &d, &wanted));
    const mha_tensor k = shape_of(cache, cache->lengths, cache->desc.head_dim);
    const mha_tensor v = shape_of(cache, cache->lengths, cache->desc.value_head_dim);
    mha_scratch_mark mark = mha_scratch_top(context);
    MHA_TRY(mha_scratch_alloc(context, cache->desc.batch, sizeof(int64_t), &memory));
    d.key_lengths = cache->lengths;
    mhai_kv_cache_place_queries(&d, &wanted, cache->lengths, cache->desc.batch, q->shape[2],
                                memory);
    mha_status status = cache->desc.window > 0 ? check_window_held(cache, &d, firsts) : MHA_OK;
    if (status == MHA_OK)
        status = mhai_attn_forward(
            context, &(mhai_attn_call){&d, q, &k, &v, o, outputs, &cache->pages, NULL});
    return mha_scratch_end(context, mark, status);
}
