/* An open GGUF file: tensors and metadata. gguf.h defines the format, gguf_header.c checks it, and
 * gguf_blocks.c decodes elements. */
#include "io/gguf_blocks.h"
#include "io/gguf_parts.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

mha_status mhai_gguf_open_part(const char *path, mha_gguf **file)
{
    mha_gguf *made = calloc(1, sizeof *made);
    if (!made) return mha_fail(MHA_ERR_NOMEM, "GGUF: cannot allocate");
    mha_status status = MHA_OK;
    made->parts = 1;
    made->path = mhai_show_path(path);
    made->allocator = mhai_vector_allocator((mha_allocator){0});
    made->names = mhai_vector_make(&made->allocator, sizeof(char));
    made->starts = mhai_vector_make(&made->allocator, sizeof(uint64_t));
    made->entries = mhai_vector_make(&made->allocator, sizeof(mhai_gguf_entry));
    made->tensors = mhai_vector_make(&made->allocator, sizeof(mhai_gguf_tensor));
    MHA_TRY_GOTO(mhai_file_map(path, &made->view), done);
    MHA_TRY_GOTO(mhai_gguf_read_header(made), done);
    *file = made;
    made = NULL;
done:
    mha_gguf_close(made);
    return status;
}

mha_status mha_gguf_open(const char *path, mha_gguf **file)
{
    mha_gguf *made = NULL;
    MHA_NEED("mha_gguf_open", path, file);
    MHA_TRY(mhai_gguf_open_part(path, &made));
    mha_status status = mhai_gguf_join(path, &made);
    if (status == MHA_OK) status = mhai_gguf_index_tensors(made);
    if (status == MHA_OK)
        *file = made;
    else
        mha_gguf_close(made);
    return status;
}

void mha_gguf_close(mha_gguf *file)
{
    if (!file) return;
    for (int64_t i = 1; i < file->parts; i++) mha_gguf_close(file->part[i]);
    free(file->part);
    mhai_vector_release(&file->allocator, file->keys.entries, (size_t)file->keys.count,
                        sizeof *file->keys.entries);
    mhai_vector_release(&file->allocator, file->tensor_names.entries,
                        (size_t)file->tensor_names.count, sizeof *file->tensor_names.entries);
    mhai_vector_free(&file->tensors);
    mhai_vector_free(&file->entries);
    mhai_vector_free(&file->starts);
    mhai_vector_free(&file->names);
    mhai_file_unmap(&file->view);
    free(file);
}

/* ---- Tensors of an open file ----------------------------------------------------------------- */

int64_t mha_gguf_count(const mha_gguf *file)
{
    return file ? (int64_t)file->tensors.count : 0;
}

int64_t mha_gguf_find(const mha_gguf *file, const char *name)
{
    return file && name ? mhai_lexicon_find(&file->tensor_names, name) : -1;
}

mha_status mha_gguf_describe(const mha_gguf *file, int64_t index, mha_gguf_tensor *shown)
{
    MHA_NEED("mha_gguf_describe", file, shown);
    if (index < 0 || index >= mha_gguf_count(file))
        return mha_fail(MHA_ERR_ARGUMENT, "%s: index %" PRId64 " of %" PRId64 " tensors",
                        file->path.text, index, mha_gguf_count(file));
    *shown = mhai_gguf_tensor_at(file, index)->shown;
    return MHA_OK;
}

mha_status mha_gguf_read(const mha_gguf *file, int64_t index, int64_t first, int64_t count,
                         float *to)
{
    mha_gguf_tensor from;
    MHA_TRY(mha_gguf_describe(file, index, to || count == 0 ? &from : NULL));
    if (first < 0 || count < 0 || first > from.count || count > from.count - first)
        return mha_fail(MHA_ERR_SHAPE,
                        "%s: tensor '%s': has %" PRId64 " elements, not %" PRId64 " from %" PRId64
                        " on",
                        mhai_gguf_tensor_at(file, index)->path->text,
                        mhai_show_name(from.name).text, from.count, count, first);
    if (!mhai_gguf_decodes(from.type))
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "%s: tensor '%s': elements of type %s are not supported; convert the "
                        "model, e.g. to F16 or Q8_0",
                        mhai_gguf_tensor_at(file, index)->path->text,
                        mhai_show_name(from.name).text, from.type_name);
    mhai_gguf_decode(from.type, from.data, first, count, to);
    return MHA_OK;
}

/* ---- Metadata of an open file ---------------------------------------------------------------- */

int64_t mha_gguf_key_count(const mha_gguf *file)
{
    return file ? (int64_t)file->entries.count : 0;
}

int64_t mha_gguf_key_find(const mha_gguf *file, const char *key)
{
    return file && key ? mhai_lexicon_find(&file->keys, key) : -1;
}

mha_status mha_gguf_value_at(const mha_gguf *file, int64_t index, mha_gguf_value *value)
{
    MHA_NEED("mha_gguf_value_at", file, value);
    if (index < 0 || index >= mha_gguf_key_count(file))
        return mha_fail(MHA_ERR_ARGUMENT, "%s: index %" PRId64 " of %" PRId64 " keys",
                        file->path.text, index, mha_gguf_key_count(file));
    const mhai_gguf_entry *found = mhai_gguf_entry_at(file, index);
    *value = (mha_gguf_value){.key = mhai_gguf_name_at(file, found->key),
                              .type = found->type,
                              .array = found->array,
                              .count = found->count,
                              .file = file};
    if (found->type == MHA_GGUF_VALUE_STRING)
        value->starts = (const uint64_t *)file->starts.items + found->at;
    else
        value->data = file->view.bytes + found->at;
    return MHA_OK;
}

