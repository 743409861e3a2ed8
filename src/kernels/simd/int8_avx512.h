/* AVX-512 with VNNI: bytes, four a dword. The names are those of every int8_*.h; see
 * int8_portable.h for what each does. */
#ifndef MHAI_SIMD_INT8_H
#define MHAI_SIMD_INT8_H

#include "kernels/simd/simd_avx512.h"

#if !defined(__AVX512VNNI__)
#error "int8_avx512.h is compiled without AVX-512 VNNI"
#endif

typedef __m512i vi, vi_sums, vs;
typedef uint8_t weight;
enum { GROUP = 4, KEY_OFFSET = 128, SUM_VECTORS = TILE_VECTORS };

static inline vi vi_zero(void)
{
    return _mm512_setzero_si512();
}
static inline vi vi_set1(int32_t x)
{
    return _mm512_set1_epi32(x);
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
    return _mm512_loadu_si512(p);
}
static inline void vi_store(int32_t *p, vi x)
{
    _mm512_storeu_si512(p, x);
}
static inline vi vi_add(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}
static inline vi vi_pack(const vi x[GROUP])
{
    const vi byte = _mm512_set1_epi32(255);
    vi low = _mm512_or_si512(_mm512_and_si512(x[0], byte),
                             _mm512_slli_epi32(_mm512_and_si512(x[1], byte), 8));
    vi high = _mm512_or_si512(_mm512_and_si512(x[2], byte), _mm512_slli_epi32(x[3], 8));
    return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

static inline vi vi_weights(vi four, int part)
{
    (void)part;
    return _mm512_xor_si512(four, _mm512_set1_epi32((int32_t)0x80808080u));
}

/* Not the intrinsic: gcc 12 moves every accumulator to the stack and back around it. */
static inline __attribute__((always_inline)) vi vi_products(vi sum, vi bytes, vi signed_bytes)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(bytes), "v"(signed_bytes));
    return sum;
}
static inline __attribute__((always_inline)) vi vi_dot_keys(vi sum, vi query, vi keys)
{
    return vi_products(sum, keys, query);
}
static inline __attribute__((always_inline)) vi vi_dot_values(vi sum, vi weights, vi values)
{
    return vi_products(sum, weights, values);
}

static inline vf vi_float(vi a)
{
    return _mm512_cvtepi32_ps(a);
}
static inline vi vf_int(vf a)
{
    return _mm512_cvtps_epi32(a);
}

static inline vs vs_set1(int16_t x)
{
    return _mm512_set1_epi16(x);
}
static inline vs vs_of(vi low, vi high)
{
    return _mm512_packs_epi32(low, high);
}
static inline vs vs_add(vs a, vs b)
{
    return _mm512_add_epi16(a, b);
}
static inline vs vs_and(vs a, vs b)
{
    return _mm512_and_si512(a, b);
}
static inline vs vs_times(vs a, vs b)
{
    return _mm512_mulhrs_epi16(a, b);
}
static inline vs vs_left4(vs a)
{
    return _mm512_slli_epi16(a, 4);
}
static inline vs vs_right11(vs a)
{
    return _mm512_srai_epi16(a, 11);
}
static inline vs vs_power(vs n)
{
    return _mm512_sllv_epi16(_mm512_set1_epi16(1), n);
}

/* Packing works on quarters of a register; the last step puts its dwords into the keys' order. */
static inline vi store_weights(weight *p, vs first, vs second, vi sum)
{
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i bytes = _mm512_packus_epi16(first, second);
    _mm512_storeu_si512(p, _mm512_permutexvar_epi32(order, bytes));
    return vi_products(sum, bytes, _mm512_set1_epi8(1));
}

static inline void store_small(int32_t *p, vi x)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(x));
}
static inline int32_t vi_total(vi x)
{
    return _mm512_reduce_add_epi32(x);
}

#endif
