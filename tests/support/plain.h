/* A plain call of attention: contiguous f32, normal numbers, o and lse. */
#ifndef TEST_PLAIN_H
#define TEST_PLAIN_H

#include "support/rng.h"

#include <multihead/attention.h>

typedef struct plain {
    int64_t B, H, T, S, D;
    float *q, *k, *v, *o, *lse; /* one block of memory: free(q) */
    mha_tensor Q, K, V, O, L;
} plain;

plain plain_make(rng *r, int64_t B, int64_t H, int64_t T, int64_t S, int64_t D);

/* Run the call; the test fails if the call fails. */
void plain_run(mha_context *context, const mha_attention_desc *desc, const plain *x);

#endif
