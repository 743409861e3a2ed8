/* Decode GGUF blocks to 8-bit numbers, and these to f32. Compiled once per instruction set; gguf.h
 * has the formulas. Results are bit-identical on all sets, except NaN payloads of blocks: products
 * with a number of a block are exact, so fused operations round like separate ones, and the offset
 * of a single number is included in its 8 bits. MHAI_GGUF_CODECS is the name of the table. */
#include "io/gguf_blocks.h"

#include <string.h>

#ifdef __F16C__
#include <immintrin.h>
#endif

/* ---- numbers of 16 bits ---------------------------------------------------------------------- */

static float f16_at(const unsigned char *at)
{
    uint16_t half;
    memcpy(&half, at, sizeof half);
#ifdef __F16C__
    return _cvtsh_ss(half);
#else
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16, size = half & 0x7FFFu;
    const uint32_t quiet = size > 0x7C00u ? 0x400000u : 0; /* NaN, as _cvtsh_ss() returns it */
    const uint32_t bits = size >= 0x7C00u ? 0x7F800000u | quiet | (size & 0x3FFu) << 13
                                          : (size << 13) + (112u << 23); /* the exponent's bias */
    float x;
    memcpy(&x, &bits, sizeof x);
    if (size < 0x400u) x = (float)size * 0x1p-24f; /* subnormal */
    uint32_t found;
    memcpy(&found, &x, sizeof found);
    found |= sign;
    memcpy(&x, &found, sizeof x);
    return x;
#endif
}

static void f32(const unsigned char *from, int64_t count, float *to)
{
    memcpy(to, from, (size_t)count * sizeof *to);
}

static void f16(const unsigned char *from, int64_t count, float *to)
{
    int64_t i = 0;
#ifdef __F16C__
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(
                                     (const __m128i *)(const void *)(from + 2 * i))));
#endif
    for (; i < count; i++) to[i] = f16_at(from + 2 * i);
}

static void bf16(const unsigned char *from, int64_t count, float *to)
{
    for (int64_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, from + 2 * i, sizeof half);
        const uint32_t bits = (uint32_t)half << 16;
        memcpy(to + i, &bits, sizeof bits);
    }
}

/* ---- numbers of 8 bits (OCP 8-bit Floating Point 1.0, Microscaling Formats 1.0) -------------- */

/* E4M3 has no infinity. All bits except the sign are set in a NaN. */
static void f8_e4m3(const unsigned char *from, int64_t count, float *to)
{
    for (int64_t i = 0; i < count; i++) {
        const uint32_t size = from[i] & 127u, sign = (uint32_t)(from[i] & 128u) << 24;
        const float small = (float)size * 0x1p-9f; /* subnormal */
        uint32_t bits = (size << 20) + (120u << 23), low;
        memcpy(&low, &small, sizeof low);
        bits = size < 8 ? low : size == 127 ? 0x7FC00000u : bits;
        bits |= sign;
        memcpy(to + i, &bits, sizeof bits);
    }
}

/* E5M2 is the upper byte of an f16. */
static void f8_e5m2(const unsigned char *from, int64_t count, float *to)
{
    for (int64_t i = 0; i < count; i++) {
        const unsigned char half[2] = {0, from[i]};
        to[i] = f16_at(half);
    }
}

