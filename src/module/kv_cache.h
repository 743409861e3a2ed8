/* What the module layer may know of the cache: keys and values as attention wants them. */
#ifndef MHAI_KV_CACHE_H
#define MHAI_KV_CACHE_H

#include <multihead/cache.h>

/* Borrowed views [B,Hk,longest,D] and [B,Hk,longest,Dv] of what the sequences hold, longest being
 * the longest length; beyond a sequence's own length there is anything. Valid until the cache
 * changes. */
void mhai_kv_cache_view(const mha_kv_cache *cache, mha_tensor *keys, mha_tensor *values);

/* May sequence b take counts[b] (NULL: n) of n new positions? */
MHA_NODISCARD mha_status mhai_kv_cache_check_counts(const mha_kv_cache *cache, int64_t n,
                                                    const int64_t *counts);

/* Sequence b holds its first length positions again, which it held before. */
void mhai_kv_cache_cut(mha_kv_cache *cache, int64_t b, int64_t length);

#endif
