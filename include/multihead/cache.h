/* multihead: a cache of keys and values, for decoding step by step.
 *
 * One block of memory holds up to `capacity` keys and values for each key/value head of each
 * sequence; each sequence has its own length. Generation appends the keys and values of its new
 * tokens and attends with their queries; cross-attention appends once and attends at every step.
 *
 *   mha_kv_cache_append(cache, &k, &v, NULL);                          n new positions
 *   mha_kv_cache_attention(context, cache, &causal, &q, &o, NULL);     their n queries
 *
 * Appending and attending in pieces of any size, down to one position, gives the bits of the whole
 * causal sequence at once: a row's arithmetic depends only on the positions of its keys
 * (attention.h; docs/numerics.md 1 has the cost).
 *
 * The memory layout of keys is private (they may become packed panels or pages), so there is no
 * view of them. Keys are stored as given: apply RoPE before appending. Letters as in attention.h.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_CACHE_H
#define MULTIHEAD_CACHE_H

#include <multihead/attention.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mha_kv_cache_desc {
    uint32_t struct_size;
    uint32_t reserved;      /* 0 */
    int64_t batch;          /* B, sequences; required, like the next three */
    int64_t kv_heads;       /* Hk */
    int64_t capacity;       /* maximum number of positions per sequence */
    int64_t head_dim;       /* D */
    int64_t value_head_dim; /* Dv; 0: D */
} mha_kv_cache_desc;

typedef struct mha_kv_cache mha_kv_cache;

/**
 * Create an empty cache.
 *
 * Memory   the caller owns *cache; B Hk capacity (D + Dv) floats from the context's allocator,
 *          which must outlive the cache (the context need not). They are not touched before they
 *          are used.
 * Errors   MHA_ERR_NULL, _ARGUMENT (struct_size, a number below 1), _UNSUPPORTED, _SIZE (the
 *          product overflows), _NOMEM.
 * Threads  as mha_context_create().   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_kv_cache_create(mha_context *context,
                                                     const mha_kv_cache_desc *desc,
                                                     mha_kv_cache **cache);

/** Destroy a cache; NULL is fine. Memory frees all. Errors none. Threads no other thread may be
 * using it. Since 0.1 */
MHA_API void mha_kv_cache_destroy(mha_kv_cache *cache);

/** The description with every default filled in. Memory fills *desc. Errors none. Threads any.
 * Since 0.1 */
MHA_API void mha_kv_cache_describe(const mha_kv_cache *cache, mha_kv_cache_desc *desc);

/** Bytes that the keys and values take at full capacity: B Hk capacity (D + Dv) elements. Memory
 * none. Errors none. Threads any. Since 0.1 */
MHA_API size_t mha_kv_cache_bytes(const mha_kv_cache *cache);

/** The number of positions that each sequence holds, [B]. Memory owned by the cache and updated
 * with it. Errors none. Threads any while the cache does not change. Since 0.1 */
MHA_API const int64_t *mha_kv_cache_lengths(const mha_kv_cache *cache);

/** Empty every sequence, keeping the memory. Memory none. Errors none. Threads one per cache.
 * Since 0.1 */
MHA_API void mha_kv_cache_reset(mha_kv_cache *cache);

/**
 * Discard the positions of sequence b from `length` on (a rejected draft, a new turn).
 *
 * Memory   none.   Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT if there is no sequence b or it holds
 *                           fewer than length positions.
 * Threads  one per cache.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_kv_cache_truncate(mha_kv_cache *cache, int64_t b,
                                                       int64_t length);

/**
 * Append positions to every sequence.
 *
 *   k [B,Hk,n,D] in    v [B,Hk,n,Dv] in    any strides, last axis contiguous
 *
 * each f32, f16 or bf16; the cache holds them as f32, exactly.
 *
 * counts [B]: sequence b takes the first counts[b] of the n positions, 0 .. n; NULL: all.
 *
 * Memory   copied; the caller may reuse k and v at once. Nothing is allocated.
 * Errors   MHA_ERR_NULL, _SHAPE, _DTYPE, _STRIDE, _SIZE (k, v reach beyond the address space),
 *          MHA_ERR_ARGUMENT (a count); MHA_ERR_SIZE "cache: sequence 1 holds 30 of 32 positions, 5
 *          more do not fit". On any error every sequence is unchanged.
 * Threads  one per cache.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_kv_cache_append(mha_kv_cache *cache, const mha_tensor *k,
                                                     const mha_tensor *v, const int64_t *counts);

/**
 * mha_attention_forward() of q on the cached keys and values.
 *
 *   q [B,H,T,D] in    o [B,H,T,Dv] out    types and outputs as there; S is the longest length
 *
 * desc selects the kind of attention, likewise (NULL: every query sees all keys of its sequence, as
 * in cross-attention; generation sets MHA_ATTENTION_CAUSAL). key_lengths are the
 * cache's. If anything depends on positions (causal, window, ALiBi, T5, Shaw, the outputs diagonal
 * and offset_mass), q_offsets NULL and q_offset 0 mean that the queries are the last T positions of
 * each sequence: q_offsets[b] = length[b] - T. After an append with counts, set q_offsets to the
 * lengths before it: query t then belongs to the position of row t of k, and rows from counts[b]
 * on are meaningless.
 *
 * Memory   as mha_attention_forward(), and B numbers of scratch. Outputs must not overlap q.
 * Errors   as mha_attention_forward(); MHA_ERR_NULL (cache); MHA_ERR_ARGUMENT if desc has
 *          key_lengths, MHA_ERR_UNSUPPORTED if it has a ragged batch. No output byte is written
 *          on an error.
 * Threads  one call at a time per context; any number may read a cache that does not change.
 * Since    0.1
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
