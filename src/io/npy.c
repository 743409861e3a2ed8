/* NumPy's .npy files.
 *
 *   6 bytes  "\x93NUMPY"      2 bytes  version      2 or (version 2 and 3) 4 bytes  n
 *   n bytes  {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }   padded, newline
 *   the rest the elements
 *
 * The header is a Python literal. Only the form above is accepted, with the three keys in any order
 * and any white space: files are untrusted, and a full parser of Python would be a risk. */
#include "io/file.h"

#include <multihead/component.h>

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_HEADER_BYTES = 1 << 16, MOST_DESCR_BYTES = 32 };

struct mha_npy {
    mha_tensor tensor;
    char bytes[]; /* aligned for any element type, like memory from malloc() */
};

static const struct {
    const char *descr;
    mha_dtype dtype;
} descrs[] = {
    {"<f4", MHA_F32}, {"<f8", MHA_F64}, {"<f2", MHA_F16}, {"|i1", MHA_I8},
    {"<i4", MHA_I32}, {"<i8", MHA_I64}, {"|u1", MHA_U8}, /* written for u8 */
    {"|b1", MHA_U8},  {"<i1", MHA_I8},  {"<u1", MHA_U8},
};

enum { DESCRS = sizeof descrs / sizeof descrs[0] };

/* A header being parsed. */
typedef struct cursor {
    const char *path;
    const char *start, *at, *end;
} cursor;

typedef struct header {
    char descr[MOST_DESCR_BYTES];
    bool fortran, have_descr, have_order, have_shape;
    int ndim;
    int64_t shape[MHA_MAX_DIMS];
} header;

static mha_status malformed(const cursor *c, const char *expected)
{
    return mhai_path_fail(MHA_ERR_FORMAT, c->path,
                          ".npy header, byte %lld: expected %s; write the file with numpy.save()",
                          (long long)(c->at - c->start), expected);
}

static void skip_blanks(cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\t' || *c->at == '\n')) c->at++;
}

/* Skip white space, and consume text if it follows. */
static bool take(cursor *c, const char *text)
{
    size_t length = strlen(text);
    skip_blanks(c);
    if ((size_t)(c->end - c->at) < length || memcmp(c->at, text, length) != 0) return false;
    c->at += length;
    return true;
}

/* Read a quoted string without escapes, shorter than MOST_DESCR_BYTES. */
static mha_status read_string(cursor *c, char *text)
{
    skip_blanks(c);
    char quote = c->at < c->end ? *c->at : '\0';
    if (quote != '\'' && quote != '"') return malformed(c, "a quoted string");
    size_t length = 0;
    for (c->at++; c->at < c->end && *c->at != quote; c->at++) {
        if (*c->at < 0x20 || *c->at > 0x7E || *c->at == '\\' || length == MOST_DESCR_BYTES - 1)
            return malformed(c, "a short string of plain characters");
        text[length++] = *c->at;
    }
    if (c->at == c->end) return malformed(c, "the end of a string");
    c->at++;
    text[length] = '\0';
    return MHA_OK;
}

static mha_status read_length(cursor *c, int64_t *length)
{
    skip_blanks(c);
    if (c->at == c->end || !isdigit((unsigned char)*c->at)) return malformed(c, "a length");
    *length = 0;
    for (; c->at < c->end && isdigit((unsigned char)*c->at); c->at++)
        if (__builtin_mul_overflow(*length, 10, length) ||
            __builtin_add_overflow(*length, *c->at - '0', length))
            return mhai_path_fail(MHA_ERR_SIZE, c->path,
                                  ".npy header: a length of the shape exceeds 63 bits");
    return MHA_OK;
}

/* Read a shape: (), (5,), (2, 3), (2, 3,). */
static mha_status read_shape(cursor *c, header *h)
{
    bool comma = true;
    if (!take(c, "(")) return malformed(c, "'('");
    while (!take(c, ")")) {
        if (!comma) return malformed(c, "',' or ')'");
        if (h->ndim == MHA_MAX_DIMS)
            return mhai_path_fail(MHA_ERR_UNSUPPORTED, c->path,
                                  "more than %d dimensions; reshape the array", (int)MHA_MAX_DIMS);
        MHA_TRY(read_length(c, &h->shape[h->ndim++]));
        comma = take(c, ",");
    }
    if (h->ndim == 1 && !comma)
        return malformed(c, "',' after the only length"); /* (5) is not a tuple */
    return MHA_OK;
}

