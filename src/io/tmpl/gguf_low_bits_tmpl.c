/* Blocks of the types with 1 to 4 bits that gguf_decode_tmpl.c includes: Q2_K, Q3_K, IQ, TQ, MXFP4
 * and NVFP4. Codebook entries are positive; signs are applied to their bytes. */
#include "io/gguf_grids.h"

/* ---- bits ------------------------------------------------------------------------------------ */

static uint32_t u16_at(const unsigned char *at)
{
    uint16_t x;
    memcpy(&x, at, sizeof x);
    return x;
}

static uint32_t u32_at(const unsigned char *at)
{
    uint32_t x;
    memcpy(&x, at, sizeof x);
    return x;
}

static int nibble_at(const unsigned char *at, int i)
{
    return at[i / 2] >> i % 2 * 4 & 15;
}

/* The 16 numbers of run `run`, of 2 bits each. The four numbers of a byte are 32 elements apart. */
ALWAYS_INLINE bytes pairs(const unsigned char *q, int run)
{
    return load(q + run / 8 * 32 + run % 2 * 16) >> run / 2 % 4 * 2 & EACH(3);
}

ALWAYS_INLINE void q2_k_block(BLOCK_ARGUMENTS)
{
    const float d = f16_at(from + 80), m = f16_at(from + 82);
    for (int run = 0; run < 16; run++) {
        store(to + 16 * run, pairs(from + 16, run), 0);
        scale[run] = d * (float)(from[run] & 15);
        offset[run] = -(m * (float)(from[run] >> 4));
    }
}

ALWAYS_INLINE void q3_k_block(BLOCK_ARGUMENTS)
{
    const float d = f16_at(from + 108);
    const unsigned char *s = from + 96;
    for (int run = 0; run < 16; run++) {
        const bytes high = load(from + run % 2 * 16) >> run / 2 & EACH(1);
        const int low = s[run % 8] >> run / 8 * 4 & 15, top = s[8 + run % 4] >> run / 4 * 2 & 3;
        store(to + 16 * run, pairs(from + 32, run) | high << 2, 4);
        scale[run] = d * (float)((low | top << 4) - 32);
        offset[run] = -0.0f;
    }
}

ALWAYS_INLINE void tq2_0_block(BLOCK_ARGUMENTS)
{
    for (int run = 0; run < 16; run++) store(to + 16 * run, pairs(from, run), 1);
    for (int i = 0; i < 8; i++) scale[i] = f16_at(from + 64), offset[i] = -0.0f;
}

/* Decode `count` ternary digits of each of n bytes. A byte q is the fraction q / 256 in base 3.
 * Digit k of byte i is element n k + i. */
ALWAYS_INLINE void digits(const unsigned char *q, int n, int count, int8_t *to)
{
    for (int k = 0, power = 1; k < count; k++, power *= 3)
        for (int i = 0; i < n; i++)
            to[n * k + i] = (int8_t)(((unsigned char)(q[i] * power) * 3 >> 8) - 1);
}

ALWAYS_INLINE void tq1_0_block(BLOCK_ARGUMENTS)
{
    digits(from, 32, 5, to);
    digits(from + 32, 16, 5, to + 160);
    digits(from + 48, 4, 4, to + 240);
    for (int i = 0; i < 8; i++) scale[i] = f16_at(from + 52), offset[i] = -0.0f;
}

/* ---- 4 bits select one of 16 numbers --------------------------------------------------------- */

static const int8_t nonlinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};
/* Twice the values of E2M1 (OCP Microscaling Formats 1.0). */
static const int8_t e2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* Look up the low nibbles of 16 bytes in `table`, then the high ones. */
ALWAYS_INLINE void select_numbers(const int8_t table[16], const unsigned char *q, int8_t *to)
{
#ifdef __AVX2__
    const __m128i all = (__m128i)load((const unsigned char *)table);
    const __m128i low = (__m128i)(load(q) & EACH(15)), high = (__m128i)(load(q) >> 4 & EACH(15));
    store(to, (bytes)_mm_shuffle_epi8(all, low), 0);
    store(to + 16, (bytes)_mm_shuffle_epi8(all, high), 0);
#else
    for (int i = 0; i < 16; i++) to[i] = table[q[i] & 15], to[16 + i] = table[q[i] >> 4];
#endif
}

ALWAYS_INLINE void iq4_nl_block(BLOCK_ARGUMENTS)
{
    select_numbers(nonlinear, from + 2, to);
    *scale = f16_at(from);
    *offset = -0.0f;
}

