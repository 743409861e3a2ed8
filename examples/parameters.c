/* Count the parameters of modules, without biases. Then run a module with grouped heads: 32 query heads share 8
 * key/value heads, width 4096, on a batch of 2 sequences of 10 tokens.
 *
 * Build it by hand with:
 *   cc parameters.c $(pkg-config --cflags --libs multihead) -Wl,-rpath,$(pkg-config --variable=libdir multihead)
 */
#include <multihead/module.h>

#include <stdio.h>
#include <string.h>

enum { B = 2, T = 10, E = 4096 };

static float x[B * T * E], out[B * T * E];

/* The number of elements of W_o. */
static long long output_weights(const mha_module *module)
{
    mha_module_parameter p;
    for (int64_t i = 0; mha_module_parameter_at(module, i, &p); i++)
        if (strcmp(p.name, "out_proj.weight") == 0) return (long long)(p.shape[0] * p.shape[1]);
    return -1;
}

static mha_status report(mha_context *context, int64_t width, int64_t heads, int64_t kv_heads)
{
    const mha_module_desc desc = {.struct_size = sizeof desc,
                                  .flags = MHA_MODULE_NO_QKV_BIAS | MHA_MODULE_NO_OUT_BIAS,
                                  .embed_dim = width,
                                  .num_heads = heads,
                                  .kv_heads = kv_heads};
    mha_module *module = NULL;
    mha_status status = mha_module_create(context, &desc, &module);
    if (status) return status;
    printf("width %4d, %2d heads, %2d for keys and values: %8lld parameters, %lld of them W_o\n",
           (int)width, (int)heads, (int)kv_heads, (long long)mha_module_parameter_count(module),
           output_weights(module));
    if (width == E) {
        mha_tensor X = mha_tensor_contiguous(x, MHA_F32, 3, (int64_t[]){B, T, E});
        mha_tensor Y = mha_tensor_contiguous(out, MHA_F32, 3, (int64_t[]){B, T, E});
        mha_module_call call = MHA_INIT(mha_module_call);
        call.query = call.key = call.value = &X, call.out = &Y;
        status = mha_module_run(context, module, &call);
        if (!status) printf("  x (%d, %d, %d): output (%d, %d, %d)\n", B, T, E, B, T, E);
    }
    mha_module_destroy(module);
    return status;
}

int main(void)
{
    mha_context *context = NULL;
    mha_status status = mha_context_create(NULL, &context);
    if (!status) status = report(context, 512, 8, 8);
    if (!status) status = report(context, 768, 12, 12);
    if (!status) status = report(context, 4096, 32, 8);
    if (status) fprintf(stderr, "%s: %s\n", mha_status_text(status), mha_error_detail());
    mha_context_destroy(context);
    return status != MHA_OK;
}
