/* Gradients of a linear layer: three products, each with one factor transposed. */
#include "base/checked.h"
#include "base/need.h"
#include "base/scratch.h"
#include "base/tensor.h"
#include "nn/matmul.h"

#include <multihead/component.h>

static mha_status check_outputs(const mha_tensor *dx, const mha_tensor *dweight,
                                const mha_tensor *dbias, const mha_tensor *inputs[3])
{
    const mha_tensor *outputs[] = {dx, dweight, dbias};
    const char *names[] = {"dx", "dweight", "dbias"}, *input_names[] = {"weight", "x", "dy"};
    for (int i = 0; i < 3; i++) {
        if (!outputs[i]) continue;
        MHA_TRY(mhai_tensor_check_last(names[i], outputs[i]));
        MHA_TRY(mhai_tensor_check_output(names[i], outputs[i]));
        for (int j = 0; j < 3; j++)
            MHA_TRY(mhai_tensor_check_disjoint(names[i], outputs[i], input_names[j], inputs[j]));
        for (int j = 0; j < i; j++)
            MHA_TRY(mhai_tensor_check_disjoint(names[i], outputs[i], names[j], outputs[j]));
    }
    return MHA_OK;
}

static mha_status check(const mha_linear_gradients *c)
{
    const mha_tensor *weight = c->weight, *x = c->x, *dy = c->dy;
    MHA_TRY(mhai_check_flags("mha_linear_backward", c->flags, MHA_GRADIENT_ADD));
    MHA_TRY(mhai_tensor_check("weight", weight, MHA_F32, 2, NULL));
    MHA_TRY(mhai_tensor_check_last("weight", weight));
    const int64_t *n = weight->shape, *k = weight->shape + 1;
    MHA_TRY(mhai_tensor_check("dy", dy, MHA_F32, 2, (int64_t[]){-1, *n}));
    MHA_TRY(mhai_tensor_check_last("dy", dy));
    const int64_t x_shape[] = {dy->shape[0], *k};
    if (c->dweight) {
        MHA_TRY(mhai_tensor_check("x", x, MHA_F32, 2, x_shape));
        MHA_TRY(mhai_tensor_check_last("x", x));
        MHA_TRY(mhai_tensor_check("dweight", c->dweight, MHA_F32, 2, weight->shape));
    }
    if (c->dx) MHA_TRY(mhai_tensor_check("dx", c->dx, MHA_F32, 2, x_shape));
    if (c->dbias) MHA_TRY(mhai_tensor_check("dbias", c->dbias, MHA_F32, 1, n));
    return check_outputs(c->dx, c->dweight, c->dbias, (const mha_tensor *[]){weight, x, dy});
}

typedef struct bias_job {
    const mha_tensor *dy, *dbias;
    int64_t owned; /* number of columns per work item */
} bias_job;

/* Items are as wide as the number of threads allows, because rows are pages apart and each begins
 * with a cache miss. The sums of an item stay in L1. */
enum { MOST_COLUMNS = 1024 };

/* Sum columns in double, with rows in order. */
static void sum_columns(void *argument, int64_t item, int worker)
{
    const bias_job *job = argument;
    (void)worker;
    const int64_t begin = item * job->owned, left = job->dbias->shape[0] - begin;
    const int64_t columns = left < job->owned ? left : job->owned;
    double sum[MOST_COLUMNS] = {0};
    for (int64_t row = 0; row < job->dy->shape[0]; row++) {
        const float *dy = (const float *)job->dy->data + row * job->dy->stride[0] + begin;
        for (int64_t i = 0; i < columns; i++) sum[i] += (double)dy[i];
    }
    float *out = (float *)job->dbias->data + begin;
    for (int64_t i = 0; i < columns; i++) out[i] = (float)((double)out[i] + sum[i]);
}

/* Reserve scratch for the larger product first, so that nothing can fail between the products. */
static mha_status reserve(mha_context *context, int64_t dx_inner, int64_t dweight_inner,
                          int64_t cols)
{
    int64_t inner = dx_inner > dweight_inner ? dx_inner : dweight_inner, floats;
    if (!mhai_matmul_panels(inner, cols, &floats))
        return mha_fail(MHA_ERR_SIZE, "a matrix of %lld x %lld elements overflows 64 bits",
                        (long long)inner, (long long)cols);
    return mhai_scratch_ensure(context, floats, sizeof(float));
}

mha_status mha_linear_backward(mha_context *context, const mha_linear_gradients *call)
{
    mha_linear_gradients c;
    MHA_NEED("mha_linear_backward", context, call);
    MHA_TRY(mhai_struct_copy("mha_linear_gradients", &c, sizeof c, sizeof c, call));
    MHA_TRY(check(&c));
    const mha_tensor *weight = c.weight, *dy = c.dy, *dx = c.dx, *dweight = c.dweight;
    const int64_t rows = dy->shape[0], outputs = weight->shape[0], inputs = weight->shape[1];
    MHA_TRY(reserve(context, dx ? outputs : 0, dweight ? rows : 0, inputs));
    if (dx)
        MHA_TRY(mhai_matmul_packing(context,
                                    &(mhai_matmul){.rows = rows,
                                                   .inner = outputs,
                                                   .cols = inputs,
                                                   .a = dy->data,
                                                   .a_stride = dy->stride[0],
                                                   .accumulate = c.flags & MHA_GRADIENT_ADD,
                                                   .c = dx->data,
                                                   .c_stride = dx->stride[0]},
                                    weight->data, weight->stride[0]));
    if (dweight)
        MHA_TRY(mhai_matmul_packing(context,
                                    &(mhai_matmul){.rows = outputs,
                                                   .inner = rows,
                                                   .cols = inputs,
                                                   .a = dy->data,
                                                   .a_stride = dy->stride[0],
                                                   .a_transposed = true,
                                                   .accumulate = true,
                                                   .c = dweight->data,
                                                   .c_stride = dweight->stride[0]},
                                    c.x->data, c.x->stride[0]));
    bias_job job = {dy, c.dbias, mhai_ceil_div(outputs, mha_context_threads(context))};
    job.owned = mhai_min_i64(MOST_COLUMNS, mhai_round_up(job.owned, 16));
    if (c.dbias && outputs > 0)
        mha_parallel_for(context, mhai_ceil_div(outputs, job.owned), sum_columns, &job);
    return MHA_OK;
}
