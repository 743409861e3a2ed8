/* Linear layers: y = activation(x W^T + b) on packed weights.
 *
 * The output is divided into blocks of rows and groups of panels; each block has one owner. Within
 * it, inputs are taken MHAI_GEMM_BLOCK at a time: their products are summed in registers and then
 * added to the output, which began as the bias. That order is the same for every shape. */
#include "module/linear.h"

#include "base/checked.h"
#include "base/context.h"
#include "base/tensor.h"

#include <string.h>

/* A group of 16 panels times 128 inputs is 256 KiB, to stay in L2 while the strips of a row block
 * pass over it; 8 strips are enough for that to pay. */
enum { GROUP_PANELS = 16, BLOCK_STRIPS = 8 };

/* Copying a strip costs about a tenth of multiplying it by one panel: from 4 panels on it is
 * noise. 16 floats beyond the block put each row in sets of its own. */
enum { GATHER_PANELS = 4, GATHER_STRIDE = MHAI_GEMM_BLOCK + 16 };

static mha_status allocate(const mha_allocator *allocator, int64_t count, float **memory,
                           size_t *bytes)
{
    if (!mhai_mul_size((size_t)count, sizeof(float), bytes) || *bytes > PTRDIFF_MAX)
        return mha_fail(MHA_ERR_SIZE, "weight: %lld elements do not fit in memory",
                        (long long)count);
    *memory = allocator->alloc(allocator->user, *bytes, 64);
    if (!*memory) return mha_fail(MHA_ERR_NOMEM, "weight: cannot allocate %zu bytes", *bytes);
    memset(*memory, 0, *bytes);
    return MHA_OK;
}

mha_status mhai_linear_create(mha_context *context, int64_t inputs, int64_t outputs, bool has_bias,
                              mha_linear **linear)
{
    const mha_allocator *allocator = &context->allocator;
    int64_t packed;
    if (outputs > INT64_MAX - MHAI_PANEL ||
        !mhai_mul_i64(mhai_round_up(outputs, MHAI_PANEL), inputs, &packed))
        return mha_fail(MHA_ERR_SIZE, "weight: %lld x %lld elements overflow 64 bits",
                        (long long)outputs, (long long)inputs);
    mha_linear *made = allocator->alloc(allocator->user, sizeof *made, _Alignof(mha_linear));
    if (!made) return mha_fail(MHA_ERR_NOMEM, "linear: cannot allocate %zu bytes", sizeof *made);
    *made = (mha_linear){.allocator = *allocator,
                         .kernels = mhai_kernels_for(context->isa),
                         .inputs = inputs,
                         .outputs = outputs,
                         .has_bias = has_bias};
    mha_status status = allocate(allocator, packed, &made->weight, &made->weight_bytes);
    if (status == MHA_OK) status = allocate(allocator, outputs, &made->bias, &made->bias_bytes);
    if (status != MHA_OK) {
        mha_linear_destroy(made);
        return status;
    }
    *linear = made;
    return MHA_OK;
}

void mha_linear_destroy(mha_linear *linear)
{
    if (!linear) return;
    mha_allocator a = linear->allocator;
    if (linear->weight) a.release(a.user, linear->weight, linear->weight_bytes);
    if (linear->bias) a.release(a.user, linear->bias, linear->bias_bytes);
    a.release(a.user, linear, sizeof *linear);
}

void mhai_linear_set_weight(mha_linear *linear, const mha_tensor *weight, int64_t row)
{
    const float *in = (const float *)weight->data + row * weight->stride[0];
    if (weight->stride[1] == 1 || linear->inputs == 1) {
        linear->kernels->pack_panels(&(mhai_pack){.out = linear->weight,
                                                  .in = in,
                                                  .stride = weight->stride[0],
                                                  .rows = linear->outputs,
                                                  .cols = linear->inputs});
        return;
    }
    for (int64_t n = 0; n < linear->outputs; n++)
        for (int64_t k = 0; k < linear->inputs; k++)
            linear->weight[n / MHAI_PANEL * linear->inputs * MHAI_PANEL + k * MHAI_PANEL +
                           n % MHAI_PANEL] = in[n * weight->stride[0] + k * weight->stride[1]];
}