ALWAYS_INLINE void iq4_xs_block(BLOCK_ARGUMENTS)
{
    const float d = f16_at(from);
    const uint32_t high = u16_at(from + 2);
    for (int j = 0; j < 8; j++) {
        const int s = nibble_at(from + 4, j) | (int)(high >> 2 * j & 3) << 4;
        select_numbers(nonlinear, from + 8 + 16 * j, to + 32 * j);
        scale[j] = d * (float)(s - 32);
        offset[j] = -0.0f;
    }
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The numbers of e2m1 are doubled, so the scale is half of the block's power of two. */
ALWAYS_INLINE void mxfp4_block(BLOCK_ARGUMENTS)
{
    const uint32_t e = from[0];
    select_numbers(e2m1, from + 1, to);
    *scale = float_of(e < 2 ? 0x200000u << e : (e - 1) << 23);
    *offset = -0.0f;
}

/* Four runs of 16 elements in 8 bytes. A run's scale is an unsigned E4M3 number, halved because
 * the numbers of e2m1 are doubled. The code 127 means 0. */
ALWAYS_INLINE void nvfp4_block(BLOCK_ARGUMENTS)
{
    int8_t half[2][32];
    select_numbers(e2m1, from + 4, half[0]);
    select_numbers(e2m1, from + 20, half[1]);
    for (int run = 0; run < 4; run++) {
        const uint32_t s = from[run], e = s >> 3 & 15;
        memcpy(to + 16 * run, half[run / 2] + run % 2 * 8, 8);
        memcpy(to + 16 * run + 8, half[run / 2] + run % 2 * 8 + 16, 8);
        scale[run] = s == 127 ? 0.0f
                     : e == 0 ? (float)(s & 7) * 0x1p-10f
                              : float_of((s & 127) << 20) * 0x1p119f; /* the biases' difference */
        offset[run] = -0.0f;
    }
}

/* ---- codebooks ------------------------------------------------------------------------------- */

/* Unpack eight numbers of 2 or 3 bits to bytes. */
ALWAYS_INLINE uint64_t spread_2(uint64_t x)
{
    x = (x | x << 24) & UINT64_C(0x000000FF000000FF);
    x = (x | x << 12) & UINT64_C(0x000F000F000F000F);
    return (x | x << 6) & EACH(3);
}
ALWAYS_INLINE uint64_t spread_3(uint64_t x)
{
    x = (x | x << 20) & UINT64_C(0x00000FFF00000FFF);
    x = (x | x << 10) & UINT64_C(0x003F003F003F003F);
    return (x | x << 5) & EACH(7);
}

/* Store 8 positive numbers. Number i is negated if bit i of signs is set. */
ALWAYS_INLINE void store_signed(int8_t *to, uint64_t x, uint32_t signs)
{
    const uint64_t negative = spread((unsigned char)signs) >> 4;
    x = (x ^ negative * 255) + negative;
    memcpy(to, &x, sizeof x);
}

/* Add the eighth sign to seven: it makes the number of negative elements even. */
ALWAYS_INLINE uint32_t even_signs(uint32_t x)
{
    x &= 127;
    return x | (0x6996u >> ((x ^ x >> 4) & 15) & 1) << 7;
}

/* The codes 0, 1, 2 of a codebook entry mean 8, 25, 43. */
ALWAYS_INLINE void iq2_numbers(int8_t *to, uint32_t entry, uint32_t signs)
{
    const uint64_t x = spread_2(entry);
    store_signed(to, x * 17 + EACH(8) + (x >> 1 & EACH(1)), signs);
}

ALWAYS_INLINE void iq2_xxs_block(BLOCK_ARGUMENTS)
{
    const float d = f16_at(from);
    for (int j = 0; j < 8; j++) {
        const unsigned char *q = from + 2 + 8 * j;
        const uint32_t more = u32_at(q + 4);
        for (int k = 0; k < 4; k++)
            iq2_numbers(to + 32 * j + 8 * k, mhai_gguf_grid_iq2_xxs[q[k]],
                        even_signs(more >> 7 * k));
        scale[j] = d * (0.5f + (float)(more >> 28)) * 0.25f;
        offset[j] = -0.0f;
    }
}

/* The scales of IQ2_XS and IQ2_S. */
ALWAYS_INLINE void iq2_scales(float d, const unsigned char *s, float *scale, float *offset)
{
    for (int run = 0; run < 16; run++) {
        scale[run] = d * (0.5f + (float)nibble_at(s, run)) * 0.25f;
        offset[run] = -0.0f;
    }
}

ALWAYS_INLINE void iq2_xs_block(BLOCK_ARGUMENTS)
{
    for (int k = 0; k < 32; k++) {
        const uint32_t q = u16_at(from + 2 + 2 * k);
        iq2_numbers(to + 8 * k, mhai_gguf_grid_iq2_xs[q & 511], even_signs(q >> 9));
    }
    iq2_scales(f16_at(from), from + 66, scale, offset);
}

ALWAYS_INLINE void iq2_s_block(BLOCK_ARGUMENTS)
{
    for (int k = 0; k < 32; k++) {
        const uint32_t high = from[66 + k / 4] >> k % 4 * 2 & 3;
        iq2_numbers(to + 8 * k, mhai_gguf_grid_iq2_s[from[2 + k] | high << 8], from[34 + k]);
    }
    iq2_scales(f16_at(from), from + 74, scale, offset);
}

/* The codes 0 to 7 of a codebook entry mean 4, 12, 20, 28, 36, 44, 52, 62. */
ALWAYS_INLINE void iq3_xxs_block(BLOCK_ARGUMENTS)
{
    const float d = f16_at(from);
    for (int j = 0; j < 8; j++) {
        const uint32_t more = u32_at(from + 66 + 4 * j);
        for (int k = 0; k < 4; k++) {
            const unsigned char *q = from + 2 + 8 * j + 2 * k;
            const uint64_t x = spread_3(mhai_gguf_grid_iq3_xxs[q[0]] |
                                        (uint64_t)mhai_gguf_grid_iq3_xxs[q[1]] << 12);
            store_signed(to + 32 * j + 8 * k,
                         x * 8 + EACH(4) + ((x & x >> 1 & x >> 2 & EACH(1)) << 1),
                         even_signs(more >> 7 * k));
        }
        scale[j] = d * (0.5f + (float)(more >> 28)) * 0.5f;
        offset[j] = -0.0f;
    }
}

/* A code x of a codebook entry means 2 x + 1. */
ALWAYS_INLINE void iq3_s_block(BLOCK_ARGUMENTS)
{
    const float d = f16_at(from);
    for (int k = 0; k < 32; k++) {
        const uint32_t high = from[66 + k / 4] >> k % 4 * 2;
        const uint64_t x =
            spread_3(mhai_gguf_grid_iq3_s[from[2 + 2 * k] | (high & 1) << 8] |
                     (uint64_t)mhai_gguf_grid_iq3_s[from[3 + 2 * k] | (high & 2) << 7] << 12);
        store_signed(to + 8 * k, x * 2 + EACH(1), from[74 + k]);
    }
    for (int j = 0; j < 8; j++) {
        scale[j] = d * (float)(1 + 2 * nibble_at(from + 106, j));
        offset[j] = -0.0f;
    }
}

/* Elements are -1, 0 or 1, plus 1/8 or, if minus is 1, minus 1/8. Stores 8 times their value. */
ALWAYS_INLINE void iq1_numbers(int8_t *to, uint32_t index, uint32_t minus)
{
    uint64_t x = spread_2(mhai_gguf_grid_iq1[index]) * 8;
    x = (x + EACH(128 - 7 - 2 * (uint64_t)minus)) ^ EACH(128);
    memcpy(to, &x, sizeof x);
}

ALWAYS_INLINE void iq1_s_block(BLOCK_ARGUMENTS)
{
    const float d = f16_at(from) * 0.125f;
    for (int j = 0; j < 8; j++) {
        const uint32_t more = u16_at(from + 34 + 2 * j);
        for (int k = 0; k < 4; k++)
            iq1_numbers(to + 32 * j + 8 * k, from[2 + 4 * j + k] | (more >> 3 * k & 7) << 8,
                        more >> 15);
        scale[j] = d * (float)(2 * (more >> 12 & 7) + 1);
        offset[j] = -0.0f;
    }
}

/* Each of four 16-bit words has four scales of 3 bits. Its upper 4 bits are a part of the block's
 * f16 scale. */
ALWAYS_INLINE void iq1_m_block(BLOCK_ARGUMENTS)
{
    const unsigned char *s = from + 48;
    const unsigned char half[2] = {(unsigned char)(s[1] >> 4 | (s[3] & 0xF0)),
                                   (unsigned char)(s[5] >> 4 | (s[7] & 0xF0))};
    const float d = f16_at(half) * 0.125f;
    for (int k = 0; k < 32; k++) {
        const uint32_t more = (uint32_t)nibble_at(from + 32, k);
        iq1_numbers(to + 8 * k, from[k] | (more & 7) << 8, more >> 3);
    }
    for (int run = 0; run < 16; run++) {
        scale[run] = d * (float)(2 * (u16_at(s + run / 4 * 2) >> run % 4 * 3 & 7) + 1);
        offset[run] = -0.0f;
    }
}

/* Type, name, elements per run, whether runs have offsets. */
#define LOW_BITS(X)            \
    X(Q2_K, q2_k, 16, 1)       \
    X(Q3_K, q3_k, 16, 0)       \
    X(IQ1_S, iq1_s, 32, 0)     \
    X(IQ1_M, iq1_m, 16, 0)     \
    X(IQ2_XXS, iq2_xxs, 32, 0) \
    X(IQ2_XS, iq2_xs, 16, 0)   \
    X(IQ2_S, iq2_s, 16, 0)     \
    X(IQ3_XXS, iq3_xxs, 32, 0) \
    X(IQ3_S, iq3_s, 32, 0)     \
    X(IQ4_NL, iq4_nl, 32, 0)   \
    X(IQ4_XS, iq4_xs, 32, 0)   \
    X(TQ1_0, tq1_0, 32, 0)     \
    X(TQ2_0, tq2_0, 32, 0)     \
    X(MXFP4, mxfp4, 32, 0)     \
    X(NVFP4, nvfp4, 16, 0)
enum {
#define SIZES(type, value, elements, bytes) type##_ELEMENTS = elements, type##_BYTES = bytes,
    MHA_GGUF_TYPE_LIST(SIZES)
#undef SIZES
};
