/* AVX-512: one register holds all 16 lanes. simd_portable.h documents the names. */
#ifndef MHAI_SIMD_H
#define MHAI_SIMD_H

#if !defined(__AVX512F__) || !defined(__AVX512DQ__) || !defined(__AVX512BW__) || \
    !defined(__AVX512BF16__)
#error "simd_avx512.h is compiled without AVX-512 F, DQ, BW and BF16"
#endif

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

typedef __m512 vf;
#define INNER_STEPS 1
enum { VF_LANES = 16, BLOCK_ROWS = 14, TILE_VECTORS = 2, TILE_ROWS = 14 };

#define scalar_fma(a, b, c) __builtin_fmaf(a, b, c)

static inline vf vf_zero(void)
{
    return _mm512_setzero_ps();
}
static inline vf vf_set1(float x)
{
    return _mm512_set1_ps(x);
}
static inline vf vf_load1(const float *p)
{
    return vf_set1(*p);
}
static inline vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
static inline void vf_store(float *p, vf x)
{
    _mm512_storeu_ps(p, x);
}

static inline __mmask16 first_lanes(int64_t n)
{
    return (__mmask16)(n >= 16 ? 0xFFFFu : (1u << n) - 1u);
}
static inline vf vf_load_n(const float *p, int64_t n)
{
    return _mm512_maskz_loadu_ps(first_lanes(n), p);
}
static inline void vf_store_n(float *p, int64_t n, vf x)
{
    _mm512_mask_storeu_ps(p, first_lanes(n), x);
}

typedef __m512d vd;
static inline vd vd_load(const float *p)
{
    return _mm512_cvtps_pd(_mm256_loadu_ps(p));
}
static inline void vd_store(float *p, vd x)
{
    _mm256_storeu_ps(p, _mm512_cvtpd_ps(x));
}
static inline vd vd_low(vf x)
{
    return _mm512_cvtps_pd(_mm512_castps512_ps256(x));
}
static inline vd vd_high(vf x)
{
    return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
}
static inline vf vf_join(vd low, vd high)
{
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(low)), _mm512_cvtpd_ps(high),
                              1);
}

static inline vf vf_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
static inline void vf_store_f16(uint16_t *p, vf x)
{
    _mm256_storeu_si256((__m256i *)(void *)p,
                        _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline vf vf_load_i8(const int8_t *p)
{
    const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}
static inline vf vf_load_bf16(const uint16_t *p)
{
    __m512i half = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(half, 16));
}
static inline void vf_store_bf16(uint16_t *p, vf x)
{
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
    rounded = _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), bits,
                                   _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256((__m256i *)(void *)p,
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}
static inline __attribute__((always_inline)) vf vf_byte(vf bytes, int k)
{
    const __m512i top = _mm512_slli_epi32(_mm512_castps_si512(bytes), (unsigned)(24 - 8 * k));
    return _mm512_cvtepi32_ps(_mm512_and_si512(top, _mm512_set1_epi32(-0x1000000)));
}

static inline vf vf_even_bf16(vf pairs)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pairs), 16));
}
static inline vf vf_odd_bf16(vf pairs)
{
    return _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_castps_si512(pairs), _mm512_set1_epi32(-0x10000)));
}
static inline vf vf_even_f16(vf pairs)
{
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_castps_si512(pairs)));
}
static inline vf vf_odd_f16(vf pairs)
{
    return _mm512_cvtph_ps(
        _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(pairs), 16)));
}
static inline vf vf_swap(vf x)
{
    return _mm512_permute_ps(x, 0xB1);
}
static inline vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
static inline vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}
static inline vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
static inline vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}
static inline vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
/* The instruction broadcasts the factor from memory. A separate broadcast would occupy a port and,
 * with four rows of halves, cost a quarter of the multiply-add throughput (Zen 4). */
#define HAS_FMA1
static inline __attribute__((always_inline)) vf vf_fma1(const float *a, vf b, vf c)
{
    __asm__("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(c) : "v"(b), "m"(*a));
    return c;
}
static inline __attribute__((always_inline)) vf vf_mul1(const float *a, vf b)
{
    __asm__("vmulps %2%{1to16%}, %1, %0" : "=v"(b) : "v"(b), "m"(*a));
    return b;
}
static inline vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}
static inline vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}
static inline vf vf_abs(vf a)
{
    return _mm512_abs_ps(a);
}

