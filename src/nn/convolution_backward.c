/* Gradients of a short convolution. A work item is some channels of all sequences, so that every
 * sum over tokens has one owner and one order. */
#include "nn/nn_check.h"

#include "base/checked.h"
#include "base/context.h"
#include "base/need.h"
#include "kernels/kernels.h"

#include <string.h>

enum { MOST = MHA_CONVOLUTION_MOST, CHANNELS = 32 };

typedef struct backward_job {
    const mhai_kernels *kernels;
    mha_convolution_gradients c;
    int64_t taps;
} backward_job;

typedef struct piece {
    const backward_job *job;
    int64_t b, first, count;
    float weight[MOST][CHANNELS], bias[CHANNELS], ones[CHANNELS];
    float dz[MOST][CHANNELS]; /* row t is at index t % taps */
    double dweight[MOST][CHANNELS], dbias[CHANNELS];
} piece;

static float *row_of(const piece *p, const mha_tensor *x, int64_t t)
{
    return (float *)x->data + p->b * x->stride[0] + t * x->stride[1] + p->first;
}

static void load(piece *p)
{
    const mha_convolution_gradients *c = &p->job->c;
    for (int64_t i = 0; i < p->count; i++) {
        p->ones[i] = 1;
        p->bias[i] = c->bias ? ((const float *)c->bias->data)[p->first + i] : 0;
        for (int64_t k = 0; k < p->job->taps; k++)
            p->weight[k][i] = mhai_nn_row(c->weight, p->first + i)[k];
    }
}

/* Compute dz of row t from dy. The sums of the forward call are recomputed. */
static void through_silu(const piece *p, int64_t t, float *dz)
{
    const mha_convolution_gradients *c = &p->job->c;
    const int64_t before = p->job->taps - 1;
    float z[CHANNELS], unused[CHANNELS];
    memcpy(z, p->bias, sizeof z);
    for (int64_t k = mhai_max_i64(0, before - t); k <= before; k++) {
        const float *x = row_of(p, c->x, t - before + k);
        for (int64_t i = 0; i < p->count; i++) z[i] += p->weight[k][i] * x[i];
    }
    p->job->kernels->swiglu_backward(dz, unused, z, p->ones, row_of(p, c->dy, t), p->count);
}

static void add_row(piece *p, int64_t t)
{
    const mha_convolution_gradients *c = &p->job->c;
    const int64_t before = p->job->taps - 1;
    float *dz = p->dz[t % p->job->taps];
    if (c->flags & MHA_CONVOLUTION_SILU)
        through_silu(p, t, dz);
    else
        memcpy(dz, row_of(p, c->dy, t), (size_t)p->count * sizeof *dz);
    for (int64_t k = mhai_max_i64(0, before - t); k <= before; k++) {
        const float *x = row_of(p, c->x, t - before + k);
        for (int64_t i = 0; i < p->count; i++) p->dweight[k][i] += (double)x[i] * (double)dz[i];
    }
    for (int64_t i = 0; i < p->count; i++) p->dbias[i] += (double)dz[i];
}

/* Write dx of row t - taps + 1, whose last use as an input is in row t. dy of that row has already
 * been read. */
static void write_row(const piece *p, int64_t t)
{
    const mha_convolution_gradients *c = &p->job->c;
    const int64_t taps = p->job->taps, T = c->x->shape[1];
    float sum[CHANNELS] = {0};
    for (int64_t k = mhai_max_i64(0, t - T + 1); k < taps; k++)
        for (int64_t i = 0; i < p->count; i++) sum[i] += p->weight[k][i] * p->dz[(t - k) % taps][i];
    memcpy(row_of(p, c->dx, t - taps + 1), sum, (size_t)p->count * sizeof *sum);
}

