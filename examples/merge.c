/* Keys in two places, as on two machines: compute attention over each part, then merge the parts by their log-sum-exp.
 * The result equals attention over all keys.
 *
 * Build it by hand with:
 *   cc merge.c $(pkg-config --cflags --libs multihead) -lm -Wl,-rpath,$(pkg-config --variable=libdir multihead)
 */
#include <multihead/attention.h>
#include <multihead/merge.h>

#include <math.h>
#include <stdio.h>

enum { T = 4, S = 10, CUT = 6, D = 8 };

typedef struct result {
    float o[T * D], lse[T];
    mha_tensor O, L;
} result;

static float q[T * D], k[S * D], v[S * D];
static result part[2], merged, whole;

static mha_tensor rows(float *data, int64_t count)
{
    return mha_tensor_contiguous(data, MHA_F32, 4, (int64_t[]){1, 1, count, D});
}

/* Attention of every query over keys from .. from+count-1. */
static mha_status attend(mha_context *context, int64_t from, int64_t count, result *r)
{
    mha_tensor Q = rows(q, T), K = rows(k + from * D, count), V = rows(v + from * D, count);
    r->O = rows(r->o, T);
    r->L = mha_tensor_contiguous(r->lse, MHA_F32, 3, (int64_t[]){1, 1, T});
    mha_attention_outputs outputs = {.struct_size = sizeof outputs, .lse = &r->L};
    return mha_attention_forward(context, NULL, &Q, &K, &V, &r->O, &outputs);
}

int main(void)
{
    for (int i = 0; i < T * D; i++) q[i] = sinf((float)i);
    for (int i = 0; i < S * D; i++) k[i] = cosf((float)i);
    for (int i = 0; i < S * D; i++) v[i] = sinf(3 * (float)i);

    mha_attention_part parts[] = {{&part[0].O, &part[0].L}, {&part[1].O, &part[1].L}};
    mha_context *context = NULL;
    mha_status status = mha_context_create(NULL, &context);
    if (!status) status = attend(context, 0, CUT, &part[0]);
    if (!status) status = attend(context, CUT, S - CUT, &part[1]);
    if (!status) status = attend(context, 0, S, &whole);
    merged.O = rows(merged.o, T);
    if (!status) status = mha_attention_merge(context, parts, 2, &merged.O, NULL);
    if (status) fprintf(stderr, "%s: %s\n", mha_status_text(status), mha_error_detail());

    double apart = 0;
    for (int i = 0; i < T * D; i++) {
        double error = fabs((double)merged.o[i] - (double)whole.o[i]);
        if (error > apart) apart = error;
    }
    printf("%d keys as %d and %d, merged: within 1e-6 of the whole: %s\n", S, CUT, S - CUT,
           apart < 1e-6 ? "yes" : "no");
    mha_context_destroy(context);
    return status != MHA_OK;
}
