/* Normalisation of the vectors of each head. */
#include "attention/attn.h"
#include "attention/attn_position.h"
#include "base/checked.h"
#include "base/need.h"
#include "base/tensor.h"

#include <multihead/component.h>

#include <math.h>

enum { BLOCK_VECTORS = 32 };

typedef struct norm_job {
    const mha_tensor *x, *y;
    const float *weight;      /* NULL: 1 */
    int64_t weight_stride[2]; /* over h and d */
    mha_qk_norm_kind kind;
    double epsilon;
} norm_job;

/* 1 / norm. Finite for a vector of zeros, so that the product is 0 * 0, not 0 * infinity. */
static double inverse_norm(const norm_job *job, const float *x)
{
    const int64_t D = job->x->shape[3], step = job->x->stride[3];
    double squares = 0;
    for (int64_t d = 0; d < D; d++) {
        double value = (double)x[d * step];
        squares += value * value;
    }
    double norm =
        job->kind == MHA_QK_NORM_RMS ? sqrt(squares / (double)D + job->epsilon) : sqrt(squares);
    if (job->kind == MHA_QK_NORM_L2 && norm < job->epsilon) norm = job->epsilon;
    return norm == 0 ? 0 : 1 / norm;
}

static void norm_block(void *argument, int64_t block, int worker)
{
    const norm_job *job = argument;
    (void)worker;
    const mha_tensor *x = job->x, *y = job->y;
    const int64_t H = x->shape[1], T = x->shape[2], D = x->shape[3];
    const int64_t end = mhai_min_i64(x->shape[0] * H * T, (block + 1) * BLOCK_VECTORS);
    for (int64_t row = block * BLOCK_VECTORS; row < end; row++) {
        int64_t t = row % T, h = row / T % H, b = row / T / H;
        const float *from = mhai_attn_row(x, b, h, t);
        const float *weight = job->weight ? job->weight + h * job->weight_stride[0] : NULL;
        float *to = mhai_attn_row(y, b, h, t);
        double scale = inverse_norm(job, from);
        for (int64_t d = 0; d < D; d++) {
            double value = (double)from[d * x->stride[3]] * scale;
            if (weight) value *= (double)weight[d * job->weight_stride[1]];
            to[d * y->stride[3]] = (float)value;
        }
    }
}

static mha_status check_weight(const mha_tensor *weight, norm_job *job)
{
    const int64_t H = job->x->shape[1], D = job->x->shape[3];
    if (!weight) return MHA_OK;
    if (weight->ndim == 2) {
        MHA_TRY(mhai_tensor_check("weight", weight, MHA_F32, 2, (int64_t[]){H, D}));
        job->weight_stride[0] = weight->stride[0];
        job->weight_stride[1] = weight->stride[1];
    } else {
        MHA_TRY(mhai_tensor_check("weight", weight, MHA_F32, 1, &D));
        job->weight_stride[1] = weight->stride[0];
    }
    job->weight = weight->data;
    return mhai_tensor_check_disjoint("y", job->y, "weight", weight);
}

mha_status mha_qk_norm(mha_context *context, mha_qk_norm_kind kind, float epsilon,
                       const mha_tensor *x, const mha_tensor *weight, const mha_tensor *y)
{
    norm_job job = {.x = x, .y = y, .kind = kind, .epsilon = (double)epsilon};
    if (!context) return mha_fail(MHA_ERR_NULL, "mha_qk_norm: context is NULL");
    MHA_TRY(mhai_attn_position_check_pair(x, y, 4));
    MHA_TRY(check_weight(weight, &job));
    MHA_TRY(mhai_check_range("kind", kind, 0, MHA_QK_NORM_L2));
    if (!(epsilon >= 0) || isinf(epsilon))
        return mha_fail(MHA_ERR_ARGUMENT, "epsilon is %g, expected a finite number >= 0",
                        (double)epsilon);
    const int64_t *n = x->shape;
    if (n[0] == 0 || n[1] == 0 || n[2] == 0 || n[3] == 0) return MHA_OK;
    int64_t vectors = n[0] * n[1] * n[2]; /* y has this many vectors in memory, so the
                                           * product cannot overflow */
    mha_parallel_for(context, mhai_ceil_div(vectors, BLOCK_VECTORS), norm_block, &job);
    return MHA_OK;
}