typedef __m512 vn;
static inline vn vf_nearest(vf a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline vf vf_whole(vn n)
{
    return n;
}
static inline vf vf_times_power(vf a, vn n)
{
    return _mm512_scalef_ps(a, n);
}
static inline vf vf_where_below(vf a, vf limit, vf yes, vf no)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, limit, _CMP_LT_OQ), no, yes);
}
static inline vf vf_zero_below(vf a, vf limit, vf x)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, limit, _CMP_NLT_UQ), x);
}
static inline vf vf_where_kept(const uint8_t *keep, vf yes, vf no)
{
    __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)keep);
    return _mm512_mask_blend_ps(_mm_test_epi8_mask(bytes, bytes), no, yes);
}

/* Sums and maxima over 16 lanes: i + (i+8), then + (i+4), + (i+2), + (i+1). */
static inline float fold8(__m256 x)
{
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
static inline float vf_sum16(const vf part[1])
{
    return fold8(
        _mm256_add_ps(_mm512_castps512_ps256(part[0]), _mm512_extractf32x8_ps(part[0], 1)));
}
static inline float vf_max16(const vf part[1])
{
    return _mm512_reduce_max_ps(part[0]);
}

static inline __attribute__((always_inline)) void transpose(const vf rows[16], float *out,
                                                            int64_t ld)
{
    __m512 a[16], b[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
        b[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        a[i] = _mm512_shuffle_ps(b[i], b[i + 2], 0x44);
        a[i + 1] = _mm512_shuffle_ps(b[i], b[i + 2], 0xEE);
        a[i + 2] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0x44);
        a[i + 3] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0xEE);
    }
    /* 128-bit lane q of a[4g + c] holds column 4q + c of rows 4g .. 4g+3. */
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        __m512 low01 = _mm512_shuffle_f32x4(a[c], a[4 + c], 0x44);
        __m512 high01 = _mm512_shuffle_f32x4(a[c], a[4 + c], 0xEE);
        __m512 low23 = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0x44);
        __m512 high23 = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0xEE);
        _mm512_storeu_ps(out + (c + 0) * ld, _mm512_shuffle_f32x4(low01, low23, 0x88));
        _mm512_storeu_ps(out + (c + 4) * ld, _mm512_shuffle_f32x4(low01, low23, 0xDD));
        _mm512_storeu_ps(out + (c + 8) * ld, _mm512_shuffle_f32x4(high01, high23, 0x88));
        _mm512_storeu_ps(out + (c + 12) * ld, _mm512_shuffle_f32x4(high01, high23, 0xDD));
    }
}

/* bf16, for processors with VDPBF16PS. */
#define HAS_PAIRS
static inline vf vf_pair(vf even, vf odd)
{
    const __m512i places =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_castsi512_ps(
        _mm512_permutexvar_epi16(places, (__m512i)_mm512_cvtne2ps_pbh(odd, even)));
}
/* asm, because with the intrinsic gcc 12 moves every accumulator to the stack and back. */
static inline __attribute__((always_inline)) vf vf_pairs(vf a, vf b, vf c)
{
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
    return c;
}
typedef struct pair_sizes {
    __m512i most, least;
} pair_sizes;
static inline pair_sizes no_pairs(void)
{
    return (pair_sizes){_mm512_setzero_si512(), _mm512_set1_epi32(-1)};
}
static inline __attribute__((always_inline)) vf load_pairs(const uint16_t *p, int64_t n,
                                                           pair_sizes *sizes)
{
    const __mmask32 some = (__mmask32)((1ull << n) - 1);
    const __m512i x = n >= 32 ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi16(some, p);
    const __m512i size = _mm512_and_si512(x, _mm512_set1_epi16(0x7FFF));
    sizes->most = _mm512_max_epu16(sizes->most, size);
    sizes->least = _mm512_min_epu16(sizes->least, _mm512_sub_epi16(size, _mm512_set1_epi16(1)));
    return _mm512_castsi512_ps(x);
}
static inline bool pairs_between(const pair_sizes *sizes, unsigned least, unsigned limit)
{
    const __m512i low = _mm512_set1_epi16((short)(least - 1)),
                  high = _mm512_set1_epi16((short)limit);
    return _mm512_cmplt_epu16_mask(sizes->least, low) == 0 &&
           _mm512_cmpge_epu16_mask(sizes->most, high) == 0;
}
static inline void interleave(vf even, vf odd, float *out)
{
    const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40,
                                         8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    const __m512i a = _mm512_castps_si512(even), b = _mm512_castps_si512(odd);
    _mm512_storeu_si512(out, _mm512_permutex2var_epi16(a, low, b));
    _mm512_storeu_si512(out + 16, _mm512_permutex2var_epi16(a, high, b));
}
static inline void store_pairs(float *p, vf low, vf high)
{
    _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

#endif
