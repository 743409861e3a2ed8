/* Conversion of positions to the cache's type, in runs. */
#include "base/convert.h"
#include "cache/kv_cache.h"

#include <math.h>
#include <string.h>

enum { PIECE = 256 }; /* elements converted at a time */

/* The memory of a position. */
typedef struct place {
    mha_dtype type;
    unsigned char *at; /* element 0 */
    int64_t step;      /* distance between elements of the position */
    float *scale;      /* MHA_I8 */
} place;

static void widen_piece(mha_dtype type, const void *from, int64_t i, int64_t n, float *piece)
{
    mhai_widen(type, (const char *)from + i * (int64_t)mha_dtype_size(type), n, piece);
}

/* max |x| / 127, rounded up to 17 significant bits, so that products with 7-bit numbers are exact.
 * 0 if too small, NaN if an element is not finite. */
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
    for (int64_t j = 0; j < n; j++) /* false for 0 and NaN */
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

/* ---- keys whose channels have powers -------------------------------------------------------- */

enum { LEAST_POWER = -126, MOST_POWER = 121 }; /* 127 * 2^121 is below the largest float */

/* The smallest power for which finite x becomes a number of at most 127. */
static int power_of(float x)
{
    int power;
    const float part = frexpf(fabsf(x), &power) * 128; /* 64 .. 128, or 0 */
    power += part < 127.5f ? -7 : -6;
    return part <= 0 || power < LEAST_POWER ? LEAST_POWER : power > MOST_POWER ? MOST_POWER : power;
}

/* Rescale the numbers of a channel for a larger power. */
static void raise_power(int8_t *numbers, int by)
{
    for (int64_t i = 0; i < MHAI_RUN; i++)
        numbers[i] = (int8_t)nearbyintf(ldexpf((float)numbers[i], -by));
}

/* Store number `lane` of a channel. Rescales the other numbers if necessary. */
static void store_channel(int8_t *numbers, int64_t lane, int8_t *power, float x)
{
    numbers[lane] = 0;
    if (!isfinite(x)) *power = MHAI_BAD_POWER;
    if (*power == MHAI_BAD_POWER) return;
    const int needed = power_of(x);
    if (needed > *power) {
        raise_power(numbers, needed - *power);
        *power = (int8_t)needed;
    }
    const float n = nearbyintf(ldexpf(x, -*power));
    numbers[lane] = (int8_t)(n > 127 ? 127 : n < -127 ? -127 : n);
}

static int8_t *powers_of(const mha_kv_cache *cache, unsigned char *run)
{
    return (int8_t *)run + mhai_round_up(cache->desc.head_dim * MHAI_RUN, MHAI_LINE);
}

static void clear_powers(const mha_kv_cache *cache, unsigned char *run)
{
    memset(powers_of(cache, run), LEAST_POWER, (size_t)cache->desc.head_dim);
}

static void store_channels(const mha_kv_cache *cache, unsigned char *run, int64_t lane,
                           mha_dtype type, const void *from)
{
    const int64_t width = cache->desc.head_dim;
    int8_t *numbers = (int8_t *)run, *powers = powers_of(cache, run);
    float piece[PIECE];
    for (int64_t i = 0; i < width; i += PIECE) {
        const int64_t n = mhai_min_i64(PIECE, width - i);
        widen_piece(type, from, i, n, piece);
        for (int64_t c = i; c < i + n; c++)
            store_channel(numbers + c * MHAI_RUN, lane, powers + c, piece[c - i]);
    }
}

/* ---- a position ----------------------------------------------------------------------------- */

void mhai_kv_store_key(const mha_kv_cache *cache, int64_t b, int64_t h, int64_t position,
                       mha_dtype type, const void *from)
{
    const mhai_attn_pages *pages = &cache->pages;
    unsigned char *run = run_at(cache, pages->keys, pages->key_bytes, b, h, position);
    if (position % pages->page_size % MHAI_RUN == 0) { /* first key of a run: clear the others,
                                                        * which are read with it */
        memset(run, 0, (size_t)pages->key_bytes);
        if (pages->channels) clear_powers(cache, run);
    }
    mhai_kv_replace_key(cache, b, h, position, type, from);
}

void mhai_kv_replace_key(const mha_kv_cache *cache, int64_t b, int64_t h, int64_t position,
                         mha_dtype type, const void *from)
{
    const mhai_attn_pages *pages = &cache->pages;
    const int64_t lane = position % pages->page_size % MHAI_RUN;
    unsigned char *run = run_at(cache, pages->keys, pages->key_bytes, b, h, position);
    if (pages->channels) {
        store_channels(cache, run, lane, type, from);
        return;
    }
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

void mhai_kv_load_value(const mha_kv_cache *cache, int64_t b, int64_t h, int64_t position,
                        float *to)
{
    const mhai_attn_pages *pages = &cache->pages;
    const int64_t width = cache->desc.value_head_dim, lane = position % pages->page_size % MHAI_RUN;
    unsigned char *run = run_at(cache, pages->values, pages->value_bytes, b, h, position);
    if (pages->type != MHA_I8) {
        mhai_widen(pages->type, run + (size_t)(lane * width) * mha_dtype_size(pages->type), width,
                   to);
        return;
    }
    const float scale = *scale_at(run, pages->value_bytes, lane);
    for (int64_t i = 0; i < width; i++) to[i] = (float)((int8_t *)run)[lane * width + i] * scale;
}
