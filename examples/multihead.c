/* The first page of the library, <multihead/multihead.h>: attention of floats, a module, and its cache for decoding.
 *
 * Build it by hand with:
 *   cc multihead.c $(pkg-config --cflags --libs multihead) -lm -Wl,-rpath,$(pkg-config --variable=libdir multihead)
 */
#include <multihead/multihead.h>

#include <math.h>
#include <stdio.h>

enum { HEADS = 4, T = 6, D = 8, E = HEADS * D };

static float x[T * E], o[T * E], numbers[3 * E * E];

/* x serves as queries, keys and values of 4 heads; token t sees tokens 0 .. t. */
static mha_status attend(mha_context *context)
{
    mha_attention_sizes sizes = MHA_INIT(mha_attention_sizes);
    sizes.heads = HEADS, sizes.queries = T, sizes.head_dim = D;
    sizes.flags = MHA_ATTENTION_CAUSAL;
    mha_status status = mha_attention_floats(context, &sizes, x, x, x, o);
    if (!status)
        printf("attention: the first query sees itself only: %s\n", o[0] == x[0] ? "yes" : "no");
    return status;
}

/* Set parameters by PyTorch's names, from a file (state.h) or as here. */
static mha_status fill(mha_module *module)
{
    mha_module_parameter p;
    mha_status status = MHA_OK;
    for (int64_t i = 0; !status && mha_module_parameter_at(module, i, &p); i++) {
        const mha_tensor value = mha_tensor_contiguous(numbers, MHA_F32, p.ndim, p.shape);
        status = mha_module_set_parameter(module, p.name, &value);
    }
    return status;
}

/* Process tokens one by one; the cache keeps their keys and values. */
static mha_status generate(mha_context *context, const mha_module *module, mha_kv_cache *cache)
{
    mha_status status = MHA_OK;
    for (int t = 0; !status && t < T; t++) {
        const int64_t shape[] = {1, 1, E};
        const mha_tensor token = mha_tensor_contiguous(x + t * E, MHA_F32, 3, shape);
        const mha_tensor out = mha_tensor_contiguous(o + t * E, MHA_F32, 3, shape);
        mha_module_call call = MHA_INIT(mha_module_call);
        call.query = call.key = call.value = &token, call.out = &out, call.cache = cache;
        status = mha_module_run(context, module, &call);
    }
    if (!status)
        printf("module: %lld parameters; the cache holds %lld tokens\n",
               (long long)mha_module_parameter_count(module),
               (long long)mha_kv_cache_lengths(cache)[0]);
    return status;
}

int main(void)
{
    for (int i = 0; i < T * E; i++) x[i] = sinf((float)i);
    for (int i = 0; i < 3 * E * E; i++) numbers[i] = cosf((float)i) / 8;
    mha_module_desc desc = MHA_INIT(mha_module_desc);
    desc.embed_dim = E, desc.num_heads = HEADS;
    mha_context *context = NULL;
    mha_module *module = NULL;
    mha_kv_cache *cache = NULL;
    mha_status status = mha_context_create(NULL, &context);
    if (!status) status = attend(context);
    if (!status) status = mha_module_create(context, &desc, &module);
    if (!status) status = fill(module);
    if (!status) status = mha_module_cache_create(context, module, 1, T, &cache);
    if (!status) status = generate(context, module, cache);
    if (status) fprintf(stderr, "%s: %s\n", mha_status_text(status), mha_error_detail());
    mha_kv_cache_destroy(cache);
    mha_module_destroy(module);
    mha_context_destroy(context);
    return status != MHA_OK;
}
