/* Keys that are replaced in place, like those of moving sinks: the numbers of all 16 positions of a
 * run are rescaled to the larger power, and no others change. Raw scores of one-hot queries read
 * the keys. */
#include "cache/kv_cache.h"
#include "support/shared_context.h"
#include "support/suite.h"

#include <math.h>

enum { D = 3, KEYS = 40, RUN = 16, HEADS = 2 };

/* Integers up to 127. Each channel of a run contains 127, so its power is 0, and the integers are
 * exact. */
static float number_of(int64_t h, int64_t position, int64_t c)
{
    return position % RUN == 5 ? 127 : (float)((h + 7 * position + 31 * c) % 128);
}

static mha_kv_cache *make(mha_context *context, mha_dtype type, mha_kv_scales scales)
{
    const mha_kv_cache_desc desc = {.struct_size = sizeof desc,
                                    .batch = 1,
                                    .kv_heads = HEADS,
                                    .capacity = KEYS,
                                    .head_dim = D,
                                    .type = type,
                                    .page_size = 32,
                                    .key_scales = scales};
    mha_kv_cache *cache = NULL;
    float x[HEADS][KEYS][D];
    for (int i = 0; i < HEADS * KEYS * D; i++)
        (&x[0][0][0])[i] = number_of(i / (KEYS * D), i / D % KEYS, i % D);
    const mha_tensor k = mha_tensor_contiguous(x, MHA_F32, 4, (int64_t[]){1, HEADS, KEYS, D});
    assert_int_equal(mha_kv_cache_create(context, &desc, &cache), MHA_OK);
    assert_int_equal(mha_kv_cache_append(cache, &k, &k, NULL), MHA_OK);
    return cache;
}

static void read_keys(mha_context *context, const mha_kv_cache *cache, float keys[HEADS][D][KEYS])
{
    float one_hot[HEADS][D][D] = {{{0}}}, o[HEADS][D][D];
    for (int i = 0; i < HEADS * D; i++) one_hot[i / D][i % D][i % D] = 1;
    const mha_tensor q = mha_tensor_contiguous(one_hot, MHA_F32, 4, (int64_t[]){1, HEADS, D, D});
    const mha_tensor out = mha_tensor_contiguous(o, MHA_F32, 4, q.shape);
    const mha_tensor scores =
        mha_tensor_contiguous(keys, MHA_F32, 4, (int64_t[]){1, HEADS, D, KEYS});
    const mha_attention_desc desc = {
        .struct_size = sizeof desc, .flags = MHA_ATTENTION_SCALE_GIVEN, .scale = 1};
    const mha_attention_outputs outputs = {.struct_size = sizeof outputs, .scores = &scores};
    assert_int_equal(mha_kv_cache_attention(context, cache, &desc, &q, &out, &outputs), MHA_OK);
}

static void replaced_keys(void)
{
    static const struct {
        mha_dtype type;
        mha_kv_scales scales;
    } kinds[] = {{MHA_F32, 0}, {MHA_F16, 0}, {MHA_I8, 0}, {MHA_I8, MHA_KV_SCALES_CHANNEL}};
    static const int64_t places[] = {0, 3, 14, 15, 16, 31, 39};
    enum { HEAD = 1, CHANNEL = 2 };
    mha_context *context = context_with(1);
    for (size_t n = 0; n < sizeof kinds / sizeof *kinds; n++)
        for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
            mha_kv_cache *cache = make(context, kinds[n].type, kinds[n].scales);
            const int64_t at = places[i];
            const float row[D] = {0, -1, 1000}; /* 125 of power 3, or 127 times a scale */
            float keys[HEADS][D][KEYS];
            mhai_kv_replace_key(cache, 0, HEAD, at, MHA_F32, row);
            read_keys(context, cache, keys);
            for (int64_t h = 0; h < HEADS; h++)
                for (int64_t c = 0; c < D; c++)
                    for (int64_t s = 0; s < KEYS; s++) {
                        const bool replaced = h == HEAD && s == at;
                        const bool shared = kinds[n].scales == MHA_KV_SCALES_CHANNEL && h == HEAD &&
                                            c == CHANNEL && s / RUN == at / RUN;
                        const double x = replaced ? (double)row[c] : (double)number_of(h, s, c);
                        const double expected = shared ? 8 * rint(x / 8) : x;
                        /* A position's scale is its largest number / 127: at most 1, or 1000 / 127, which rounds -1 to
                         * 0. Scores are not exact. */
                        const double by_position = kinds[n].type == MHA_I8 && !kinds[n].scales;
                        const double error = 1e-3 + by_position * (replaced ? 1 : 0.5);
                        if (!(fabs((double)keys[h][c][s] - expected) <= error))
                            fail_msg("kind %zu, key %lld replaced: head %lld, channel %lld, key "
                                     "%lld is %g, expected %g",
                                     n, (long long)at, (long long)h, (long long)c, (long long)s,
                                     (double)keys[h][c][s], expected);
                    }
            mha_kv_cache_destroy(cache);
        }
}

RUN_TESTS(TEST(replaced_keys))
