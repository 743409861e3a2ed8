/* multihead: a cache of keys and values, for decoding step by step.
 *
 * A cache holds up to `capacity` keys and values for each key/value head of each sequence; each
 * sequence has its own length. Generation appends the keys and values of its new tokens and attends
 * with their queries; cross-attention appends once and attends at every step.
 *
 * Pages. Memory is a pool of pages of `page_size` positions; each sequence has a table of the pages
 * that it holds. By default a page is as long as the capacity, and each sequence has one. With
 * small pages, sequences of different lengths share a pool that is smaller than the sum of their
 * capacities. They can also share a prefix: mha_kv_cache_fork() copies a table, not the pages, and
 * a shared page is copied when one of its owners writes to it (copy-on-write). Results are
 * bit-identical for every page size and order of pages. Pages of a multiple of 16 positions are
 * read in place; others are gathered first.
 *
 * Windows. With `window` W a cache keeps the last W positions, including the query's own, and the
 * first sink_keys (Beltagy et al. 2020; Xiao et al. 2024): an append frees the pages that neither
 * its rows nor later positions see. Positions remain those of the text, and results are
 * bit-identical to those of a cache that keeps all positions. The capacity remains the maximum
 * number of positions; the table takes four bytes per page of it. `pages` determines the memory:
 *
 *   ceil(sink_keys / page_size) + ceil((W - 1 + max_append) / page_size) + 1      per sequence
 *
 * suffice for any text if no append exceeds max_append positions. page_size 0 then means 32.
 *
 * Types. Numbers are stored as f32, f16, bf16 or i8 and widened to f32 in registers. f16 and bf16
 * round to nearest, ties to even. With i8, for each position of each head, of k and of v,
 *
 *   s = max_i |x_i| / 127, rounded up to 17 significant bits
 *   n_i = x_i / s rounded to the nearest integer
 *
 * and x_i is read as n_i s, which f32 holds exactly: |n_i s - x_i| <= s (1 + 2^-20) / 2. If any x_i
 * is not finite, all become NaN; if all are below 2^-100 in magnitude, all become 0. Every call
 * reads the stored numbers, so results are bit-identical to those of an f32 cache of the same
 * numbers.
 *
 * One scale per position loses the most accuracy if the channels of the keys differ widely in
 * magnitude, as in many models. With MHA_KV_SCALES_CHANNEL each channel of an aligned run of 16
 * positions has its own scale 2^e: x_i is read as n_i 2^e, with the least e in -126 .. 121 for
 * which all |n_i| are at most 127 (per-channel key scales: Liu et al. 2024, KIVI). Appending a
 * larger number to a run rounds its earlier positions again:
 *
 *   |n_i 2^e - x_i| < 2^e <= max_i |x_i| / 63.75 or 2^-126      the maximum over the run so far
 *
 * if no |x_i| is above 127 * 2^121. The last 15 positions therefore depend on later appends:
 * decoding is not bit-identical to the full pass, but stays within that bound. An element that is
 * not finite makes its channel of the run NaN. A run keeps its scales when a part of it is
 * truncated. Values have a scale per position. page_size is a multiple of 16, or the capacity.
 *
 * Appending and attending in pieces of any size, down to one position, is bit-identical to
 * processing the whole causal sequence at once, except with MHA_KV_SCALES_CHANNEL: a row's
 * arithmetic depends only on the positions of its keys (attention.h; docs/numerics.md 1 has the
 * cost).
 *
 * The layout inside a page is private. Keys are stored as given: apply RoPE before appending.
 * Letters as in attention.h.
 *
 * Example, given mha_context *context, mha_tensor k, mha_tensor v, mha_tensor q, mha_tensor o:
 *
 *   mha_kv_cache_desc desc = MHA_INIT(mha_kv_cache_desc);
 *   desc.batch = 1, desc.kv_heads = 8, desc.capacity = 4096, desc.head_dim = 64;
 *   mha_attention_desc causal = MHA_INIT(mha_attention_desc);
 *   causal.flags = MHA_ATTENTION_CAUSAL;
 *   mha_kv_cache *cache = NULL;
 *   mha_status status = mha_kv_cache_create(context, &desc, &cache);
 *   if (!status) status = mha_kv_cache_append(cache, &k, &v, NULL); // n new positions
 *   if (!status)
 *       status = mha_kv_cache_attention(context, cache, &causal, &q, &o, NULL); // n queries
 *   mha_kv_cache_destroy(cache);
 *
 * Stability: stable from 1.0 (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_CACHE_H
#define MULTIHEAD_CACHE_H

#include <multihead/attention.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The i8 keys that share a scale. */
typedef enum mha_kv_scales {
    MHA_KV_SCALES_POSITION = 0, /* a position of a head */
    MHA_KV_SCALES_CHANNEL = 1   /* a channel of a head in 16 positions */
} mha_kv_scales;

