/* Portable C: numbers of 16 bits, two a dword.
 *
 * What every int8_*.h provides, beside what its simd_*.h does:
 *   GROUP                    small numbers in a dword
 *   KEY_OFFSET               what is added to keys, so that they are not negative
 *   weight                   u8 or u16: a weight of 0 .. 255 in memory, GROUP to a dword
 *   vi, vs                   VF_LANES integers of 32 bits; twice as many of 16 bits
 *   vi_pack                  GROUP vectors of small numbers become one of dwords
 *   vi_sums                  VF_LANES sums of products; vi_sums_set1 starts them, vi_sums_total ends
 *   SUM_VECTORS              of the register block, beside each other
 *   vi_dot_keys              sum + the products of GROUP small numbers in each lane, exactly; query
 *   vi_dot_values            and keys, weights and values are signed but for what is said above
 *   vi_weights               numbers `part` GROUP .. of the four signed bytes in each lane, as GROUP
 *                            of a dword, KEY_OFFSET added; part is a constant below 4 / GROUP
 *   vf_int                   the nearest integer, ties to even; below -2^31 anything that vs_of
 *                            turns into -32768. Never NaN, never above 0 by much
 *   vs_of                    saturated; in an order of its own
 *   vs_times                 (a b + 2^14) >> 15
 *   vs_power                 2^n for n of 0 .. 9, 0 for a negative one
 *   store_weights            2 vs as 4 VF_LANES weights, in the order in which vs_of took them;
 *                            returns sum + weights, in lanes of any order
 *   store_small              VF_LANES small numbers, GROUP to a dword, in their order
 *   vi_total                 the sum of the lanes */
#ifndef MHAI_SIMD_INT8_H
#define MHAI_SIMD_INT8_H

#include "kernels/simd/simd_portable.h"

typedef int16_t vs __attribute__((vector_size(16)));
typedef vi vi_sums;
typedef uint16_t weight;
enum { GROUP = 2, KEY_OFFSET = 0, SUM_VECTORS = TILE_VECTORS };

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
static inline void vi_store(int32_t *p, vi x)
{
    memcpy(p, &x, sizeof x);
}
static inline vi vi_add(vi a, vi b)
{
    return a + b;
}
static inline vi vi_upper(vi a)
{
    return (vi)((vi)a << 16);
}
static inline vi vi_pack(const vi x[GROUP])
{
    return (x[0] & 65535) | vi_upper(x[1]);
}
static inline vi vi_weights(vi four, int part)
{
    typedef uint32_t vu __attribute__((vector_size(16)));
    const vi first = (vi)((vu)four << (24 - 16 * part)),
             second = (vi)((vu)four << (16 - 16 * part));
    return (first >> 24 & 65535) | vi_upper(second >> 24);
}
static inline vi vi_products(vi sum, vs a, vs b)
{
    for (int i = 0; i < VF_LANES; i++) sum[i] += a[2 * i] * b[2 * i] + a[2 * i + 1] * b[2 * i + 1];
    return sum;
}
static inline vi vi_dot_keys(vi sum, vi query, vi keys)
{
    return vi_products(sum, (vs)query, (vs)keys);
}
static inline vi vi_dot_values(vi sum, vi weights, vi values)
{
    return vi_products(sum, (vs)weights, (vs)values);
}

static inline vf vi_float(vi a)
{
    return (vf){(float)a[0], (float)a[1], (float)a[2], (float)a[3]};
}
static inline vi vf_int(vf a)
{
    vf x = vf_whole(vf_nearest(vf_max(a, vf_set1(-40000.0f))));
    return (vi){(int32_t)x[0], (int32_t)x[1], (int32_t)x[2], (int32_t)x[3]};
}

static inline vs vs_set1(int16_t x)
{
    return (vs){x, x, x, x, x, x, x, x};
}
static inline vs vs_of(vi low, vi high)
{
    vs x;
    for (int i = 0; i < VF_LANES; i++) {
        x[i] = (int16_t)(low[i] < INT16_MIN ? INT16_MIN : low[i]);
        x[i + VF_LANES] = (int16_t)(high[i] < INT16_MIN ? INT16_MIN : high[i]);
    }
    return x;
}
static inline vs vs_add(vs a, vs b)
{
    return a + b;
}
static inline vs vs_and(vs a, vs b)
{
    return a & b;
}
static inline vs vs_times(vs a, vs b)
{
    for (int i = 0; i < 2 * VF_LANES; i++) a[i] = (int16_t)((a[i] * b[i] + (1 << 14)) >> 15);
    return a;
}
static inline vs vs_left4(vs a)
{
    typedef uint16_t vu __attribute__((vector_size(16)));
    return (vs)((vu)a << 4);
}
static inline vs vs_right11(vs a)
{
    return a >> 11;
}
static inline vs vs_power(vs n)
{
    for (int i = 0; i < 2 * VF_LANES; i++) n[i] = (int16_t)(n[i] < 0 ? 0 : 1 << n[i]);
    return n;
}

static inline vi store_weights(weight *p, vs first, vs second, vi sum)
{
    memcpy(p, &first, sizeof first);
    memcpy(p + 2 * VF_LANES, &second, sizeof second);
    for (int i = 0; i < 2 * VF_LANES; i++) sum[i % VF_LANES] += first[i] + second[i];
    return sum;
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