static mha_status read_value(cursor *c, const char *key, header *h)
{
    if (strcmp(key, "descr") == 0 && !h->have_descr) {
        h->have_descr = true;
        skip_blanks(c);
        if (c->at < c->end && *c->at == '[')
            return mhai_path_fail(MHA_ERR_UNSUPPORTED, c->path,
                                  "an array of records; save one field of it");
        return read_string(c, h->descr);
    }
    if (strcmp(key, "fortran_order") == 0 && !h->have_order) {
        h->have_order = true;
        h->fortran = take(c, "True");
        return h->fortran || take(c, "False") ? MHA_OK : malformed(c, "True or False");
    }
    if (strcmp(key, "shape") == 0 && !h->have_shape) {
        h->have_shape = true;
        return read_shape(c, h);
    }
    return malformed(c, "each of descr, fortran_order and shape once, and nothing else");
}

static mha_status read_literal(cursor *c, header *h)
{
    bool comma = true;
    if (!take(c, "{")) return malformed(c, "'{'");
    while (!take(c, "}")) {
        char key[MOST_DESCR_BYTES];
        if (!comma) return malformed(c, "',' or '}'");
        MHA_TRY(read_string(c, key));
        if (!take(c, ":")) return malformed(c, "':'");
        MHA_TRY(read_value(c, key, h));
        comma = take(c, ",");
    }
    skip_blanks(c);
    if (c->at != c->end) return malformed(c, "nothing but blanks at the end");
    if (!h->have_descr || !h->have_order || !h->have_shape)
        return malformed(c, "descr, fortran_order and shape before the end");
    return MHA_OK;
}

/* Read the fixed part, and set the cursor to the literal. */
static mha_status read_frame(const char *path, const mhai_file_view *view, cursor *c)
{
    const unsigned char *bytes = view->bytes;
    if (view->size < 10 || memcmp(bytes, "\x93NUMPY", 6) != 0)
        return mhai_path_fail(MHA_ERR_FORMAT, path, "not a .npy file; write it with numpy.save()");
    if (bytes[6] < 1 || bytes[6] > 3 || bytes[7] != 0)
        return mhai_path_fail(MHA_ERR_UNSUPPORTED, path, ".npy version %d.%d, known are 1.0 to 3.0",
                              bytes[6], bytes[7]);
    size_t fixed = bytes[6] == 1 ? 10 : 12, length = 0;
    if (view->size >= fixed)
        for (size_t i = fixed; i > 8; i--) length = length << 8 | bytes[i - 1];
    if (view->size < fixed || length > view->size - fixed || length > MOST_HEADER_BYTES)
        return mhai_path_fail(MHA_ERR_FORMAT, path,
                              "the .npy header claims %zu bytes, the file has %zu (and %d is the "
                              "limit); it is truncated",
                              length, view->size, (int)MOST_HEADER_BYTES);
    c->path = path;
    c->start = c->at = (const char *)bytes + fixed;
    c->end = c->start + length;
    return MHA_OK;
}

static mha_status find_dtype(const char *path, const char *descr, mha_dtype *dtype)
{
    for (int i = 0; i < DESCRS; i++)
        if (strcmp(descrs[i].descr, descr) == 0) {
            *dtype = descrs[i].dtype;
            return MHA_OK;
        }
    return mhai_path_fail(
        MHA_ERR_UNSUPPORTED, path,
        "element type '%s'; known are little-endian f2, f4, f8, i1, i4, i8, u1 and "
        "bool: convert the array, e.g. a.astype('<f4')",
        descr);
}

/* Copy an array in Fortran order to `to` in C order. */
static void copy_fortran(const mha_tensor *to, const unsigned char *from, int64_t count)
{
    size_t size = mha_dtype_size(to->dtype);
    int64_t at[MHA_MAX_DIMS] = {0}, step[MHA_MAX_DIMS], offset = 0;
    for (int i = 0; i < to->ndim; i++) step[i] = i == 0 ? 1 : step[i - 1] * to->shape[i - 1];
    for (int64_t i = 0; i < count; i++) {
        memcpy((char *)to->data + i * (int64_t)size, from + offset * (int64_t)size, size);
        for (int axis = to->ndim - 1; axis >= 0; axis--) {
            offset += step[axis];
            if (++at[axis] < to->shape[axis]) break;
            offset -= at[axis] * step[axis];
            at[axis] = 0;
        }
    }
}

/* Compute the number of bytes of an array, which must fill the rest of the file. */
static mha_status measure(const char *path, const mha_tensor *tensor, size_t rest, size_t *bytes)
{
    int64_t count;
    if (mha_tensor_count(tensor, &count) != MHA_OK ||
        __builtin_mul_overflow((size_t)count, mha_dtype_size(tensor->dtype), bytes))
        return mhai_path_fail(MHA_ERR_SIZE, path, "the shape has more bytes than 63 bits count");
    if (*bytes != rest)
        return mhai_path_fail(MHA_ERR_FORMAT, path,
                              "the shape needs %zu bytes of data, the file has %zu; it is %s",
                              *bytes, rest, *bytes > rest ? "truncated" : "no single array");
    return MHA_OK;
}

