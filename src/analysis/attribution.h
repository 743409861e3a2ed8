/* Shared by the parts of attribution: weights by name, checks, the terms of one row of heads. */
#ifndef MHAI_ATTRIBUTION_H
#define MHAI_ATTRIBUTION_H

#include "base/tensor.h"
#include "transformer/transformer_parts.h"

#include <multihead/attribution.h>

/* Find a parameter of layer `layer` (-1: of the whole model). If the parameter is optional and
 * absent, *weight has ndim 0. The data is read-only. If the transformer has a source, the data is
 * in the context's scratch. */
MHA_NODISCARD mha_status mhai_attribution_weight(mha_context *context, const mha_transformer *t,
                                                 int64_t layer, const char *name, bool optional,
                                                 mha_tensor *weight);

/* The prefix of the parameter names of a part: "self_attn", "cross_attn", "mlp". */
const char *mhai_attribution_part(mha_layer_part part);

/* Check that the activations belong to the transformer, and that part is an attention. */
MHA_NODISCARD mha_status mhai_attribution_check(const mha_transformer *t, const mha_activations *a,
                                                mha_layer_part part);

/* Heads and a projection of matching shapes. */
typedef struct mhai_attribution_writer {
    mha_tensor heads;    /* [B,Hk,T,Dv] */
    const float *gates;  /* [H] or NULL */
    const float *weight; /* [H Dv,E], W_O transposed: scratch */
    int64_t H, group;    /* head h reads heads[h / group] */
    int64_t Dv, E;
} mhai_attribution_writer;

/* Check them, and transpose the weight into scratch. */
MHA_NODISCARD mha_status mhai_attribution_begin(mha_context *context, const mha_tensor *heads,
                                                const mha_tensor *weight, const mha_tensor *gates,
                                                mhai_attribution_writer *writer);
MHA_NODISCARD mha_status mhai_attribution_transpose(mha_context *context, const mha_tensor *weight,
                                                    mhai_attribution_writer *writer);

/* out [H,E]: the term that every head writes at token t of sequence b, in double. */
void mhai_attribution_write(const mhai_attribution_writer *writer, int64_t b, int64_t t,
                            double *out);

/* Dot product in double, summed in order. */
static inline double mhai_attribution_dot(const double *a, const double *b, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += a[i] * b[i];
    return sum;
}

/* The element at the first indices of a tensor: [i0,i1,i2, 0 ...]. */
static inline float *mhai_attribution_at(const mha_tensor *x, int64_t i0, int64_t i1, int64_t i2)
{
    return (float *)x->data + i0 * x->stride[0] + i1 * x->stride[1] + i2 * x->stride[2];
}

/* Check an optional output: it must have this shape and be disjoint from the `inputs`. No input may
 * be NULL. */
MHA_NODISCARD mha_status mhai_attribution_output(const char *name, const mha_tensor *tensor,
                                                 int ndim, const int64_t *shape,
                                                 const mha_tensor *const *inputs, int count);

#endif
