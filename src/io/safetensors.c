/* Reading safetensors. io.h defines the format; safetensors_out.c writes it.
 *
 * The header is untrusted. It is parsed as JSON; then the type, shape and offsets of each tensor
 * are checked for consistency. Finally all tensors are sorted by offset. Each must begin where the
 * previous one ends, and the last must end with the file. This ensures that no view reaches outside
 * the mapping and that every byte belongs to exactly one tensor. */
#include "io/file.h"
#include "io/json_file.h"
#include "io/safetensors_data.h"
#include "io/safetensors_types.h"

#include <multihead/component.h>

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static const int64_t most_header_bytes = 100 * 1000 * 1000; /* the limit of the format */

typedef struct entry {
    const char *name; /* in the parsed header */
    const mhai_safetensors_type *type;
    const json_t *shape;  /* array of non-negative integers */
    int64_t begin, end;   /* offsets into the data */
    _Atomic(void *) copy; /* an aligned copy, made on request if the data in
                           * the mapping is unaligned */
} entry;

struct mha_safetensors {
    mhai_file_view view;
    const unsigned char *data; /* in the mapping, after the header */
    int64_t data_bytes;
    json_t *header;
    int64_t count;
    entry *entries; /* [count] in the order of the header */
};

/* Key for an entry's index, not used by the format. jansson's hash table finds names; its seed is
 * random as a protection against crafted names. */
static const char index_key[] = "index";

static mha_status bad(const char *path, const char *tensor, const char *what)
{
    return mhai_path_fail(MHA_ERR_FORMAT, path,
                          "tensor '%s': %s; the file is damaged, download it again",
                          mhai_show_name(tensor).text, what);
}

/* The nonnegative integer at a place of a JSON array; -1 for any other value. */
static int64_t whole_number(const json_t *array, size_t place)
{
    const json_t *value = json_array_get(array, place);
    return json_is_integer(value) && json_integer_value(value) >= 0
               ? (int64_t)json_integer_value(value)
               : -1;
}

/* The number of bytes that a type and shape require. */
static mha_status tensor_bytes(const char *path, const entry *tensor, int64_t *bytes)
{
    int64_t count = 1, bits;
    bool empty = false;
    for (size_t i = 0; i < json_array_size(tensor->shape); i++) {
        int64_t length = whole_number(tensor->shape, i);
        if (length < 0)
            return bad(path, tensor->name, "shape holds values that are not lengths of 0 or more");
        empty |= length == 0;
    }
    for (size_t i = 0; i < json_array_size(tensor->shape) && !empty; i++)
        if (__builtin_mul_overflow(count, whole_number(tensor->shape, i), &count))
            return mhai_path_fail(MHA_ERR_SIZE, path,
                                  "tensor '%s': more elements than 63 bits count",
                                  mhai_show_name(tensor->name).text);
    if (empty) count = 0;
    if (__builtin_mul_overflow(count, (int64_t)tensor->type->bits, &bits))
        return mhai_path_fail(MHA_ERR_SIZE, path, "tensor '%s': more bits than 63 bits count",
                              mhai_show_name(tensor->name).text);
    if (bits % 8 != 0) return bad(path, tensor->name, "the shape does not fill whole bytes");
    *bytes = bits / 8;
    return MHA_OK;
}

static mha_status read_offsets(const char *path, const json_t *offsets, int64_t data_bytes,
                               entry *tensor)
{
    if (!json_is_array(offsets) || json_array_size(offsets) != 2)
        return bad(path, tensor->name, "data_offsets is missing or not two numbers");
    tensor->begin = whole_number(offsets, 0);
    tensor->end = whole_number(offsets, 1);
    if (tensor->begin < 0 || tensor->end < tensor->begin)
        return bad(path, tensor->name, "data_offsets are not two increasing whole numbers");
    if (tensor->end > data_bytes)
        return mhai_path_fail(MHA_ERR_FORMAT, path,
                              "tensor '%s': data_offsets end at %lld, but the file has only %lld "
                              "bytes of data; it is truncated, download it again",
                              mhai_show_name(tensor->name).text, (long long)tensor->end,
                              (long long)data_bytes);
    return MHA_OK;
}

static mha_status read_entry(const char *path, const json_t *value, int64_t data_bytes,
                             entry *tensor)
{
    if (!json_is_object(value))
        return bad(path, tensor->name, "its description is not a JSON object");
    const char *type = json_string_value(json_object_get(value, "dtype"));
    if (!type) return bad(path, tensor->name, "dtype is missing or not a string");
    tensor->type = mhai_safetensors_find_type(type);
    if (!tensor->type)
        return mhai_path_fail(MHA_ERR_FORMAT, path,
                              "tensor '%s': unknown dtype '%s'; known are F32, F16 "
                              "and the others of the safetensors format",
                              mhai_show_name(tensor->name).text, mhai_show_name(type).text);
    tensor->shape = json_object_get(value, "shape");
    if (!json_is_array(tensor->shape))
        return bad(path, tensor->name, "shape is missing or not an array");
    int64_t bytes = 0;
    MHA_TRY(tensor_bytes(path, tensor, &bytes));
    MHA_TRY(read_offsets(path, json_object_get(value, "data_offsets"), data_bytes, tensor));
    if (tensor->end - tensor->begin != bytes)
        return mhai_path_fail(MHA_ERR_FORMAT, path,
                              "tensor '%s': shape and dtype %s need %lld bytes, data_offsets span "
                              "%lld; the file is damaged, download it again",
                              mhai_show_name(tensor->name).text, tensor->type->name,
                              (long long)bytes, (long long)(tensor->end - tensor->begin));
    return MHA_OK;
}