mha_status mha_gguf_value_of(const mha_gguf *file, const char *key, mha_gguf_value *value)
{
    MHA_NEED("mha_gguf_value_of", file, key, value);
    const int64_t index = mha_gguf_key_find(file, key);
    if (index < 0)
        return mha_fail(MHA_ERR_MODEL,
                        "%s: the metadata has no '%s'; the file is incomplete, convert the model "
                        "again",
                        file->path.text, mhai_show_name(key).text);
    return mha_gguf_value_at(file, index, value);
}

static bool has_sign(mha_gguf_value_type type)
{
    return mhai_gguf_value_kinds[type].name[0] == 'I';
}

static bool is_whole(mha_gguf_value_type type)
{
    return has_sign(type) || mhai_gguf_value_kinds[type].name[0] == 'U';
}

/* "metadata 'key'", or "metadata 'key', element 3". */
static mhai_shown where_is(const mha_gguf_value *value, int64_t element)
{
    mhai_shown shown;
    const int length =
        snprintf(shown.text, sizeof shown.text, "metadata '%s'", mhai_show_name(value->key).text);
    if (value->array)
        snprintf(shown.text + length, sizeof shown.text - (size_t)length, ", element %" PRId64,
                 element);
    return shown;
}

static mha_status check_element(const mha_gguf_value *value, int64_t element, const void *out,
                                bool fits, const char *expected)
{
    MHA_NEED_AS("an element of GGUF metadata", "value, the result", value && value->file, out);
    if (element < 0 || element >= value->count)
        return mha_fail(MHA_ERR_ARGUMENT, "%s: metadata '%s': element %" PRId64 " of %" PRId64,
                        value->file->path.text, mhai_show_name(value->key).text, element,
                        value->count);
    return fits ? MHA_OK
                : mha_fail(MHA_ERR_DTYPE, "%s: %s: is of type %s, expected %s",
                           value->file->path.text, where_is(value, element).text,
                           mhai_gguf_value_kinds[value->type].name, expected);
}

/* The bits of a number. Signed types are sign-extended. */
static uint64_t bits_of(const mha_gguf_value *value, int64_t element)
{
    const size_t bytes = mhai_gguf_value_kinds[value->type].bytes;
    uint64_t bits = 0;
    memcpy(&bits, value->data + (size_t)element * bytes, bytes);
    const uint64_t sign = (uint64_t)1 << (8 * bytes - 1);
    return has_sign(value->type) ? (bits ^ sign) - sign : bits;
}

mha_status mha_gguf_integer(const mha_gguf_value *value, int64_t element, int64_t low, int64_t high,
                            int64_t *integer)
{
    MHA_TRY(
        check_element(value, element, integer, value && is_whole(value->type), "a whole number"));
    const uint64_t bits = bits_of(value, element);
    const int64_t found = (int64_t)bits;
    const bool negative = found < 0 && has_sign(value->type);
    if ((negative || found >= 0) && found >= low && found <= high) {
        *integer = found;
        return MHA_OK;
    }
    return mha_fail(MHA_ERR_NUMERIC, "%s: %s: is %s%" PRIu64 ", expected %" PRId64 " to %" PRId64,
                    value->file->path.text, where_is(value, element).text, negative ? "-" : "",
                    negative ? 0 - bits : bits, low, high);
}

mha_status mha_gguf_real(const mha_gguf_value *value, int64_t element, double *real)
{
    const int64_t exact = (int64_t)1 << 53;
    const bool f32 = value && value->type == MHA_GGUF_VALUE_F32;
    const bool f64 = value && value->type == MHA_GGUF_VALUE_F64;
    int64_t integer = 0;
    MHA_TRY(check_element(value, element, real, f32 || f64 || (value && is_whole(value->type)),
                          "a number"));
    const uint64_t bits = bits_of(value, element);
    if (f32) {
        float narrow;
        memcpy(&narrow, &bits, sizeof narrow); /* takes the low half, which is first */
        *real = (double)narrow;
    } else if (f64) {
        memcpy(real, &bits, sizeof bits);
    } else {
        MHA_TRY(mha_gguf_integer(value, element, -exact, exact, &integer));
        *real = (double)integer;
    }
    return MHA_OK;
}

mha_status mha_gguf_bool(const mha_gguf_value *value, int64_t element, bool *boolean)
{
    MHA_TRY(check_element(value, element, boolean, value && value->type == MHA_GGUF_VALUE_BOOL,
                          "BOOL"));
    const uint64_t bits = bits_of(value, element);
    if (bits > 1)
        return mha_fail(MHA_ERR_FORMAT, "%s: %s: is %d, expected 0 or 1", value->file->path.text,
                        where_is(value, element).text, (int)bits);
    *boolean = bits == 1;
    return MHA_OK;
}

mha_status mha_gguf_string(const mha_gguf_value *value, int64_t element, const char **text,
                           size_t *size)
{
    MHA_TRY(check_element(value, element, text && size ? text : NULL,
                          value && value->type == MHA_GGUF_VALUE_STRING, "STRING"));
    const uint64_t *start = value->starts + element;
    *text = (const char *)value->file->view.bytes + start[0];
    *size = (size_t)(start[1] - sizeof(uint64_t) - start[0]);
    return MHA_OK;
}
