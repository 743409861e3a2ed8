/* Cross-entropy of rows of logits; the gradient is computed in the same pass. */
#include "nn/cross_entropy.h"

#include "nn/nn_check.h"

#include "base/context.h"
#include "base/math.h"
#include "base/need.h"
#include "kernels/kernels.h"

#include <math.h>

typedef struct loss_job {
    const mhai_kernels *kernels;
    const mha_tensor *logits, *targets, *weights, *dlogits;
    float mean;       /* without weights: the weight of each row that is not ignored */
    float *p;         /* [workers][V], used if no gradient is requested */
    double *row_loss; /* [M] */
} loss_job;

static float weight_of(const loss_job *job, int64_t row)
{
    if (!job->weights) return job->mean;
    return ((const float *)job->weights->data)[row * job->weights->stride[0]];
}

static void loss_row(void *argument, int64_t row, int worker)
{
    const loss_job *job = argument;
    const int64_t n = job->logits->shape[1];
    const int32_t target = mhai_nn_id(job->targets, row);
    float *p = job->dlogits ? mhai_nn_row(job->dlogits, row) : job->p + worker * n;
    job->row_loss[row] = 0;
    if (target < 0) {
        for (int64_t i = 0; job->dlogits && i < n; i++) p[i] = 0;
        return;
    }
    const float *logits = mhai_nn_row(job->logits, row);
    double wanted = (double)logits[target]; /* read it before writing p, which
                                             * may be the same memory */
    float max, sum;
    job->kernels->exp_row(p, logits, n, &max, &sum);
    job->row_loss[row] = sum > 0 ? mhai_log((double)sum) + ((double)max - wanted) : (double)NAN;
    if (!job->dlogits) return;
    const float weight = weight_of(job, row), factor = weight / sum;
    for (int64_t i = 0; i < n; i++) p[i] *= factor;
    p[target] -= weight;
}

static mha_status check_targets(const mha_tensor *targets, int64_t rows, int64_t classes,
                                int64_t *counted)
{
    MHA_TRY(mhai_tensor_check("targets", targets, MHA_I32, 1, &rows));
    *counted = 0;
    for (int64_t i = 0; i < rows; i++) {
        int32_t target = mhai_nn_id(targets, i);
        MHA_TRY(mhai_check_entry("targets", i, target, -1, classes - 1));
        *counted += target >= 0;
    }
    return MHA_OK;
}

static mha_status check(const loss_job *job, const mha_tensor *losses, int64_t *counted)
{
    MHA_TRY(mhai_nn_matrix("logits", job->logits, -1, -1));
    const int64_t rows = job->logits->shape[0], classes = job->logits->shape[1];
    MHA_TRY(check_targets(job->targets, rows, classes, counted));
    if (job->weights) MHA_TRY(mhai_tensor_check("weights", job->weights, MHA_F32, 1, &rows));
    MHA_TRY(mhai_nn_out_vector("losses", losses, rows));
    MHA_TRY(mhai_nn_out_matrix("dlogits", job->dlogits, rows, classes));
    MHA_TRY(mhai_nn_alias("dlogits", job->dlogits, "logits", job->logits));
    MHA_TRY(mhai_tensor_check_disjoint("dlogits", job->dlogits, "targets", job->targets));
    MHA_TRY(mhai_tensor_check_disjoint("dlogits", job->dlogits, "weights", job->weights));
    MHA_TRY(mhai_tensor_check_disjoint("losses", losses, "dlogits", job->dlogits));
    MHA_TRY(mhai_tensor_check_disjoint("losses", losses, "logits", job->logits));
    MHA_TRY(mhai_tensor_check_disjoint("losses", losses, "targets", job->targets));
    return mhai_tensor_check_disjoint("losses", losses, "weights", job->weights);
}

/* Add the losses in the order of rows, so that the sum does not depend on threads. */
static double total_loss(const loss_job *job, const mha_tensor *losses)
{
    double total = 0;
    for (int64_t row = 0; row < job->logits->shape[0]; row++) {
        if (losses) ((float *)losses->data)[row] = (float)job->row_loss[row];
        if (mhai_nn_id(job->targets, row) >= 0)
            total += (double)weight_of(job, row) * job->row_loss[row];
    }
    return total;
}

/* Compute the loss of every row and, if requested, the gradient. */
static mha_status run(mha_context *context, loss_job *job)
{
    job->kernels = mhai_kernels_for(context->isa);
    if (!job->dlogits) {
        const int64_t floats = mha_context_threads(context) * job->logits->shape[1];
        MHA_TRY(mha_scratch_alloc(context, floats, sizeof(float), &job->p));
    }
    mha_parallel_for(context, job->logits->shape[0], loss_row, job);
    return MHA_OK;
}

mha_status mhai_cross_entropy_rows(mha_context *context, const mha_tensor *logits,
                                   const mha_tensor *targets, double *losses)
{
    loss_job job = {.logits = logits, .targets = targets, .row_loss = losses};
    const mha_scratch_mark mark = mha_scratch_top(context);
    return mha_scratch_end(context, mark, run(context, &job));
}

mha_status mha_cross_entropy(mha_context *context, const mha_tensor *logits,
                             const mha_tensor *targets, const mha_tensor *weights, double *loss,
                             const mha_tensor *losses, const mha_tensor *dlogits)
{
    if (!context) return mha_fail(MHA_ERR_NULL, "mha_cross_entropy: context is NULL");
    loss_job job = {.logits = logits, .targets = targets, .weights = weights, .dlogits = dlogits};
    int64_t counted;
    MHA_TRY(check(&job, losses, &counted));
    job.mean = counted > 0 ? 1.0f / (float)counted : 0;
    mha_scratch_mark mark = mha_scratch_top(context);
    mha_status status = MHA_OK;
    MHA_TRY_GOTO(mha_scratch_alloc(context, logits->shape[0], sizeof(double), &job.row_loss), done);
    MHA_TRY_GOTO(run(context, &job), done);
    double total = total_loss(&job, losses);
    if (loss) *loss = total;
done:
    return mha_scratch_end(context, mark, status);
}
