/* Layer norm and RMS norm, forward. */
#include "nn/norm.h"

#include "base/checked.h"
#include "base/context.h"

#include <math.h>

mha_status mhai_norm_check(const mhai_norm *norm)
{
    MHA_TRY(mhai_nn_matrix("x", norm->x, -1, -1));
    int64_t rows = norm->x->shape[0], width = norm->x->shape[1];
    if (norm->residual) MHA_TRY(mhai_nn_matrix("residual", norm->residual, rows, width));
    MHA_TRY(mhai_nn_vector("weight", norm->weight, width));
    if (norm->bias) MHA_TRY(mhai_nn_vector("bias", norm->bias, width));
    if (!(norm->epsilon >= 0) || isinf(norm->epsilon))
        return mha_fail(MHA_ERR_ARGUMENT, "epsilon is %g, expected a finite number >= 0",
                        norm->epsilon);
    return MHA_OK;
}

mhai_norm_strip mhai_norm_strip_at(const mhai_norm *norm, int64_t row, float *z, int64_t z_stride)
{
    const int64_t n = norm->x->shape[1];
    const mhai_norm_strip strip = {.rows =
                                       (int)mhai_min_i64(MHAI_NORM_ROWS, norm->x->shape[0] - row),
                                   .n = n,
                                   .centred = norm->centred,
                                   .epsilon = norm->epsilon,
                                   .z = norm->residual ? z : mhai_nn_row(norm->x, row),
                                   .z_stride = norm->residual ? z_stride : norm->x->stride[0],
                                   .weight = norm->weight->data,
                                   .bias = norm->bias ? norm->bias->data : NULL};
    for (int r = 0; norm->residual && r < strip.rows; r++) {
        const float *x = mhai_nn_row(norm->x, row + r);
        const float *residual = mhai_nn_row(norm->residual, row + r);
        for (int64_t i = 0; i < n; i++) z[r * z_stride + i] = x[i] + residual[i];
    }
    return strip;
}

typedef struct norm_job {
    const mhai_kernels *kernels;
    const mhai_norm *norm;
    const mha_tensor *y;
} norm_job;

static void norm_rows(void *argument, int64_t item, int worker)
{
    const norm_job *job = argument;
    (void)worker;
    const int64_t row = item * MHAI_NORM_ROWS, stride = job->y->stride[0];
    float *y = mhai_nn_row(job->y, row);
    mhai_norm_strip strip = mhai_norm_strip_at(job->norm, row, y, stride);
    strip.y = y;
    strip.y_stride = stride;
    job->kernels->norm_strip(&strip);
}

static mha_status forward(mha_context *context, const mhai_norm *norm, const mha_tensor *y)
{
    if (!context) return mha_fail(MHA_ERR_NULL, "%s: context is NULL", norm->function);
    MHA_TRY(mhai_norm_check(norm));
    MHA_TRY(mhai_nn_matrix("y", y, norm->x->shape[0], norm->x->shape[1]));
    MHA_TRY(mhai_tensor_check_output("y", y));
    MHA_TRY(mhai_nn_alias("y", y, "x", norm->x));
    MHA_TRY(mhai_nn_alias("y", y, "residual", norm->residual));
    MHA_TRY(mhai_tensor_check_disjoint("y", y, "weight", norm->weight));
    MHA_TRY(mhai_tensor_check_disjoint("y", y, "bias", norm->bias));
    if (y->shape[1] == 0) return MHA_OK;
    norm_job job = {mhai_kernels_for(context->isa), norm, y};
    mha_parallel_for(context, mhai_ceil_div(y->shape[0], MHAI_NORM_ROWS), norm_rows, &job);
    return MHA_OK;
}

mha_status mha_layer_norm(mha_context *context, const mha_tensor *x, const mha_tensor *residual,
                          const mha_tensor *weight, const mha_tensor *bias, float epsilon,
                          const mha_tensor *y)
{
    return forward(context,
                   &(mhai_norm){"mha_layer_norm", true, x, residual, weight, bias, (double)epsilon},
                   y);
}

mha_status mha_rms_norm(mha_context *context, const mha_tensor *x, const mha_tensor *residual,
                        const mha_tensor *weight, float epsilon, const mha_tensor *y)
{
    return forward(context,
                   &(mhai_norm){"mha_rms_norm", false, x, residual, weight, NULL, (double)epsilon},
                   y);
}
