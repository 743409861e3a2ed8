/* Big Bird's block pattern: neighbours, one global block and one random block per row. The program prints it and passes
 * it to attention, which computes the marked blocks only.
 *
 * Build it by hand with:
 *   cc pattern.c $(pkg-config --cflags --libs multihead) -Wl,-rpath,$(pkg-config --variable=libdir multihead)
 */
#include <multihead/attention.h>
#include <multihead/patterns.h>

#include <stdio.h>

enum { N = 1024, D = 8, BLOCK = 128, BLOCKS = N / BLOCK };

static float x[N * D], o[N * D];
static uint8_t keep[BLOCKS][BLOCKS];

int main(void)
{
    for (int i = 0; i < N * D; i++) x[i] = (float)(i % 11) / 8;
    mha_tensor X = mha_tensor_contiguous(x, MHA_F32, 4, (int64_t[]){1, 1, N, D});
    mha_tensor O = mha_tensor_contiguous(o, MHA_F32, 4, (int64_t[]){1, 1, N, D});
    mha_tensor K = mha_tensor_contiguous(keep, MHA_U8, 2, (int64_t[]){BLOCKS, BLOCKS});
    mha_pattern_desc pattern = {.struct_size = sizeof pattern,
                                .flags = MHA_PATTERN_LOCAL,
                                .left_blocks = 1,
                                .right_blocks = 1,
                                .global_rows = 1,
                                .global_cols = 1,
                                .random_blocks = 1,
                                .seed = 7};
    mha_attention_desc desc = {
        .struct_size = sizeof desc, .keep_blocks = &K, .block_queries = BLOCK, .block_keys = BLOCK};

    int64_t kept = 0;
    mha_context *context = NULL;
    mha_status status = mha_context_create(NULL, &context);
    if (!status) status = mha_pattern_fill(&pattern, &K, &kept);
    if (!status) status = mha_attention_forward(context, &desc, &X, &X, &X, &O, NULL);
    if (status) fprintf(stderr, "%s: %s\n", mha_status_text(status), mha_error_detail());
    printf("%d of %d blocks\n", (int)kept, BLOCKS * BLOCKS);
    for (int row = 0; row < BLOCKS; row++) {
        for (int col = 0; col < BLOCKS; col++) printf(" %c", keep[row][col] ? '#' : '.');
        printf("\n");
    }
    mha_context_destroy(context);
    return status != MHA_OK;
}
