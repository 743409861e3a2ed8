/* Linear layers: y = activation(x W^T + b) with packed weights. */
#include "nn/linear.h"

#include "base/checked.h"
#include "base/context.h"
#include "base/convert.h"
#include "base/need.h"
#include "base/tensor.h"
#include "nn/matmul.h"

#include <string.h>

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

/* Create a layer with the shape of `like`. packed: with panels of this many floats. */
static mha_status create(mha_context *context, const mha_linear *like, bool packed, int64_t floats,
                         mha_linear **linear)
{
    const mha_allocator *allocator = &context->allocator;
    mha_linear *made = allocator->alloc(allocator->user, sizeof *made, _Alignof(mha_linear));
    if (!made) return mha_fail(MHA_ERR_NOMEM, "linear: cannot allocate %zu bytes", sizeof *made);
    *made = *like;
    made->allocator = *allocator;
    made->kernels = mhai_kernels_for(context->isa);
    mha_status status = MHA_OK;
    if (packed) status = allocate(allocator, floats, &made->weight, &made->weight_bytes);
    if (status == MHA_OK)
        status = allocate(allocator, made->outputs, &made->bias, &made->bias_bytes);
    if (status != MHA_OK) {
        mha_linear_destroy(made);
        return status;
    }
    *linear = made;
    return MHA_OK;
}

static mha_status fail_size(int64_t inputs, int64_t outputs)
{
    return mha_fail(MHA_ERR_SIZE, "weight: %lld x %lld elements overflow 64 bits",
                    (long long)outputs, (long long)inputs);
}

mha_status mhai_linear_create_from(mha_context *context, int64_t inputs, int64_t outputs,
                                   bool has_bias, const mhai_rows *rows, bool packed,
                                   mha_linear **linear)
{
    mha_linear like = {.inputs = inputs, .outputs = outputs, .has_bias = has_bias};
    int64_t floats;
    if (rows) like.rows = *rows;
    if (!mhai_matmul_panels(inputs, outputs, &floats)) return fail_size(inputs, outputs);
    return create(context, &like, packed, floats, linear);
}

mha_status mhai_linear_create(mha_context *context, int64_t inputs, int64_t outputs, bool has_bias,
                              mha_linear **linear)
{
    return mhai_linear_create_from(context, inputs, outputs, has_bias, NULL, true, linear);
}

mha_status mhai_linear_pack(mha_context *context, const mha_linear *linear)
{
    if (!linear->weight) return MHA_OK;
    return mhai_matmul_pack_rows(context, &linear->rows, linear->inputs, linear->outputs,
                                 linear->weight);
}

void mha_linear_destroy(mha_linear *linear)
{
    if (!linear) return;
    mha_allocator a = linear->allocator;
    if (linear->weight) a.release(a.user, linear->weight, linear->weight_bytes);
    if (linear->bias) a.release(a.user, linear->bias, linear->bias_bytes);
    a.release(a.user, linear, sizeof *linear);
}

/* Element [n, k] of W in the panels. */
static float *packed_at(const mha_linear *linear, int64_t n, int64_t k)
{
    return linear->weight + mhai_matmul_place(linear->inputs, linear->outputs, k, n);
}

/* Element [row, column] of a tensor, or entry `row` of a vector. */
static const void *at(const mha_tensor *x, int64_t row, int64_t column)
{
    const int64_t place = row * x->stride[0] + (x->ndim > 1 ? column * x->stride[1] : 0);
    return (const char *)x->data + place * (int64_t)mha_dtype_size(x->dtype);
}

void mhai_linear_set_weight(mha_linear *linear, const mha_tensor *weight, int64_t row)
{
    linear->lent.data = NULL;
    if (weight->stride[1] == 1 || linear->inputs == 1) {
        for (int64_t k = 0; k < linear->inputs; k += MHAI_GEMM_BLOCK)
            linear->kernels->pack_panels(
                &(mhai_pack){.out = packed_at(linear, 0, k),
                             .in = at(weight, row, k),
                             .type = weight->dtype,
                             .stride = weight->stride[0],
                             .rows = linear->outputs,
                             .cols = mhai_min_i64(MHAI_GEMM_BLOCK, linear->inputs - k)});
        return;
    }
    for (int64_t n = 0; n < linear->outputs; n++)
        for (int64_t k = 0; k < linear->inputs; k++)
            mhai_widen(weight->dtype, at(weight, row + n, k), 1, packed_at(linear, n, k));
}

/* ---- borrowed weights ------------------------------------------------------------------------ */

static void read_lent(const void *user, int64_t matrix, int64_t row, int64_t rows, int64_t column,
                      int64_t columns, float *to)
{
    const mha_tensor *lent = &((const mha_linear *)user)->lent;
    (void)matrix;
    for (int64_t i = 0; i < rows; i++)
        mhai_widen(lent->dtype, at(lent, row + i, column), columns, to + i * columns);
}

