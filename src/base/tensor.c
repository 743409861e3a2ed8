/* Tensor views: construction, and the checks at the beginning of every public call. */
#include "base/tensor.h"

#include "base/checked.h"

#include <multihead/component.h>

#include <string.h>

static const struct {
    size_t size;
    const char *name;
} dtypes[] = {
    [MHA_F32] = {4, "f32"},   [MHA_F64] = {8, "f64"}, [MHA_F16] = {2, "f16"},
    [MHA_BF16] = {2, "bf16"}, [MHA_I8] = {1, "i8"},   [MHA_U8] = {1, "u8"},
    [MHA_I32] = {4, "i32"},   [MHA_I64] = {8, "i64"},
};

static bool dtype_known(mha_dtype dtype)
{
    return (unsigned)dtype < sizeof dtypes / sizeof dtypes[0];
}

size_t mha_dtype_size(mha_dtype dtype)
{
    return dtype_known(dtype) ? dtypes[dtype].size : 0;
}

const char *mha_dtype_name(mha_dtype dtype)
{
    return dtype_known(dtype) ? dtypes[dtype].name : "?";
}

mha_tensor mha_tensor_contiguous(void *data, mha_dtype dtype, int ndim, const int64_t *shape)
{
    mha_tensor tensor = {.data = data, .dtype = dtype, .ndim = -1};
    if (ndim < 0 || ndim > MHA_MAX_DIMS || (ndim > 0 && !shape)) return tensor;
    tensor.ndim = ndim;
    /* Unsigned, so that overflow is defined here. mhai_tensor_check() detects it. */
    uint64_t step = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        tensor.shape[i] = shape[i];
        tensor.stride[i] = (int64_t)step;
        step *= (uint64_t)shape[i];
    }
    return tensor;
}

/* The same view with two axes swapped. */
static mha_tensor swap_axes(const mha_tensor *tensor, int a, int b)
{
    mha_tensor swapped = *tensor;
    swapped.shape[a] = tensor->shape[b];
    swapped.shape[b] = tensor->shape[a];
    swapped.stride[a] = tensor->stride[b];
    swapped.stride[b] = tensor->stride[a];
    return swapped;
}

mha_tensor mha_tensor_bthd_of(void *data, mha_dtype dtype, int64_t batch, int64_t length,
                              int64_t heads, int64_t head_dim)
{
    mha_tensor memory =
        mha_tensor_contiguous(data, dtype, 4, (int64_t[]){batch, length, heads, head_dim});
    return swap_axes(&memory, 1, 2);
}

mha_tensor mha_tensor_bthd(float *data, int64_t batch, int64_t length, int64_t heads,
                           int64_t head_dim)
{
    return mha_tensor_bthd_of(data, MHA_F32, batch, length, heads, head_dim);
}

mha_tensor mha_tensor_tbe(float *data, int64_t length, int64_t batch, int64_t width)
{
    mha_tensor memory = mha_tensor_contiguous(data, MHA_F32, 3, (int64_t[]){length, batch, width});
    return swap_axes(&memory, 0, 1);
}

mha_status mha_tensor_count(const mha_tensor *tensor, int64_t *count)
{
    MHA_NEED("mha_tensor_count", tensor, count);
    if (tensor->ndim < 0 || tensor->ndim > MHA_MAX_DIMS)
        return mha_fail(MHA_ERR_SHAPE, "tensor: ndim is %d, expected 0..%d", (int)tensor->ndim,
                        (int)MHA_MAX_DIMS);
    int64_t product = 1;
    bool empty = false;
    for (int i = 0; i < tensor->ndim; i++) {
        if (tensor->shape[i] < 0)
            return mha_fail(MHA_ERR_SHAPE, "tensor: dim %d is %lld", i,
                            (long long)tensor->shape[i]);
        empty |= tensor->shape[i] == 0;
    }
    for (int i = 0; i < tensor->ndim && !empty; i++)
        if (!mhai_mul_i64(product, tensor->shape[i], &product))
            return mha_fail(MHA_ERR_SIZE, "tensor: the number of elements overflows 64 bits");
    *count = empty ? 0 : product;
    return MHA_OK;
}

static bool is_empty(const mha_tensor *tensor)
{
    for (int i = 0; i < tensor->ndim; i++)
        if (tensor->shape[i] == 0) return true;
    return false;
}