typedef struct mha_kv_cache_desc {
    uint32_t struct_size;
    uint32_t flags;           /* 0 */
    int64_t batch;            /* B, sequences; required, like the next three */
    int64_t kv_heads;         /* Hk */
    int64_t capacity;         /* maximum number of positions per sequence */
    int64_t head_dim;         /* D */
    int64_t value_head_dim;   /* Dv; 0: D */
    mha_dtype type;           /* as stored: MHA_F32 (0), MHA_F16, MHA_BF16 or MHA_I8 */
    uint32_t reserved;        /* 0 */
    int64_t page_size;        /* positions per page, at most capacity; 0: capacity, or 32 with a
                                 window */
    int64_t pages;            /* in total; 0: enough to fill all sequences */
    int64_t window;           /* positions that a query sees, its own included; 0: all */
    int64_t sink_keys;        /* with a window: first positions, always kept */
    int64_t max_append;       /* with a window: maximum positions per append; 0: window */
    mha_kv_scales key_scales; /* for MHA_I8 */
    uint32_t reserved2;       /* 0 */
} mha_kv_cache_desc;

/* The memory of a cache, in bytes except `pages`. */
typedef struct mha_kv_cache_sizes {
    uint32_t struct_size;
    uint32_t reserved;
    int64_t pages;
    int64_t page_bytes;  /* keys, values and scales of all heads */
    int64_t scale_bytes; /* of all pages, part of page_bytes */
    int64_t table_bytes; /* lengths, tables and the list of free pages */
    int64_t total_bytes; /* pages * page_bytes + table_bytes, plus page_bytes with a window */
} mha_kv_cache_sizes;

typedef struct mha_kv_cache mha_kv_cache;

/**
 * Create an empty cache.
 *
 * Memory   the caller owns *cache; the bytes of mha_kv_cache_count() and the handle, from the
 *          context's allocator, which must outlive the cache (the context need not). Pages are not
 *          touched before they are used. Nothing is allocated later.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (struct_size, a number below 1), MHA_ERR_DTYPE,
 *          MHA_ERR_UNSUPPORTED, MHA_ERR_SIZE (the product overflows), MHA_ERR_NOMEM.
 * Threads  as mha_context_create().   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_kv_cache_create(mha_context *context,
                                                     const mha_kv_cache_desc *desc,
                                                     mha_kv_cache **cache);

/**
 * The memory that a cache with this description would take.
 *
 * Memory   fills *sizes, whose struct_size must be set.
 * Errors   those of mha_kv_cache_create() except MHA_ERR_NOMEM.
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_kv_cache_count(const mha_kv_cache_desc *desc,
                                                    mha_kv_cache_sizes *sizes);

/** Destroy a cache, or do nothing for NULL. Memory frees all. Errors none. Threads no other thread
 * may be using it. Since 0.1 */
MHA_API void mha_kv_cache_destroy(mha_kv_cache *cache);

/** The description with every default filled in. Memory fills *desc. Errors none. Threads any.
 * Since 0.1 */
MHA_API void mha_kv_cache_describe(const mha_kv_cache *cache, mha_kv_cache_desc *desc);

/** total_bytes of mha_kv_cache_count(). Memory none. Errors none. Threads any. Since 0.1 */
MHA_API size_t mha_kv_cache_bytes(const mha_kv_cache *cache);

/** The number of positions that each sequence holds, [B]. Memory owned by the cache and updated
 * with it. Errors none. Threads any while the cache does not change. Since 0.1 */
MHA_API const int64_t *mha_kv_cache_lengths(const mha_kv_cache *cache);

/** Empty every sequence, keeping the memory. Memory none. Errors none. Threads one per cache.
 * Since 0.1 */
MHA_API void mha_kv_cache_reset(mha_kv_cache *cache);

/**
 * Discard the positions of sequence b from `length` on (a rejected draft, a new turn). Pages it no
 * longer needs become free; length 0 frees all of them. With a window, length may be where the last
 * append began, any earlier position that its pages still hold, or one within the sinks.
 *
 * Memory   none.   Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT if there is no sequence b, it holds
 *                           fewer than length positions, or the window at length includes
 *                           positions that were discarded.
 * Threads  one per cache.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_kv_cache_truncate(mha_kv_cache *cache, int64_t b,
                                                       int64_t length);

/**
 * Make sequence `to` the first `length` positions of sequence `from`: a branch, or a prompt that
 * several sequences share. The previous content of `to` is discarded. No page is copied until a
 * sequence appends to a shared one.
 *
 * Memory   none.   Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT if there is no such sequence, both are
 *                           the same, or `from` cannot be cut to length.
 * Threads  one per cache.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_kv_cache_fork(mha_kv_cache *cache, int64_t from, int64_t to,
                                                   int64_t length);

/** The pages of sequence b in order, *count of them; NULL if there is no sequence b. An entry equal
 * to `pages` of the description is a page that a window has discarded. Memory owned by the cache
 * and updated with it. Errors none. Threads any while the cache does not change. Since 0.1 */
MHA_API const int32_t *mha_kv_cache_pages(const mha_kv_cache *cache, int64_t b, int64_t *count);