static const void *stored_lent(const void *user, int64_t matrix, int64_t row, int64_t rows,
                               mha_dtype *type, int64_t *stride)
{
    const mha_tensor *lent = &((const mha_linear *)user)->lent;
    (void)matrix, (void)rows;
    *type = lent->dtype;
    *stride = lent->stride[0];
    return at(lent, row, 0);
}

void mhai_linear_drop_panels(mha_linear *linear)
{
    const mha_allocator *a = &linear->allocator;
    if (linear->weight) a->release(a->user, linear->weight, linear->weight_bytes);
    linear->weight = NULL;
}

mha_status mhai_linear_take_panels(mha_linear *linear)
{
    int64_t floats;
    if (linear->weight) return MHA_OK;
    if (!mhai_matmul_panels(linear->inputs, linear->outputs, &floats))
        return fail_size(linear->inputs, linear->outputs);
    return allocate(&linear->allocator, floats, &linear->weight, &linear->weight_bytes);
}

void mhai_linear_borrow(mha_linear *linear, const mha_tensor *weight, int64_t row)
{
    mhai_linear_drop_panels(linear);
    linear->lent = *weight;
    linear->lent.shape[0] = linear->outputs;
    linear->lent.data =
        (char *)weight->data + row * weight->stride[0] * (int64_t)mha_dtype_size(weight->dtype);
    linear->rows = (mhai_rows){.read = read_lent, .stored = stored_lent, .user = linear};
}

/* ---- parameters ------------------------------------------------------------------------------ */

void mhai_linear_get_weight(const mha_linear *linear, const mha_tensor *weight, int64_t row)
{
    float *out = (float *)weight->data + row * weight->stride[0];
    const mha_tensor *lent = &linear->lent;
    for (int64_t n = 0; n < linear->outputs; n++)
        for (int64_t k = 0; k < linear->inputs; k++) {
            float *to = out + n * weight->stride[0] + k * weight->stride[1];
            if (lent->data)
                mhai_widen(lent->dtype, at(lent, n, k), 1, to);
            else
                *to = *packed_at(linear, n, k);
        }
}

void mhai_linear_get_bias(const mha_linear *linear, const mha_tensor *bias, int64_t row)
{
    for (int64_t n = 0; n < linear->outputs; n++)
        ((float *)bias->data)[(row + n) * bias->stride[0]] = linear->bias[n];
}

void mhai_linear_set_bias(mha_linear *linear, const mha_tensor *bias, int64_t row)
{
    for (int64_t n = 0; n < linear->outputs; n++)
        mhai_widen(bias->dtype, at(bias, row + n, 0), 1, &linear->bias[n]);
}

mha_status mha_linear_create(mha_context *context, const mha_tensor *weight, const mha_tensor *bias,
                             mha_linear **linear)
{
    MHA_NEED("mha_linear_create", context, linear);
    MHA_TRY(mhai_tensor_check("weight", weight, MHA_F32, 2, NULL));
    if (bias) MHA_TRY(mhai_tensor_check("bias", bias, MHA_F32, 1, weight->shape));
    mha_linear *made;
    MHA_TRY(mhai_linear_create(context, weight->shape[1], weight->shape[0], bias, &made));
    mhai_linear_set_weight(made, weight, 0);
    if (bias) mhai_linear_set_bias(made, bias, 0);
    *linear = made;
    return MHA_OK;
}

/* ---- bf16 arithmetic ------------------------------------------------------------------------- */

static mha_status check_bf16(const mha_tensor *weight, const mha_tensor *bias, const int64_t *shape)
{
    const mha_dtype type = weight ? weight->dtype : MHA_F32;
    if (weight) MHA_TRY(mhai_tensor_check_real("weight", weight));
    MHA_TRY(mhai_tensor_check("weight", weight, type, 2, shape));
    MHA_TRY(mhai_tensor_check_last("weight", weight));
    if (bias) MHA_TRY(mhai_tensor_check("bias", bias, MHA_F32, 1, weight->shape));
    return MHA_OK;
}

static void set_bf16(mha_linear *linear, const mha_tensor *weight, const mha_tensor *bias)
{
    memset(linear->bias, 0, linear->bias_bytes);
    if (bias) mhai_linear_set_bias(linear, bias, 0);
    const bool tiles = linear->compute == MHA_COMPUTE_TILES;
    (tiles ? mhai_matmul_pack_tiles
           : mhai_matmul_pack_bf16)(linear->kernels, weight->dtype, weight->data, weight->stride[0],
                                    linear->inputs, linear->outputs, linear->weight, linear->bias);
}

static mha_status create_rounded(mha_context *context, mha_compute compute,
                                 const mha_tensor *weight, const mha_tensor *bias,
                                 mha_linear **linear)
{
    MHA_TRY(check_bf16(weight, bias, NULL));
    const mha_linear like = {.inputs = weight->shape[1],
                             .outputs = weight->shape[0],
                             .has_bias = bias,
                             .compute = compute};
    const mhai_kernels *kernels = mhai_kernels_for(context->isa);
    int64_t floats;
    if (compute == MHA_COMPUTE_TILES
            ? !mhai_matmul_tiles_panels(like.inputs, like.outputs, &floats)
            : !mhai_matmul_bf16_panels(kernels, like.inputs, like.outputs, &floats))
        return fail_size(like.inputs, like.outputs);
    mha_linear *made;
    MHA_TRY(create(context, &like, true, floats, &made));
    set_bf16(made, weight, bias);
    *linear = made;
    return MHA_OK;
}

