/* Gradients of layer norm and RMS norm. Rows are processed in blocks of fixed length. Each block's
 * sums for weight and bias are stored in scratch, and added in the order of blocks. */
#include "nn/norm.h"

#include "base/checked.h"
#include "base/context.h"
#include "base/need.h"

#include <string.h>

enum { BLOCK_ROWS = 64 };
_Static_assert((int)BLOCK_ROWS % (int)MHAI_NORM_ROWS == 0, "blocks are whole strips");

typedef struct backward_job {
    const mhai_kernels *kernels;
    const mhai_norm *norm;
    const mha_tensor *dy, *dx;
    bool add;
    float *z;     /* [workers][MHAI_NORM_ROWS][N]; NULL: no residual */
    double *sums; /* [blocks][2][N] sums of dy n and dy; NULL: not requested */
} backward_job;

static void run_block(void *argument, int64_t block, int worker)
{
    const backward_job *job = argument;
    const int64_t n = job->dy->shape[1], first = block * BLOCK_ROWS;
    const int64_t end = mhai_min_i64(first + BLOCK_ROWS, job->dy->shape[0]);
    float *z = job->z ? job->z + worker * MHAI_NORM_ROWS * n : NULL;
    double *sums = job->sums ? job->sums + block * 2 * n : NULL;
    if (sums) memset(sums, 0, (size_t)(2 * n) * sizeof(double));
    for (int64_t row = first; row < end; row += MHAI_NORM_ROWS) {
        mhai_norm_strip_back strip = {.norm = mhai_norm_strip_at(job->norm, row, z, n),
                                      .dy = mhai_nn_row(job->dy, row),
                                      .dy_stride = job->dy->stride[0],
                                      .add = job->add,
                                      .sums = sums};
        strip.norm.y = mhai_nn_row(job->dx, row);
        strip.norm.y_stride = job->dx ? job->dx->stride[0] : 0;
        job->kernels->norm_strip_backward(&strip);
    }
}

static void join_sums(const backward_job *job, int64_t blocks, int64_t part, const mha_tensor *out)
{
    const int64_t n = job->dy->shape[1];
    float *to = out ? out->data : NULL;
    for (int64_t i = 0; to && i < n; i++) {
        double sum = 0;
        for (int64_t block = 0; block < blocks; block++)
            sum += job->sums[(block * 2 + part) * n + i];
        to[i] = (float)((double)to[i] + sum);
    }
}

static mha_status check(const mhai_norm *norm, const mha_norm_gradients *c)
{
    const mha_tensor *dy = c->dy, *dx = c->dx, *dweight = c->dweight, *dbias = c->dbias;
    MHA_TRY(mhai_check_flags(norm->function, c->flags, MHA_GRADIENT_ADD));
    if (dbias && !norm->centred)
        return mha_fail(MHA_ERR_UNSUPPORTED, "%s: dbias is set; RMS norm has no bias",
                        norm->function);
    MHA_TRY(mhai_norm_check(norm));
    int64_t rows = norm->x->shape[0], width = norm->x->shape[1];
    MHA_TRY(mhai_nn_matrix("dy", dy, rows, width));
    MHA_TRY(mhai_nn_out_matrix("dx", dx, rows, width));
    MHA_TRY(mhai_nn_out_vector("dweight", dweight, width));
    MHA_TRY(mhai_nn_out_vector("dbias", dbias, width));
    MHA_TRY(mhai_nn_alias("dx", dx, "dy", dy));
    const mha_tensor *inputs[] = {norm->x, norm->residual, norm->weight};
    const char *names[] = {"x", "residual", "weight"};
    for (int i = 0; i < 3; i++) {
        MHA_TRY(mhai_tensor_check_disjoint("dx", dx, names[i], inputs[i]));
        MHA_TRY(mhai_tensor_check_disjoint("dweight", dweight, names[i], inputs[i]));
        MHA_TRY(mhai_tensor_check_disjoint("dbias", dbias, names[i], inputs[i]));
    }
    MHA_TRY(mhai_tensor_check_disjoint("dweight", dweight, "dy", dy));
    MHA_TRY(mhai_tensor_check_disjoint("dbias", dbias, "dy", dy));
    MHA_TRY(mhai_tensor_check_disjoint("dweight", dweight, "dx", dx));
    MHA_TRY(mhai_tensor_check_disjoint("dbias", dbias, "dx", dx));
    return mhai_tensor_check_disjoint("dweight", dweight, "dbias", dbias);
}

static mha_status backward(mha_context *context, const mha_norm_gradients *call,
                           const char *function, bool centred)
{
    mha_norm_gradients c;
    MHA_NEED(function, context, call);
    MHA_TRY(mhai_struct_copy("mha_norm_gradients", &c, sizeof c, sizeof c, call));
    const mhai_norm own = {function, centred, c.x, c.residual, c.weight, NULL, (double)c.epsilon};
    const mhai_norm *norm = &own;
    MHA_TRY(check(norm, &c));
    const mha_tensor *dy = c.dy;
    const int64_t blocks = mhai_ceil_div(dy->shape[0], BLOCK_ROWS), n = dy->shape[1];
    backward_job job = {
        .norm = norm, .dy = dy, .dx = c.dx, .add = (c.flags & MHA_GRADIENT_ADD) != 0};
    job.kernels = mhai_kernels_for(context->isa);
    mha_scratch_mark mark = mha_scratch_top(context);
    mha_status status = MHA_OK;
    if (n == 0 || blocks == 0) return MHA_OK;
    if (norm->residual) {
        MHA_TRY_GOTO(mha_scratch_alloc(context, mha_context_threads(context) * n,
                                       MHAI_NORM_ROWS * sizeof(float), &job.z),
                     done);
    }
    if (c.dweight || c.dbias) {
        MHA_TRY_GOTO(mha_scratch_alloc(context, blocks * 2 * n, sizeof(double), &job.sums), done);
    }
    mha_parallel_for(context, blocks, run_block, &job);
    join_sums(&job, blocks, 0, c.dweight);
    join_sums(&job, blocks, 1, c.dbias);
done:
    return mha_scratch_end(context, mark, status);
}

mha_status mha_layer_norm_backward(mha_context *context, const mha_norm_gradients *call)
{
    return backward(context, call, "mha_layer_norm_backward", true);
}

mha_status mha_rms_norm_backward(mha_context *context, const mha_norm_gradients *call)
{
    return backward(context, call, "mha_rms_norm_backward", false);
}
