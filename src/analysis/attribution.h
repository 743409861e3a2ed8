/* Functions shared by all parts of attribution: weights by name, checks, and the
 * terms of a row of heads. */
#ifndef MHAI_ATTRIBUTION_H
#define MHAI_ATTRIBUTION_H

#include "base/tensor.h"
#include "transformer/transformer_parts.h"

#include <multihead/attribution.h>

/* Find a parameter of a layer (-1: of the whole model). An optional parameter that is absent
 * gives *weight with ndim 0. The data is read-only. If the transformer has a source, the data is in
 * the context's scratch. */
MHA_NODISCARD mha_status mhai_attribution_weight(mha_context *context, const mha_transformer *t,
                                                 int64_t layer, const char *name, bool optional,
                                                 mha_tensor *weight);

/* The same for the weight or bias of the last linear layer of a block, times residual_scale. Scaled
 * numbers are in scratch. */
MHA_NODISCARD mha_status mhai_attribution_last(mha_context *context, const mha_transformer *t,
                                               int64_t layer, const char *name, bool optional,
                                               mha_tensor *weight);

/* The prefix of parameter names: "self_attn", "cross_attn", "mlp". */
const char *mhai_attribution_part(mha_layer_part part);

/* Check that the activations belong to the transformer, and that part is attention. */
MHA_NODISCARD mha_status mhai_attribution_check(const mha_transformer *t, const mha_activations *a,
                                                mha_layer_part part);

/* Heads and a projection of matching shapes. */
typedef struct mhai_attribution_writer {
    mha_tensor heads;    /* [B,Hk,T,Dv] */
    const float *gates;  /* [H] or NULL */
    const float *weight; /* [H Dv,E], W_O transposed, in scratch */
    int64_t H, group;    /* head h reads heads[h / group] */
    int64_t Dv, E;
} mhai_attribution_writer;

/* Check the shapes, and transpose the weight into scratch. */
MHA_NODISCARD mha_status mhai_attribution_begin(mha_context *context, const mha_tensor *heads,
                                                const mha_tensor *weight, const mha_tensor *gates,
                                                mhai_attribution_writer *writer);
MHA_NODISCARD mha_status mhai_attribution_transpose(mha_context *context, const mha_tensor *weight,
                                                    mhai_attribution_writer *writer);

/* out [H,E]: the vector that each head writes at token t of sequence b, in double. */
void mhai_attribution_write(const mhai_attribution_writer *writer, int64_t b, int64_t t,
                            double *out);

/* The dot product in double, summed in order. */
static inline double mhai_attribution_dot(const double *a, const double *b, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += a[i] * b[i];
    return sum;
}

/* The element at indices [i0,i1,i2, 0 ...]. */
static inline float *mhai_attribution_at(const mha_tensor *x, int64_t i0, int64_t i1, int64_t i2)
{
    return (float *)x->data + i0 * x->stride[0] + i1 * x->stride[1] + i2 * x->stride[2];
}

/* Check the shape of an optional output, and that it does not overlap any of `inputs`,
 * none of which may be NULL. */
MHA_NODISCARD mha_status mhai_attribution_output(const char *name, const mha_tensor *tensor,
                                                 int ndim, const int64_t *shape,
                                                 const mha_tensor *const *inputs, int count);

#endif
