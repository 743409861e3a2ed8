/* See gguf_reference.h. */
#include "reference/gguf_reference.h"

#include "reference/half_reference.h"

#include <math.h>
#include <string.h>

static int u16(const unsigned char *at)
{
    return at[0] + 256 * at[1];
}

static double half(const unsigned char *at)
{
    return half_value(MHA_F16, (uint16_t)u16(at));
}

static double i8(unsigned char byte)
{
    return byte < 128 ? byte : byte - 256;
}

/* Bits first .. first + count - 1 of bytes. Bit 0 is the lowest bit of the first byte. */
static int bits(const unsigned char *bytes, int first, int count)
{
    int found = 0;
    for (int i = 0; i < count; i++) found += (bytes[(first + i) / 8] >> (first + i) % 8 & 1) << i;
    return found;
}

/* Element e of 32. Byte i of q has elements i and i + 16. h has the fifth bits; NULL: none. */
static int small(const unsigned char *q, const unsigned char *h, int e)
{
    const int low = e < 16 ? q[e] % 16 : q[e - 16] / 16;
    return low + (h && bits(h, e, 1) ? 16 : 0);
}

/* Scale (part 0) or minimum (part 1) j of the twelve bytes of Q4_K and Q5_K. */
static int six_bits(const unsigned char *s, int part, int j)
{
    const int low = part == 0 ? s[4 + j] % 16 : s[4 + j] / 16;
    return j < 4 ? s[4 * part + j] % 64 : low + 16 * (s[4 * part + j - 4] / 64);
}

static double k_element(const unsigned char *block, const unsigned char *h, const unsigned char *q,
                        int e)
{
    const int j = e / 32, byte = q[32 * (j / 2) + e % 32];
    int n = j % 2 ? byte / 16 : byte % 16;
    if (h && h[e % 32] >> j & 1) n += 16;
    return half(block) * six_bits(block + 4, 0, j) * n -
           half(block + 2) * six_bits(block + 4, 1, j);
}

static double q6_element(const unsigned char *block, int e)
{
    const int t = e / 128, r = e / 32 % 4, i = e % 32;
    const int l = block[64 * t + 32 * (r % 2) + i], h = block[128 + 32 * t + i];
    const int n = (r < 2 ? l % 16 : l / 16) + 16 * (h >> 2 * r & 3);
    return half(block + 208) * i8(block[192 + e / 16]) * (n - 32);
}

/* The two bits of element e. A byte has four elements, 32 apart. */
static int quarter(const unsigned char *q, int e)
{
    return bits(q + e / 128 * 32 + e % 32, e / 32 % 4 * 2, 2);
}

static double q2_element(const unsigned char *block, int e)
{
    const int s = block[e / 16];
    return half(block + 80) * (s % 16) * quarter(block + 16, e) - half(block + 82) * (s / 16);
}

static double q3_element(const unsigned char *block, int e)
{
    const unsigned char *s = block + 96;
    const int r = e / 16, low = r < 8 ? s[r] % 16 : s[r - 8] / 16;
    const int scale = low + 16 * bits(s + 8 + r % 4, r / 4 * 2, 2) - 32;
    const int n = quarter(block + 32, e) - (bits(block + e % 32, e / 32, 1) ? 0 : 4);
    return half(block + 108) * scale * n;
}

/* Ternary digit `drop` of the fraction byte / 256. */
static int digit(int byte, int drop)
{
    for (; drop > 0; drop--) byte = 3 * byte % 256;
    return 3 * byte / 256;
}

static double tq1_element(const unsigned char *block, int e)
{
    int n;
    if (e < 160)
        n = digit(block[e % 32], e / 32);
    else if (e < 240)
        n = digit(block[32 + e % 16], (e - 160) / 16);
    else
        n = digit(block[48 + e % 4], (e - 240) / 4);
    return half(block + 52) * (n - 1);
}

static const int nonlinear[] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                1,    13,   25,  38,  53,  69,  89,  113};

static double iq4_xs_element(const unsigned char *block, int e)
{
    const int j = e / 32, s = bits(block + 4, 4 * j, 4) + 16 * bits(block + 2, 2 * j, 2);
    return half(block) * (s - 32) * nonlinear[small(block + 8 + 16 * j, NULL, e % 32)];
}

/* E2M1: bit 3 is the sign. */
static double e2m1(int n)
{
    static const double sizes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return n < 8 ? sizes[n] : n == 8 ? 0 : -sizes[n - 8];
}

static double nvfp4_element(const unsigned char *block, int e)
{
    const int run = e / 16, i = e % 16, s = block[run], byte = block[4 + 8 * run + i % 8];
    const int exponent = s / 8 % 16, fraction = s % 8;
    double scale = exponent ? ldexp(8 + fraction, exponent - 10) : ldexp(fraction, -9);
    if (s == 127) scale = 0;
    return scale * e2m1(i < 8 ? byte % 16 : byte / 16);
}

/* The sign of element e of 8. If only 7 are stored, the last one makes the number of negative
 * elements even. */
static int sign(const unsigned char *at, int first, int stored, int e)
{
    int sum = 0;
    if (e < stored) return bits(at, first + e, 1) ? -1 : 1;
    for (int i = 0; i < 7; i++) sum += bits(at, first + i, 1);
    return sum % 2 ? -1 : 1;
}

