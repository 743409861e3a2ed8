#include "support/output_layer.h"

#include "support/expect.h"

mha_transformer *output_layer(mha_context *context, int64_t inputs, int64_t outputs,
                              const mha_transformer_source *source)
{
    static const int64_t no_heads[] = {0};
    const mha_transformer_desc d = {.struct_size = sizeof d,
                                    .vocab_size = outputs,
                                    .max_length = OUTPUT_LAYER_ROWS,
                                    .embed_dim = inputs,
                                    .num_layers = 1,
                                    .num_heads = 1,
                                    .head_dim = 8,
                                    .layer_heads = no_heads};
    mha_transformer *t = NULL;
    expect_ok(mha_transformer_create_from(context, &d, source, &t));
    expect_ok(mha_transformer_update(context, t));
    return t;
}

void output_layer_forward(mha_context *context, const mha_transformer *t, int64_t first,
                          int64_t count, float *y)
{
    int32_t ids[OUTPUT_LAYER_ROWS];
    mha_transformer_desc d = {.struct_size = sizeof d};
    mha_transformer_describe(t, &d);
    for (int64_t i = 0; i < count; i++) ids[i] = (int32_t)((first + i) % d.vocab_size);
    const mha_tensor tokens = mha_tensor_contiguous(ids, MHA_I32, 2, (int64_t[]){1, count});
    const mha_tensor out =
        mha_tensor_contiguous(y, MHA_F32, 3, (int64_t[]){1, count, d.vocab_size});
    const mha_transformer_input input = {.struct_size = sizeof input, .tokens = &tokens};
    expect_ok(mha_transformer_forward(context, t, &input, NULL, &out, NULL, NULL));
}
