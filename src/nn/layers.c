/* Layers around attention: layer norm. Linear layers are in src/module, which needs them too. */
#include "base/tensor.h"

#include <multihead/component.h>
#include <multihead/nn.h>

#include <math.h>

typedef struct norm_job {
    const mha_tensor *x, *residual, *weight, *bias, *y;
    double epsilon;
} norm_job;

static const float *row_of(const mha_tensor *tensor, int64_t row)
{
    return tensor ? (const float *)tensor->data + row * tensor->stride[0] : NULL;
}

/* Mean and variance in double, in two passes: nothing cancels. Rows are short; the cost is small
 * beside the matrix products. */
static void norm_row(void *argument, int64_t row, int worker)
{
    const norm_job *job = argument;
    (void)worker;
    const int64_t n = job->x->shape[1];
    const float *x = row_of(job->x, row), *residual = row_of(job->residual, row);
    const float *weight = job->weight->data, *bias = job->bias->data;
    float *y = (float *)job->y->data + row * job->y->stride[0];
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) {
        y[i] = residual ? x[i] + residual[i] : x[i]; /* z, one rounding */
        sum += (double)y[i];
    }
    double mean = sum / (double)n;
    for (int64_t i = 0; i < n; i++) {
        double centred = (double)y[i] - mean;
        squares += centred * centred;
    }
    double scale = 1.0 / sqrt(squares / (double)n + job->epsilon);
    for (int64_t i = 0; i < n; i++)
        y[i] = (float)(((double)y[i] - mean) * scale * (double)weight[i] + (double)bias[i]);
}

/* y shares no memory with other, or is the same view. */
static mha_status check_alias(const mha_tensor *y, const char *name, const mha_tensor *other)
{
    if (other && other->data == y->data && other->stride[0] == y->stride[0]) return MHA_OK;
    return mhai_tensor_check_disjoint("y", y, name, other);
}

mha_status mha_layer_norm(mha_context *context, const mha_tensor *x, const mha_tensor *residual,
                          const mha_tensor *weight, const mha_tensor *bias, float epsilon,
                          const mha_tensor *y)
{
    if (!context) return mha_fail(MHA_ERR_NULL, "mha_layer_norm: context is NULL");
    MHA_TRY(mhai_tensor_check("x", x, MHA_F32, 2, NULL));
    MHA_TRY(mhai_tensor_check_last("x", x));
    if (residual) {
        MHA_TRY(mhai_tensor_check("residual", residual, MHA_F32, 2, x->shape));
        MHA_TRY(mhai_tensor_check_last("residual", residual));
    }
    MHA_TRY(mhai_tensor_check("weight", weight, MHA_F32, 1, x->shape + 1));
    MHA_TRY(mhai_tensor_check_last("weight", weight));
    MHA_TRY(mhai_tensor_check("bias", bias, MHA_F32, 1, x->shape + 1));
    MHA_TRY(mhai_tensor_check_last("bias", bias));
    MHA_TRY(mhai_tensor_check("y", y, MHA_F32, 2, x->shape));
    MHA_TRY(mhai_tensor_check_last("y", y));
    MHA_TRY(mhai_tensor_check_output("y", y));
    MHA_TRY(check_alias(y, "x", x));
    MHA_TRY(check_alias(y, "residual", residual));
    MHA_TRY(mhai_tensor_check_disjoint("y", y, "weight", weight));
    MHA_TRY(mhai_tensor_check_disjoint("y", y, "bias", bias));
    if (!(epsilon >= 0) || isinf(epsilon))
        return mha_fail(MHA_ERR_ARGUMENT, "epsilon is %g, expected a finite number >= 0",
                        (double)epsilon);
    if (x->shape[1] == 0) return MHA_OK;
    norm_job job = {x, residual, weight, bias, y, (double)epsilon};
    mha_parallel_for(context, x->shape[0], norm_row, &job);
    return MHA_OK;
}
