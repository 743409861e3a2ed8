/* Blocks of GGUF files to f32, compiled once for each instruction set; the formulas stand in gguf.h.
 * The order of operations is that of the formulas, since the bits are promised: no instruction set
 * fuses a product with a sum. MHAI_GGUF_DECODERS is the table's name. */
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
    const uint32_t bits = size >= 0x7C00u ? 0x7F800000u | (size & 0x3FFu) << 13
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

/* ---- blocks of 32 ---------------------------------------------------------------------------- */

static void q8_0(const unsigned char *from, int64_t count, float *restrict to)
{
    for (; count > 0; count--, from += 34, to += 32) {
        const float d = f16_at(from);
        for (int i = 0; i < 32; i++) to[i] = d * (float)(int8_t)from[2 + i];
    }
}

static void q4_0(const unsigned char *from, int64_t count, float *restrict to)
{
    for (; count > 0; count--, from += 18, to += 32) {
        const float d = f16_at(from);
        const unsigned char *q = from + 2;
        for (int i = 0; i < 16; i++) to[i] = d * (float)((q[i] & 15) - 8);
        for (int i = 0; i < 16; i++) to[16 + i] = d * (float)((q[i] >> 4) - 8);
    }
}

static void q4_1(const unsigned char *from, int64_t count, float *restrict to)
{
    for (; count > 0; count--, from += 20, to += 32) {
        const float d = f16_at(from), m = f16_at(from + 2);
        const unsigned char *q = from + 4;
        for (int i = 0; i < 16; i++) to[i] = d * (float)(q[i] & 15) + m;
        for (int i = 0; i < 16; i++) to[16 + i] = d * (float)(q[i] >> 4) + m;
    }
}

/* The numbers 0 .. 31 of h and q, which stand one after the other. */
static void five_bits(const unsigned char *h, int n[32])
{
    const unsigned char *q = h + 4;
    uint32_t high;
    memcpy(&high, h, sizeof high);
    for (int i = 0; i < 16; i++) n[i] = (q[i] & 15) | (int)(high >> i & 1) << 4;
    for (int i = 0; i < 16; i++) n[16 + i] = q[i] >> 4 | (int)(high >> (16 + i) & 1) << 4;
}

static void q5_0(const unsigned char *from, int64_t count, float *restrict to)
{
    for (; count > 0; count--, from += 22, to += 32) {
        const float d = f16_at(from);
        int n[32];
        five_bits(from + 2, n);
        for (int i = 0; i < 32; i++) to[i] = d * (float)(n[i] - 16);
    }
}

static void q5_1(const unsigned char *from, int64_t count, float *restrict to)
{
    for (; count > 0; count--, from += 24, to += 32) {
        const float d = f16_at(from), m = f16_at(from + 2);
        int n[32];
        five_bits(from + 4, n);
        for (int i = 0; i < 32; i++) to[i] = d * (float)n[i] + m;
    }
}

/* ---- blocks of 256 --------------------------------------------------------------------------- */

/* Q4_K, and with h Q5_K: eight runs of 32, each with a scale and a minimum of 6 bits. */
static void k_runs(const unsigned char *s, const unsigned char *h, const unsigned char *q, float d,
                   float m, float *restrict to)
{
    for (int j = 0; j < 8; j++) {
        const int a = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
        const int b = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
        const float scale = d * (float)a, least = m * (float)b;
        const unsigned char *run = q + 32 * (j / 2);
        const int shift = 4 * (j % 2);
        if (!h)
            for (int i = 0; i < 32; i++)
                to[32 * j + i] = scale * (float)(run[i] >> shift & 15) - least;
        else
            for (int i = 0; i < 32; i++)
                to[32 * j + i] =
                    scale * (float)((run[i] >> shift & 15) | (h[i] >> j & 1) << 4) - least;
    }
}

static void q4_k(const unsigned char *from, int64_t count, float *to)
{
    for (; count > 0; count--, from += 144, to += 256)
        k_runs(from + 4, NULL, from + 16, f16_at(from), f16_at(from + 2), to);
}

static void q5_k(const unsigned char *from, int64_t count, float *to)
{
    for (; count > 0; count--, from += 176, to += 256)
        k_runs(from + 4, from + 16, from + 48, f16_at(from), f16_at(from + 2), to);
}

static void q6_k(const unsigned char *from, int64_t count, float *restrict to)
{
    for (; count > 0; count--, from += 210, to += 256) {
        const float d = f16_at(from + 208);
        for (int run = 0; run < 16; run++) {
            const int t = run / 8, r = run / 2 % 4, half = run % 2 * 16;
            const unsigned char *l = from + 64 * t + 32 * (r % 2) + half;
            const unsigned char *h = from + 128 + 32 * t + half;
            const float scale = d * (float)(int8_t)from[192 + run];
            const int low = 4 * (r / 2), high = 2 * r;
            for (int i = 0; i < 16; i++)
                to[16 * run + i] =
                    scale * (float)(((l[i] >> low & 15) | (h[i] >> high & 3) << 4) - 32);
        }
    }
}

const mhai_gguf_decoder MHAI_GGUF_DECODERS[MHAI_GGUF_DECODER_COUNT] = {
    [MHA_GGUF_F32] = f32,   [MHA_GGUF_F16] = f16,   [MHA_GGUF_BF16] = bf16, [MHA_GGUF_Q8_0] = q8_0,
    [MHA_GGUF_Q4_0] = q4_0, [MHA_GGUF_Q4_1] = q4_1, [MHA_GGUF_Q5_0] = q5_0, [MHA_GGUF_Q5_1] = q5_1,
    [MHA_GGUF_Q4_K] = q4_k, [MHA_GGUF_Q5_K] = q5_k, [MHA_GGUF_Q6_K] = q6_k};