/* E8M0 is a power of two, or NaN. */
static void f8_e8m0(const unsigned char *from, int64_t count, float *to)
{
    for (int64_t i = 0; i < count; i++) {
        const uint32_t e = from[i];
        const uint32_t bits = e == 0 ? 1u << 22 : e == 255 ? 0x7FC00000u : e << 23;
        memcpy(to + i, &bits, sizeof bits);
    }
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* A decoded block: its numbers, and a scale and an offset for each run. */
#define BLOCK_ARGUMENTS \
    const unsigned char *from, int8_t *restrict to, float *restrict scale, float *restrict offset
#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Sixteen bytes. Compilers do not vectorise loops over bytes into such vectors. */
typedef uint64_t bytes __attribute__((vector_size(16)));
typedef int8_t numbers __attribute__((vector_size(16)));
#define EACH(byte) (UINT64_C(0x0101010101010101) * (byte))

ALWAYS_INLINE bytes load(const unsigned char *from)
{
    bytes x;
    memcpy(&x, from, sizeof x);
    return x;
}

ALWAYS_INLINE void store(int8_t *to, bytes x, int minus)
{
    const numbers n = (numbers)x - (int8_t)minus;
    memcpy(to, &n, sizeof n);
}

/* The low nibbles of 16 bytes, then the high ones, with their fifth bits if there are any. */
ALWAYS_INLINE void nibbles(const unsigned char *q, const bytes fifth[2], int minus, int8_t *to)
{
    const bytes x = load(q);
    store(to, (x & EACH(15)) | fifth[0], minus);
    store(to + 16, (x >> 4 & EACH(15)) | fifth[1], minus);
}

static const bytes no_bits[2];

ALWAYS_INLINE void q8_0_block(BLOCK_ARGUMENTS)
{
    memcpy(to, from + 2, 32);
    *scale = f16_at(from);
    *offset = -0.0f;
}

ALWAYS_INLINE void q4_0_block(BLOCK_ARGUMENTS)
{
    nibbles(from + 2, no_bits, 8, to);
    *scale = f16_at(from);
    *offset = -0.0f;
}

ALWAYS_INLINE void q4_1_block(BLOCK_ARGUMENTS)
{
    nibbles(from + 4, no_bits, 0, to);
    *scale = f16_at(from);
    *offset = f16_at(from + 2);
}

/* Expand eight bits to bit 4 of eight bytes. */
ALWAYS_INLINE uint64_t spread(unsigned char bits)
{
    const uint64_t apart = EACH(bits) & UINT64_C(0x8040201008040201);
    return (apart + EACH(127)) >> 3 & EACH(16);
}

ALWAYS_INLINE void five_bits(const unsigned char *from, int minus, int8_t *to)
{
    const bytes fifth[2] = {{spread(from[0]), spread(from[1])}, {spread(from[2]), spread(from[3])}};
    nibbles(from + 4, fifth, minus, to);
}

ALWAYS_INLINE void q5_0_block(BLOCK_ARGUMENTS)
{
    five_bits(from + 2, 16, to);
    *scale = f16_at(from);
    *offset = -0.0f;
}

ALWAYS_INLINE void q5_1_block(BLOCK_ARGUMENTS)
{
    five_bits(from + 4, 0, to);
    *scale = f16_at(from);
    *offset = f16_at(from + 2);
}

/* Q4_K or, with h, Q5_K: eight runs of 32, each with a scale and a minimum of 6 bits. */
ALWAYS_INLINE void k_block(const unsigned char *h, const unsigned char *q, BLOCK_ARGUMENTS)
{
    const float d = f16_at(from), m = f16_at(from + 2);
    const unsigned char *s = from + 4;
    for (int j = 0; j < 8; j++) {
        const int a = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
        const int b = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
        scale[j] = d * (float)a;
        offset[j] = -(m * (float)b);
        for (int i = 0; i < 32; i += 16) {
            bytes x = load(q + j / 2 * 32 + i) >> j % 2 * 4 & EACH(15);
            if (h) x |= (load(h + i) >> j & EACH(1)) << 4;
            store(to + 32 * j + i, x, 0);
        }
    }
}

ALWAYS_INLINE void q4_k_block(BLOCK_ARGUMENTS)
{
    k_block(NULL, from + 16, from, to, scale, offset);
}

ALWAYS_INLINE void q5_k_block(BLOCK_ARGUMENTS)
{
    k_block(from + 16, from + 48, from, to, scale, offset);
}

ALWAYS_INLINE void q6_k_block(BLOCK_ARGUMENTS)
{
    const float d = f16_at(from + 208);
    for (int run = 0; run < 16; run++) {
        const int t = run / 8, r = run / 2 % 4, half = run % 2 * 16;
        const bytes low = load(from + 64 * t + 32 * (r % 2) + half) >> r / 2 * 4 & EACH(15);
        const bytes high = load(from + 128 + 32 * t + half) >> 2 * r & EACH(3);
        store(to + 16 * run, low | high << 4, 32);
        scale[run] = d * (float)(int8_t)from[192 + run];
        offset[run] = -0.0f;
    }
}

#include "io/tmpl/gguf_low_bits_tmpl.c"

/* Decode each block type to f32. */
#define DECODE(name, elements, size, of_run)                                       \
    static void name(const unsigned char *from, int64_t count, float *restrict to) \
    {                                                                              \
        for (; count > 0; count--, from += size) {                                 \
            int8_t number[elements];                                               \
            float scale[elements / of_run], offset[elements / of_run];             \
            name##_block(from, number, scale, offset);                             \
            for (int i = 0; i < elements; i++, to++)                               \
                *to = (float)number[i] * scale[i / of_run] + offset[i / of_run];   \
        }                                                                          \
    }
DECODE(q8_0, 32, 34, 32)
DECODE(q4_0, 32, 18, 32)
DECODE(q4_1, 32, 20, 32)
DECODE(q5_0, 32, 22, 32)
DECODE(q5_1, 32, 24, 32)
DECODE(q4_k, 256, 144, 32)
DECODE(q5_k, 256, 176, 32)
DECODE(q6_k, 256, 210, 16)
#define DECODE_LOW(type, name, run, offsets) DECODE(name, type##_ELEMENTS, type##_BYTES, run)
LOW_BITS(DECODE_LOW)

#include "io/tmpl/gguf_coded_tmpl.c"

const mhai_gguf_codec MHAI_GGUF_CODECS[MHAI_GGUF_CODECS_COUNT] = {
    [MHA_GGUF_F32] = {f32, NULL},
    [MHA_GGUF_F16] = {f16, NULL},
    [MHA_GGUF_BF16] = {bf16, NULL},
    [MHAI_F8_E4M3] = {f8_e4m3, NULL},
    [MHAI_F8_E5M2] = {f8_e5m2, NULL},
    [MHAI_F8_E8M0] = {f8_e8m0, NULL},
    [MHA_GGUF_Q8_0] = {q8_0, q8_0_code},
    [MHA_GGUF_Q4_0] = {q4_0, q4_0_code},
    [MHA_GGUF_Q4_1] = {q4_1, q4_1_code},
    [MHA_GGUF_Q5_0] = {q5_0, q5_0_code},
    [MHA_GGUF_Q5_1] = {q5_1, q5_1_code},
    [MHA_GGUF_Q4_K] = {q4_k, q4_k_code},
    [MHA_GGUF_Q5_K] = {q5_k, q5_k_code},
    [MHA_GGUF_Q6_K] = {q6_k, q6_k_code},
#define CODEC(type, name, run, offsets) [MHA_GGUF_##type] = {name, name##_code},
    LOW_BITS(CODEC)};