/* Find the lowest and the highest element offset. Returns the first axis whose byte offsets
 * overflow, or -1. Unused strides (an axis of length 1, an empty tensor) have the same limit,
 * because later code may compute with them. An axis of an empty tensor may have any length
 * below 2^63, as in NumPy, where strides are then 0. Here its length is clamped to 2^31, because no
 * loop over an empty tensor runs longer. */
static int element_span(const mha_tensor *tensor, int64_t *low, int64_t *high)
{
    const int64_t limit = PTRDIFF_MAX / 32; /* 8 bytes per element, two ends, a margin */
    const bool empty = is_empty(tensor);
    *low = *high = 0;
    for (int i = 0; i < tensor->ndim; i++) {
        int64_t steps = tensor->shape[i] - 1, reach;
        if (empty) steps = mhai_min_i64(steps, INT32_MAX);
        if (!mhai_mul_i64(mhai_max_i64(1, steps), tensor->stride[i], &reach)) return i;
        if (reach < -limit || reach > limit) return i;
        if (steps > 0) *(reach < 0 ? low : high) += reach;
        if (*low < -limit || *high > limit) return i;
    }
    return -1;
}

mha_status mhai_tensor_check(const char *name, const mha_tensor *tensor, mha_dtype dtype, int ndim,
                             const int64_t *shape)
{
    if (!tensor) return mha_fail(MHA_ERR_NULL, "%s: is NULL", name);
    if (tensor->dtype != dtype)
        return mha_fail(MHA_ERR_DTYPE, "%s: dtype is %s, expected %s", name,
                        mha_dtype_name(tensor->dtype), mha_dtype_name(dtype));
    if (mha_dtype_size(dtype) == 0) /* a caller may pass the tensor's own dtype */
        return mha_fail(MHA_ERR_DTYPE, "%s: %d is not an element type", name, (int)dtype);
    if (tensor->ndim != ndim)
        return mha_fail(MHA_ERR_SHAPE, "%s: has %d dimensions, expected %d", name,
                        (int)tensor->ndim, ndim);
    if (ndim < 0 || ndim > MHA_MAX_DIMS) /* a caller may pass the tensor's own ndim */
        return mha_fail(MHA_ERR_SHAPE, "%s: has %d dimensions, expected 0 to %d", name, ndim,
                        (int)MHA_MAX_DIMS);
    for (int i = 0; i < ndim; i++) {
        if (tensor->shape[i] < 0)
            return mha_fail(MHA_ERR_SHAPE, "%s: dim %d is %lld, expected 0 or more", name, i,
                            (long long)tensor->shape[i]);
        if (shape && shape[i] >= 0 && tensor->shape[i] != shape[i])
            return mha_fail(MHA_ERR_SHAPE, "%s: dim %d is %lld, expected %lld", name, i,
                            (long long)tensor->shape[i], (long long)shape[i]);
    }
    int64_t low, high;
    int far = element_span(tensor, &low, &high);
    if (far >= 0)
        return mha_fail(MHA_ERR_SIZE,
                        "%s: dim %d, %lld at a stride of %lld, reaches beyond the address space",
                        name, far, (long long)tensor->shape[far], (long long)tensor->stride[far]);
    if (is_empty(tensor)) return MHA_OK;
    if (!tensor->data) return mha_fail(MHA_ERR_NULL, "%s: data is NULL", name);
    if ((uintptr_t)tensor->data % mha_dtype_size(dtype) != 0)
        return mha_fail(MHA_ERR_STRIDE, "%s: data is not aligned to its elements of %zu bytes",
                        name, mha_dtype_size(dtype));
    return MHA_OK;
}

mha_status mhai_tensor_check_real(const char *name, const mha_tensor *tensor)
{
    if (!tensor) return mha_fail(MHA_ERR_NULL, "%s: is NULL", name);
    if (tensor->dtype != MHA_F32 && tensor->dtype != MHA_F16 && tensor->dtype != MHA_BF16)
        return mha_fail(MHA_ERR_DTYPE, "%s: dtype is %s, expected f32, f16 or bf16", name,
                        mha_dtype_name(tensor->dtype));
    return MHA_OK;
}

mha_status mhai_tensor_check_last(const char *name, const mha_tensor *tensor)
{
    int last = tensor->ndim - 1;
    if (last >= 0 && !is_empty(tensor) && tensor->shape[last] > 1 && tensor->stride[last] != 1)
        return mha_fail(MHA_ERR_STRIDE, "%s: the last axis has stride %lld, it must be contiguous",
                        name, (long long)tensor->stride[last]);
    return MHA_OK;
}

