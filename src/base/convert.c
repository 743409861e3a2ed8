/* Conversions between floating types, for contiguous rows and for tensors with any strides. */
#include "base/convert.h"

#include "base/half.h"
#include "base/tensor.h"

#include <multihead/component.h>

#include <math.h>
#include <string.h>

/* ---- contiguous rows ------------------------------------------------------------------------- */

void mhai_widen(mha_dtype type, const void *in, int64_t n, float *out)
{
    const uint16_t *half = in;
    if (type == MHA_F32)
        memcpy(out, in, (size_t)n * sizeof(float));
    else if (type == MHA_F16)
        for (int64_t i = 0; i < n; i++) out[i] = mhai_f16_to_f32(half[i]);
    else
        for (int64_t i = 0; i < n; i++) out[i] = mhai_bf16_to_f32(half[i]);
}

void mhai_narrow(mha_dtype type, void *out, const float *in, int64_t n)
{
    uint16_t *half = out;
    if (type == MHA_F32)
        memcpy(out, in, (size_t)n * sizeof(float));
    else if (type == MHA_F16)
        for (int64_t i = 0; i < n; i++) half[i] = mhai_f32_to_f16(in[i]);
    else
        for (int64_t i = 0; i < n; i++) half[i] = mhai_f32_to_bf16(in[i]);
}

/* ---- single elements ------------------------------------------------------------------------- */

/* An element as double, which represents every type exactly. */
static double element(mha_dtype type, const void *in)
{
    switch (type) {
    case MHA_F16: return (double)mhai_f16_to_f32(*(const uint16_t *)in);
    case MHA_BF16: return (double)mhai_bf16_to_f32(*(const uint16_t *)in);
    case MHA_F32: return (double)*(const float *)in;
    default: return *(const double *)in;
    }
}

/* Round to odd: if the result is inexact, its last bit is set. A half has fewer bits than
 * f32 by more than two, so rounding the result to a half gives the half nearest to x
 * (Boldo & Melquiond 2008). */
static float to_odd(double x)
{
    float near = (float)x;
    if (isnan(x) || (double)near == x) return near;
    uint32_t bits = mhai_float_bits(near);
    if (fabs((double)near) > fabs(x)) bits--; /* towards zero, even from infinity */
    return mhai_float_of_bits(bits | 1u);
}

static void set_element(mha_dtype type, void *out, double x)
{
    switch (type) {
    case MHA_F16: *(uint16_t *)out = mhai_f32_to_f16(to_odd(x)); break;
    case MHA_BF16: *(uint16_t *)out = mhai_f32_to_bf16(to_odd(x)); break;
    case MHA_F32: *(float *)out = (float)x; break;
    default: *(double *)out = x;
    }
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* Convert n elements; steps are in bytes. */
static void convert_run(const mha_tensor *in, const mha_tensor *out, int64_t n, const char *from,
                        int64_t from_step, char *to, int64_t to_step)
{
    const size_t from_size = mha_dtype_size(in->dtype), to_size = mha_dtype_size(out->dtype);
    bool dense = from_step == (int64_t)from_size && to_step == (int64_t)to_size;
    if (dense && in->dtype == out->dtype)
        memcpy(to, from, (size_t)n * from_size);
    else if (dense && out->dtype == MHA_F32 && in->dtype != MHA_F64)
        mhai_widen(in->dtype, from, n, (float *)(void *)to);
    else if (dense && in->dtype == MHA_F32 && out->dtype != MHA_F64)
        mhai_narrow(out->dtype, to, (const float *)(const void *)from, n);
    else /* do not step past the last element: the stride of a single element is arbitrary */
        for (int64_t i = 0; i < n; i++)
            if (in->dtype == out->dtype)
                memcpy(to + i * to_step, from + i * from_step, from_size);
            else
                set_element(out->dtype, to + i * to_step, element(in->dtype, from + i * from_step));
}

/* Convert along axes axis .. ndim - 1. Recursion is at most MHA_MAX_DIMS deep. */
static void convert_axes(const mha_tensor *in, const mha_tensor *out, int axis, const char *from,
                         char *to)
{
    bool scalar = in->ndim == 0;
    int64_t from_size = (int64_t)mha_dtype_size(in->dtype),
            to_size = (int64_t)mha_dtype_size(out->dtype);
    int64_t from_step = scalar ? from_size : in->stride[axis] * from_size;
    int64_t to_step = scalar ? to_size : out->stride[axis] * to_size;
    int64_t n = scalar ? 1 : in->shape[axis];
    if (axis >= in->ndim - 1) {
        convert_run(in, out, n, from, from_step, to, to_step);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        convert_axes(in, out, axis + 1, from + i * from_step, to + i * to_step);
}

static mha_status check_side(const char *name, const mha_tensor *tensor, const mha_tensor *like)
{
    if (!tensor) return mha_fail(MHA_ERR_NULL, "mha_tensor_convert: %s is NULL", name);
    mha_dtype type = tensor->dtype;
    if (type != MHA_F32 && type != MHA_F64 && type != MHA_F16 && type != MHA_BF16)
        return mha_fail(MHA_ERR_DTYPE, "%s: dtype is %s, expected f32, f64, f16 or bf16", name,
                        mha_dtype_name(type));
    if (tensor->ndim < 0 || tensor->ndim > MHA_MAX_DIMS)
        return mha_fail(MHA_ERR_SHAPE, "%s: has %d dimensions, expected 0..%d", name,
                        (int)tensor->ndim, (int)MHA_MAX_DIMS);
    return mhai_tensor_check(name, tensor, type, like->ndim, like->shape);
}

mha_status mha_tensor_convert(const mha_tensor *in, const mha_tensor *out)
{
    MHA_TRY(check_side("in", in, in));
    MHA_TRY(check_side("out", out, in));
    MHA_TRY(mhai_tensor_check_output("out", out));
    MHA_TRY(mhai_tensor_check_disjoint("out", out, "in", in));
    for (int i = 0; i < in->ndim; i++)
        if (in->shape[i] == 0) return MHA_OK;
    convert_axes(in, out, 0, in->data, out->data);
    return MHA_OK;
}
