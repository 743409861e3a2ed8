/* Merge partial results by their log-sum-exp: the mean of the parts' outputs with weights exp(lse_k
 * - max lse). Computed per query, with parts in order, in double. */
#include "base/checked.h"
#include "base/math.h"
#include "base/tensor.h"

#include <multihead/component.h>
#include <multihead/merge.h>

#include <math.h>
#include <stdio.h>

enum { ROWS = 64, COLUMNS = 64 }; /* queries per work item; columns computed at a time */

typedef struct merge_job {
    const mha_attention_part *parts;
    int64_t count;
    mha_tensor o, lse; /* lse.ndim 0: not requested */
    double *weights;   /* [threads][count] */
} merge_job;

/* ---- checks ---------------------------------------------------------------------------------- */

/* "parts[-9223372036854775808].lse" fits in 48 bytes. */
static mha_status check_part(const mha_attention_part *part, int64_t k, const mha_tensor *o)
{
    char o_name[48], lse_name[48];
    (void)snprintf(o_name, sizeof o_name, "parts[%lld].o", (long long)k);
    (void)snprintf(lse_name, sizeof lse_name, "parts[%lld].lse", (long long)k);
    MHA_TRY(mhai_tensor_check(o_name, part->o, MHA_F32, 4, o->shape));
    MHA_TRY(mhai_tensor_check_last(o_name, part->o));
    return mhai_tensor_check(lse_name, part->lse, MHA_F32, 3, o->shape);
}

static mha_status check_overlap(const mha_attention_part *part, const mha_tensor *o,
                                const mha_tensor *lse)
{
    if (!mhai_tensor_same(o, part->o))
        MHA_TRY(mhai_tensor_check_disjoint("o", o, "a part's o", part->o));
    MHA_TRY(mhai_tensor_check_disjoint("o", o, "a part's lse", part->lse));
    if (!lse) return MHA_OK;
    if (!mhai_tensor_same(lse, part->lse))
        MHA_TRY(mhai_tensor_check_disjoint("lse", lse, "a part's lse", part->lse));
    return mhai_tensor_check_disjoint("lse", lse, "a part's o", part->o);
}

/* Number of queries over all heads and sequences; 0 if there is nothing to write. */
static mha_status count_rows(const mha_tensor *o, bool lse, int64_t *rows)
{
    *rows = o->shape[3] > 0 || lse ? 1 : 0;
    for (int i = 0; i < 3; i++)
        if (o->shape[i] == 0) *rows = 0;
    for (int i = 0; i < 3; i++)
        if (!mhai_mul_i64(*rows, o->shape[i], rows))
            return mha_fail(MHA_ERR_SIZE, "o: B H T = %lld x %lld x %lld overflows 64 bits",
                            (long long)o->shape[0], (long long)o->shape[1], (long long)o->shape[2]);
    return MHA_OK;
}

static mha_status check(const mha_attention_part *parts, int64_t count, const mha_tensor *o,
                        const mha_tensor *lse, int64_t *rows)
{
    if (count < 0)
        return mha_fail(MHA_ERR_ARGUMENT, "count is %lld, expected 0 or more parts",
                        (long long)count);
    if (count > 0 && !parts) return mha_fail(MHA_ERR_NULL, "parts: is NULL, count is not 0");
    MHA_TRY(mhai_tensor_check("o", o, MHA_F32, 4, NULL));
    MHA_TRY(mhai_tensor_check_last("o", o));
    MHA_TRY(mhai_tensor_check_output("o", o));
    if (lse) {
        MHA_TRY(mhai_tensor_check("lse", lse, MHA_F32, 3, o->shape));
        MHA_TRY(mhai_tensor_check_output("lse", lse));
        MHA_TRY(mhai_tensor_check_disjoint("lse", lse, "o", o));
    }
    for (int64_t k = 0; k < count; k++) {
        MHA_TRY(check_part(&parts[k], k, o));
        MHA_TRY(check_overlap(&parts[k], o, lse));
    }
    return count_rows(o, lse, rows);
}