void mhai_linear_set_bias(mha_linear *linear, const mha_tensor *bias, int64_t row)
{
    for (int64_t n = 0; n < linear->outputs; n++)
        linear->bias[n] = ((const float *)bias->data)[(row + n) * bias->stride[0]];
}

mha_status mha_linear_create(mha_context *context, const mha_tensor *weight, const mha_tensor *bias,
                             mha_linear **linear)
{
    if (!context || !linear)
        return mha_fail(MHA_ERR_NULL, "mha_linear_create: %s is NULL",
                        context ? "linear" : "context");
    MHA_TRY(mhai_tensor_check("weight", weight, MHA_F32, 2, NULL));
    if (bias) MHA_TRY(mhai_tensor_check("bias", bias, MHA_F32, 1, weight->shape));
    mha_linear *made;
    MHA_TRY(mhai_linear_create(context, weight->shape[1], weight->shape[0], bias, &made));
    mhai_linear_set_weight(made, weight, 0);
    if (bias) mhai_linear_set_bias(made, bias, 0);
    *linear = made;
    return MHA_OK;
}

typedef struct linear_job {
    const mha_linear *linear;
    const mhai_kernels *kernels;
    mha_activation activation;
    const float *x;
    float *y;
    int64_t x_stride, y_stride, rows;
    int64_t block_rows;   /* rows of a row block */
    int64_t group_panels; /* panels of a column group */
    int64_t blocks;       /* row blocks */
} linear_job;

/* Rows of x at a large power-of-two stride would fight for a few sets of L1, so a strip that meets
 * several panels is copied together first. Returns the strip to use and its stride. */
static const float *gather_strip(const float *x, int64_t *stride, int rows, int64_t inputs,
                                 float buffer[MHAI_MAX_ROWS * GATHER_STRIDE])
{
    for (int r = 0; r < rows; r++)
        memcpy(buffer + r * GATHER_STRIDE, x + r * *stride, (size_t)inputs * sizeof(float));
    *stride = GATHER_STRIDE;
    return buffer;
}

/* The inputs of one block for all strips of one row block. */
static void run_inputs(const linear_job *job, int64_t row, int64_t rows, int64_t panel,
                       int64_t panels, int64_t input)
{
    const mha_linear *l = job->linear;
    float buffer[MHAI_MAX_ROWS * GATHER_STRIDE];
    int64_t strips = mhai_ceil_div(rows, job->kernels->tile_rows);
    int64_t col = panel * MHAI_PANEL;
    for (int64_t i = 0; i < strips; i++) {
        int64_t begin = row + i * rows / strips, end = row + (i + 1) * rows / strips;
        mhai_gemm g = {.rows = (int)(end - begin),
                       .inner = mhai_min_i64(MHAI_GEMM_BLOCK, l->inputs - input),
                       .panels = panels,
                       .cols = mhai_min_i64(panels * MHAI_PANEL, l->outputs - col),
                       .x = job->x + begin * job->x_stride + input,
                       .x_stride = job->x_stride,
                       .w = l->weight + col * l->inputs + input * MHAI_PANEL,
                       .panel_stride = l->inputs * MHAI_PANEL,
                       .bias = l->bias + col,
                       .first = input == 0,
                       .out = job->y + begin * job->y_stride + col,
                       .out_stride = job->y_stride};
        if (panels >= GATHER_PANELS && g.rows > 1)
            g.x = gather_strip(g.x, &g.x_stride, g.rows, g.inner, buffer);
        job->kernels->gemm_strip(&g);
    }
}

