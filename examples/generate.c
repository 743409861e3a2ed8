/* Generation with a module and its cache: 4 query heads share 2 key/value heads, RoPE, a prompt of 4 tokens at once,
 * then one token at a time. The rows are bit-identical to one causal call over the whole sequence.
 *
 * Build it by hand with:
 *   cc generate.c $(pkg-config --cflags --libs multihead) -lm -Wl,-rpath,$(pkg-config --variable=libdir multihead)
 */
#include <multihead/module.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { T = 9, PROMPT = 4, E = 32 };

static float x[T * E], whole[T * E], steps[T * E], values[3 * E * E];

/* Fill every parameter of the module with arbitrary numbers. */
static mha_status set_parameters(mha_module *module)
{
    mha_module_parameter p;
    mha_status status = MHA_OK;
    for (int i = 0; i < 3 * E * E; i++) values[i] = sinf((float)i) / 8;
    for (int64_t i = 0; !status && mha_module_parameter_at(module, i, &p); i++) {
        mha_tensor value = mha_tensor_contiguous(values, MHA_F32, p.ndim, p.shape);
        status = mha_module_set_parameter(module, p.name, &value);
    }
    return status;
}

/* Process tokens first .. first + count - 1 after those in the cache. */
static mha_status step(mha_context *context, const mha_module *module, mha_kv_cache *cache,
                       int64_t first, int64_t count)
{
    const int64_t shape[] = {1, count, E};
    mha_tensor tokens = mha_tensor_contiguous(x + first * E, MHA_F32, 3, shape);
    mha_tensor rows = mha_tensor_contiguous(steps + first * E, MHA_F32, 3, shape);
    mha_module_call call = MHA_INIT(mha_module_call);
    call.query = call.key = call.value = &tokens, call.out = &rows, call.cache = cache;
    return mha_module_run(context, module, &call);
}

static mha_status run(mha_context *context, mha_module *module, mha_kv_cache *cache)
{
    const mha_attention_desc causal = {.struct_size = sizeof causal, .flags = MHA_ATTENTION_CAUSAL};
    mha_tensor X = mha_tensor_contiguous(x, MHA_F32, 3, (int64_t[]){1, T, E});
    mha_tensor Y = mha_tensor_contiguous(whole, MHA_F32, 3, (int64_t[]){1, T, E});
    mha_status status = set_parameters(module);
    mha_module_call call = MHA_INIT(mha_module_call);
    call.query = call.key = call.value = &X, call.out = &Y, call.attention = &causal;
    if (!status) status = mha_module_run(context, module, &call);
    if (!status) status = step(context, module, cache, 0, PROMPT);
    for (int t = PROMPT; !status && t < T; t++) status = step(context, module, cache, t, 1);
    return status;
}

int main(void)
{
    for (int i = 0; i < T * E; i++) x[i] = cosf(3 * (float)i);
    mha_module_desc desc = {.struct_size = sizeof desc,
                            .flags = MHA_MODULE_ROPE | MHA_MODULE_NO_QKV_BIAS,
                            .embed_dim = E,
                            .num_heads = 4,
                            .kv_heads = 2,
                            .rope_pairing = MHA_ROPE_HALVES};
    mha_context *context = NULL;
    mha_module *module = NULL;
    mha_kv_cache *cache = NULL;
    mha_status status = mha_context_create(NULL, &context);
    if (!status) status = mha_module_create(context, &desc, &module);
    if (!status) status = mha_module_cache_create(context, module, 1, T, &cache);
    if (!status) status = run(context, module, cache);
    if (status) fprintf(stderr, "%s: %s\n", mha_status_text(status), mha_error_detail());
    if (!status) {
        printf("%lld parameters, %zu bytes of cache, %lld positions in it\n",
               (long long)mha_module_parameter_count(module), mha_kv_cache_bytes(cache),
               (long long)mha_kv_cache_lengths(cache)[0]);
        printf("step by step and at once: %s\n",
               memcmp(whole, steps, sizeof whole) == 0 ? "the same bits" : "different");
    }
    mha_kv_cache_destroy(cache);
    mha_module_destroy(module);
    mha_context_destroy(context);
    return status != MHA_OK;
}
