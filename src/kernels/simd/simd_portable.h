/* Portable C: vectors of four lanes, using the vector extension of GCC and Clang. They compile to
 * SSE2, NEON or scalar code, depending on the target. Four vectors hold the 16 lanes.
 *
 * Every simd_*.h provides:
 *   vf, VF_LANES            a vector of floats and its length
 *   BLOCK_ROWS, TILE_VECTORS
 *                           the register block of the matrix kernel: rows x vectors of accumulators
 *   INNER_STEPS             a macro: unrolling of the loop over inner indices. A loop of 128
 *                           iterations ends in a mispredicted branch, one of 32 does not; this
 *                           saves 4 % if an iteration takes 6 cycles (Zen 3)
 *   TILE_ROWS               rows of a strip: one or two register blocks. The second block finds the
 *                           right-hand factor in L1
 *   vf_load1                one float (a row's factor in a product) broadcast to all lanes.
 *                           Prevents the compiler from loading all rows first and running out of
 *                           registers
 *   vf_load_n, vf_store_n   the first n <= VF_LANES lanes; the other lanes load as 0, and their
 *                           memory is neither read nor written
 *   vd, vd_load, vd_store   VF_LANES / 2 doubles, from and to floats; use C's + - and *
 *   vd_low, vd_high, vf_join
 *                           the halves of a vector in double, and back
 *   vf_load_f16, vf_load_bf16, vf_store_f16, vf_store_bf16
 *                           VF_LANES halves (base/half.h)
 *   vf_load_i8              VF_LANES signed bytes
 *   vf_byte                 signed byte k of the four in each lane, times 2^24; k is a constant
 *   vf_fma                  a * b + c, rounded once; in portable C, rounded twice
 *   HAS_FMA1                defined: vf_fma1 is an instruction. vf_fma1: a * b + c with one float a
 *                           in memory for all lanes; vf_mul1: a * b
 *   vf_even_f16, vf_odd_f16, vf_even_bf16, vf_odd_bf16
 *                           the lower (even) or upper (odd) of the two halves in each lane
 *   vf_swap                 swap lanes 2i and 2i + 1
 *   vn, vf_nearest          the nearest integers, ties to even; defined for |a| < 2^22
 *   vf_whole                the same integers as floats
 *   vf_times_power          a * 2^n if a and the result are normal numbers. A NaN a remains NaN if
 *                           n is vf_nearest(NaN). Otherwise undefined
 *   vf_max, vf_min          per lane a > b ? a : b, a < b ? a : b
 *   vf_where_below          per lane a < limit ? yes : no; NaN is not below
 *   vf_zero_below           per lane a < limit ? +0 : x
 *   vf_where_kept           per lane: its byte is not 0 ? yes : no
 *   vf_sum16, vf_max16      over 16 lanes in VF_LANES-sized parts; the sum in one fixed tree:
 *                           lane i + lane i+8, then + i+4, + i+2, + i+1
 *   transpose               VF_LANES rows of VF_LANES lanes; column i is written to out + i * ld
 *   transpose_from          the same for rows in memory; types_tmpl.c has a default
 *   HAS_PAIRS               defined: the processor may have an instruction for products of pairs of
 *                           bf16 (VDPBF16PS), and the following exist. A pair is two neighbours in
 *                           one lane, the even one in the lower half
 *   vf_pair                 even and odd floats, rounded to bf16, as pairs
 *   vf_pairs                c + a b, of pairs a and b: fma(even, even, fma(odd, odd, c))
 *   store_pairs             2 VF_LANES floats, rounded and stored contiguously
 *   load_pairs              the first n <= 2 VF_LANES bf16, then zeros; records their magnitudes
 *   pairs_between           true if the bits of all recorded magnitudes, except 0, are at least
 *                           `least` and below `limit`
 *   interleave              two rows of 2 VF_LANES bf16 as pairs, in two vectors */
#ifndef MHAI_SIMD_H
#define MHAI_SIMD_H

#include "base/half.h"

#include <stdint.h>
#include <string.h>

typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
#define INNER_STEPS 1
enum { VF_LANES = 4, BLOCK_ROWS = 6, TILE_VECTORS = 2, TILE_ROWS = 12 };

#define scalar_fma(a, b, c) ((a) * (b) + (c))

static inline vf vf_zero(void)
{
    return (vf){0, 0, 0, 0};
}
static inline vf vf_set1(float x)
{
    return (vf){x, x, x, x};
}
static inline vf vf_load1(const float *p)
{
    return vf_set1(*p);
}
static inline vf vf_load(const float *p)
{
    vf x;
    memcpy(&x, p, sizeof x);
    return x;
}
static inline void vf_store(float *p, vf x)
{
    memcpy(p, &x, sizeof x);
}
static inline vf vf_load_n(const float *p, int64_t n)
{
    vf x = vf_zero();
    if (n >= VF_LANES) return vf_load(p);
    for (int64_t i = 0; i < n; i++) x[i] = p[i];
    return x;
}
static inline void vf_store_n(float *p, int64_t n, vf x)
{
    if (n >= VF_LANES) {
        vf_store(p, x);
        return;
    }
    for (int64_t i = 0; i < n; i++) p[i] = x[i];
}