static mha_status check_metadata(const char *path, json_t *metadata)
{
    const char *key;
    json_t *value;
    if (!json_is_object(metadata))
        return mhai_path_fail(MHA_ERR_FORMAT, path, "__metadata__ is not a JSON object");
    json_object_foreach(metadata, key, value) if (!json_is_string(value)) return mhai_path_fail(
        MHA_ERR_FORMAT, path, "__metadata__: '%s' is not text", mhai_show_name(key).text);
    return MHA_OK;
}

static mha_status no_table(const char *path, size_t count)
{
    return mhai_path_fail(MHA_ERR_NOMEM, path, "cannot allocate a table of %zu tensors", count);
}

static mha_status read_entries(const char *path, mha_safetensors *file)
{
    const char *key;
    json_t *value;
    const size_t most = json_object_size(file->header);
    file->entries = calloc(most + 1, sizeof *file->entries);
    if (!file->entries) return no_table(path, most);
    json_object_foreach(file->header, key, value)
    {
        if (strcmp(key, "__metadata__") == 0) {
            MHA_TRY(check_metadata(path, value));
            continue;
        }
        entry *tensor = &file->entries[file->count];
        tensor->name = key;
        MHA_TRY(read_entry(path, value, file->data_bytes, tensor));
        if (json_object_set_new(value, index_key, json_integer(file->count++)) != 0)
            return no_table(path, most);
    }
    return MHA_OK;
}

static mha_status check_cover(const char *path, const mha_safetensors *file)
{
    mhai_extent *order = calloc((size_t)file->count + 1, sizeof *order);
    if (!order) return no_table(path, (size_t)file->count);
    for (int64_t i = 0; i < file->count; i++)
        order[i] = (mhai_extent){file->entries[i].begin, file->entries[i].end, i};
    mhai_file_sort_extents(order, file->count);
    mha_status status = MHA_OK;
    int64_t end = 0;
    for (int64_t i = 0; i < file->count && status == MHA_OK; i++) {
        const char *name = file->entries[order[i].index].name;
        if (order[i].begin < end)
            status = bad(path, name, "its data overlaps another tensor's");
        else if (order[i].begin > end)
            status = bad(path, name, "a gap that belongs to no tensor precedes its data");
        end = order[i].end;
    }
    free(order);
    if (status == MHA_OK && end != file->data_bytes)
        status = mhai_path_fail(
            MHA_ERR_FORMAT, path,
            "%lld bytes at the end belong to no tensor; the file is damaged, download it again",
            (long long)(file->data_bytes - end));
    return status;
}

/* Read the length field and the JSON header. */
static mha_status read_header(const char *path, mha_safetensors *file)
{
    const unsigned char *bytes = file->view.bytes;
    uint64_t length = 0;
    if (file->view.size < 8)
        return mhai_path_fail(MHA_ERR_FORMAT, path,
                              "%zu bytes are too short for a safetensors file; download it again",
                              file->view.size);
    memcpy(&length, bytes, 8);
    if (length > file->view.size - 8 || length > (uint64_t)most_header_bytes)
        return mhai_path_fail(
            MHA_ERR_FORMAT, path,
            "the header claims %llu bytes, the file has %zu behind its length (and 100 MB is the "
            "limit); it is truncated or not a safetensors file",
            (unsigned long long)length, file->view.size - 8);
    if (length == 0 || bytes[8] != '{')
        return mhai_path_fail(MHA_ERR_FORMAT, path,
                              "the header does not begin with '{'; this is not a safetensors file");
    file->data = bytes + 8 + length;
    file->data_bytes = (int64_t)(file->view.size - 8 - length);
    return mhai_json_parse(path, (const char *)bytes + 8, (size_t)length, &file->header);
}

mha_status mha_safetensors_open(const char *path, mha_safetensors **file)
{
    MHA_NEED("mha_safetensors_open", path, file);
    mha_safetensors *made = calloc(1, sizeof *made);
    if (!made) return mha_fail(MHA_ERR_NOMEM, "safetensors: cannot allocate");
    mha_status status = MHA_OK;
    MHA_TRY_GOTO(mhai_file_map(path, &made->view), done);
    MHA_TRY_GOTO(read_header(path, made), done);
    MHA_TRY_GOTO(read_entries(path, made), done);
    MHA_TRY_GOTO(check_cover(path, made), done);
    *file = made;
    made = NULL;
done:
    mha_safetensors_close(made);
    return status;
}

