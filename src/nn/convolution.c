/* A short causal convolution per channel. Its state is the last taps - 1 inputs. */
#include "nn/nn_check.h"

#include "base/checked.h"
#include "base/context.h"
#include "base/need.h"
#include "kernels/kernels.h"

#include <string.h>

enum { MOST = MHA_CONVOLUTION_MOST, CHANNELS = 64 };

typedef struct convolution {
    const mhai_kernels *kernels;
    const mha_tensor *x, *weight, *bias, *state, *y;
    bool silu;
} convolution;

/* A work item: some channels of one sequence. */
typedef struct piece {
    const convolution *job;
    int64_t b, first, count, taps;
    float weight[MOST][CHANNELS], bias[CHANNELS];
    float before[MOST][CHANNELS]; /* the inputs before the first row, oldest first */
    float ones[CHANNELS];
} piece;

static float *row_of(const piece *p, const mha_tensor *x, int64_t t)
{
    return (float *)x->data + p->b * x->stride[0] + t * x->stride[1] + p->first;
}

static void load(piece *p)
{
    const convolution *job = p->job;
    const size_t bytes = (size_t)p->count * sizeof(float);
    for (int64_t c = 0; c < p->count; c++)
        for (int64_t k = 0; k < p->taps; k++)
            p->weight[k][c] = mhai_nn_row(job->weight, p->first + c)[k];
    if (job->bias)
        memcpy(p->bias, (const float *)job->bias->data + p->first, bytes);
    else
        memset(p->bias, 0, sizeof p->bias);
    memset(p->before, 0, sizeof p->before);
    for (int64_t c = 0; c < p->count; c++) p->ones[c] = 1;
    for (int64_t k = 0; job->state && k < p->taps - 1; k++)
        memcpy(p->before[k], row_of(p, job->state, k), bytes);
}

/* Save the last inputs before the outputs overwrite them. */
static void save(const piece *p)
{
    const convolution *job = p->job;
    const int64_t T = job->x->shape[1], rows = p->taps - 1;
    for (int64_t k = 0; job->state && k < rows; k++)
        memcpy(row_of(p, job->state, k),
               T + k < rows ? p->before[T + k] : row_of(p, job->x, T + k - rows),
               (size_t)p->count * sizeof(float));
}

static void convolve_row(const piece *p, int64_t t)
{
    const convolution *job = p->job;
    const int64_t before = p->taps - 1;
    float sum[CHANNELS];
    memcpy(sum, p->bias, sizeof sum);
    for (int64_t k = 0; k < p->taps; k++) {
        const float *x = t + k < before ? p->before[t + k] : row_of(p, job->x, t + k - before);
        for (int64_t c = 0; c < p->count; c++) sum[c] += p->weight[k][c] * x[c];
    }
    float *y = row_of(p, job->y, t);
    if (job->silu)
        job->kernels->swiglu(y, sum, p->ones, p->count);
    else
        memcpy(y, sum, (size_t)p->count * sizeof *y);
}

/* Processes rows from last to first, so that y may be x. */
static void run_piece(void *argument, int64_t index, int worker)
{
    const convolution *job = argument;
    const int64_t C = job->x->shape[2], pieces = mhai_ceil_div(C, CHANNELS);
    piece p = {.job = job, .b = index / pieces, .first = index % pieces * CHANNELS};
    (void)worker;
    p.count = mhai_min_i64(CHANNELS, C - p.first);
    p.taps = job->weight->shape[1];
    load(&p);
    save(&p);
    for (int64_t t = job->x->shape[1]; t-- > 0;) convolve_row(&p, t);
}

static mha_status check_rows(const char *name, const mha_tensor *x, int64_t batch, int64_t length,
                             int64_t channels)
{
    MHA_TRY(mhai_tensor_check(name, x, MHA_F32, 3, (const int64_t[]){batch, length, channels}));
    return mhai_tensor_check_last(name, x);
}

static mha_status check(const convolution *job)
{
    MHA_TRY(check_rows("x", job->x, -1, -1, -1));
    const int64_t *shape = job->x->shape;
    MHA_TRY(mhai_nn_matrix("weight", job->weight, shape[2], -1));
    const int64_t taps = job->weight->shape[1];
    if (taps < 1 || taps > MOST)
        return mha_fail(MHA_ERR_SHAPE, "weight: a kernel of %lld, expected 1..%d", (long long)taps,
                        MOST);
    if (job->bias) MHA_TRY(mhai_nn_vector("bias", job->bias, shape[2]));
    MHA_TRY(check_rows("y", job->y, shape[0], shape[1], shape[2]));
    MHA_TRY(mhai_tensor_check_output("y", job->y));
    MHA_TRY(mhai_nn_alias("y", job->y, "x", job->x));
    MHA_TRY(mhai_tensor_check_disjoint("y", job->y, "weight", job->weight));
    if (job->bias) MHA_TRY(mhai_tensor_check_disjoint("y", job->y, "bias", job->bias));
    if (!job->state) return MHA_OK;
    MHA_TRY(check_rows("state", job->state, shape[0], taps - 1, shape[2]));
    MHA_TRY(mhai_tensor_check_output("state", job->state));
    MHA_TRY(mhai_tensor_check_disjoint("state", job->state, "x", job->x));
    MHA_TRY(mhai_tensor_check_disjoint("state", job->state, "y", job->y));
    if (job->bias) MHA_TRY(mhai_tensor_check_disjoint("state", job->state, "bias", job->bias));
    return mhai_tensor_check_disjoint("state", job->state, "weight", job->weight);
}

mha_status mha_short_convolution(mha_context *context, uint32_t flags, const mha_tensor *x,
                                 const mha_tensor *weight, const mha_tensor *bias,
                                 const mha_tensor *state, const mha_tensor *y)
{
    if (!context) return mha_fail(MHA_ERR_NULL, "mha_short_convolution: context is NULL");
    MHA_TRY(mhai_check_flags("mha_short_convolution", flags, MHA_CONVOLUTION_SILU));
    convolution job = {.kernels = mhai_kernels_for(context->isa),
                       .x = x,
                       .weight = weight,
                       .bias = bias,
                       .state = state,
                       .y = y,
                       .silu = flags & MHA_CONVOLUTION_SILU};
    MHA_TRY(check(&job));
    mha_parallel_for(context, x->shape[0] * mhai_ceil_div(x->shape[2], CHANNELS), run_piece, &job);
    return MHA_OK;
}
