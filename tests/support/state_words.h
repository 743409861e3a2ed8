/* The words of a state (multihead/head_state.h), for tests that alter them. */
#ifndef TEST_STATE_WORDS_H
#define TEST_STATE_WORDS_H

#include <stddef.h>
#include <stdint.h>

static inline uint64_t state_word(const uint8_t *bytes, size_t at)
{
    uint64_t word = 0;
    for (int i = 0; i < 8; i++) word |= (uint64_t)bytes[8 * at + (size_t)i] << 8 * i;
    return word;
}

static inline void state_set_word(uint8_t *bytes, size_t at, uint64_t word)
{
    for (int i = 0; i < 8; i++) bytes[8 * at + (size_t)i] = (uint8_t)(word >> 8 * i);
}

/* Correct the checksum, as defined in the header. */
static inline void state_seal(uint8_t *bytes, size_t words)
{
    uint64_t h = UINT64_C(0xCBF29CE484222325);
    for (size_t i = 0; i + 1 < words; i++) {
        h = (h ^ state_word(bytes, i)) * UINT64_C(0x9E3779B97F4A7C15);
        h ^= h >> 32;
    }
    state_set_word(bytes, words - 1, h);
}

#endif