void mha_safetensors_close(mha_safetensors *file)
{
    if (!file) return;
    for (int64_t i = 0; i < file->count; i++) free(file->entries[i].copy);
    free(file->entries);
    json_decref(file->header);
    mhai_file_unmap(&file->view);
    free(file);
}

int64_t mha_safetensors_count(const mha_safetensors *file)
{
    return file ? file->count : 0;
}

const char *mha_safetensors_name(const mha_safetensors *file, int64_t index)
{
    return file && index >= 0 && index < file->count ? file->entries[index].name : NULL;
}

int64_t mha_safetensors_find(const mha_safetensors *file, const char *name)
{
    if (!file || !name) return -1;
    const json_t *index = json_object_get(json_object_get(file->header, name), index_key);
    return json_is_integer(index) ? (int64_t)json_integer_value(index) : -1; /* metadata has none */
}

const char *mha_safetensors_metadata(const mha_safetensors *file, const char *key)
{
    if (!file || !key) return NULL;
    return json_string_value(json_object_get(json_object_get(file->header, "__metadata__"), key));
}

const unsigned char *mhai_safetensors_data(const mha_safetensors *file, int64_t index)
{
    return file->data + file->entries[index].begin;
}

const mhai_safetensors_type *mhai_safetensors_type_of(const mha_safetensors *file, int64_t index)
{
    return file->entries[index].type;
}

mha_status mhai_safetensors_shape(const mha_safetensors *file, int64_t index, mha_tensor *tensor)
{
    int64_t shape[MHA_MAX_DIMS];
    const entry *from = &file->entries[index];
    const size_t ndim = json_array_size(from->shape);
    if (ndim > MHA_MAX_DIMS)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "tensor '%s': %zu dimensions, at most %d are supported",
                        mhai_show_name(from->name).text, ndim, (int)MHA_MAX_DIMS);
    for (size_t i = 0; i < ndim; i++) shape[i] = whole_number(from->shape, i);
    *tensor = mha_tensor_contiguous(NULL, from->type->dtype, (int)ndim, shape);
    return MHA_OK;
}

mha_status mha_safetensors_peek(const mha_safetensors *file, int64_t index, mha_tensor *tensor)
{
    MHA_NEED("mha_safetensors_peek", file, tensor);
    if (index < 0 || index >= file->count)
        return mha_fail(MHA_ERR_ARGUMENT, "safetensors file: index %lld of %lld tensors",
                        (long long)index, (long long)file->count);
    const entry *from = &file->entries[index];
    if (!from->type->known)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "tensor '%s': element type %s is not supported here; "
                        "convert it, e.g. to F32",
                        mhai_show_name(from->name).text, from->type->name);
    MHA_TRY(mhai_safetensors_shape(file, index, tensor));
    const uintptr_t at = (uintptr_t)mhai_safetensors_data(file, index);
    if (at % mha_dtype_size(tensor->dtype) == 0 || from->begin == from->end)
        tensor->data = (void *)at;
    return MHA_OK;
}

mha_status mha_safetensors_tensor(const mha_safetensors *file, int64_t index, mha_tensor *tensor)
{
    mha_tensor found;
    MHA_TRY(mha_safetensors_peek(file, index, tensor ? &found : NULL));
    entry *from = &file->entries[index];
    if (!found.data) found.data = atomic_load(&from->copy);
    if (!found.data) {
        const size_t bytes = (size_t)(from->end - from->begin);
        void *copy = malloc(bytes), *first = NULL;
        if (!copy)
            return mha_fail(MHA_ERR_NOMEM,
                            "tensor '%s': cannot allocate %zu bytes, which the file has unaligned",
                            mhai_show_name(from->name).text, bytes);
        memcpy(copy, mhai_safetensors_data(file, index), bytes);
        /* If another thread was first, use its copy. */
        if (!atomic_compare_exchange_strong(&from->copy, &first, copy)) free(copy);
        found.data = first ? first : copy;
    }
    *tensor = found;
    return MHA_OK;
}

mha_status mha_safetensors_read(const mha_safetensors *file, int64_t index, mha_dtype dtype,
                                int64_t count, void *to)
{
    mha_tensor tensor;
    int64_t held = 0;
    MHA_TRY(mha_safetensors_peek(file, index, to || count == 0 ? &tensor : NULL));
    MHA_TRY(mha_tensor_count(&tensor, &held));
    if (held != count)
        return mha_fail(MHA_ERR_SHAPE, "tensor '%s': has %lld elements, not %lld",
                        mhai_show_name(file->entries[index].name).text, (long long)held,
                        (long long)count);
    return mhai_file_convert(mhai_safetensors_data(file, index), tensor.dtype, count, dtype, to);
}
