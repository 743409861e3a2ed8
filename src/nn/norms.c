/* Layer norm and RMS norm, forward. Rows are short: double costs little beside matrix products. */
#include "nn/norm.h"

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

void mhai_norm_load(const mhai_norm *norm, int64_t row, float *z)
{
    const float *x = mhai_nn_row(norm->x, row), *residual = mhai_nn_row(norm->residual, row);
    for (int64_t i = 0; i < norm->x->shape[1]; i++) z[i] = residual ? x[i] + residual[i] : x[i];
}

mhai_norm_row mhai_norm_measure(const mhai_norm *norm, const float *z)
{
    const int64_t n = norm->x->shape[1];
    double sum = 0, squares = 0;
    for (int64_t i = 0; norm->centred && i < n; i++) sum += (double)z[i];
    double mean = sum / (double)n;
    for (int64_t i = 0; i < n; i++) {
        double centred = (double)z[i] - mean;
        squares += centred * centred;
    }
    return (mhai_norm_row){mean, 1.0 / sqrt(squares / (double)n + norm->epsilon)};
}

typedef struct norm_job {
    const mhai_norm *norm;
    const mha_tensor *y;
} norm_job;

static void norm_row(void *argument, int64_t row, int worker)
{
    const norm_job *job = argument;
    (void)worker;
    const float *weight = job->norm->weight->data;
    const float *bias = job->norm->bias ? job->norm->bias->data : NULL;
    float *y = mhai_nn_row(job->y, row);
    mhai_norm_load(job->norm, row, y);
    mhai_norm_row m = mhai_norm_measure(job->norm, y);
    for (int64_t i = 0; i < job->y->shape[1]; i++) {
        double normal = ((double)y[i] - m.mean) * m.scale * (double)weight[i];
        y[i] = (float)(bias ? normal + (double)bias[i] : normal);
    }
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
    norm_job job = {norm, y};
    mha_parallel_for(context, y->shape[0], norm_row, &job);
    return MHA_OK;
}

mha_status mha_layer_norm(mha_context *context, const mha_tensor *x, const mha_tensor *residual,
                          const mha_tensor *weight, const mha_tensor *bias, float epsilon,
                          const mha_tensor *y)
{
    if (!bias) return mha_fail(MHA_ERR_NULL, "bias: is NULL");
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