mha_status mha_linear_create_bf16(mha_context *context, const mha_tensor *weight,
                                  const mha_tensor *bias, mha_linear **linear)
{
    MHA_NEED("mha_linear_create_bf16", context, linear);
    return create_rounded(context, MHA_COMPUTE_BF16, weight, bias, linear);
}

mha_status mha_linear_create_tiles(mha_context *context, const mha_tensor *weight,
                                   const mha_tensor *bias, mha_linear **linear)
{
    MHA_NEED("mha_linear_create_tiles", context, linear);
    return create_rounded(context, MHA_COMPUTE_TILES, weight, bias, linear);
}

/* ---- forward --------------------------------------------------------------------------------- */

mhai_matmul mhai_linear_job(const mha_linear *linear, mha_activation activation, const float *x,
                            int64_t x_stride, int64_t rows, float *y, int64_t y_stride)
{
    return (mhai_matmul){.rows = rows,
                         .inner = linear->inputs,
                         .cols = linear->outputs,
                         .a = x,
                         .a_stride = x_stride,
                         .panels = linear->weight,
                         .bias = linear->bias,
                         .activation = activation,
                         .c = y,
                         .c_stride = y_stride};
}

mha_status mhai_linear_run(mha_context *context, const mha_linear *linear, const float *x,
                           int64_t x_stride, int64_t rows, float *y, int64_t y_stride)
{
    const mhai_matmul job =
        mhai_linear_job(linear, MHA_ACTIVATION_NONE, x, x_stride, rows, y, y_stride);
    if (!linear->weight) return mhai_matmul_run_rows(context, &job, &linear->rows);
    mhai_matmul_run(context, &job);
    return MHA_OK;
}

mha_status mha_linear_update(mha_linear *linear, const mha_tensor *weight, const mha_tensor *bias)
{
    if (!linear) return mha_fail(MHA_ERR_NULL, "mha_linear_update: linear is NULL");
    if (bias && !linear->has_bias)
        return mha_fail(MHA_ERR_ARGUMENT, "bias: this layer was created without one");
    const int64_t shape[] = {linear->outputs, linear->inputs};
    if (linear->compute != MHA_COMPUTE_F32) {
        MHA_TRY(check_bf16(weight, linear->has_bias ? bias : NULL, shape));
        if (linear->has_bias && !bias) return mha_fail(MHA_ERR_NULL, "bias is NULL");
        set_bf16(linear, weight, bias);
        return MHA_OK;
    }
    MHA_TRY(mhai_tensor_check("weight", weight, MHA_F32, 2, shape));
    if (linear->has_bias) MHA_TRY(mhai_tensor_check("bias", bias, MHA_F32, 1, shape));
    mhai_linear_set_weight(linear, weight, 0);
    if (bias) mhai_linear_set_bias(linear, bias, 0);
    return MHA_OK;
}

static mha_status check_activation(mha_activation activation)
{
    if ((unsigned)activation <= MHA_ACTIVATION_QUICK_GELU) return MHA_OK;
    return mha_fail(MHA_ERR_ARGUMENT, "activation is %d, expected one of mha_activation",
                    (int)activation);
}

mha_status mha_linear_forward(mha_context *context, const mha_linear *linear,
                              mha_activation activation, const mha_tensor *x, const mha_tensor *y)
{
    MHA_NEED("mha_linear_forward", context, linear);
    MHA_TRY(check_activation(activation));
    MHA_TRY(mhai_tensor_check("x", x, MHA_F32, 2, (int64_t[]){-1, linear->inputs}));
    MHA_TRY(mhai_tensor_check_last("x", x));
    MHA_TRY(mhai_tensor_check("y", y, MHA_F32, 2, (int64_t[]){x->shape[0], linear->outputs}));
    MHA_TRY(mhai_tensor_check_last("y", y));
    MHA_TRY(mhai_tensor_check_output("y", y));
    MHA_TRY(mhai_tensor_check_disjoint("y", y, "x", x));
    const mhai_matmul job = mhai_linear_job(linear, activation, x->data, x->stride[0], x->shape[0],
                                            y->data, y->stride[0]);
    if (!linear->weight) return mhai_matmul_run_rows(context, &job, &linear->rows);
    if (linear->compute == MHA_COMPUTE_BF16) return mhai_matmul_run_bf16(context, &job);
    if (linear->compute == MHA_COMPUTE_TILES) return mhai_matmul_run_tiles(context, &job);
    MHA_TRY(mhai_matmul_reserve(context, &job));
    mhai_matmul_run(context, &job);
    return MHA_OK;
}