/* Read and check the header. *data and *bytes locate the elements in the file. */
static mha_status read_header(const char *path, const mhai_file_view *view, header *h,
                              mha_tensor *tensor, const unsigned char **data, size_t *bytes)
{
    cursor c = {0};
    mha_dtype dtype = MHA_F32;
    MHA_TRY(read_frame(path, view, &c));
    MHA_TRY(read_literal(&c, h));
    MHA_TRY(find_dtype(path, h->descr, &dtype));
    *tensor = mha_tensor_contiguous(NULL, dtype, h->ndim, h->shape);
    *data = (const unsigned char *)c.end;
    return measure(path, tensor, view->size - (size_t)(*data - view->bytes), bytes);
}

static mha_status read_array(const char *path, const mhai_file_view *view, mha_npy **array)
{
    header h = {.ndim = 0};
    mha_tensor tensor;
    const unsigned char *data;
    size_t bytes;
    MHA_TRY(read_header(path, view, &h, &tensor, &data, &bytes));
    mha_npy *made = bytes <= PTRDIFF_MAX - sizeof *made ? malloc(sizeof *made + bytes) : NULL;
    if (!made) return mhai_path_fail(MHA_ERR_NOMEM, path, "cannot allocate %zu bytes", bytes);
    tensor.data = made->bytes;
    made->tensor = tensor;
    if (h.fortran && bytes > 0) /* axes of an empty array may have any size */
        copy_fortran(&tensor, data, (int64_t)(bytes / mha_dtype_size(tensor.dtype)));
    else if (bytes > 0)
        memcpy(made->bytes, data, bytes);
    *array = made;
    return MHA_OK;
}

mha_status mha_npy_read(const char *path, mha_npy **array)
{
    MHA_NEED("mha_npy_read", path, array);
    mhai_file_view view;
    MHA_TRY(mhai_file_map(path, &view));
    mha_status status = read_array(path, &view, array);
    mhai_file_unmap(&view);
    return status;
}

mha_status mha_npy_peek(const char *path, mha_tensor *tensor)
{
    MHA_NEED("mha_npy_peek", path, tensor);
    header h = {.ndim = 0};
    mhai_file_view view;
    mha_tensor found;
    const unsigned char *data;
    size_t bytes;
    MHA_TRY(mhai_file_map(path, &view));
    mha_status status = read_header(path, &view, &h, &found, &data, &bytes);
    mhai_file_unmap(&view);
    if (status == MHA_OK) *tensor = found;
    return status;
}

mha_tensor mha_npy_tensor(const mha_npy *array)
{
    return array->tensor;
}

void mha_npy_destroy(mha_npy *array)
{
    free(array);
}

/* Build the header of a version 1 file, padded so that data begins at a multiple of 64. */
static size_t build_head(const mha_tensor *tensor, const char *descr, char *head, size_t room)
{
    char shape[MHA_MAX_DIMS * 24] = "";
    size_t used = 0;
    for (int i = 0; i < tensor->ndim; i++)
        used += (size_t)snprintf(shape + used, sizeof shape - used, "%s%lld%s", i ? " " : "",
                                 (long long)tensor->shape[i],
                                 i + 1 < tensor->ndim || i == 0 ? "," : "");
    size_t length = (size_t)snprintf(
        head, room, "\x93NUMPY%c%c%c%c{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", 1,
        0, 0, 0, descr, shape);
    size_t padded = (length + 64) / 64 * 64; /* at least one byte of padding, the newline */
    memset(head + length, ' ', padded - length);
    head[padded - 1] = '\n';
    head[8] = (char)((padded - 10) & 0xFF);
    head[9] = (char)((padded - 10) >> 8);
    return padded;
}

mha_status mha_npy_write_to(const mha_sink *sink, const mha_tensor *tensor)
{
    MHA_NEED("mha_npy_write_to", sink, tensor);
    const char *descr = NULL;
    for (int i = 0; i < DESCRS && !descr; i++)
        if (descrs[i].dtype == tensor->dtype) descr = descrs[i].descr;
    if (!descr)
        return mha_fail(MHA_ERR_UNSUPPORTED, "NumPy has no element type for %s",
                        mha_dtype_name(tensor->dtype));
    int64_t bytes = 0;
    MHA_TRY(mhai_file_tensor_bytes("mha_npy_write", tensor, &bytes));
    char head[512];
    size_t length = build_head(tensor, descr, head, sizeof head);
    MHA_TRY(mhai_file_append(sink, head, length));
    return mhai_file_append_tensor(sink, tensor);
}

mha_status mha_npy_write(const char *path, const mha_tensor *tensor)
{
    MHA_NEED("mha_npy_write", path);
    mha_file *file;
    MHA_TRY(mha_file_create(path, &file));
    return mha_file_finish(file, mha_npy_write_to(mha_file_sink(file), tensor));
}
