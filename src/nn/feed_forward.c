/* Activations between the linear layers of a feed-forward block, and their gradients. */
#include "nn/nn_check.h"

#include "base/context.h"
#include "base/math.h"
#include "nn/matmul.h"

#include <string.h>

typedef struct rows_job {
    const mhai_kernels *kernels;
    mha_activation activation;
    const mha_tensor *gate, *up, *dy; /* ungated: gate is x */
    const mha_tensor *y, *dgate, *dup;
} rows_job;

static mha_status check_activation(mha_activation activation)
{
    if (activation != MHA_ACTIVATION_NONE && (unsigned)activation <= MHA_ACTIVATION_QUICK_GELU)
        return MHA_OK;
    return mha_fail(MHA_ERR_ARGUMENT,
                    "activation is %d, expected GELU, RELU, GELU_TANH, RELU2, SILU or QUICK_GELU",
                    (int)activation);
}

/* ---- elementwise ---------------------------------------------------------------------------- */

static void forward_row(void *argument, int64_t row, int worker)
{
    const rows_job *job = argument;
    (void)worker;
    const float *x = mhai_nn_row(job->gate, row);
    float *y = mhai_nn_row(job->y, row);
    const int64_t n = job->y->shape[1];
    for (int64_t i = 0; i < n; i++) y[i] = x[i];
    mhai_activate(job->kernels, job->activation, y, n);
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
    rows_job job = {
        .kernels = mhai_kernels_for(context->isa), .activation = activation, .gate = x, .y = y};
    if (y->shape[1] > 0) mha_parallel_for(context, y->shape[0], forward_row, &job);
    return MHA_OK;
}

/* SwiGLU with up = 1, whose gradient with respect to up is not used. */
static void silu_backward(const mhai_kernels *kernels, const float *x, const float *dy, float *dx,
                          int64_t n)
{
    enum { ONES = 64 };
    float ones[ONES], unused[ONES];
    for (int64_t i = 0; i < ONES && i < n; i++) ones[i] = 1;
    for (int64_t i = 0; i < n; i += ONES)
        kernels->swiglu_backward(dx + i, unused, x + i, ones, dy + i, n - i < ONES ? n - i : ONES);
}

/* dx = dy activation'(x); dx may be dy. */
static void activate_backward(const rows_job *job, const float *x, const float *dy, float *dx,
                              int64_t n)
{
    switch (job->activation) {
    case MHA_ACTIVATION_GELU: job->kernels->gelu_backward(dx, x, dy, n); break;
    case MHA_ACTIVATION_GELU_TANH: job->kernels->gelu_tanh_backward(dx, x, dy, n); break;
    case MHA_ACTIVATION_SILU: silu_backward(job->kernels, x, dy, dx, n); break;
    case MHA_ACTIVATION_RELU2:
        for (int64_t i = 0; i < n; i++) dx[i] = x[i] > 0 ? 2 * x[i] * dy[i] : 0;
        break;
    case MHA_ACTIVATION_QUICK_GELU:
        for (int64_t i = 0; i < n; i++) {
            const double z = 1.702 * (double)x[i], s = mhai_sigmoid(z);
            dx[i] = (float)((double)dy[i] * (s + z * s * (1 - s)));
        }
        break;
    default:
        for (int64_t i = 0; i < n; i++) dx[i] = x[i] > 0 ? dy[i] : 0;
        break;
    }
}

static void backward_row(void *argument, int64_t row, int worker)
{
    const rows_job *job = argument;
    (void)worker;
    activate_backward(job, mhai_nn_row(job->gate, row), mhai_nn_row(job->dy, row),
                      mhai_nn_row(job->dgate, row), job->dgate->shape[1]);
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
    rows_job job = {.kernels = mhai_kernels_for(context->isa),
                    .activation = activation,
                    .gate = x,
                    .dy = dy,
                    .dgate = dx};
    if (dx->shape[1] > 0) mha_parallel_for(context, dx->shape[0], backward_row, &job);
    return MHA_OK;
}

/* ---- gated linear units --------------------------------------------------------------------- */

/* Elements processed at a time through a buffer, because outputs may alias inputs. */
enum { PIECE = 256 };

static void glu_row(void *argument, int64_t row, int worker)
{
    const rows_job *job = argument;
    (void)worker;
    const float *gate = mhai_nn_row(job->gate, row), *up = mhai_nn_row(job->up, row);
    float *y = mhai_nn_row(job->y, row), h[PIECE];
    const int64_t width = job->y->shape[1];
    if (job->activation == MHA_ACTIVATION_SILU) {
        job->kernels->swiglu(y, gate, up, width);
        return;
    }
    for (int64_t at = 0; at < width; at += PIECE) {
        const int64_t n = width - at < PIECE ? width - at : PIECE;
        memcpy(h, gate + at, (size_t)n * sizeof *h);
        mhai_activate(job->kernels, job->activation, h, n);
        for (int64_t i = 0; i < n; i++) y[at + i] = h[i] * up[at + i];
    }
}

