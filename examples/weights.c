/* Attention weights of a batch: 2 sequences, 8 heads of size 64, 10 tokens. The weights have the shape (2, 8, 10, 10);
 * every row sums to 1.
 *
 * Build it by hand with:
 *   cc weights.c $(pkg-config --cflags --libs multihead) -lm -Wl,-rpath,$(pkg-config --variable=libdir multihead)
 */
#include <multihead/attention.h>

#include <math.h>
#include <stdio.h>

enum { B = 2, H = 8, T = 10, D = 64 };

static float q[B * H * T * D], k[B * H * T * D], v[B * H * T * D], o[B * H * T * D];
static float weights[B * H * T * T];

int main(void)
{
    const int64_t shape[] = {B, H, T, D};
    for (int i = 0; i < B * H * T * D; i++) {
        q[i] = sinf((float)i);
        k[i] = cosf((float)i);
        v[i] = sinf(2 * (float)i);
    }
    mha_tensor Q = mha_tensor_contiguous(q, MHA_F32, 4, shape);
    mha_tensor K = mha_tensor_contiguous(k, MHA_F32, 4, shape);
    mha_tensor V = mha_tensor_contiguous(v, MHA_F32, 4, shape);
    mha_tensor O = mha_tensor_contiguous(o, MHA_F32, 4, shape);
    mha_tensor W = mha_tensor_contiguous(weights, MHA_F32, 4, (int64_t[]){B, H, T, T});
    mha_attention_outputs outputs = {.struct_size = sizeof outputs, .probabilities = &W};

    mha_context *context = NULL;
    mha_status status = mha_context_create(NULL, &context);
    if (!status) status = mha_attention_forward(context, NULL, &Q, &K, &V, &O, &outputs);
    if (status) fprintf(stderr, "%s: %s\n", mha_status_text(status), mha_error_detail());

    double worst = 0; /* the largest deviation of a row's sum from 1 */
    for (int row = 0; row < B * H * T; row++) {
        double sum = 0;
        for (int s = 0; s < T; s++) sum += (double)weights[row * T + s];
        worst = fmax(worst, fabs(sum - 1));
    }
    printf("q (%d, %d, %d, %d): weights (%d, %d, %d, %d)\n", B, H, T, D, B, H, T, T);
    printf("%d rows, each sums to 1 within 1e-6: %s\n", B * H * T, worst < 1e-6 ? "yes" : "no");
    mha_context_destroy(context);
    return status != MHA_OK;
}
