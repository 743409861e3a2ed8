/* Relative positions after Shaw et al. 2018, clipped at 128: a table of 2 * 128 + 1 = 257 rows, one
 * for each distance from -128 to 128. Keys farther away share the rows at its ends.
 *
 * Build it by hand with:
 *   cc shaw.c $(pkg-config --cflags --libs multihead) -lm -Wl,-rpath,$(pkg-config --variable=libdir multihead)
 */
#include <multihead/attention.h>

#include <math.h>
#include <stdio.h>

enum { CLIP = 128, ROWS = 2 * CLIP + 1, T = 300 };

/* Queries, keys and values have one element. Each row of the table holds its own distance. */
static float ones[T], zeros[T], o[T], table[ROWS];

int main(void)
{
    const int64_t shape[] = {1, 1, T, 1};
    for (int i = 0; i < T; i++) ones[i] = 1;
    for (int i = 0; i < ROWS; i++) table[i] = (float)(i - CLIP);
    mha_tensor Q = mha_tensor_contiguous(ones, MHA_F32, 4, shape);
    mha_tensor K = mha_tensor_contiguous(zeros, MHA_F32, 4, shape);
    mha_tensor O = mha_tensor_contiguous(o, MHA_F32, 4, shape);
    mha_tensor A = mha_tensor_contiguous(table, MHA_F32, 2, (int64_t[]){ROWS, 1});
    /* Values are zero, so the output of a row is its mean distance to the keys. */
    mha_attention_desc desc = {.struct_size = sizeof desc,
                               .flags = MHA_ATTENTION_SCALE_GIVEN, /* 0: equal scores */
                               .shaw_keys = &A,
                               .shaw_values = &A};

    mha_context *context = NULL;
    mha_status status = mha_context_create(NULL, &context);
    if (!status) status = mha_attention_forward(context, &desc, &Q, &K, &K, &O, NULL);
    if (status) fprintf(stderr, "%s: %s\n", mha_status_text(status), mha_error_detail());
    if (!status) {
        double mean = 0; /* of the clipped distances from token 0 */
        for (int s = 0; s < T; s++) mean += (double)(s < CLIP ? s : CLIP) / T;
        printf("clip %d: %d rows\n", CLIP, ROWS);
        printf("token 0: mean clipped distance %.4f, by attention %.4f\n", mean, (double)o[0]);
    }
    mha_context_destroy(context);
    return status != MHA_OK;
}
