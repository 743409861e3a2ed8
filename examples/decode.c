/* Prefill and decode: a prompt of 6 tokens at once, then one token after the other, with 8 query
 * heads that share 2 key/value heads. The rows are those of all 10 tokens at once, to the bit.
 *
 * Build it by hand with: cc decode.c $(pkg-config --cflags --libs multihead) -lm
 */
#include <multihead/cache.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { H = 8, KV = 2, D = 64, PROMPT = 6, T = 10 };

/* As projections write them: [tokens, heads, head size]. */
static float q[T * H * D], k[T * KV * D], v[T * KV * D], o[T * H * D], whole[T * H * D];

static const mha_attention_desc causal = {.struct_size = sizeof causal,
                                          .flags = MHA_ATTENTION_CAUSAL};

/* Tokens first .. first + n - 1: their keys and values join the cache, their queries read it. */
static mha_status step(mha_context *context, mha_kv_cache *cache, int64_t first, int64_t n)
{
    const mha_tensor Q = mha_tensor_bthd(q + first * H * D, 1, n, H, D);
    const mha_tensor K = mha_tensor_bthd(k + first * KV * D, 1, n, KV, D);
    const mha_tensor V = mha_tensor_bthd(v + first * KV * D, 1, n, KV, D);
    const mha_tensor O = mha_tensor_bthd(o + first * H * D, 1, n, H, D);
    mha_status status = mha_kv_cache_append(cache, &K, &V, NULL);
    if (!status) status = mha_kv_cache_attention(context, cache, &causal, &Q, &O, NULL);
    return status;
}

int main(void)
{
    for (int i = 0; i < T * H * D; i++) q[i] = sinf((float)i);
    for (int i = 0; i < T * KV * D; i++) k[i] = cosf((float)i), v[i] = sinf(2 * (float)i);
    const mha_tensor Q = mha_tensor_bthd(q, 1, T, H, D), O = mha_tensor_bthd(whole, 1, T, H, D);
    const mha_tensor K = mha_tensor_bthd(k, 1, T, KV, D), V = mha_tensor_bthd(v, 1, T, KV, D);
    const mha_kv_cache_desc desc = {
        .struct_size = sizeof desc, .batch = 1, .kv_heads = KV, .capacity = T, .head_dim = D};
    mha_context *context = NULL;
    mha_kv_cache *cache = NULL;
    mha_status status = mha_context_create(NULL, &context);
    if (!status) status = mha_kv_cache_create(context, &desc, &cache);
    if (!status) status = step(context, cache, 0, PROMPT);
    for (int t = PROMPT; !status && t < T; t++) status = step(context, cache, t, 1);
    if (!status) status = mha_attention_forward(context, &causal, &Q, &K, &V, &O, NULL);
    if (status) fprintf(stderr, "%s: %s\n", mha_status_text(status), mha_error_detail());
    if (!status)
        printf("%lld positions in %zu bytes; step by step and at once: %s\n",
               (long long)mha_kv_cache_lengths(cache)[0], mha_kv_cache_bytes(cache),
               memcmp(o, whole, sizeof o) == 0 ? "the same bits" : "different");
    mha_kv_cache_destroy(cache);
    mha_context_destroy(context);
    return status != MHA_OK;
}
