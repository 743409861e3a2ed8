/* Checks that the layers share, and rows of checked matrices. */
#ifndef MHAI_NN_CHECK_H
#define MHAI_NN_CHECK_H

#include "base/tensor.h"

#include <multihead/component.h>
#include <multihead/nn.h>

/* Check an f32 matrix of this shape (-1: any size) with contiguous rows. */
MHA_NODISCARD mha_status mhai_nn_matrix(const char *name, const mha_tensor *tensor, int64_t rows,
                                        int64_t cols);

/* Check a contiguous f32 vector. */
MHA_NODISCARD mha_status mhai_nn_vector(const char *name, const mha_tensor *tensor, int64_t length);

/* The same for outputs, which may be NULL. */
MHA_NODISCARD mha_status mhai_nn_out_matrix(const char *name, const mha_tensor *tensor,
                                            int64_t rows, int64_t cols);
MHA_NODISCARD mha_status mhai_nn_out_vector(const char *name, const mha_tensor *tensor,
                                            int64_t length);

/* Check that output is the same view as other, or shares no memory with it. */
MHA_NODISCARD mha_status mhai_nn_alias(const char *name, const mha_tensor *output,
                                       const char *other_name, const mha_tensor *other);

/* The token id or target at an index. */
static inline int32_t mhai_nn_id(const mha_tensor *ids, int64_t row)
{
    return ((const int32_t *)ids->data)[row * ids->stride[0]];
}

static inline float *mhai_nn_row(const mha_tensor *tensor, int64_t row)
{
    return tensor ? (float *)tensor->data + row * tensor->stride[0] : NULL;
}

#endif
