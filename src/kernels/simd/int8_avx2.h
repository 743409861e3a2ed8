/* AVX2: its products of bytes saturate, so numbers are of 16 bits here, two a dword, and exact. The
 * names are those of every int8_*.h; see int8_portable.h for what each does. */
#ifndef MHAI_SIMD_INT8_H
#define MHAI_SIMD_INT8_H

#include "kernels/simd/simd_avx2.h"

typedef __m256i vi, vi_sums, vs;
typedef uint16_t weight;
enum { GROUP = 2, KEY_OFFSET = 0, SUM_VECTORS = TILE_VECTORS };

static inline vi vi_zero(void)
{
    return _mm256_setzero_si256();
}
static inline vi vi_set1(int32_t x)
{
    return _mm256_set1_epi32(x);
}
static inline vi_sums vi_sums_set1(int32_t x)
{
    return vi_set1(x);
}
static inline vi vi_sums_total(vi_sums sums)
{
    return sums;
}
static inline vi vi_load(const int32_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}
static inline void vi_store(int32_t *p, vi x)
{
    _mm256_storeu_si256((__m256i *)(void *)p, x);
}
static inline vi vi_add(vi a, vi b)
{
    return _mm256_add_epi32(a, b);
}
static inline vi vi_pack(const vi x[GROUP])
{
    return _mm256_or_si256(_mm256_and_si256(x[0], _mm256_set1_epi32(65535)),
                           _mm256_slli_epi32(x[1], 16));
}
/* Each byte becomes the upper one of 16 bits, and is shifted down. */
static inline __attribute__((always_inline)) vi vi_weights(vi four, int part)
{
    const __m256i places = _mm256_broadcastsi128_si256(
        part ? _mm_setr_epi8(-1, 2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15)
             : _mm_setr_epi8(-1, 0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13));
    return _mm256_srai_epi16(_mm256_shuffle_epi8(four, places), 8);
}
/* As one, lest gcc 12 loads all rows first, and has no registers left for the sums. The products may
 * take the register of a or b: sums, columns, a row and they are all sixteen. */
static inline __attribute__((always_inline)) vi vi_products(vi sum, vi a, vi b)
{
    vi products;
    __asm__("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0"
            : "+x"(sum), "=x"(products)
            : "x"(a), "x"(b));
    return sum;
}
static inline __attribute__((always_inline)) vi vi_dot_keys(vi sum, vi query, vi keys)
{
    return vi_products(sum, query, keys);
}
static inline __attribute__((always_inline)) vi vi_dot_values(vi sum, vi weights, vi values)
{
    return vi_products(sum, weights, values);
}

static inline vf vi_float(vi a)
{
    return _mm256_cvtepi32_ps(a);
}
static inline vi vf_int(vf a)
{
    return _mm256_cvtps_epi32(a);
}

static inline vs vs_set1(int16_t x)
{
    return _mm256_set1_epi16(x);
}
static inline vs vs_of(vi low, vi high)
{
    return _mm256_packs_epi32(low, high);
}
static inline vs vs_add(vs a, vs b)
{
    return _mm256_add_epi16(a, b);
}
static inline vs vs_and(vs a, vs b)
{
    return _mm256_and_si256(a, b);
}
static inline vs vs_times(vs a, vs b)
{
    return _mm256_mulhrs_epi16(a, b);
}
static inline vs vs_left4(vs a)
{
    return _mm256_slli_epi16(a, 4);
}
static inline vs vs_right11(vs a)
{
    return _mm256_srai_epi16(a, 11);
}

/* From a table: no shift of 16-bit lanes by each other. Low bytes for n < 8, high ones for 8 and 9.
 * A table's byte is 0 where the index is negative. */
static inline vs vs_power(vs n)
{
    const __m256i low = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(1, 2, 4, 8, 16, 32, 64, -128, 0, 0, 0, 0, 0, 0, 0, 0));
    const __m256i high =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0));
    const __m256i low_byte = _mm256_set1_epi16(255);
    return _mm256_or_si256(_mm256_and_si256(_mm256_shuffle_epi8(low, n), low_byte),
                           _mm256_slli_epi16(_mm256_shuffle_epi8(high, n), 8));
}

/* Packing works on halves of a register; they are put into the keys' order here. */
static inline vi store_weights(weight *p, vs first, vs second, vi sum)
{
    const __m256i ones = _mm256_set1_epi16(1);
    vi_store((int32_t *)(void *)p, _mm256_permute4x64_epi64(first, 0xD8));
    vi_store((int32_t *)(void *)(p + 16), _mm256_permute4x64_epi64(second, 0xD8));
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(first, ones));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(second, ones));
}

static inline void store_small(int32_t *p, vi x)
{
    __m256i pairs = _mm256_permute4x64_epi64(_mm256_packs_epi32(x, x), 0xD8);
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_castsi256_si128(pairs));
}
static inline int32_t vi_total(vi x)
{
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xB1)));
}

#endif
