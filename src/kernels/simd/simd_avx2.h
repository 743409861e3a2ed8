/* AVX2 with FMA and F16C: two registers hold the 16 lanes. simd_portable.h documents the names. */
#ifndef MHAI_SIMD_H
#define MHAI_SIMD_H

#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "simd_avx2.h is compiled without AVX2, FMA and F16C"
#endif

#include <immintrin.h>
#include <stdint.h>

typedef __m256 vf;
#define INNER_STEPS 4
enum { VF_LANES = 8, BLOCK_ROWS = 6, TILE_VECTORS = 2, TILE_ROWS = 12 };

#define scalar_fma(a, b, c) __builtin_fmaf(a, b, c)

static inline vf vf_zero(void)
{
    return _mm256_setzero_ps();
}
static inline vf vf_set1(float x)
{
    return _mm256_set1_ps(x);
}
static inline vf vf_load1(const float *p)
{
    return vf_set1(*p);
}
static inline vf vf_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
static inline void vf_store(float *p, vf x)
{
    _mm256_storeu_ps(p, x);
}

static inline __m256i first_lanes(int64_t n)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), lane);
}
/* Masks are only used for tails, because a masked store takes about 12 cycles on AMD processors. */
static inline vf vf_load_n(const float *p, int64_t n)
{
    if (n >= VF_LANES) return vf_load(p);
    return _mm256_maskload_ps(p, first_lanes(n));
}
static inline void vf_store_n(float *p, int64_t n, vf x)
{
    if (n >= VF_LANES)
        vf_store(p, x);
    else
        _mm256_maskstore_ps(p, first_lanes(n), x);
}

typedef __m256d vd;
static inline vd vd_load(const float *p)
{
    return _mm256_cvtps_pd(_mm_loadu_ps(p));
}
static inline void vd_store(float *p, vd x)
{
    _mm_storeu_ps(p, _mm256_cvtpd_ps(x));
}
static inline vd vd_low(vf x)
{
    return _mm256_cvtps_pd(_mm256_castps256_ps128(x));
}
static inline vd vd_high(vf x)
{
    return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
}
static inline vf vf_join(vd low, vd high)
{
    return _mm256_set_m128(_mm256_cvtpd_ps(high), _mm256_cvtpd_ps(low));
}

static inline vf vf_load_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
static inline void vf_store_f16(uint16_t *p, vf x)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
static inline vf vf_load_i8(const int8_t *p)
{
    const __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)p);
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}
static inline vf vf_load_bf16(const uint16_t *p)
{
    __m256i half = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(half, 16));
}
static inline void vf_store_bf16(uint16_t *p, vf x)
{
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    rounded = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    __m128i half =
        _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
    _mm_storeu_si128((__m128i *)(void *)p, half);
}
static inline __attribute__((always_inline)) vf vf_byte(vf bytes, int k)
{
    const int at = (k << 24) + 0x808080; /* 0x80 selects zero */
    const __m256i places = _mm256_setr_epi32(at, at + (4 << 24), at + (8 << 24), at + (12 << 24),
                                             at, at + (4 << 24), at + (8 << 24), at + (12 << 24));
    return _mm256_cvtepi32_ps(_mm256_shuffle_epi8(_mm256_castps_si256(bytes), places));
}