static void activate(const linear_job *job, float *y, int64_t n)
{
    switch (job->activation) {
    case MHA_ACTIVATION_NONE: break;
    case MHA_ACTIVATION_GELU: job->kernels->activate_gelu(y, n); break;
    case MHA_ACTIVATION_RELU:
        for (int64_t i = 0; i < n; i++) y[i] = y[i] < 0 ? 0 : y[i];
        break;
    }
}

static void run_block(void *argument, int64_t item, int worker)
{
    const linear_job *job = argument;
    (void)worker;
    /* Row blocks follow each other under one group, whose weights then stay in cache. */
    int64_t row = item % job->blocks * job->block_rows;
    int64_t rows = mhai_min_i64(job->block_rows, job->rows - row);
    int64_t panel = item / job->blocks * job->group_panels, col = panel * MHAI_PANEL;
    int64_t all_panels = mhai_ceil_div(job->linear->outputs, MHAI_PANEL);
    int64_t panels = mhai_min_i64(job->group_panels, all_panels - panel);
    int64_t cols = mhai_min_i64(panels * MHAI_PANEL, job->linear->outputs - col);
    int64_t input = 0;
    do { /* at least once: without inputs the output is the bias */
        run_inputs(job, row, rows, panel, panels, input);
        input += MHAI_GEMM_BLOCK;
    } while (input < job->linear->inputs);
    for (int64_t r = row; r < row + rows; r++)
        activate(job, job->y + r * job->y_stride + col, cols);
}

void mhai_linear_run(mha_context *context, const mha_linear *linear, mha_activation activation,
                     const float *x, int64_t x_stride, int64_t rows, float *y, int64_t y_stride)
{
    if (rows == 0 || linear->outputs == 0) return;
    linear_job job = {.linear = linear,
                      .kernels = mhai_kernels_for(context->isa),
                      .activation = activation,
                      .x = x,
                      .y = y,
                      .x_stride = x_stride,
                      .y_stride = y_stride,
                      .rows = rows};
    int64_t panels = mhai_ceil_div(linear->outputs, MHAI_PANEL);
    job.block_rows = mhai_min_i64(rows, (int64_t)BLOCK_STRIPS * job.kernels->tile_rows);
    job.blocks = mhai_ceil_div(rows, job.block_rows);
    /* Few rows: narrower groups, so that every thread has some. */
    int64_t wanted = mhai_ceil_div(4 * (int64_t)context->num_threads, job.blocks);
    job.group_panels = mhai_min_i64(GROUP_PANELS, mhai_ceil_div(panels, wanted));
    int64_t groups = mhai_ceil_div(panels, job.group_panels);
    mha_parallel_for(context, job.blocks * groups, run_block, &job);
}

static mha_status check_activation(mha_activation activation)
{
    if (activation == MHA_ACTIVATION_NONE || activation == MHA_ACTIVATION_GELU ||
        activation == MHA_ACTIVATION_RELU)
        return MHA_OK;
    return mha_fail(MHA_ERR_ARGUMENT, "activation is %d, expected one of mha_activation",
                    (int)activation);
}

mha_status mha_linear_forward(mha_context *context, const mha_linear *linear,
                              mha_activation activation, const mha_tensor *x, const mha_tensor *y)
{
    if (!context || !linear)
        return mha_fail(MHA_ERR_NULL, "mha_linear_forward: %s is NULL",
                        context ? "linear" : "context");
    MHA_TRY(check_activation(activation));
    MHA_TRY(mhai_tensor_check("x", x, MHA_F32, 2, (int64_t[]){-1, linear->inputs}));
    MHA_TRY(mhai_tensor_check_last("x", x));
    MHA_TRY(mhai_tensor_check("y", y, MHA_F32, 2, (int64_t[]){x->shape[0], linear->outputs}));
    MHA_TRY(mhai_tensor_check_last("y", y));
    MHA_TRY(mhai_tensor_check_output("y", y));
    MHA_TRY(mhai_tensor_check_disjoint("y", y, "x", x));
    mhai_linear_run(context, linear, activation, x->data, x->stride[0], x->shape[0], y->data,
                    y->stride[0]);
    return MHA_OK;
}
