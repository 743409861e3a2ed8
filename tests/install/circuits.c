/* Uses the installed circuits library: a transformer with zero weights has circuits of size 0. */
#include <multihead/circuits.h>
#include <stdio.h>

int main(void)
{
    mha_context *context = NULL;
    mha_transformer *transformer = NULL;
    const mha_transformer_desc desc = {.struct_size = sizeof desc,
                                       .vocab_size = 4,
                                       .max_length = 4,
                                       .embed_dim = 4,
                                       .num_layers = 1,
                                       .num_heads = 2};
    double values[4] = {1, 1, 1, 1}, copying[2] = {1, 1};
    const mha_circuits out = {.struct_size = sizeof out, .ov_values = values, .copying = copying};
    mha_status status = mha_context_create(NULL, &context);
    if (!status) status = mha_transformer_create(context, &desc, &transformer);
    if (!status) status = mha_transformer_circuits(context, transformer, NULL, &out);
    mha_transformer_destroy(transformer);
    mha_context_destroy(context);
    printf("status %d, %g and %g\n", status, values[0], copying[0]);
    return status || values[0] != 0 || values[3] != 0 || copying[1] != 0;
}
