/* f16 (IEEE binary16) and bf16 as bit patterns. Conversion to f32 is exact. Conversion from f32
 * rounds to nearest, ties to even, keeps subnormals, and overflows to infinity. NaN becomes quiet
 * and keeps its upper bits. The conversion instructions of processors do the same. The functions
 * are static inline, because kernels are compiled per instruction set. They have no branches, so
 * that compilers vectorise loops. */
#ifndef MHAI_HALF_H
#define MHAI_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t mhai_float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float mhai_float_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float mhai_bf16_to_f32(uint16_t half)
{
    return mhai_float_of_bits((uint32_t)half << 16);
}

static inline uint16_t mhai_f32_to_bf16(float x)
{
    uint32_t bits = mhai_float_bits(x);
    uint32_t rounded =
        bits + 0x7FFFu + ((bits >> 16) & 1u); /* a carry into the exponent gives the right result */
    uint32_t nan = bits | 0x00400000u;
    return (uint16_t)(((bits & 0x7FFFFFFFu) > 0x7F800000u ? nan : rounded) >> 16);
}

static inline float mhai_f16_to_f32(uint16_t half)
{
    uint32_t size = half & 0x7FFFu, sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t normal = (size << 13) + (112u << 23); /* exponent bias: 15 in f16, 127 in f32 */
    uint32_t subnormal = mhai_float_bits((float)(int32_t)size * 0x1p-24f);
    uint32_t nan = (size << 13) | 0x7FC00000u;
    uint32_t bits = size < 0x0400u ? subnormal : normal;
    bits = size >= 0x7C00u ? 0x7F800000u : bits;
    bits = size > 0x7C00u ? nan : bits;
    return mhai_float_of_bits(bits | sign);
}

static inline uint16_t mhai_f32_to_f16(float x)
{
    uint32_t bits = mhai_float_bits(x), size = bits & 0x7FFFFFFFu;
    uint32_t normal = (size - (112u << 23) + 0x0FFFu + ((size >> 13) & 1u)) >> 13;
    /* f32 near 1/2 and subnormal f16 both have a spacing of 2^-24, so the
     * addition rounds correctly. */
    uint32_t subnormal = mhai_float_bits(mhai_float_of_bits(size) + 0.5f) - 0x3F000000u;
    uint32_t nan = 0x7E00u | ((size >> 13) & 0x03FFu);
    uint32_t half = size < 0x38800000u ? subnormal : normal;
    half = size >= 0x477FF000u ? 0x7C00u : half; /* 65520, halfway to 2^16, and above */
    half = size > 0x7F800000u ? nan : half;
    return (uint16_t)(half | ((bits >> 16) & 0x8000u));
}

#endif
