#include "support/plain.h"

#include "support/suite.h"

#include <stdlib.h>

plain plain_make(rng *r, int64_t B, int64_t H, int64_t T, int64_t S, int64_t D)
{
    plain x = {.B = B, .H = H, .T = T, .S = S, .D = D};
    const int64_t rows = B * H * T * D, keys = B * H * S * D;
    x.q = malloc((size_t)(2 * rows + 2 * keys + B * H * T) * sizeof(float));
    if (!x.q) abort();
    x.k = x.q + rows, x.v = x.k + keys, x.o = x.v + keys, x.lse = x.o + rows;
    for (int64_t i = 0; i < rows + 2 * keys; i++) x.q[i] = rng_normal(r);
    x.Q = mha_tensor_contiguous(x.q, MHA_F32, 4, (int64_t[]){B, H, T, D});
    x.K = mha_tensor_contiguous(x.k, MHA_F32, 4, (int64_t[]){B, H, S, D});
    x.V = mha_tensor_contiguous(x.v, MHA_F32, 4, (int64_t[]){B, H, S, D});
    x.O = mha_tensor_contiguous(x.o, MHA_F32, 4, (int64_t[]){B, H, T, D});
    x.L = mha_tensor_contiguous(x.lse, MHA_F32, 3, (int64_t[]){B, H, T});
    return x;
}

void plain_run(mha_context *context, const mha_attention_desc *desc, const plain *x)
{
    const mha_attention_outputs outputs = {.struct_size = sizeof outputs, .lse = &x->L};
    if (mha_attention_forward(context, desc, &x->Q, &x->K, &x->V, &x->O, &outputs) != MHA_OK)
        fail_msg("%s", mha_error_detail());
}