/* Element e is in group k of 8 elements, in run r of 16, and in run j of 32. */
static double iq2_element(mha_gguf_type type, const gguf_codebooks *books,
                          const unsigned char *block, int e)
{
    const int j = e / 32, r = e / 16, k = e / 8, i = e % 8;
    const unsigned char *pair = block + 2 + 8 * j, *word = block + 2 + 2 * k;
    const double d = half(block);
    switch ((int)type) {
    case MHA_GGUF_IQ2_XXS:
        return d * (0.5 + bits(pair + 4, 28, 4)) / 4 * sign(pair + 4, 7 * (k % 4), 7, i) *
               books->iq2_xxs[pair[k % 4]][i];
    case MHA_GGUF_IQ2_XS:
        return d * (0.5 + bits(block + 66, 4 * r, 4)) / 4 * sign(word, 9, 7, i) *
               books->iq2_xs[u16(word) % 512][i];
    default:
        return d * (0.5 + bits(block + 74, 4 * r, 4)) / 4 * sign(block + 34, 8 * k, 8, i) *
               books->iq2_s[block[2 + k] + 256 * bits(block + 66, 2 * k, 2)][i];
    }
}

static double iq3_element(bool small_steps, const gguf_codebooks *books, const unsigned char *block,
                          int e)
{
    const int j = e / 32, q = block[2 + e / 4];
    if (small_steps)
        return half(block) * (1 + 2 * bits(block + 106, 4 * j, 4)) *
               sign(block + 74, e / 8 * 8, 8, e % 8) *
               books->iq3_s[q + 256 * bits(block + 66, e / 4, 1)][e % 4];
    return half(block) * (0.5 + bits(block + 66 + 4 * j, 28, 4)) / 2 *
           sign(block + 66 + 4 * j, e / 8 % 4 * 7, 7, e % 8) * books->iq3_xxs[q][e % 4];
}

static double iq1_element(bool m, const gguf_codebooks *books, const unsigned char *block, int e)
{
    const int j = e / 32, r = e / 16, k = e / 8;
    const unsigned char *s = block + 48, *more = block + 34 + 2 * j;
    unsigned char d[2] = {block[0], block[1]};
    if (m) {
        const int scale = bits(s + r / 4 * 2, r % 4 * 3, 3);
        const int index = block[k] + 256 * bits(block + 32, 4 * k, 3);
        d[0] = (unsigned char)(s[1] / 16 + s[3] / 16 * 16);
        d[1] = (unsigned char)(s[5] / 16 + s[7] / 16 * 16);
        return half(d) * (1 + 2 * scale) *
               (books->iq1[index][e % 8] + (bits(block + 32, 4 * k + 3, 1) ? -0.125 : 0.125));
    }
    return half(d) * (1 + 2 * bits(more, 12, 3)) *
           (books->iq1[block[2 + k] + 256 * bits(more, k % 4 * 3, 3)][e % 8] +
            (bits(more, 15, 1) ? -0.125 : 0.125));
}

float gguf_element(mha_gguf_type type, const gguf_codebooks *books, const unsigned char *block,
                   int e)
{
    float f32;
    switch (type) {
    case MHA_GGUF_F32: memcpy(&f32, block, sizeof f32); return f32;
    case MHA_GGUF_F16: return (float)half(block);
    case MHA_GGUF_BF16: return (float)half_value(MHA_BF16, (uint16_t)u16(block));
    case MHA_GGUF_Q8_0: return (float)(half(block) * i8(block[2 + e]));
    case MHA_GGUF_Q4_0: return (float)(half(block) * (small(block + 2, NULL, e) - 8));
    case MHA_GGUF_Q4_1: return (float)(half(block) * small(block + 4, NULL, e) + half(block + 2));
    case MHA_GGUF_Q5_0: return (float)(half(block) * (small(block + 6, block + 2, e) - 16));
    case MHA_GGUF_Q5_1:
        return (float)(half(block) * small(block + 8, block + 4, e) + half(block + 2));
    case MHA_GGUF_Q2_K: return (float)q2_element(block, e);
    case MHA_GGUF_Q3_K: return (float)q3_element(block, e);
    case MHA_GGUF_Q4_K: return (float)k_element(block, NULL, block + 16, e);
    case MHA_GGUF_Q5_K: return (float)k_element(block, block + 16, block + 48, e);
    case MHA_GGUF_Q6_K: return (float)q6_element(block, e);
    case MHA_GGUF_IQ1_S:
    case MHA_GGUF_IQ1_M: return (float)iq1_element(type == MHA_GGUF_IQ1_M, books, block, e);
    case MHA_GGUF_IQ2_XXS:
    case MHA_GGUF_IQ2_XS:
    case MHA_GGUF_IQ2_S: return (float)iq2_element(type, books, block, e);
    case MHA_GGUF_IQ3_XXS:
    case MHA_GGUF_IQ3_S: return (float)iq3_element(type == MHA_GGUF_IQ3_S, books, block, e);
    case MHA_GGUF_IQ4_NL: return (float)(half(block) * nonlinear[small(block + 2, NULL, e)]);
    case MHA_GGUF_IQ4_XS: return (float)iq4_xs_element(block, e);
    case MHA_GGUF_TQ1_0: return (float)tq1_element(block, e);
    case MHA_GGUF_TQ2_0: return (float)(half(block + 64) * (quarter(block, e) - 1));
    case MHA_GGUF_MXFP4: return (float)ldexp(e2m1(small(block + 1, NULL, e)), block[0] - 127);
    case MHA_GGUF_NVFP4: return (float)nvfp4_element(block, e);
    default: return NAN;
    }
}

bool gguf_has_definition(mha_gguf_type type)
{
    static const mha_gguf_type none[] = {MHA_GGUF_Q8_1, MHA_GGUF_Q8_K, MHA_GGUF_I8,  MHA_GGUF_I16,
                                         MHA_GGUF_I32,  MHA_GGUF_I64,  MHA_GGUF_F64, MHA_GGUF_Q1_0};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
        if (none[i] == type) return false;
    return true;
}
