/* Philox 4x32-10, a counter-based generator (Salmon et al. 2011): four random words per counter and
 * key. It has no state, so the numbers do not depend on tiling or on the order of work. Static
 * inline, because kernels are compiled per instruction set. */
#ifndef MHAI_PHILOX_H
#define MHAI_PHILOX_H

#include <stdint.h>

static inline void mhai_philox(uint32_t word[4], const uint32_t key[2])
{
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * word[0], b = (uint64_t)0xCD9E8D57u * word[2];
        uint32_t high_a = (uint32_t)(a >> 32), high_b = (uint32_t)(b >> 32);
        uint32_t next0 = high_b ^ word[1] ^ k0, next2 = high_a ^ word[3] ^ k1;
        word[1] = (uint32_t)b;
        word[3] = (uint32_t)a;
        word[0] = next0;
        word[2] = next2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

/* Attention dropout: the random words of keys 4 group .. 4 group + 3 in a row. */
static inline void mhai_dropout_words(uint32_t word[4], const uint32_t seed[2], uint32_t batch,
                                      uint32_t head, uint32_t query, int64_t group)
{
    word[0] = (uint32_t)group;
    word[1] = query;
    word[2] = head;
    word[3] = batch;
    mhai_philox(word, seed);
}

#endif