/* ---- one query ------------------------------------------------------------------------------- */

static int64_t offset(const mha_tensor *x, const int64_t at[3])
{
    return at[0] * x->stride[0] + at[1] * x->stride[1] + at[2] * x->stride[2];
}

/* Compute the weights of the parts; -1 for an empty part. *sum is their sum, or 0 if all are
 * empty. Returns the lse. */
static double weigh(const merge_job *job, const int64_t at[3], double *weight, double *sum)
{
    double most = -INFINITY;
    bool broken = false;
    *sum = 0;
    for (int64_t k = 0; k < job->count; k++) {
        const mha_tensor *lse = job->parts[k].lse;
        weight[k] = (double)((const float *)lse->data)[offset(lse, at)];
        if (weight[k] > most) most = weight[k];
        broken = broken || isnan(weight[k]) || weight[k] == INFINITY;
    }
    if (broken) return *sum = NAN;
    if (most == -INFINITY) return most;
    for (int64_t k = 0; k < job->count; k++) {
        weight[k] = weight[k] == -INFINITY ? -1 : mhai_exp(weight[k] - most);
        *sum += weight[k] < 0 ? 0 : weight[k];
    }
    return most + mhai_log(*sum);
}

/* Compute columns d .. d+columns-1 of a query. Empty parts (weight -1) are not read. A part with
 * weight 0 after underflow is read, because it may hold infinities. */
static void mix(const merge_job *job, const int64_t at[3], const double *weight, double sum,
                int64_t d, int64_t columns)
{
    double total[COLUMNS] = {0};
    for (int64_t k = 0; sum > 0 && k < job->count; k++) {
        const mha_tensor *o = job->parts[k].o;
        if (weight[k] < 0) continue;
        const float *row = (const float *)o->data + offset(o, at) + d;
        for (int64_t i = 0; i < columns; i++) total[i] += weight[k] * (double)row[i];
    }
    float *out = (float *)job->o.data + offset(&job->o, at) + d;
    for (int64_t i = 0; i < columns; i++) /* adding +0 turns -0 into +0 */
        out[i] = sum == 0 ? 0 : (float)(total[i] / sum + 0.0);
}

static void merge_rows(void *argument, int64_t item, int worker)
{
    const merge_job *job = argument;
    const int64_t *shape = job->o.shape;
    const int64_t rows = shape[0] * shape[1] * shape[2];
    double *weight = job->weights + worker * job->count;
    for (int64_t r = item * ROWS; r < mhai_min_i64(rows, (item + 1) * ROWS); r++) {
        const int64_t at[3] = {r / shape[2] / shape[1], r / shape[2] % shape[1], r % shape[2]};
        double sum, lse = weigh(job, at, weight, &sum);
        for (int64_t d = 0; d < shape[3]; d += COLUMNS)
            mix(job, at, weight, sum, d, mhai_min_i64(COLUMNS, shape[3] - d));
        if (job->lse.ndim) ((float *)job->lse.data)[offset(&job->lse, at)] = (float)(lse + 0.0);
    }
}

mha_status mha_attention_merge(mha_context *context, const mha_attention_part *parts, int64_t count,
                               const mha_tensor *o, const mha_tensor *lse)
{
    int64_t rows = 0, weights;
    if (!context) return mha_fail(MHA_ERR_NULL, "mha_attention_merge: context is NULL");
    MHA_TRY(check(parts, count, o, lse, &rows));
    if (rows == 0) return MHA_OK;
    if (!mhai_mul_i64(count, mha_context_threads(context), &weights))
        return mha_fail(MHA_ERR_SIZE, "count is %lld, its weights overflow", (long long)count);
    merge_job job = {.parts = parts, .count = count, .o = *o};
    if (lse) job.lse = *lse;
    mha_scratch_mark mark = mha_scratch_top(context);
    MHA_TRY(mha_scratch_alloc(context, weights, sizeof(double), &job.weights));
    mha_parallel_for(context, mhai_ceil_div(rows, ROWS), merge_rows, &job);
    mha_scratch_release(context, mark);
    return MHA_OK;
}