/**
 * Set sequence b to the `length` positions in these pages, in this order: a table kept by the
 * caller, for example the pages of a cached prefix that other sequences hold. The previous content
 * of b is discarded. Positions that were never appended to these pages have unspecified content,
 * finite or not. With a window, entries between the sinks' last page and the window's first page,
 * which no later query sees, may equal `pages` of the description.
 *
 *   pages [count], count = ceil(length / page_size)
 *
 * Memory   copied.
 * Errors   MHA_ERR_NULL; MHA_ERR_SIZE (length is above the capacity); MHA_ERR_ARGUMENT (no sequence
 *          b; a wrong count): "pages[3] is 77, expected 0..63", "pages[3] is 5, as is an earlier
 *          one", "pages[3] is 5, which no sequence holds". On any error every sequence is
 *          unchanged.
 * Threads  one per cache.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_kv_cache_assign(mha_kv_cache *cache, int64_t b,
                                                     const int32_t *pages, int64_t count,
                                                     int64_t length);

/** The number of free pages. Memory none. Errors none. Threads as mha_kv_cache_pages(). Since
 * 0.1 */
MHA_API int64_t mha_kv_cache_free_pages(const mha_kv_cache *cache);

/**
 * Append positions to every sequence.
 *
 *   k [B,Hk,n,D] in    v [B,Hk,n,Dv] in    any strides, last axis contiguous
 *
 * each f32, f16 or bf16; the cache converts them to its type.
 *
 * counts [B]: sequence b takes the first counts[b] of the n positions, 0 .. n; NULL: all.
 *
 * Memory   copied; the caller may reuse k and v at once. Nothing is allocated.
 * Errors   MHA_ERR_NULL, MHA_ERR_SHAPE, MHA_ERR_DTYPE, MHA_ERR_STRIDE, MHA_ERR_SIZE (k or v exceeds
 *          the address space), MHA_ERR_ARGUMENT (a count); MHA_ERR_SIZE "cache: sequence 1 holds 30
 *          of 32 positions, 5 more do not fit"; MHA_ERR_NOMEM "cache: 3 pages are needed, 2 of 64
 *          are free". On any error every sequence is unchanged.
 * Threads  one per cache.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_kv_cache_append(mha_kv_cache *cache, const mha_tensor *k,
                                                     const mha_tensor *v, const int64_t *counts);

/**
 * mha_kv_cache_append() of some of the rows: sequence b takes the rows firsts[b] ..
 * firsts[b] + counts[b] - 1, so that padding on either side is never stored.
 *
 *   firsts [B], 0 .. n; NULL: 0    counts [B], 0 .. n - firsts[b]; NULL: n - firsts[b]
 *
 * After an append of sequences padded on the left (counts NULL), the queries of all n rows have the
 * positions that mha_kv_cache_attention() assigns by default: the last row is the last position of
 * its sequence. Rows of padding see no key and give 0.
 *
 * Memory   as mha_kv_cache_append().   Errors   as there, and MHA_ERR_ARGUMENT (firsts).
 * Threads  as there.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_kv_cache_append_rows(mha_kv_cache *cache, const mha_tensor *k,
                                                          const mha_tensor *v,
                                                          const int64_t *firsts,
                                                          const int64_t *counts);

/**
 * mha_attention_forward() of q on the cached keys and values.
 *
 *   q [B,H,T,D] in    o [B,H,T,Dv] out    types and outputs as there; S is the longest length;
 *                                         scores of keys that a sequence does not hold are -inf
 *
 * desc selects the kind of attention (NULL: every query sees all keys of its sequence, as in
 * cross-attention; generation sets MHA_ATTENTION_CAUSAL). key_lengths are the
 * cache's. If anything depends on positions (causal, window, ALiBi, T5, Shaw, the outputs diagonal
 * and offset_mass), q_offsets NULL and q_offset 0 mean that the queries are the last T positions of
 * each sequence: q_offsets[b] = length[b] - T. After an append with counts, set q_offsets to the
 * lengths before it: query t then has the position of row t of k, and rows from counts[b] on are
 * meaningless.
 *
 * With a window, a desc without MHA_ATTENTION_WINDOW uses that of the cache; a desc with the flag may
 * only narrow it.
 *
 * Memory   as mha_attention_forward(), plus scratch for B numbers. Outputs must not overlap q.
 * Errors   as mha_attention_forward(); MHA_ERR_NULL (cache); MHA_ERR_ARGUMENT if desc has
 *          key_lengths, MHA_ERR_UNSUPPORTED if it has a ragged batch. With a window also
 *          MHA_ERR_ARGUMENT (left_keys or sink_keys include more than the cache keeps, or a query
 *          would see discarded positions), MHA_ERR_UNSUPPORTED (global_keys, global_queries, scores
 *          before masks). No output byte is written on an error.
 * Threads  one call at a time per context; any number may read a cache that does not change. Since
 *          0.1
 */
MHA_API MHA_NODISCARD mha_status mha_kv_cache_attention(mha_context *context,
                                                        const mha_kv_cache *cache,
                                                        const mha_attention_desc *desc,
                                                        const mha_tensor *q, const mha_tensor *o,
                                                        const mha_attention_outputs *outputs);

#ifdef __cplusplus
}
#endif
#endif
