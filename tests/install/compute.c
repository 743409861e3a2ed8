/* Uses an installed libmultihead: attention of one query over two equal keys is the mean value. */
#include <multihead/multihead.h>
#include <stdio.h>

int main(void)
{
    float q[] = {1}, k[] = {2, 2}, v[] = {3, 5}, o[] = {0};
    mha_tensor Q = mha_tensor_contiguous(q, MHA_F32, 4, (int64_t[]){1, 1, 1, 1});
    mha_tensor K = mha_tensor_contiguous(k, MHA_F32, 4, (int64_t[]){1, 1, 2, 1});
    mha_tensor V = mha_tensor_contiguous(v, MHA_F32, 4, (int64_t[]){1, 1, 2, 1});
    mha_tensor O = mha_tensor_contiguous(o, MHA_F32, 4, (int64_t[]){1, 1, 1, 1});
    mha_context *context = NULL;
    mha_status status = mha_context_create(NULL, &context);
    if (!status) status = mha_attention_forward(context, NULL, &Q, &K, &V, &O, NULL);
    mha_context_destroy(context);
    printf("version %d.%d, status %d, result %g\n", MHA_VERSION_MAJOR, MHA_VERSION_MINOR, status,
           (double)o[0]);
    return status != MHA_OK || o[0] != 4;
}
