/* AVX2: byte products saturate, so this uses 16-bit numbers, two per dword, whose products are
 * exact. int8_portable.h documents the names. */
#ifndef MHAI_SIMD_INT8_H
#define MHAI_SIMD_INT8_H

#include "kernels/simd/simd_avx2.h"

typedef __m256i vi, vi_sums;
enum { GROUP = 2, WEIGHT_OFFSET = 0, SUM_VECTORS = TILE_VECTORS };

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
static inline vi vi_add(vi a, vi b)
{
    return _mm256_add_epi32(a, b);
}
/* Move each byte to the upper half of 16 bits, then shift it right arithmetically. */
static inline __attribute__((always_inline)) vi vi_weights(vi four, int part)
{
    const __m256i places = _mm256_broadcastsi128_si256(
        part ? _mm_setr_epi8(-1, 2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15)
             : _mm_setr_epi8(-1, 0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13));
    return _mm256_srai_epi16(_mm256_shuffle_epi8(four, places), 8);
}
/* A single asm statement, because gcc 12 would load all rows first and spill the sums. The product
 * may overwrite the register of a factor: sums, columns, a row and the product take all 16. */
static inline __attribute__((always_inline)) vi vi_dot(vi sum, vi inputs, vi weights)
{
    vi products;
    __asm__("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0"
            : "+x"(sum), "=x"(products)
            : "x"(inputs), "x"(weights));
    return sum;
}
static inline vf vi_float(vi a)
{
    return _mm256_cvtepi32_ps(a);
}
static inline vi vf_int(vf a)
{
    return _mm256_cvtps_epi32(a);
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
