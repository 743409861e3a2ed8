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
    for (int i = 0; i < 2; i++) {
        free(weights->converted[i]);
        weights->converted[i] = NULL;
    }
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

/* Exchange a 16-bit tensor for an f32 one. */
static mha_status convert(mhai_weights *weights, const char *name, mha_tensor *tensor)
{
    int kind = tensor->ndim - 1;
    int64_t count = 0;
    MHA_TRY(mha_tensor_count(tensor, &count));
    if ((uint64_t)count > PTRDIFF_MAX / sizeof(float))
        return mha_fail(MHA_ERR_SIZE, "weight '%s' is too large", name);
    free(weights->converted[kind]);
    float *to = weights->converted[kind] = malloc((size_t)count * sizeof(float));
    if (!to)
        return mha_fail(MHA_ERR_NOMEM, "weight '%s': cannot allocate %lld floats", name,
                        (long long)count);
    const mha_tensor wide = mha_tensor_contiguous(to, MHA_F32, tensor->ndim, tensor->shape);
    MHA_TRY(mha_tensor_convert(tensor, &wide));
    *tensor = wide;
    return MHA_OK;
}

void mhai_weights_print_shape(char *text, size_t room, const mha_tensor *tensor)
{
    size_t used = (size_t)snprintf(text, room, "[");
    for (int i = 0; i < tensor->ndim && used < room; i++)
        used += (size_t)snprintf(text + used, room - used, "%s%lld", i ? ", " : "",
                                 (long long)tensor->shape[i]);
    if (used < room) snprintf(text + used, room - used, "]");
}

static mha_status get(mhai_weights *weights, const char *name, const mha_tensor *expected,
                      mha_tensor *tensor)
{
    int64_t index = find(weights, name);
    if (index < 0)
        return mha_fail(MHA_ERR_MODEL, "%s: weight '%s%s' is missing; config.json asks for it",
                        mhai_show_path(weights->path).text, weights->prefix, name);
    MHA_TRY(mha_safetensors_tensor(weights->file, index, tensor));
    bool same = tensor->ndim == expected->ndim;
    for (int i = 0; same && i < expected->ndim; i++) same = tensor->shape[i] == expected->shape[i];
    if (!same) {
        char has[160], wants[160];
        mhai_weights_print_shape(has, sizeof has, tensor);
        mhai_weights_print_shape(wants, sizeof wants, expected);
        return mha_fail(MHA_ERR_MODEL, "%s: weight '%s%s' has shape %s, config.json asks for %s",
                        mhai_show_path(weights->path).text, weights->prefix, name, has, wants);
    }
    if (tensor->dtype == MHA_F16 || tensor->dtype == MHA_BF16) {
        MHA_TRY(convert(weights, name, tensor));
    } else if (tensor->dtype != MHA_F32) {
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "%s: weight '%s%s' is %s; save the model as float32, float16 or bfloat16",
                        mhai_show_path(weights->path).text, weights->prefix, name,
                        mha_dtype_name(tensor->dtype));
    }
    int64_t count = 0;
    MHA_TRY(mha_tensor_count(tensor, &count));
    weights->parameters += count;
    return MHA_OK;
}

mha_status mhai_weights_vector(mhai_weights *weights, const char *name, int64_t length,
                               mha_tensor *tensor)
{
    const mha_tensor expected = mha_tensor_contiguous(NULL, MHA_F32, 1, &length);
    return get(weights, name, &expected, tensor);
}

mha_status mhai_weights_matrix(mhai_weights *weights, const char *name, int64_t rows,
                               int64_t columns, mha_tensor *tensor)
{
    const mha_tensor expected = mha_tensor_contiguous(NULL, MHA_F32, 2, (int64_t[]){rows, columns});
    return get(weights, name, &expected, tensor);
}
