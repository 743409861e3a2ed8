/* AVX-512 with VNNI: bytes, four per dword. int8_portable.h documents the names. */
#ifndef MHAI_SIMD_INT8_H
#define MHAI_SIMD_INT8_H

#include "kernels/simd/simd_avx512.h"

#if !defined(__AVX512VNNI__)
#error "int8_avx512.h is compiled without AVX-512 VNNI"
#endif

typedef __m512i vi, vi_sums;
enum { GROUP = 4, WEIGHT_OFFSET = 128, SUM_VECTORS = TILE_VECTORS };

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
static inline vi vi_add(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}
static inline vi vi_weights(vi four, int part)
{
    (void)part;
    return _mm512_xor_si512(four, _mm512_set1_epi32((int32_t)0x80808080u));
}

/* asm, because with the intrinsic gcc 12 moves every accumulator to the stack and back. */
static inline __attribute__((always_inline)) vi vi_dot(vi sum, vi inputs, vi weights)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(weights), "v"(inputs));
    return sum;
}
static inline vf vi_float(vi a)
{
    return _mm512_cvtepi32_ps(a);
}
static inline vi vf_int(vf a)
{
    return _mm512_cvtps_epi32(a);
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
