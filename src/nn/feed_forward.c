/* Activations between the linear layers of a block, and their gradients. */
#include "nn/nn_check.h"

#include "base/context.h"
#include "kernels/kernels.h"

typedef struct rows_job {
    const mhai_kernels *kernels;
    mha_activation activation;
    const mha_tensor *gate, *up, *dy; /* gate is x where there is no other */
    const mha_tensor *y, *dgate, *dup;
} rows_job;

static mha_status check_activation(mha_activation activation)
{
    if (activation == MHA_ACTIVATION_GELU || activation == MHA_ACTIVATION_RELU) return MHA_OK;
    return mha_fail(MHA_ERR_ARGUMENT, "activation is %d, expected GELU or RELU", (int)activation);
}

/* ---- GELU, ReLU ---------------------------------------------------------------------------- */

static void forward_row(void *argument, int64_t row, int worker)
{
    const rows_job *job = argument;
    (void)worker;
    const float *x = mhai_nn_row(job->gate, row);
    float *y = mhai_nn_row(job->y, row);
    const int64_t n = job->y->shape[1];
    if (job->activation == MHA_ACTIVATION_RELU) {
        for (int64_t i = 0; i < n; i++) y[i] = x[i] < 0 ? 0 : x[i];
        return;
    }
    for (int64_t i = 0; i < n; i++) y[i] = x[i];
    job->kernels->activate_gelu(y, n);
}

mha_status mha_activation_forward(mha_context *context, mha_activation activation,
                                  const mha_tensor *x, const mha_tensor *y)
{
    if (!context) return mha_fail(MHA_ERR_NULL, "mha_activation_forward: context is NULL");
    MHA_TRY(check_activation(activation));
    MHA_TRY(mhai_nn_matrix("x", x, -1, -1));
    MHA_TRY(mhai_nn_matrix("y", y, x->shape[0], x->shape[1]));
    MHA_TRY(mhai_tensor_check_output("y", y));
    MHA_TRY(mhai_nn_alias("y", y, "x", x));
    rows_job job = {mhai_kernels_for(context->isa), activation, .gate = x, .y = y};
    if (y->shape[1] > 0) mha_parallel_for(context, y->shape[0], forward_row, &job);
    return MHA_OK;
}

static void backward_row(void *argument, int64_t row, int worker)
{
    const rows_job *job = argument;
    (void)worker;
    const float *x = mhai_nn_row(job->gate, row), *dy = mhai_nn_row(job->dy, row);
    float *dx = mhai_nn_row(job->dgate, row);
    const int64_t n = job->dgate->shape[1];
    if (job->activation == MHA_ACTIVATION_GELU) {
        job->kernels->gelu_backward(dx, x, dy, n);
        return;
    }
    for (int64_t i = 0; i < n; i++) dx[i] = x[i] > 0 ? dy[i] : 0;
}

mha_status mha_activation_backward(mha_context *context, mha_activation activation,
                                   const mha_tensor *x, const mha_tensor *dy, const mha_tensor *dx)
{
    if (!context) return mha_fail(MHA_ERR_NULL, "mha_activation_backward: context is NULL");
    MHA_TRY(check_activation(activation));
    MHA_TRY(mhai_nn_matrix("x", x, -1, -1));
    MHA_TRY(mhai_nn_matrix("dy", dy, x->shape[0], x->shape[1]));
    MHA_TRY(mhai_nn_matrix("dx", dx, x->shape[0], x->shape[1]));
    MHA_TRY(mhai_tensor_check_output("dx", dx));
    MHA_TRY(mhai_nn_alias("dx", dx, "dy", dy));
    MHA_TRY(mhai_tensor_check_disjoint("dx", dx, "x", x));
    rows_job job = {mhai_kernels_for(context->isa), activation, .gate = x, .dy = dy, .dgate = dx};
    if (dx->shape[1] > 0) mha_parallel_for(context, dx->shape[0], backward_row, &job);
    return MHA_OK;
}

/* ---- SwiGLU -------------------------------------------------------------------------------- */

static void swiglu_row(void *argument, int64_t row, int worker)
{
    const rows_job *job = argument;
    (void)worker;
    job->kernels->swiglu(mhai_nn_row(job->y, row), mhai_nn_row(job->gate, row),
                         mhai_nn_row(job->up, row), job->y->shape[1]);
}

mha_status mha_swiglu(mha_context *context, const mha_tensor *gate, const mha_tensor *up,
                      const mha_tensor *y)
{
    if (!context) return mha_fail(MHA_ERR_NULL, "mha_swiglu: context is NULL");
    MHA_TRY(mhai_nn_matrix("gate", gate, -1, -1));
    MHA_TRY(mhai_nn_matrix("up", up, gate->shape[0], gate->shape[1]));
    MHA_TRY(mhai_nn_matrix("y", y, gate->shape[0], gate->shape[1]));
    MHA_TRY(mhai_tensor_check_output("y", y));
    MHA_TRY(mhai_nn_alias("y", y, "gate", gate));
    MHA_TRY(mhai_nn_alias("y", y, "up", up));
    rows_job job = {.kernels = mhai_kernels_for(context->isa), .gate = gate, .up = up, .y = y};
    if (y->shape[1] > 0) mha_parallel_for(context, y->shape[0], swiglu_row, &job);
    return MHA_OK;
}

static void swiglu_backward_row(void *argument, int64_t row, int worker)
{
    const rows_job *job = argument;
    (void)worker;
    job->kernels->swiglu_backward(mhai_nn_row(job->dgate, row), mhai_nn_row(job->dup, row),
                                  mhai_nn_row(job->gate, row), mhai_nn_row(job->up, row),
                                  mhai_nn_row(job->dy, row), job->dgate->shape[1]);
}

mha_status mha_swiglu_backward(mha_context *context, const mha_tensor *gate, const mha_tensor *up,
                               const mha_tensor *dy, const mha_tensor *dgate, const mha_tensor *dup)
{
    if (!context) return mha_fail(MHA_ERR_NULL, "mha_swiglu_backward: context is NULL");
    MHA_TRY(mhai_nn_matrix("gate", gate, -1, -1));
    const int64_t rows = gate->shape[0], width = gate->shape[1];
    MHA_TRY(mhai_nn_matrix("up", up, rows, width));
    MHA_TRY(mhai_nn_matrix("dy", dy, rows, width));
    const mha_tensor *outputs[] = {dgate, dup}, *inputs[] = {gate, up, dy};
    const char *output_names[] = {"dgate", "dup"}, *input_names[] = {"gate", "up", "dy"};
    for (int i = 0; i < 2; i++) {
        MHA_TRY(mhai_nn_matrix(output_names[i], outputs[i], rows, width));
        MHA_TRY(mhai_tensor_check_output(output_names[i], outputs[i]));
        for (int j = 0; j < 3; j++)
            MHA_TRY(mhai_nn_alias(output_names[i], outputs[i], input_names[j], inputs[j]));
    }
    MHA_TRY(mhai_tensor_check_disjoint("dgate", dgate, "dup", dup));
    rows_job job = {.kernels = mhai_kernels_for(context->isa),
                    .gate = gate,
                    .up = up,
                    .dy = dy,
                    .dgate = dgate,
                    .dup = dup};
    if (width > 0) mha_parallel_for(context, rows, swiglu_backward_row, &job);
    return MHA_OK;
}
