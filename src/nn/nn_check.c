/* See nn_check.h. */
#include "nn/nn_check.h"
#include "base/need.h"

mha_status mhai_nn_matrix(const char *name, const mha_tensor *tensor, int64_t rows, int64_t cols)
{
    MHA_TRY(mhai_tensor_check(name, tensor, MHA_F32, 2, (int64_t[]){rows, cols}));
    return mhai_tensor_check_last(name, tensor);
}

mha_status mhai_nn_vector(const char *name, const mha_tensor *tensor, int64_t length)
{
    MHA_TRY(mhai_tensor_check(name, tensor, MHA_F32, 1, &length));
    return mhai_tensor_check_last(name, tensor);
}

mha_status mhai_nn_out_matrix(const char *name, const mha_tensor *tensor, int64_t rows,
                              int64_t cols)
{
    if (!tensor) return MHA_OK;
    MHA_TRY(mhai_nn_matrix(name, tensor, rows, cols));
    return mhai_tensor_check_output(name, tensor);
}

mha_status mhai_nn_out_vector(const char *name, const mha_tensor *tensor, int64_t length)
{
    return tensor ? mhai_nn_vector(name, tensor, length) : MHA_OK;
}

mha_status mhai_nn_alias(const char *name, const mha_tensor *output, const char *other_name,
                         const mha_tensor *other)
{
    if (output && other && other->data == output->data && other->stride[0] == output->stride[0])
        return MHA_OK;
    return mhai_tensor_check_disjoint(name, output, other_name, other);
}
