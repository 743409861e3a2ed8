/* Positions become the numbers of a cache's type, in runs. */
#include "base/convert.h"
#include "cache/kv_cache.h"

#include <math.h>
#include <string.h>

enum { PIECE = 256 }; /* elements that are converted at a time */

/* Where a position goes. */
typedef struct place {
    mha_dtype type;
    unsigned char *at; /* element 0 */
    int64_t step;      /* elements from one to the next */
    float *scale;      /* MHA_I8 */
} place;

static void widen_piece(mha_dtype type, const void *from, int64_t i, int64_t n, float *piece)
{
    mhai_widen(type, (const char *)from + i * (int64_t)mha_dtype_size(type), n, piece);
}

/* max |x| / 127, rounded up to 17 significant bits, so that its products with 7 bits are exact; 0 for
 * what is too small, NaN where something is not finite. */
static float scale_of(mha_dtype type, const void *from, int64_t width)
{
    float piece[PIECE], most = 0, zero = 0;
    for (int64_t i = 0; i < width; i += PIECE) {
        const int64_t n = mhai_min_i64(PIECE, width - i);
        widen_piece(type, from, i, n, piece);
        for (int64_t j = 0; j < n; j++) {
            const float size = fabsf(piece[j]);
            most = size > most ? size : most;
            zero += piece[j] * 0.0f;
        }
    }
    if (zero != 0) return NAN;
    if (most < 0x1p-100f) return 0;
    uint32_t bits;
    float scale = most / 127;
    memcpy(&bits, &scale, sizeof bits);
    bits = (bits + 127) & ~(uint32_t)127;
    memcpy(&scale, &bits, sizeof scale);
    return scale;
}

static void store_bytes(const place *to, const float *piece, int64_t n, int64_t first)
{
    int8_t *out = (int8_t *)to->at;
    for (int64_t j = 0; j < n; j++) /* 0 and NaN are not above 0 */
        out[(first + j) * to->step] =
            *to->scale > 0 ? (int8_t)nearbyintf(piece[j] / *to->scale) : (int8_t)0;
}

static void store_piece(const place *to, const float *piece, int64_t n, int64_t first)
{
    const size_t size = mha_dtype_size(to->type);
    uint16_t halves[PIECE];
    const unsigned char *in = (const unsigned char *)piece;
    if (to->type != MHA_F32) {
        mhai_narrow(to->type, halves, piece, n);
        in = (const unsigned char *)halves;
    }
    for (int64_t j = 0; j < n; j++)
        memcpy(to->at + (size_t)((first + j) * to->step) * size, in + (size_t)j * size, size);
}

static void store(const place *to, mha_dtype type, const void *from, int64_t width)
{
    float piece[PIECE];
    if (to->type == MHA_I8) *to->scale = scale_of(type, from, width);
    for (int64_t i = 0; i < width; i += PIECE) {
        const int64_t n = mhai_min_i64(PIECE, width - i);
        widen_piece(type, from, i, n, piece);
        (to->type == MHA_I8 ? store_bytes : store_piece)(to, piece, n, i);
    }
}

static unsigned char *run_at(const mha_kv_cache *cache, const unsigned char *at, int64_t bytes,
                             int64_t b, int64_t h, int64_t position)
{
    const mhai_attn_pages *pages = &cache->pages;
    const int64_t size = pages->page_size,
                  page = pages->table[b * pages->entries + position / size];
    return (unsigned char *)(uintptr_t)at +
           mhai_attn_page_run(pages, page, h, position % size) * bytes;
}

static float *scale_at(unsigned char *run, int64_t bytes, int64_t lane)
{
    return (float *)(void *)(run + bytes - MHAI_LINE) + lane;
}

void mhai_kv_store_key(const mha_kv_cache *cache, int64_t b, int64_t h, int64_t position,
                       mha_dtype type, const void *from)
{
    const mhai_attn_pages *pages = &cache->pages;
    const int64_t lane = position % pages->page_size % MHAI_RUN;
    unsigned char *run = run_at(cache, pages->keys, pages->key_bytes, b, h, position);
    if (lane == 0) memset(run, 0, (size_t)pages->key_bytes); /* others are read with this one */
    const place to = {.type = pages->type,
                      .at = run + (size_t)lane * mha_dtype_size(pages->type),
                      .step = MHAI_RUN,
                      .scale = scale_at(run, pages->key_bytes, lane)};
    store(&to, type, from, cache->desc.head_dim);
}

void mhai_kv_store_value(const mha_kv_cache *cache, int64_t b, int64_t h, int64_t position,
                         mha_dtype type, const void *from)
{
    const mhai_attn_pages *pages = &cache->pages;
    const int64_t width = cache->desc.value_head_dim, lane = position % pages->page_size % MHAI_RUN;
    unsigned char *run = run_at(cache, pages->values, pages->value_bytes, b, h, position);
    const place to = {.type = pages->type,
                      .at = run + (size_t)(lane * width) * mha_dtype_size(pages->type),
                      .step = 1,
                      .scale = scale_at(run, pages->value_bytes, lane)};
    store(&to, type, from, width);
}
