/* See gguf_blocks.h; the formulas stand in gguf.h. The order of operations is that of the formulas,
 * since the bits are promised. */
#include "io/gguf_blocks.h"

#include "io/file.h"

#include <multihead/component.h>

#include <string.h>

const mhai_gguf_kind *mhai_gguf_find_kind(uint32_t type)
{
    static const mhai_gguf_kind kinds[] = {
#define KIND(name, value, elements, bytes) [value] = {#name, elements, bytes},
        MHA_GGUF_TYPE_LIST(KIND)
#undef KIND
    };
    return type < sizeof kinds / sizeof kinds[0] && kinds[type].name ? &kinds[type] : NULL;
}

/* ---- one block, without its f16 numbers ------------------------------------------------------ */

static void q8_0(const unsigned char *block, float d, float m, float *to)
{
    (void)m;
    for (int i = 0; i < 32; i++) to[i] = d * (float)(int8_t)block[2 + i];
}

static void q4_0(const unsigned char *block, float d, float m, float *to)
{
    const unsigned char *q = block + 2;
    (void)m;
    for (int i = 0; i < 16; i++) to[i] = d * (float)((q[i] & 15) - 8);
    for (int i = 0; i < 16; i++) to[16 + i] = d * (float)((q[i] >> 4) - 8);
}

static void q4_1(const unsigned char *block, float d, float m, float *to)
{
    const unsigned char *q = block + 4;
    for (int i = 0; i < 16; i++) to[i] = d * (float)(q[i] & 15) + m;
    for (int i = 0; i < 16; i++) to[16 + i] = d * (float)(q[i] >> 4) + m;
}

/* The numbers 0 .. 31 of h and q, which stand one behind the other. */
static void five_bits(const unsigned char *h, int n[32])
{
    const unsigned char *q = h + 4;
    for (int i = 0; i < 16; i++) n[i] = (q[i] & 15) | (h[i / 8] >> i % 8 & 1) << 4;
    for (int i = 0; i < 16; i++) n[16 + i] = q[i] >> 4 | (h[2 + i / 8] >> i % 8 & 1) << 4;
}

static void q5_0(const unsigned char *block, float d, float m, float *to)
{
    int n[32];
    (void)m;
    five_bits(block + 2, n);
    for (int i = 0; i < 32; i++) to[i] = d * (float)(n[i] - 16);
}

static void q5_1(const unsigned char *block, float d, float m, float *to)
{
    int n[32];
    five_bits(block + 4, n);
    for (int i = 0; i < 32; i++) to[i] = d * (float)n[i] + m;
}

/* Q4_K, and with h Q5_K: eight runs of 32, each with a scale and a minimum of 6 bits. */
static void k_runs(const unsigned char *s, const unsigned char *h, const unsigned char *q, float d,
                   float m, float *to)
{
    for (int j = 0; j < 8; j++) {
        const int a = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
        const int b = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
        const float scale = d * (float)a, least = m * (float)b;
        const unsigned char *run = q + 32 * (j / 2);
        for (int i = 0; i < 32; i++) {
            const int low = run[i] >> 4 * (j % 2) & 15, high = h ? (h[i] >> j & 1) << 4 : 0;
            to[32 * j + i] = scale * (float)(low | high) - least;
        }
    }
}

static void q4_k(const unsigned char *block, float d, float m, float *to)
{
    k_runs(block + 4, NULL, block + 16, d, m, to);
}

static void q5_k(const unsigned char *block, float d, float m, float *to)
{
    k_runs(block + 4, block + 16, block + 48, d, m, to);
}

static void q6_k(const unsigned char *block, float d, float m, float *to)
{
    (void)m;
    for (int run = 0; run < 8; run++) {
        const int t = run / 4, r = run % 4;
        const unsigned char *l = block + 64 * t + 32 * (r % 2), *h = block + 128 + 32 * t;
        for (int i = 0; i < 32; i++) {
            const float scale = d * (float)(int8_t)block[192 + 2 * run + i / 16];
            const int n = (l[i] >> 4 * (r / 2) & 15) | (h[i] >> 2 * r & 3) << 4;
            to[32 * run + i] = scale * (float)(n - 32);
        }
    }
}

/* ---- all of them ----------------------------------------------------------------------------- */

typedef struct decoder {
    void (*block)(const unsigned char *block, float d, float m, float *to); /* NULL: no blocks */
    int d_at, m_at; /* in a block; m_at -1: it has none */
    bool plain;     /* elements of dtype */
    mha_dtype dtype;
} decoder;

static const decoder *find_decoder(mha_gguf_type type)
{
    static const decoder decoders[] = {
        [MHA_GGUF_F32] = {.plain = true, .dtype = MHA_F32},
        [MHA_GGUF_F16] = {.plain = true, .dtype = MHA_F16},
        [MHA_GGUF_BF16] = {.plain = true, .dtype = MHA_BF16},
        [MHA_GGUF_Q8_0] = {.block = q8_0, .d_at = 0, .m_at = -1},
        [MHA_GGUF_Q4_0] = {.block = q4_0, .d_at = 0, .m_at = -1},
        [MHA_GGUF_Q4_1] = {.block = q4_1, .d_at = 0, .m_at = 2},
        [MHA_GGUF_Q5_0] = {.block = q5_0, .d_at = 0, .m_at = -1},
        [MHA_GGUF_Q5_1] = {.block = q5_1, .d_at = 0, .m_at = 2},
        [MHA_GGUF_Q4_K] = {.block = q4_k, .d_at = 0, .m_at = 2},
        [MHA_GGUF_Q5_K] = {.block = q5_k, .d_at = 0, .m_at = 2},
        [MHA_GGUF_Q6_K] = {.block = q6_k, .d_at = 208, .m_at = -1},
    };
    const size_t count = sizeof decoders / sizeof decoders[0];
    const decoder *found = (size_t)type < count ? &decoders[type] : NULL;
    return found && (found->plain || found->block) ? found : NULL;
}

bool mhai_gguf_decodes(mha_gguf_type type)
{
    return find_decoder(type) != NULL;
}

mha_status mhai_gguf_decode(mha_gguf_type type, const unsigned char *blocks, int64_t count,
                            float *to)
{
    enum { PIECE = 64 }; /* blocks whose f16 numbers are converted by one call */
    const decoder *by = find_decoder(type);
    const mhai_gguf_kind *kind = mhai_gguf_find_kind(type);
    if (by->plain) return mhai_file_convert(blocks, by->dtype, count, MHA_F32, to);
    for (int64_t n; count > 0; count -= n) {
        unsigned char halves[2][PIECE * 2];
        float d[PIECE], m[PIECE] = {0};
        n = count < PIECE ? count : PIECE;
        for (int64_t i = 0; i < n; i++) {
            memcpy(halves[0] + 2 * i, blocks + i * kind->bytes + by->d_at, 2);
            if (by->m_at >= 0) memcpy(halves[1] + 2 * i, blocks + i * kind->bytes + by->m_at, 2);
        }
        MHA_TRY(mhai_file_convert(halves[0], MHA_F16, n, MHA_F32, d));
        if (by->m_at >= 0) MHA_TRY(mhai_file_convert(halves[1], MHA_F16, n, MHA_F32, m));
        for (int64_t i = 0; i < n; i++) {
            by->block(blocks, d[i], m[i], to);
            blocks += kind->bytes;
            to += kind->elements;
        }
    }
    return MHA_OK;
}
