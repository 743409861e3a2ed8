/* Prefill and decode with grouped heads: 32 query heads share 8 key/value heads of size 64. A prompt of 32 tokens is
 * appended to a KV cache at once, then 8 tokens follow one by one. Every row is bit-identical to one causal call over
 * all 40 tokens.
 *
 * Build it by hand with:
 *   cc decode.c $(pkg-config --cflags --libs multihead) -lm -Wl,-rpath,$(pkg-config --variable=libdir multihead)
 */
#include <multihead/cache.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { H = 32, HK = 8, D = 64, PROMPT = 32, TOKENS = 40 };

/* The layout of projections: [token][head][d]. */
static float q[TOKENS * H * D], k[TOKENS * HK * D], v[TOKENS * HK * D];
static float whole[TOKENS * H * D], steps[TOKENS * H * D];

/* View tokens first .. first + count - 1 of such an array as [1, heads, count, D]. */
static mha_tensor rows(float *data, int64_t first, int64_t count, int64_t heads)
{
    return mha_tensor_bthd(data + first * heads * D, 1, count, heads, D);
}

/* Append the tokens' keys and values, then compute their queries over the whole cache. */
static mha_status step(mha_context *context, mha_kv_cache *cache, int64_t first, int64_t count)
{
    mha_attention_desc causal = MHA_INIT(mha_attention_desc);
    causal.flags = MHA_ATTENTION_CAUSAL; /* the queries are the last positions of the cache */
    const mha_tensor Q = rows(q, first, count, H), O = rows(steps, first, count, H);
    const mha_tensor K = rows(k, first, count, HK), V = rows(v, first, count, HK);
    mha_status status = mha_kv_cache_append(cache, &K, &V, NULL);
    if (!status) status = mha_kv_cache_attention(context, cache, &causal, &Q, &O, NULL);
    return status;
}

static mha_status run(mha_context *context, mha_kv_cache *cache)
{
    mha_attention_desc causal = MHA_INIT(mha_attention_desc);
    causal.flags = MHA_ATTENTION_CAUSAL;
    const mha_tensor Q = rows(q, 0, TOKENS, H), O = rows(whole, 0, TOKENS, H);
    const mha_tensor K = rows(k, 0, TOKENS, HK), V = rows(v, 0, TOKENS, HK);
    mha_status status = mha_attention_forward(context, &causal, &Q, &K, &V, &O, NULL);
    if (!status) status = step(context, cache, 0, PROMPT); /* prefill */
    for (int t = PROMPT; !status && t < TOKENS; t++) status = step(context, cache, t, 1);
    return status;
}

int main(void)
{
    for (int i = 0; i < TOKENS * H * D; i++) q[i] = sinf((float)i);
    for (int i = 0; i < TOKENS * HK * D; i++) k[i] = cosf((float)i), v[i] = sinf(3 * (float)i);
    mha_kv_cache_desc desc = MHA_INIT(mha_kv_cache_desc);
    desc.batch = 1, desc.kv_heads = HK, desc.head_dim = D, desc.capacity = TOKENS;
    mha_context *context = NULL;
    mha_kv_cache *cache = NULL;
    mha_status status = mha_context_create(NULL, &context);
    if (!status) status = mha_kv_cache_create(context, &desc, &cache);
    if (!status) status = run(context, cache);
    if (status) fprintf(stderr, "%s: %s\n", mha_status_text(status), mha_error_detail());
    bool same = !status && memcmp(whole, steps, sizeof whole) == 0;
    if (!status)
        printf("32 tokens at once and 8 one by one: %s\n", same ? "the same" : "DIFFERENT");
    if (!status) printf("the cache takes %zu KiB\n", mha_kv_cache_bytes(cache) / 1024);
    mha_kv_cache_destroy(cache);
    mha_context_destroy(context);
    return !same;
}
