/* Attention on a few numbers: two queries attend to three keys in one head.
 *
 * Build it by hand with:
 *   cc attention.c $(pkg-config --cflags --libs multihead) -Wl,-rpath,$(pkg-config --variable=libdir multihead)
 */
#include <multihead/multihead.h>
#include <stdio.h>

int main(void)
{
    float q[] = {2, 1, 0, 3};                /* 2 queries of size 2 */
    float k[] = {1, 0, 0, 1, 1, 1};          /* 3 keys */
    float v[] = {1, 10, 2, 20, 3, 30}, o[4]; /* 3 values, room for 2 results */
    mha_attention_sizes sizes = MHA_INIT(mha_attention_sizes);
    sizes.queries = 2, sizes.keys = 3, sizes.head_dim = 2;

    mha_context *context = NULL;
    mha_status status = mha_context_create(NULL, &context);
    if (!status) status = mha_attention_floats(context, &sizes, q, k, v, o);
    if (!status) printf("%.4f %.4f\n%.4f %.4f\n", o[0], o[1], o[2], o[3]);
    if (status) fprintf(stderr, "%s: %s\n", mha_status_text(status), mha_error_detail());
    mha_context_destroy(context);
    return status != MHA_OK;
}
