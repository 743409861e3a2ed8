/* A cache of keys and values: pages of runs (attention/attn_pages.h), a page table per sequence,
 * and a reference count per page. */
#ifndef MHAI_KV_CACHE_H
#define MHAI_KV_CACHE_H

#include "attention/attn_pages.h"

#include <multihead/cache.h>

struct mha_kv_cache {
    mha_allocator allocator;
    mha_kv_cache_desc desc; /* every default filled in */
    mha_kv_cache_sizes sizes;
    mhai_attn_pages pages;
    unsigned char *memory; /* lengths, references, free pages, tables; then keys, then values */
    int64_t *lengths;      /* [B] */
    int64_t *discarded;  /* [B] entries before this one refer to the empty page, except those of the
                          * sinks */
    int32_t *references; /* [pages] number of sequences that hold the page */
    int32_t *free_pages; /* a stack */
    int64_t free_count;
    int32_t *table; /* [B][entries]; unused entries are undefined */
};

/* A page of zeros after all others, used for positions that the window discarded. */
static inline int32_t mhai_kv_empty_page(const mha_kv_cache *cache)
{
    return (int32_t)cache->desc.pages;
}

/* Number of pages of the sinks. */
static inline int64_t mhai_kv_sink_pages(const mha_kv_cache *cache)
{
    return mhai_ceil_div(cache->desc.sink_keys, cache->desc.page_size);
}

/* Rows to append. Of n rows, sequence b takes counts[b] rows (NULL: all remaining rows), starting
 * at firsts[b] (NULL: 0). */
typedef struct mhai_kv_rows {
    int64_t n;
    const int64_t *firsts, *counts;
} mhai_kv_rows;

static inline int64_t mhai_kv_first(const mhai_kv_rows *rows, int64_t b)
{
    return rows->firsts ? rows->firsts[b] : 0;
}

static inline int64_t mhai_kv_count(const mhai_kv_rows *rows, int64_t b)
{
    return rows->counts ? rows->counts[b] : rows->n - mhai_kv_first(rows, b);
}

/* ---- kv_pages.c: the owners of pages -------------------------------------------------------- */

/* Empty the cache and free all pages. */
void mhai_kv_pages_reset(mha_kv_cache *cache);

/* Check that sequence b can be truncated to `length` positions without needing discarded
 * positions. */
MHA_NODISCARD mha_status mhai_kv_pages_check_truncate(const mha_kv_cache *cache, int64_t b,
                                                      int64_t length);

/* The greatest of the lengths up to `length`, at least 0, that pass this check. */
int64_t mhai_kv_pages_restorable(const mha_kv_cache *cache, int64_t b, int64_t length);

/* Truncate sequence b to `length` positions. */
void mhai_kv_pages_truncate(mha_kv_cache *cache, int64_t b, int64_t length);

/* Check that there are enough free pages for the rows of all sequences. */
MHA_NODISCARD mha_status mhai_kv_pages_check(const mha_kv_cache *cache, const mhai_kv_rows *rows);

/* After this check, free pages that no new position sees, and give each sequence unshared pages for
 * its rows. Cannot fail. Lengths do not change. */
void mhai_kv_pages_take(mha_kv_cache *cache, const mhai_kv_rows *rows);

/* ---- kv_rows.c: positions in runs ----------------------------------------------------------- */

/* Store row `from` as k or v at `position` of head h of sequence b. The page must exist. */
void mhai_kv_store_key(const mha_kv_cache *cache, int64_t b, int64_t h, int64_t position,
                       mha_dtype type, const void *from);
void mhai_kv_store_value(const mha_kv_cache *cache, int64_t b, int64_t h, int64_t position,
                         mha_dtype type, const void *from);

/* Read the value at `position` of head h of sequence b. */
void mhai_kv_load_value(const mha_kv_cache *cache, int64_t b, int64_t h, int64_t position,
                        float *to);

/* Overwrite a stored key in the same way. Its page must not be shared. */
void mhai_kv_replace_key(const mha_kv_cache *cache, int64_t b, int64_t h, int64_t position,
                         mha_dtype type, const void *from);

/* ---- kv_cache.c ----------------------------------------------------------------------------- */

/* Check the rows of sequence b, and count them. */
MHA_NODISCARD mha_status mhai_kv_check_sequence(const mhai_kv_rows *rows, int64_t b,
                                                int64_t *count);

/* Check that every sequence has room for its rows. */
MHA_NODISCARD mha_status mhai_kv_cache_check_rows(const mha_kv_cache *cache,
                                                  const mhai_kv_rows *rows);

/* Keys or values of this many positions as a tensor for attention: only its shape
 * is used, not its memory. */
mha_tensor mhai_kv_cache_shape(const mha_kv_cache *cache, int64_t positions, int64_t width);

/* Set the default positions of queries, the last T positions of each of B
 * sequences, in offsets [B]. */
void mhai_kv_cache_place_queries(mha_attention_desc *desc, const mha_attention_outputs *outputs,
                                 const int64_t *lengths, int64_t B, int64_t T, int64_t *offsets);

/* mha_kv_cache_attention(). Rows before firsts[b] are padding, which may see less than the window.
 * firsts NULL: no padding. */
MHA_NODISCARD mha_status mhai_kv_cache_attend(mha_context *context, const mha_kv_cache *cache,
                                              const mha_attention_desc *desc, const int64_t *firsts,
                                              const mha_tensor *q, const mha_tensor *o,
                                              const mha_attention_outputs *outputs);

/* mha_attention_explain() of a call with the cache, for sequences of these lengths. */
MHA_NODISCARD mha_status mhai_kv_cache_explain(const mha_context *context,
                                               const mha_kv_cache *cache, const int64_t *lengths,
                                               const mha_attention_desc *desc, const mha_tensor *q,
                                               const mha_tensor *o,
                                               const mha_attention_outputs *outputs,
                                               mha_attention_plan *plan);

#endif
