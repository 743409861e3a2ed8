/* SplitMix64 (Steele, Lea and Flood 2014), a random generator with a 64-bit state. */
#ifndef MHAI_SPLIT_MIX_H
#define MHAI_SPLIT_MIX_H

#include <stdint.h>

static inline uint64_t mhai_split_mix(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

#endif
