/* One boolean mask, three conventions: what PyTorch's scaled_dot_product_attention, its
 * nn.MultiheadAttention and ONNX's Attention make of it. Four tokens, the last two are padding.
 *
 * Build it by hand with:
 *   cc presets.c $(pkg-config --cflags --libs multihead) -Wl,-rpath,$(pkg-config --variable=libdir multihead)
 */
#include <multihead/presets.h>

#include <stdio.h>

enum { TOKENS = 4, WIDTH = 2 };

static int check(mha_status status)
{
    if (status != MHA_OK) printf("%s\n", mha_error_detail());
    return status != MHA_OK;
}

static void print_row(const char *name, const float *row)
{
    printf("%-34s %.2f %.2f\n", name, (double)row[0], (double)row[1]);
}

int main(void)
{
    float x[TOKENS][WIDTH] = {{1, 0}, {0, 1}, {5, 5}, {-5, 5}}, out[TOKENS][WIDTH];
    uint8_t padding[TOKENS] = {0, 0, 1, 1}, real[TOKENS] = {1, 1, 0, 0};
    const int64_t shape[] = {1, 1, TOKENS, WIDTH}; /* [B,H,T,D]; the last two are [T,E] */
    mha_tensor tx = mha_tensor_contiguous(x, MHA_F32, 4, shape);
    mha_tensor tout = mha_tensor_contiguous(out, MHA_F32, 4, shape);
    mha_tensor masked = mha_tensor_contiguous(padding, MHA_U8, 1, &shape[2]);
    mha_tensor attends = mha_tensor_contiguous(real, MHA_U8, 1, &shape[2]);
    mha_context *context;
    if (check(mha_context_create(NULL, &context))) return 1;

    const mha_pytorch_sdpa_args sdpa = {.struct_size = sizeof sdpa, .attn_mask = &attends};
    if (check(mha_pytorch_sdpa_forward(context, &sdpa, &tx, &tx, &tx, &tout))) return 1;
    print_row("SDPA, true attends", out[0]);

    const mha_onnx_attention_inputs inputs = {
        .struct_size = sizeof inputs, .q = &tx, .k = &tx, .v = &tx, .attn_mask = &attends};
    const mha_onnx_attention_outputs outputs = {.struct_size = sizeof outputs, .y = &tout};
    if (check(mha_onnx_attention(context, NULL, &inputs, &outputs))) return 1;
    print_row("ONNX, true attends", out[0]);

    float one[WIDTH][WIDTH] = {{1, 0}, {0, 1}}; /* projections that change nothing */
    mha_tensor identity = mha_tensor_contiguous(one, MHA_F32, 2, (int64_t[]){WIDTH, WIDTH});
    static const char *const names[] = {"q_proj.weight", "k_proj.weight", "v_proj.weight",
                                        "out_proj.weight"};
    const mha_module_desc desc = {.struct_size = sizeof desc, .embed_dim = WIDTH, .num_heads = 1};
    mha_module *module;
    if (check(mha_module_create(context, &desc, &module))) return 1;
    for (int i = 0; i < 4; i++)
        if (check(mha_module_set_parameter(module, names[i], &identity))) return 1;
    mha_tensor rows = mha_tensor_contiguous(x, MHA_F32, 2, &shape[2]);
    mha_tensor result = mha_tensor_contiguous(out, MHA_F32, 2, &shape[2]);
    const mha_pytorch_mha_args args = {.struct_size = sizeof args,
                                       .query = &rows,
                                       .key = &rows,
                                       .value = &rows,
                                       .key_padding_mask = &masked};
    if (check(mha_pytorch_mha_forward(context, module, &args, &result, NULL))) return 1;
    print_row("nn.MultiheadAttention, true masks", out[0]);

    mha_module_destroy(module);
    mha_context_destroy(context);
    return 0;
}