/* dup = dy activation(gate), dgate = dy up activation'(gate). */
static void glu_backward_row(void *argument, int64_t row, int worker)
{
    const rows_job *job = argument;
    (void)worker;
    const float *gate = mhai_nn_row(job->gate, row), *up = mhai_nn_row(job->up, row);
    const float *dy = mhai_nn_row(job->dy, row);
    float *dgate = mhai_nn_row(job->dgate, row), *dup = mhai_nn_row(job->dup, row);
    const int64_t width = job->dgate->shape[1];
    if (job->activation == MHA_ACTIVATION_SILU) {
        job->kernels->swiglu_backward(dgate, dup, gate, up, dy, width);
        return;
    }
    for (int64_t at = 0; at < width; at += PIECE) {
        const int64_t n = width - at < PIECE ? width - at : PIECE;
        float h[PIECE], d[PIECE];
        memcpy(h, gate + at, (size_t)n * sizeof *h);
        mhai_activate(job->kernels, job->activation, h, n);
        for (int64_t i = 0; i < n; i++) d[i] = dy[at + i] * up[at + i];
        for (int64_t i = 0; i < n; i++) h[i] *= dy[at + i];
        activate_backward(job, gate + at, d, d, n);
        memcpy(dgate + at, d, (size_t)n * sizeof *d);
        memcpy(dup + at, h, (size_t)n * sizeof *h);
    }
}

static mha_status glu(const char *function, mha_context *context, const rows_job *like,
                      const mha_tensor *gate, const mha_tensor *up, const mha_tensor *y)
{
    if (!context) return mha_fail(MHA_ERR_NULL, "%s: context is NULL", function);
    MHA_TRY(mhai_nn_matrix("gate", gate, -1, -1));
    MHA_TRY(mhai_nn_matrix("up", up, gate->shape[0], gate->shape[1]));
    MHA_TRY(mhai_nn_matrix("y", y, gate->shape[0], gate->shape[1]));
    MHA_TRY(mhai_tensor_check_output("y", y));
    MHA_TRY(mhai_nn_alias("y", y, "gate", gate));
    MHA_TRY(mhai_nn_alias("y", y, "up", up));
    rows_job job = *like;
    job.kernels = mhai_kernels_for(context->isa);
    job.gate = gate, job.up = up, job.y = y;
    if (y->shape[1] > 0) mha_parallel_for(context, y->shape[0], glu_row, &job);
    return MHA_OK;
}

static mha_status glu_backward(const char *function, mha_context *context, const rows_job *like,
                               const mha_tensor *gate, const mha_tensor *up, const mha_tensor *dy,
                               const mha_tensor *dgate, const mha_tensor *dup)
{
    if (!context) return mha_fail(MHA_ERR_NULL, "%s: context is NULL", function);
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
    rows_job job = *like;
    job.kernels = mhai_kernels_for(context->isa);
    job.gate = gate, job.up = up, job.dy = dy, job.dgate = dgate, job.dup = dup;
    if (width > 0) mha_parallel_for(context, rows, glu_backward_row, &job);
    return MHA_OK;
}

static const rows_job silu = {.activation = MHA_ACTIVATION_SILU};

mha_status mha_swiglu(mha_context *context, const mha_tensor *gate, const mha_tensor *up,
                      const mha_tensor *y)
{
    return glu("mha_swiglu", context, &silu, gate, up, y);
}

mha_status mha_swiglu_backward(mha_context *context, const mha_tensor *gate, const mha_tensor *up,
                               const mha_tensor *dy, const mha_tensor *dgate, const mha_tensor *dup)
{
    return glu_backward("mha_swiglu_backward", context, &silu, gate, up, dy, dgate, dup);
}

mha_status mha_glu(mha_context *context, mha_activation activation, const mha_tensor *gate,
                   const mha_tensor *up, const mha_tensor *y)
{
    const rows_job like = {.activation = activation};
    MHA_TRY(check_activation(activation));
    return glu("mha_glu", context, &like, gate, up, y);
}

mha_status mha_glu_backward(mha_context *context, mha_activation activation, const mha_tensor *gate,
                            const mha_tensor *up, const mha_tensor *dy, const mha_tensor *dgate,
                            const mha_tensor *dup)
{
    const rows_job like = {.activation = activation};
    MHA_TRY(check_activation(activation));
    return glu_backward("mha_glu_backward", context, &like, gate, up, dy, dgate, dup);
}
