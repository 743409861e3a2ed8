/* See model_weights.h. */
#include "model/model_weights.h"

#include "io/file.h"

#include <multihead/component.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 256 };

void mhai_weights_close(mhai_weights *weights)
{
    free(weights->converted);
    weights->converted = NULL;
}

static int64_t find(const mhai_weights *weights, const char *name)
{
    char full[NAME_BYTES];
    int length = snprintf(full, sizeof full, "%s%s", weights->prefix, name);
    return length < (int)sizeof full ? mha_safetensors_find(weights->file, full) : -1;
}

bool mhai_weights_have(const mhai_weights *weights, const char *name)
{
    return find(weights, name) >= 0;
}

void mhai_weights_print_shape(char *text, size_t room, const mha_tensor *tensor)
{
    size_t used = (size_t)snprintf(text, room, "[");
    for (int i = 0; i < tensor->ndim && used < room; i++)
        used += (size_t)snprintf(text + used, room - used, "%s%lld", i ? ", " : "",
                                 (long long)tensor->shape[i]);
    if (used < room) snprintf(text + used, room - used, "]");
}

/* The tensor called prefix + name, whose shape must be that of expected; no data is read. */
static mha_status check(const mhai_weights *weights, const char *name, const mha_tensor *expected,
                        int64_t *index, mha_tensor *tensor)
{
    *index = find(weights, name);
    if (*index < 0)
        return mha_fail(MHA_ERR_MODEL, "%s: weight '%s%s' is missing; config.json asks for it",
                        mhai_show_path(weights->path).text, weights->prefix, name);
    MHA_TRY(mha_safetensors_peek(weights->file, *index, tensor));
    bool same = tensor->ndim == expected->ndim;
    for (int i = 0; same && i < expected->ndim; i++) same = tensor->shape[i] == expected->shape[i];
    if (!same) {
        char has[160], wants[160];
        mhai_weights_print_shape(has, sizeof has, tensor);
        mhai_weights_print_shape(wants, sizeof wants, expected);
        return mha_fail(MHA_ERR_MODEL, "%s: weight '%s%s' has shape %s, config.json asks for %s",
                        mhai_show_path(weights->path).text, weights->prefix, name, has, wants);
    }
    if (tensor->dtype == MHA_F32 || tensor->dtype == MHA_F16 || tensor->dtype == MHA_BF16)
        return MHA_OK;
    return mha_fail(MHA_ERR_UNSUPPORTED,
                    "%s: weight '%s%s' is %s; save the model as float32, float16 or bfloat16",
                    mhai_show_path(weights->path).text, weights->prefix, name,
                    mha_dtype_name(tensor->dtype));
}

mha_status mhai_weights_read(mhai_weights *weights, const char *name, const mha_tensor *to)
{
    int64_t index, count;
    mha_tensor found;
    MHA_TRY(check(weights, name, to, &index, &found));
    if (!to->data) return MHA_OK;
    MHA_TRY(mha_tensor_count(to, &count));
    return mha_safetensors_read(weights->file, index, MHA_F32, count, to->data);
}

mha_status mhai_weights_matrix(mhai_weights *weights, const char *name, int64_t rows,
                               int64_t columns, mha_tensor *tensor)
{
    const int64_t shape[] = {rows, columns};
    const mha_tensor expected = mha_tensor_contiguous(NULL, MHA_F32, 2, shape);
    int64_t index, count;
    MHA_TRY(check(weights, name, &expected, &index, tensor));
    MHA_TRY(mha_tensor_count(tensor, &count));
    if (tensor->dtype == MHA_F32 && tensor->data) return MHA_OK;
    if ((uint64_t)count > PTRDIFF_MAX / sizeof(float))
        return mha_fail(MHA_ERR_SIZE, "weight '%s' is too large", name);
    free(weights->converted);
    weights->converted = malloc((size_t)count * sizeof(float));
    if (!weights->converted)
        return mha_fail(MHA_ERR_NOMEM, "weight '%s': cannot allocate %lld floats", name,
                        (long long)count);
    *tensor = mha_tensor_contiguous(weights->converted, MHA_F32, 2, shape);
    return mhai_weights_read(weights, name, tensor);
}