static void run_piece(void *argument, int64_t index, int worker)
{
    const backward_job *job = argument;
    const mha_convolution_gradients *c = &job->c;
    const int64_t T = c->x->shape[1];
    piece p = {.job = job, .first = index * CHANNELS};
    (void)worker;
    p.count = mhai_min_i64(CHANNELS, c->x->shape[2] - p.first);
    load(&p);
    for (p.b = 0; p.b < c->x->shape[0] && T > 0; p.b++)
        for (int64_t t = 0; t < T + job->taps - 1; t++) {
            if (t < T) add_row(&p, t);
            if (c->dx && t + 1 >= job->taps) write_row(&p, t);
        }
    for (int64_t i = 0; i < p.count; i++) {
        float *dweight = mhai_nn_row(c->dweight, p.first + i);
        float *dbias = c->dbias ? (float *)c->dbias->data + p.first + i : NULL;
        for (int64_t k = 0; dweight && k < job->taps; k++)
            dweight[k] = (float)((double)dweight[k] + p.dweight[k][i]);
        if (dbias) *dbias = (float)((double)*dbias + p.dbias[i]);
    }
}

/* ---- the call -------------------------------------------------------------------------------- */

static mha_status check_apart(const mha_convolution_gradients *c)
{
    const struct {
        const char *name;
        const mha_tensor *tensor;
    } outputs[] = {{"dx", c->dx}, {"dweight", c->dweight}, {"dbias", c->dbias}},
      inputs[] = {{"x", c->x}, {"weight", c->weight}, {"bias", c->bias}, {"dy", c->dy}};
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 4; k++)
            MHA_TRY(i == 0 && k == 3
                        ? mhai_nn_alias("dx", c->dx, "dy", c->dy)
                        : mhai_tensor_check_disjoint(outputs[i].name, outputs[i].tensor,
                                                     inputs[k].name, inputs[k].tensor));
        for (int k = 0; k < i; k++)
            MHA_TRY(mhai_tensor_check_disjoint(outputs[i].name, outputs[i].tensor, outputs[k].name,
                                               outputs[k].tensor));
    }
    return MHA_OK;
}

static mha_status check(const mha_convolution_gradients *c, int64_t *taps)
{
    const mha_tensor *rows[] = {c->x, c->dy, c->dx};
    static const char *const names[] = {"x", "dy", "dx"};
    MHA_TRY(mhai_check_flags("mha_short_convolution_backward", c->flags, MHA_CONVOLUTION_SILU));
    for (int i = 0; i < 3; i++) {
        if (i == 2 && !c->dx) continue;
        MHA_TRY(mhai_tensor_check(names[i], rows[i], MHA_F32, 3, i ? c->x->shape : NULL));
        MHA_TRY(mhai_tensor_check_last(names[i], rows[i]));
    }
    const int64_t C = c->x->shape[2];
    MHA_TRY(mhai_nn_matrix("weight", c->weight, C, -1));
    *taps = c->weight->shape[1];
    if (*taps < 1 || *taps > MOST)
        return mha_fail(MHA_ERR_SHAPE, "weight: a kernel of %lld, expected 1..%d", (long long)*taps,
                        MOST);
    if (c->bias) MHA_TRY(mhai_nn_vector("bias", c->bias, C));
    if (c->dbias && !c->bias)
        return mha_fail(MHA_ERR_ARGUMENT, "dbias: the convolution has no bias");
    if (c->dx) MHA_TRY(mhai_tensor_check_output("dx", c->dx));
    MHA_TRY(mhai_nn_out_matrix("dweight", c->dweight, C, *taps));
    MHA_TRY(mhai_nn_out_vector("dbias", c->dbias, C));
    return check_apart(c);
}

mha_status mha_short_convolution_backward(mha_context *context,
                                          const mha_convolution_gradients *call)
{
    backward_job job;
    MHA_NEED("mha_short_convolution_backward", context, call);
    MHA_TRY(
        mhai_struct_copy("mha_convolution_gradients", &job.c, sizeof job.c, sizeof job.c, call));
    MHA_TRY(check(&job.c, &job.taps));
    job.kernels = mhai_kernels_for(context->isa);
    mha_parallel_for(context, mhai_ceil_div(job.c.x->shape[2], CHANNELS), run_piece, &job);
    return MHA_OK;
}
