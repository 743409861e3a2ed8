/* A small module from PyTorch's parameters: x of shape (3, 5, 16) through 2 heads gives an output
 * of the same shape, and weights of shape (3, 2, 5, 5).
 *
 * Build it by hand with:
 *   cc module.c $(pkg-config --cflags --libs multihead) -lm -Wl,-rpath,$(pkg-config --variable=libdir multihead)
 */
#include <multihead/module.h>

#include <math.h>
#include <stdio.h>

enum { B = 3, T = 5, E = 16, H = 2 };

static float x[B * T * E], out[B * T * E], weights[B * H * T * T];
static float in_weight[3 * E * E], in_bias[3 * E], out_weight[E * E], out_bias[E];

static mha_tensor matrix(float *data, int64_t rows, int64_t columns)
{
    return mha_tensor_contiguous(data, MHA_F32, 2, (int64_t[]){rows, columns});
}

static mha_status run(mha_context *context, mha_module *module)
{
    mha_tensor X = mha_tensor_contiguous(x, MHA_F32, 3, (int64_t[]){B, T, E});
    mha_tensor Y = mha_tensor_contiguous(out, MHA_F32, 3, (int64_t[]){B, T, E});
    mha_tensor W = mha_tensor_contiguous(weights, MHA_F32, 4, (int64_t[]){B, H, T, T});
    mha_module_outputs outputs = {.struct_size = sizeof outputs, .probabilities = &W};
    mha_tensor in_w = matrix(in_weight, 3 * E, E), out_w = matrix(out_weight, E, E);
    mha_tensor in_b = mha_tensor_contiguous(in_bias, MHA_F32, 1, (int64_t[]){3 * E});
    mha_tensor out_b = mha_tensor_contiguous(out_bias, MHA_F32, 1, (int64_t[]){E});
    mha_status status = mha_module_set_parameter(module, "in_proj_weight", &in_w);
    if (!status) status = mha_module_set_parameter(module, "in_proj_bias", &in_b);
    if (!status) status = mha_module_set_parameter(module, "out_proj.weight", &out_w);
    if (!status) status = mha_module_set_parameter(module, "out_proj.bias", &out_b);
    mha_module_call call = MHA_INIT(mha_module_call);
    call.query = call.key = call.value = &X, call.out = &Y, call.outputs = &outputs;
    if (!status) status = mha_module_run(context, module, &call);
    return status;
}

int main(void)
{
    for (int i = 0; i < B * T * E; i++) x[i] = sinf((float)i);
    for (int i = 0; i < 3 * E * E; i++) in_weight[i] = cosf((float)i) / 8;
    for (int i = 0; i < E * E; i++) out_weight[i] = sinf(3 * (float)i) / 8;

    mha_module_desc desc = {.struct_size = sizeof desc, .embed_dim = E, .num_heads = H};
    mha_context *context = NULL;
    mha_module *module = NULL;
    mha_status status = mha_context_create(NULL, &context);
    if (!status) status = mha_module_create(context, &desc, &module);
    if (!status) status = run(context, module);
    if (status) fprintf(stderr, "%s: %s\n", mha_status_text(status), mha_error_detail());
    if (!status) {
        printf("x (%d, %d, %d), %d heads: weights (%d, %d, %d, %d)\n", B, T, E, H, B, H, T, T);
        printf("head 0, sequence 0: weights of token 0:");
        for (int s = 0; s < T; s++) printf(" %.3f", (double)weights[s]);
        printf("\n");
    }
    mha_module_destroy(module);
    mha_context_destroy(context);
    return status != MHA_OK;
}
