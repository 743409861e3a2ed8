/* Uses an installed libmultihead: attention of one query over two equal keys gives the mean value. */
#include <multihead/multihead.h>
#include <stdio.h>

int main(void)
{
    const float q[] = {1}, k[] = {2, 2}, v[] = {3, 5};
    float o[] = {0};
    mha_attention_sizes sizes = MHA_INIT(mha_attention_sizes);
    sizes.queries = 1, sizes.keys = 2, sizes.head_dim = 1;
    mha_context *context = NULL;
    mha_status status = mha_context_create(NULL, &context);
    if (!status) status = mha_attention_floats(context, &sizes, q, k, v, o);
    mha_context_destroy(context);
    printf("version %d.%d, status %d, result %g\n", MHA_VERSION_MAJOR, MHA_VERSION_MINOR, status,
           (double)o[0]);
    return status != MHA_OK || o[0] != 4;
}