static inline vf vf_even_bf16(vf pairs)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(pairs), 16));
}
static inline vf vf_odd_bf16(vf pairs)
{
    return _mm256_and_ps(pairs, _mm256_castsi256_ps(_mm256_set1_epi32(-0x10000)));
}
static inline vf vf_even_f16(vf pairs)
{
    const __m256i even = _mm256_and_si256(_mm256_castps_si256(pairs), _mm256_set1_epi32(0xFFFF));
    return _mm256_cvtph_ps(
        _mm_packus_epi32(_mm256_castsi256_si128(even), _mm256_extracti128_si256(even, 1)));
}
static inline vf vf_odd_f16(vf pairs)
{
    const __m256i odd = _mm256_srli_epi32(_mm256_castps_si256(pairs), 16);
    return _mm256_cvtph_ps(
        _mm_packus_epi32(_mm256_castsi256_si128(odd), _mm256_extracti128_si256(odd, 1)));
}
static inline vf vf_swap(vf x)
{
    return _mm256_permute_ps(x, 0xB1);
}
static inline vf vf_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}
static inline vf vf_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}
static inline vf vf_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}
static inline vf vf_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}
static inline vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}
static inline vf vf_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}
static inline vf vf_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}
static inline vf vf_abs(vf a)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}

typedef __m256i vn;
static inline vn vf_nearest(vf a)
{
    return _mm256_cvtps_epi32(a);
}
static inline vf vf_whole(vn n)
{
    return _mm256_cvtepi32_ps(n);
}
static inline vf vf_times_power(vf a, vn n)
{
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), _mm256_slli_epi32(n, 23)));
}
static inline vf vf_where_below(vf a, vf limit, vf yes, vf no)
{
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, limit, _CMP_LT_OQ));
}
static inline vf vf_zero_below(vf a, vf limit, vf x)
{
    return _mm256_and_ps(_mm256_cmp_ps(a, limit, _CMP_NLT_UQ), x);
}
static inline vf vf_where_kept(const uint8_t *keep, vf yes, vf no)
{
    __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)keep));
    __m256i dropped = _mm256_cmpeq_epi32(bytes, _mm256_setzero_si256());
    return _mm256_blendv_ps(yes, no, _mm256_castsi256_ps(dropped));
}

static inline float vf_sum16(const vf part[2])
{
    __m256 x = _mm256_add_ps(part[0], part[1]);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
static inline float vf_max16(const vf part[2])
{
    __m256 x = _mm256_max_ps(part[0], part[1]);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

/* Transpose four columns of eight rows. rows[i] has row i in its lower half,
 * row i + 4 in its upper. */
static inline __attribute__((always_inline)) void four_columns(const __m256 rows[4], float *out,
                                                               int64_t ld)
{
    const __m256 a = _mm256_unpacklo_ps(rows[0], rows[1]), b = _mm256_unpackhi_ps(rows[0], rows[1]);
    const __m256 c = _mm256_unpacklo_ps(rows[2], rows[3]), d = _mm256_unpackhi_ps(rows[2], rows[3]);
    _mm256_storeu_ps(out, _mm256_shuffle_ps(a, c, 0x44));
    _mm256_storeu_ps(out + ld, _mm256_shuffle_ps(a, c, 0xEE));
    _mm256_storeu_ps(out + 2 * ld, _mm256_shuffle_ps(b, d, 0x44));
    _mm256_storeu_ps(out + 3 * ld, _mm256_shuffle_ps(b, d, 0xEE));
}

static inline __attribute__((always_inline)) void transpose(const vf rows[8], float *out,
                                                            int64_t ld)
{
    __m256 low[4], high[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        low[i] = _mm256_insertf128_ps(rows[i], _mm256_castps256_ps128(rows[i + 4]), 1);
        high[i] = _mm256_permute2f128_ps(rows[i], rows[i + 4], 0x31);
    }
    four_columns(low, out, ld);
    four_columns(high, out + 4 * ld, ld);
}

/* Combine halves of rows while loading, which needs no shuffle. */
static inline __attribute__((always_inline)) void transpose_from(const float *in, int64_t stride,
                                                                 float *out, int64_t ld)
{
#pragma GCC unroll 2
    for (int column = 0; column < 8; column += 4) {
        __m256 rows[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            rows[i] =
                _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(in + i * stride + column)),
                                     _mm_loadu_ps(in + (i + 4) * stride + column), 1);
        four_columns(rows, out + column * ld, ld);
    }
}
#define HAS_TRANSPOSE_FROM

#endif