typedef double vd __attribute__((vector_size(16)));
typedef float v2f __attribute__((vector_size(8)));
static inline vd vd_load(const float *p)
{
    v2f x;
    memcpy(&x, p, sizeof x);
    return __builtin_convertvector(x, vd);
}
static inline void vd_store(float *p, vd x)
{
    const v2f y = __builtin_convertvector(x, v2f);
    memcpy(p, &y, sizeof y);
}
static inline vd vd_low(vf x)
{
    return (vd){(double)x[0], (double)x[1]};
}
static inline vd vd_high(vf x)
{
    return (vd){(double)x[2], (double)x[3]};
}
static inline vf vf_join(vd low, vd high)
{
    return (vf){(float)low[0], (float)low[1], (float)high[0], (float)high[1]};
}

static inline vf select(vi mask, vf yes, vf no)
{
    return (vf)((mask & (vi)yes) | (~mask & (vi)no));
}

/* Load halves into the low bits of lanes (formulas in base/half.h). */
static inline vi halves(const uint16_t *p)
{
    typedef uint16_t vh __attribute__((vector_size(8)));
    vh x;
    memcpy(&x, p, sizeof x);
    return __builtin_convertvector(x, vi);
}
static inline vf from_f16(vi half)
{
    const vi size = half & 0x7FFF, shifted = size << 13;
    const vf subnormal = __builtin_convertvector(size, vf) * 0x1p-24f;
    vf x = select(size < 0x0400, subnormal, (vf)(shifted + (112 << 23)));
    x = select(size >= 0x7C00, (vf)(shifted | 0x7F800000 | ((size > 0x7C00) & 0x00400000)), x);
    return (vf)((vi)x | (half & 0x8000) << 16);
}
static inline vf from_bf16(vi half)
{
    return (vf)(half << 16);
}
static inline vf vf_load_f16(const uint16_t *p)
{
    return from_f16(halves(p));
}
static inline void vf_store_f16(uint16_t *p, vf x)
{
    for (int i = 0; i < VF_LANES; i++) p[i] = mhai_f32_to_f16(x[i]);
}
static inline vf vf_load_i8(const int8_t *p)
{
    typedef int8_t vb __attribute__((vector_size(4)));
    vb x;
    memcpy(&x, p, sizeof x);
    return __builtin_convertvector(x, vf);
}
static inline vf vf_load_bf16(const uint16_t *p)
{
    return from_bf16(halves(p));
}
static inline void vf_store_bf16(uint16_t *p, vf x)
{
    for (int i = 0; i < VF_LANES; i++) p[i] = mhai_f32_to_bf16(x[i]);
}
static inline __attribute__((always_inline)) vf vf_byte(vf bytes, int k)
{
    typedef uint32_t vu __attribute__((vector_size(16)));
    return __builtin_convertvector((vi)((vu)bytes << (24 - 8 * k) & 0xFF000000u), vf);
}

static inline vf vf_even_bf16(vf pairs)
{
    return from_bf16((vi)pairs);
}
static inline vf vf_odd_bf16(vf pairs)
{
    return (vf)((vi)pairs & -65536);
}
static inline vf vf_even_f16(vf pairs)
{
    return from_f16((vi)pairs & 0xFFFF);
}
static inline vf vf_odd_f16(vf pairs)
{
    return from_f16((vi)pairs >> 16 & 0xFFFF);
}
static inline vf vf_swap(vf x)
{
    return (vf){x[1], x[0], x[3], x[2]};
}
static inline vf vf_add(vf a, vf b)
{
    return a + b;
}
static inline vf vf_sub(vf a, vf b)
{
    return a - b;
}
static inline vf vf_mul(vf a, vf b)
{
    return a * b;
}
static inline vf vf_div(vf a, vf b)
{
    return a / b;
}
static inline __attribute__((always_inline)) vf vf_fma(vf a, vf b, vf c)
{
    return a * b + c;
}
static inline vf vf_max(vf a, vf b)
{
    return select(a > b, a, b);
}
static inline vf vf_min(vf a, vf b)
{
    return select(a < b, a, b);
}
static inline vf vf_abs(vf a)
{
    return (vf)((vi)a & 0x7FFFFFFF);
}
static inline vf vf_where_below(vf a, vf limit, vf yes, vf no)
{
    return select(a < limit, yes, no);
}
static inline vf vf_zero_below(vf a, vf limit, vf x)
{
    return (vf)(~(a < limit) & (vi)x);
}
static inline vf vf_where_kept(const uint8_t *keep, vf yes, vf no)
{
    return select((vi){keep[0], keep[1], keep[2], keep[3]} != 0, yes, no);
}

/* Adding 1.5 * 2^23 leaves the integer in the low bits of the significand. */
typedef vf vn;
static inline vn vf_nearest(vf a)
{
    return a + vf_set1(12582912.0f);
}
static inline vf vf_whole(vn n)
{
    return n - vf_set1(12582912.0f);
}
static inline vf vf_times_power(vf a, vn n)
{
    typedef uint32_t vu __attribute__((vector_size(16)));
    return a * (vf)(((vu)n + 127u) << 23);
}

static inline float vf_sum16(const vf part[4])
{
    vf four = (part[0] + part[2]) + (part[1] + part[3]);
    return (four[0] + four[2]) + (four[1] + four[3]);
}
static inline float vf_max16(const vf part[4])
{
    vf four = vf_max(vf_max(part[0], part[2]), vf_max(part[1], part[3]));
    float even = four[0] > four[2] ? four[0] : four[2];
    float odd = four[1] > four[3] ? four[1] : four[3];
    return even > odd ? even : odd;
}

static inline void transpose(const vf rows[4], float *out, int64_t ld)
{
    for (int column = 0; column < VF_LANES; column++)
        vf_store(out + column * ld,
                 (vf){rows[0][column], rows[1][column], rows[2][column], rows[3][column]});
}

#endif
