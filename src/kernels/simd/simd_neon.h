/* NEON of 64-bit Arm: four registers hold the 16 lanes. Of the 32 registers, a product uses 24 for
 * sums, 4 for columns and 1 for a row. simd_portable.h documents the names. */
#ifndef MHAI_SIMD_H
#define MHAI_SIMD_H

#if !defined(__aarch64__) || !defined(__ARM_NEON)
#error "simd_neon.h is compiled for something else than 64-bit Arm with NEON"
#endif

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

typedef float32x4_t vf;
#define INNER_STEPS 4
enum { VF_LANES = 4, BLOCK_ROWS = 6, TILE_VECTORS = 4, TILE_ROWS = 12 };

#define scalar_fma(a, b, c) __builtin_fmaf(a, b, c)

static inline vf vf_zero(void)
{
    return vdupq_n_f32(0);
}
static inline vf vf_set1(float x)
{
    return vdupq_n_f32(x);
}
/* The empty asm is a scheduling barrier, so that each row is loaded while the previous one is in
 * use. Otherwise gcc 12 loads all rows first and spills sums. It also prevents ld1r, which would
 * occupy a multiply unit. */
static inline __attribute__((always_inline)) vf vf_load1(const float *p)
{
    float x = *p;
    __asm__ volatile("" : "+w"(x));
    return vdupq_n_f32(x);
}
static inline vf vf_load(const float *p)
{
    return vld1q_f32(p);
}
static inline void vf_store(float *p, vf x)
{
    vst1q_f32(p, x);
}

static inline vf vf_load_n(const float *p, int64_t n)
{
    if (n >= VF_LANES) return vld1q_f32(p);
    vf x = vf_zero();
    if (n > 0) x = vld1q_lane_f32(p, x, 0);
    if (n > 1) x = vld1q_lane_f32(p + 1, x, 1);
    if (n > 2) x = vld1q_lane_f32(p + 2, x, 2);
    return x;
}
static inline void vf_store_n(float *p, int64_t n, vf x)
{
    if (n >= VF_LANES) {
        vst1q_f32(p, x);
        return;
    }
    if (n > 0) vst1q_lane_f32(p, x, 0);
    if (n > 1) vst1q_lane_f32(p + 1, x, 1);
    if (n > 2) vst1q_lane_f32(p + 2, x, 2);
}

typedef float64x2_t vd;
static inline vd vd_load(const float *p)
{
    return vcvt_f64_f32(vld1_f32(p));
}
static inline void vd_store(float *p, vd x)
{
    vst1_f32(p, vcvt_f32_f64(x));
}
static inline vd vd_low(vf x)
{
    return vcvt_f64_f32(vget_low_f32(x));
}
static inline vd vd_high(vf x)
{
    return vcvt_high_f64_f32(x);
}
static inline vf vf_join(vd low, vd high)
{
    return vcvt_high_f32_f64(vcvt_f32_f64(low), high);
}

static inline vf vf_load_f16(const uint16_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
static inline void vf_store_f16(uint16_t *p, vf x)
{
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x)));
}
static inline vf vf_load_i8(const int8_t *p)
{
    uint32_t four;
    memcpy(&four, p, sizeof four);
    const int8x8_t bytes = vreinterpret_s8_u32(vdup_n_u32(four));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))));
}
static inline vf vf_load_bf16(const uint16_t *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
static inline void vf_store_bf16(uint16_t *p, vf x)
{
    uint32x4_t bits = vreinterpretq_u32_f32(x);
    uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7FFF)), odd);
    uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    vst1_u16(p, vshrn_n_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet), 16));
}
static inline vf vf_byte(vf bytes, int k)
{
    const uint32x4_t top = vshlq_u32(vreinterpretq_u32_f32(bytes), vdupq_n_s32(24 - 8 * k));
    return vcvtq_f32_s32(vreinterpretq_s32_u32(vandq_u32(top, vdupq_n_u32(0xFF000000u))));
}

static inline vf vf_even_bf16(vf pairs)
{
    return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(pairs), 16));
}
static inline vf vf_odd_bf16(vf pairs)
{
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(pairs), vdupq_n_u32(0xFFFF0000u)));
}
static inline vf vf_even_f16(vf pairs)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(vreinterpretq_u32_f32(pairs))));
}
static inline vf vf_odd_f16(vf pairs)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vshrn_n_u32(vreinterpretq_u32_f32(pairs), 16)));
}
static inline vf vf_swap(vf x)
{
    return vrev64q_f32(x);
}
static inline vf vf_add(vf a, vf b)
{
    return vaddq_f32(a, b);
}
static inline vf vf_sub(vf a, vf b)
{
    return vsubq_f32(a, b);
}
static inline vf vf_mul(vf a, vf b)
{
    return vmulq_f32(a, b);
}
static inline vf vf_div(vf a, vf b)
{
    return vdivq_f32(a, b);
}
static inline vf vf_fma(vf a, vf b, vf c)
{
    return vfmaq_f32(c, a, b);
}
/* Not vmaxq_f32, because all instruction sets must select the same operand for NaN and for
 * zeros of different signs. */
static inline vf vf_max(vf a, vf b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}
static inline vf vf_min(vf a, vf b)
{
    return vbslq_f32(vcltq_f32(a, b), a, b);
}
static inline vf vf_abs(vf a)
{
    return vabsq_f32(a);
}

typedef int32x4_t vn;
static inline vn vf_nearest(vf a)
{
    return vcvtnq_s32_f32(a);
}
static inline vf vf_whole(vn n)
{
    return vcvtq_f32_s32(n);
}
static inline vf vf_times_power(vf a, vn n)
{
    return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(a), vshlq_n_s32(n, 23)));
}
static inline vf vf_where_below(vf a, vf limit, vf yes, vf no)
{
    return vbslq_f32(vcltq_f32(a, limit), yes, no);
}
static inline vf vf_zero_below(vf a, vf limit, vf x)
{
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(x), vcltq_f32(a, limit)));
}
static inline vf vf_where_kept(const uint8_t *keep, vf yes, vf no)
{
    const uint32x4_t bytes = {keep[0], keep[1], keep[2], keep[3]};
    return vbslq_f32(vtstq_u32(bytes, bytes), yes, no);
}

static inline float vf_sum16(const vf part[4])
{
    vf four = vaddq_f32(vaddq_f32(part[0], part[2]), vaddq_f32(part[1], part[3]));
    float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
static inline float vf_max16(const vf part[4])
{
    vf four = vf_max(vf_max(part[0], part[2]), vf_max(part[1], part[3]));
    float even = four[0] > four[2] ? four[0] : four[2];
    float odd = four[1] > four[3] ? four[1] : four[3];
    return even > odd ? even : odd;
}

static inline __attribute__((always_inline)) void transpose(const vf rows[4], float *out,
                                                            int64_t ld)
{
    float32x4x2_t upper = vzipq_f32(rows[0], rows[2]), lower = vzipq_f32(rows[1], rows[3]);
    float32x4x2_t left = vzipq_f32(upper.val[0], lower.val[0]);
    float32x4x2_t right = vzipq_f32(upper.val[1], lower.val[1]);
    vst1q_f32(out, left.val[0]);
    vst1q_f32(out + ld, left.val[1]);
    vst1q_f32(out + 2 * ld, right.val[0]);
    vst1q_f32(out + 3 * ld, right.val[1]);
}

#endif
