/* Writing files through the public writer (sink.h). If writing fails, no partial file remains. */
#include "io/file.h"

#include <multihead/component.h>

mha_status mha_file_write(const char *path, const void *bytes, size_t size)
{
    MHA_NEED_AS("mha_file_write", "path, bytes", path, bytes || size == 0);
    mha_file *file;
    MHA_TRY(mha_file_create(path, &file));
    return mha_file_finish(file, mhai_file_append(mha_file_sink(file), bytes, size));
}

mha_status mhai_file_append(const mha_sink *sink, const void *bytes, size_t size)
{
    return size > 0 ? sink->write(sink->user, bytes, size) : MHA_OK;
}

mha_status mhai_file_tensor_bytes(const char *name, const mha_tensor *tensor, int64_t *bytes)
{
    int64_t count = 0, size = (int64_t)mha_dtype_size(tensor->dtype), reach;
    if (size == 0) return mha_fail(MHA_ERR_DTYPE, "%s: unknown dtype %d", name, (int)tensor->dtype);
    MHA_TRY(mha_tensor_count(tensor, &count));
    if (__builtin_mul_overflow(count, size, bytes))
        return mha_fail(MHA_ERR_SIZE, "%s: more bytes than 63 bits count", name);
    if (count > 0 && !tensor->data) return mha_fail(MHA_ERR_NULL, "%s: data is NULL", name);
    for (int i = 0; i < tensor->ndim && count > 0; i++)
        if (__builtin_mul_overflow(tensor->shape[i] - 1, tensor->stride[i], &reach) ||
            reach > PTRDIFF_MAX / 64 || reach < -(PTRDIFF_MAX / 64))
            return mha_fail(MHA_ERR_SIZE, "%s: dim %d reaches beyond the address space", name, i);
    return MHA_OK;
}

/* One row of the last axis. */
static mha_status append_row(const mha_sink *sink, const unsigned char *row, int64_t length,
                             int64_t stride, size_t size)
{
    if (stride == 1 || length == 1) return mhai_file_append(sink, row, (size_t)length * size);
    for (int64_t i = 0; i < length; i++)
        MHA_TRY(mhai_file_append(sink, row + i * stride * (int64_t)size, size));
    return MHA_OK;
}

mha_status mhai_file_append_tensor(const mha_sink *sink, const mha_tensor *tensor)
{
    int last = tensor->ndim - 1;
    int64_t size = (int64_t)mha_dtype_size(tensor->dtype), at[MHA_MAX_DIMS] = {0};
    const unsigned char *data = tensor->data;
    for (int i = 0; i <= last; i++)
        if (tensor->shape[i] == 0) return MHA_OK;
    if (last < 0) return mhai_file_append(sink, data, (size_t)size);
    for (;;) {
        int64_t offset = 0;
        for (int i = 0; i < last; i++) offset += at[i] * tensor->stride[i];
        MHA_TRY(append_row(sink, data + offset * size, tensor->shape[last], tensor->stride[last],
                           (size_t)size));
        int axis = last - 1; /* advance to the next row, the last axis fastest */
        while (axis >= 0 && ++at[axis] == tensor->shape[axis]) at[axis--] = 0;
        if (axis < 0) return MHA_OK;
    }
}
