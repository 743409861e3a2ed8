/* What the module layer may know of the cache: keys and values as attention wants them. */
#ifndef MHAI_KV_CACHE_H
#define MHAI_KV_CACHE_H

#include <multihead/cache.h>

/* Borrowed views [B,Hk,longest,D] and [B,Hk,longest,Dv] of what the sequences hold, longest being
 * the longest length; beyond a sequence's own length there is anything. Valid until the cache
 * changes. */
void mhai_kv_cache_view(const mha_kv_cache *cache, mha_tensor *keys, mha_tensor *values);

#endif
