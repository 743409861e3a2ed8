/* Portable C: 16-bit numbers, two per dword.
 *
 * Every int8_*.h provides, in addition to its simd_*.h:
 *   GROUP                    quantised numbers in a dword
 *   WEIGHT_OFFSET            added to weights, so that they are not negative; or 0
 *   vi                       VF_LANES integers of 32 bits
 *   vi_sums                  VF_LANES sums of products: vi_sums_set1 initialises them, and
 *                            vi_sums_total returns the final sums
 *   SUM_VECTORS              vectors of sums per row of the register block
 *   vi_dot                   sum + the products of GROUP quantised numbers in each lane, exactly.
 *                            Inputs are signed; weights are signed if WEIGHT_OFFSET is 0
 *   vi_weights               of the four signed bytes in each lane, numbers part * GROUP to
 *                            part * GROUP + GROUP - 1 in a dword, plus WEIGHT_OFFSET. part is a
 *                            constant below 4 / GROUP
 *   vf_int                   the nearest integers, ties to even; magnitudes up to 127
 *   store_small              store VF_LANES quantised numbers, GROUP per dword, in order
 *   vi_total                 the sum of the lanes */
#ifndef MHAI_SIMD_INT8_H
#define MHAI_SIMD_INT8_H

#include "kernels/simd/simd_portable.h"

typedef vi vi_sums;
enum { GROUP = 2, WEIGHT_OFFSET = 0, SUM_VECTORS = TILE_VECTORS };

static inline vi vi_zero(void)
{
    return (vi){0, 0, 0, 0};
}
static inline vi vi_set1(int32_t x)
{
    return (vi){x, x, x, x};
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
    vi x;
    memcpy(&x, p, sizeof x);
    return x;
}
static inline vi vi_add(vi a, vi b)
{
    return a + b;
}
static inline vi vi_upper(vi a)
{
    return (vi)((vi)a << 16);
}
static inline vi vi_weights(vi four, int part)
{
    typedef uint32_t vu __attribute__((vector_size(16)));
    const vi first = (vi)((vu)four << (24 - 16 * part)),
             second = (vi)((vu)four << (16 - 16 * part));
    return (first >> 24 & 65535) | vi_upper(second >> 24);
}
static inline vi vi_dot(vi sum, vi inputs, vi weights)
{
    typedef int16_t vs __attribute__((vector_size(16)));
    const vs a = (vs)inputs, b = (vs)weights;
#ifdef __wasm_simd128__
    return sum + __builtin_wasm_dot_s_i32x4_i16x8(a, b);
#else
    for (int i = 0; i < VF_LANES; i++) sum[i] += a[2 * i] * b[2 * i] + a[2 * i + 1] * b[2 * i + 1];
    return sum;
#endif
}
static inline vf vi_float(vi a)
{
    return __builtin_convertvector(a, vf);
}
static inline vi vf_int(vf a)
{
    return __builtin_convertvector(vf_whole(vf_nearest(a)), vi);
}

static inline void store_small(int32_t *p, vi x)
{
    const int16_t small[] = {(int16_t)x[0], (int16_t)x[1], (int16_t)x[2], (int16_t)x[3]};
    memcpy(p, small, sizeof small);
}
static inline int32_t vi_total(vi x)
{
    return x[0] + x[1] + x[2] + x[3];
}

#endif