mha_status mhai_tensor_check_output(const char *name, const mha_tensor *tensor)
{
    /* Elements are distinct if, in order of increasing stride, each axis steps over the span of the
     * previous axes. All usual layouts meet this sufficient condition. */
    int64_t step[MHA_MAX_DIMS], extent[MHA_MAX_DIMS];
    int axes = 0;
    for (int i = 0; i < tensor->ndim; i++) {
        if (tensor->shape[i] == 0) return MHA_OK;
        if (tensor->shape[i] == 1) continue;
        int64_t size = tensor->stride[i] < 0 ? -tensor->stride[i] : tensor->stride[i];
        int at = axes++;
        for (; at > 0 && step[at - 1] > size; at--) {
            step[at] = step[at - 1];
            extent[at] = extent[at - 1];
        }
        step[at] = size;
        extent[at] = tensor->shape[i];
    }
    int64_t span = 1;
    for (int i = 0; i < axes; i++) {
        if (step[i] < span)
            return mha_fail(MHA_ERR_STRIDE,
                            "%s: output elements share memory (a stride of %lld within %lld "
                            "elements)",
                            name, (long long)step[i], (long long)span);
        span += step[i] * (extent[i] - 1);
    }
    return MHA_OK;
}

/* The address range of a tensor's elements. Returns false if it has none, or ndim is invalid. */
static bool range_of(const mha_tensor *tensor, uintptr_t *begin, uintptr_t *end)
{
    if (!tensor || !tensor->data || (unsigned)tensor->ndim > MHA_MAX_DIMS || is_empty(tensor))
        return false;
    int64_t low, high;
    if (element_span(tensor, &low, &high) >= 0) return false;
    int64_t size = (int64_t)mha_dtype_size(tensor->dtype);
    *begin = (uintptr_t)tensor->data + (uintptr_t)(low * size);
    *end = (uintptr_t)tensor->data + (uintptr_t)((high + 1) * size);
    return true;
}

/* Elements are at base + an offset below span + a multiple of period, in bytes. lattice_of()
 * returns false for views without this form. */
typedef struct lattice {
    uintptr_t base;
    int64_t span;
} lattice;

static bool lattice_of(const mha_tensor *tensor, int64_t period, lattice *seen)
{
    const int64_t size = (int64_t)mha_dtype_size(tensor->dtype);
    int64_t low = 0, high = 0;
    for (int i = 0; i < tensor->ndim; i++) {
        int64_t step = tensor->stride[i] * size, reach = (tensor->shape[i] - 1) * step;
        if (tensor->shape[i] == 1 || step % period == 0) continue;
        *(reach < 0 ? &low : &high) += reach;
    }
    *seen = (lattice){(uintptr_t)tensor->data + (uintptr_t)low, high - low + size};
    return seen->span <= period;
}

/* Views with shared rows, such as q, k and v of one projection, are disjoint if their columns are.
 * Sums cannot overflow, because both views passed element_span(). */
static bool interleaved(const mha_tensor *a, const mha_tensor *b)
{
    for (int i = 0; i < a->ndim; i++) {
        int64_t step = a->stride[i] * (int64_t)mha_dtype_size(a->dtype);
        int64_t period = step < 0 ? -step : step;
        lattice of_a, of_b;
        if (a->shape[i] == 1 || period == 0 || !lattice_of(a, period, &of_a) ||
            !lattice_of(b, period, &of_b))
            continue;
        int64_t apart = of_b.base >= of_a.base
                            ? (int64_t)((of_b.base - of_a.base) % (uintptr_t)period)
                            : period - (int64_t)((of_a.base - of_b.base) % (uintptr_t)period);
        if (apart >= of_a.span && apart + of_b.span <= period) return true;
    }
    return false;
}

mha_status mhai_tensor_check_disjoint(const char *name, const mha_tensor *output,
                                      const char *other_name, const mha_tensor *other)
{
    uintptr_t begin, end, other_begin, other_end;
    if (!range_of(output, &begin, &end) || !range_of(other, &other_begin, &other_end))
        return MHA_OK;
    if (begin < other_end && other_begin < end && !interleaved(output, other))
        return mha_fail(MHA_ERR_OVERLAP, "%s overlaps %s: use separate memory", name, other_name);
    return MHA_OK;
}

bool mhai_tensor_same(const mha_tensor *a, const mha_tensor *b)
{
    if (a->data != b->data || a->ndim != b->ndim) return false;
    for (int i = 0; i < a->ndim; i++)
        if (a->shape[i] > 1 && a->stride[i] != b->stride[i]) return false;
    return true;
}
