/* Writing safetensors. Tensors are sorted by element size, largest first, and the header is padded
 * to 8 bytes. This aligns every tensor without gaps, which the format forbids. */
#include "io/file.h"
#include "io/safetensors_types.h"

#include <multihead/component.h>

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static mha_status check_text(const char *what, const char *text)
{
    const size_t bytes = strlen(text), valid = mha_utf8_span(text, bytes, NULL);
    if (valid == bytes) return MHA_OK;
    return mha_fail(MHA_ERR_UTF8, "safetensors: a %s is not valid UTF-8 at byte %zu", what, valid);
}

/* Add a value under a new key. Consumes the reference to value. */
static mha_status add_new(json_t *object, const char *what, const char *key, json_t *value)
{
    if (!value) return MHA_NO_MEMORY("header of safetensors");
    if (json_object_get(object, key)) {
        json_decref(value);
        return mha_fail(MHA_ERR_ARGUMENT, "safetensors: the %s '%s' occurs twice", what,
                        mhai_show_name(key).text);
    }
    return json_object_set_new(object, key, value) == 0 ? MHA_OK
                                                        : MHA_NO_MEMORY("header of safetensors");
}

static mha_status add_metadata(json_t *header, const char *const *metadata)
{
    if (!metadata || !metadata[0]) return MHA_OK;
    json_t *object = json_object();
    if (!object || json_object_set_new(header, "__metadata__", object) != 0)
        return MHA_NO_MEMORY("header of safetensors");
    for (int64_t i = 0; metadata[i]; i += 2) {
        if (!metadata[i + 1])
            return mha_fail(MHA_ERR_NULL, "safetensors: the metadata key '%s' has no text",
                            mhai_show_name(metadata[i]).text);
        MHA_TRY(check_text("metadata key", metadata[i]));
        MHA_TRY(check_text("metadata text", metadata[i + 1]));
        MHA_TRY(add_new(object, "metadata key", metadata[i], json_string(metadata[i + 1])));
    }
    return MHA_OK;
}

/* Describe a tensor whose data is at *offset, and advance *offset to its end. */
static mha_status add_tensor(json_t *header, const char *name, const mha_tensor *tensor,
                             int64_t *offset)
{
    int64_t bytes = 0, end;
    MHA_TRY(check_text("tensor name", name));
    if (!*name || strcmp(name, "__metadata__") == 0)
        return mha_fail(MHA_ERR_ARGUMENT, "safetensors: a tensor cannot be called '%s'", name);
    MHA_TRY(mhai_file_tensor_bytes(name, tensor, &bytes));
    if (__builtin_add_overflow(*offset, bytes, &end))
        return mha_fail(MHA_ERR_SIZE, "safetensors: more data than 63 bits count");
    json_t *shape = json_array();
    for (int i = 0; shape && i < tensor->ndim; i++)
        if (json_array_append_new(shape, json_integer(tensor->shape[i])) != 0) {
            json_decref(shape);
            return MHA_NO_MEMORY("header of safetensors");
        }
    if (!shape) return MHA_NO_MEMORY("header of safetensors");
    json_t *value =
        json_pack("{s:s, s:o, s:[I, I]}", "dtype", mhai_safetensors_type_name(tensor->dtype),
                  "shape", shape, "data_offsets", (json_int_t)*offset, (json_int_t)end);
    *offset = end;
    return add_new(header, "tensor name", name, value);
}

static mha_status build_header(const char *const *names, const mha_tensor *tensors, int64_t count,
                               const char *const *metadata, json_t *header)
{
    int64_t offset = 0;
    MHA_TRY(add_metadata(header, metadata));
    for (size_t size = 8; size > 0; size /= 2)
        for (int64_t i = 0; i < count; i++)
            if (mha_dtype_size(tensors[i].dtype) == size)
                MHA_TRY(add_tensor(header, names[i], &tensors[i], &offset));
    return MHA_OK;
}

/* Uses a buffer of fixed size, because json_dumps() silently omits a key
 * if its buffer cannot grow. */
static mha_status write_text(const json_t *header, char **text)
{
    const size_t bytes = json_dumpb(header, NULL, 0, JSON_COMPACT);
    *text = bytes > 0 ? malloc(bytes + 1) : NULL;
    if (!*text || json_dumpb(header, *text, bytes, JSON_COMPACT) != bytes)
        return MHA_NO_MEMORY("header of safetensors");
    (*text)[bytes] = '\0';
    return MHA_OK;
}

static mha_status append_all(const mha_sink *sink, const char *header, const mha_tensor *tensors,
                             int64_t count)
{
    size_t length = strlen(header), padded = (length + 7) / 8 * 8;
    uint64_t field = padded;
    MHA_TRY(mhai_file_append(sink, &field, sizeof field));
    MHA_TRY(mhai_file_append(sink, header, length));
    MHA_TRY(mhai_file_append(sink, "       ", padded - length));
    for (size_t size = 8; size > 0; size /= 2)
        for (int64_t i = 0; i < count; i++)
            if (mha_dtype_size(tensors[i].dtype) == size)
                MHA_TRY(mhai_file_append_tensor(sink, &tensors[i]));
    return MHA_OK;
}

mha_status mha_safetensors_write_to(const mha_sink *sink, const char *const *names,
                                    const mha_tensor *tensors, int64_t count,
                                    const char *const *metadata)
{
    MHA_NEED_AS("mha_safetensors_write", "sink, names, tensors", sink, names || count <= 0,
                tensors || count <= 0);
    if (count < 0)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_safetensors_write: count is %lld", (long long)count);
    for (int64_t i = 0; i < count; i++) {
        if (!names[i])
            return mha_fail(MHA_ERR_NULL, "mha_safetensors_write: name %lld is NULL", (long long)i);
        if (mha_dtype_size(tensors[i].dtype) == 0)
            return mha_fail(MHA_ERR_DTYPE, "%s: unknown dtype %d", mhai_show_name(names[i]).text,
                            (int)tensors[i].dtype);
    }
    char *text = NULL;
    mha_status status = MHA_OK;
    json_t *header = json_object();
    if (!header) return MHA_NO_MEMORY("header of safetensors");
    MHA_TRY_GOTO(build_header(names, tensors, count, metadata, header), done);
    status = write_text(header, &text);
    if (status == MHA_OK) status = append_all(sink, text, tensors, count);
done:
    free(text);
    json_decref(header);
    return status;
}

mha_status mha_safetensors_write(const char *path, const char *const *names,
                                 const mha_tensor *tensors, int64_t count,
                                 const char *const *metadata)
{
    MHA_NEED("mha_safetensors_write", path);
    mha_file *file;
    MHA_TRY(mha_file_create(path, &file));
    return mha_file_finish(
        file, mha_safetensors_write_to(mha_file_sink(file), names, tensors, count, metadata));
}
