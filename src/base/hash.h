/* FNV-1a, 64 bits, to compare data between ranks. Not collision-resistant. */
#ifndef MHAI_HASH_H
#define MHAI_HASH_H

#include <stddef.h>
#include <stdint.h>

static const uint64_t MHAI_HASH_START = UINT64_C(14695981039346656037);

/* Continue a hash with these bytes. */
static inline uint64_t mhai_hash(uint64_t hash, const void *bytes, size_t count)
{
    const unsigned char *at = bytes;
    for (size_t i = 0; i < count; i++) hash = (hash ^ at[i]) * UINT64_C(1099511628211);
    return hash;
}

#endif
