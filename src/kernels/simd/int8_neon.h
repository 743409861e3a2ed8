/* NEON of 64-bit Arm, without the optional byte instructions: 16-bit numbers, two per dword.
 * int8_portable.h documents the names. */
#ifndef MHAI_SIMD_INT8_H
#define MHAI_SIMD_INT8_H

#include "kernels/simd/simd_neon.h"

typedef int32x4_t vi;
/* Two sums, one per number of a dword, because an instruction adds only four products. The two are
 * added at the end. */
typedef int32x4x2_t vi_sums;
enum { GROUP = 2, WEIGHT_OFFSET = 0, SUM_VECTORS = 2 };

static inline vi vi_zero(void)
{
    return vdupq_n_s32(0);
}
static inline vi vi_set1(int32_t x)
{
    return vdupq_n_s32(x);
}
static inline vi vi_load(const int32_t *p)
{
    return vld1q_s32(p);
}
static inline vi vi_add(vi a, vi b)
{
    return vaddq_s32(a, b);
}
static inline __attribute__((always_inline)) vi vi_weights(vi four, int part)
{
    const int8x16_t x = vreinterpretq_s8_s32(four);
    const int16x8_t low = vmovl_s8(vget_low_s8(x)), high = vmovl_high_s8(x);
    const int32x4_t a = vreinterpretq_s32_s16(low), b = vreinterpretq_s32_s16(high);
    return part ? vuzp2q_s32(a, b) : vuzp1q_s32(a, b);
}
static inline vi_sums vi_sums_set1(int32_t x)
{
    const vi first = vreinterpretq_s32_u64(vdupq_n_u64((uint32_t)x));
    return (vi_sums){{first, first}};
}
static inline vi vi_sums_total(vi_sums sums)
{
    return vpaddq_s32(sums.val[0], sums.val[1]);
}
static inline __attribute__((always_inline)) vi_sums vi_dot(vi_sums sums, vi inputs, vi weights)
{
    const int16x8_t a = vreinterpretq_s16_s32(inputs), b = vreinterpretq_s16_s32(weights);
    sums.val[0] = vmlal_s16(sums.val[0], vget_low_s16(a), vget_low_s16(b));
    sums.val[1] = vmlal_high_s16(sums.val[1], a, b);
    return sums;
}
static inline vf vi_float(vi a)
{
    return vcvtq_f32_s32(a);
}
static inline vi vf_int(vf a)
{
    return vcvtnq_s32_f32(a);
}

static inline void store_small(int32_t *p, vi x)
{
    vst1_s16((int16_t *)(void *)p, vmovn_s32(x));
}
static inline int32_t vi_total(vi x)
{
    return vaddvq_s32(x);
}

#endif
