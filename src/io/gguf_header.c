/* Reading the header of a GGUF file (format in gguf.h).
 *
 * The header is untrusted and read in one pass. Each size is first compared with the rest of the
 * file, and tables grow with the bytes read, not with a claimed count. Names are copied and
 * NUL-terminated. For strings only the offsets are stored, so no length is read twice. */
#include "io/gguf_blocks.h"
#include "io/gguf_parts.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MOST_NAME_BYTES = 65535 }; /* the format's limit for keys */

typedef struct reader {
    mha_gguf *file;
    size_t at;
    const char *what; /* "key", "tensor"; NULL before both */
    uint64_t index, count;
    const char *name; /* name of the current item; NULL: not read yet */
} reader;

/* The current item for messages: "tensor 3 of 20 ('a.weight')". */
static mhai_shown where(const reader *r)
{
    mhai_shown shown = {"the first fields"};
    if (r->what)
        snprintf(shown.text, sizeof shown.text, "%s %" PRIu64 " of %" PRIu64 "%s%.83s%s", r->what,
                 r->index + 1, r->count, r->name ? " ('" : "",
                 r->name ? mhai_show_name(r->name).text : "", r->name ? "')" : "");
    return shown;
}

static mha_status bad(const reader *r, const char *what)
{
    return mha_fail(MHA_ERR_FORMAT, "%s: %s: %s; the file is damaged, download it again",
                    r->file->path.text, where(r).text, what);
}

static mha_status too_large(const reader *r, const char *what)
{
    return mha_fail(MHA_ERR_SIZE, "%s: %s: more %s than 63 bits count", r->file->path.text,
                    where(r).text, what);
}

/* Read the next count items of size bytes. */
static mha_status take(reader *r, uint64_t count, size_t size, const unsigned char **bytes)
{
    const size_t left = r->file->view.size - r->at;
    if (count > left / size)
        return mha_fail(MHA_ERR_FORMAT,
                        "%s: %s: needs %" PRIu64
                        " x %zu bytes at byte %zu, where the file has %zu left; it is truncated or "
                        "damaged, download it again",
                        r->file->path.text, where(r).text, count, size, r->at, left);
    *bytes = r->file->view.bytes + r->at;
    r->at += (size_t)count * size;
    return MHA_OK;
}

static mha_status take_number(reader *r, void *number, size_t size)
{
    const unsigned char *bytes = NULL;
    MHA_TRY(take(r, 1, size, &bytes));
    memcpy(number, bytes, size);
    return MHA_OK;
}

/* Read a name or key, and append it to the others. */
static mha_status take_name(reader *r, size_t *name)
{
    mhai_vector *names = &r->file->names;
    const unsigned char *bytes = NULL;
    uint64_t length = 0;
    void *copy = NULL;
    MHA_TRY(take_number(r, &length, sizeof length));
    if (length == 0 || length > MOST_NAME_BYTES)
        return mha_fail(MHA_ERR_FORMAT,
                        "%s: %s: its name has %" PRIu64
                        " bytes, expected 1 to %d; the file is damaged, download it again",
                        r->file->path.text, where(r).text, length, (int)MOST_NAME_BYTES);
    MHA_TRY(take(r, length, 1, &bytes));
    if (memchr(bytes, 0, (size_t)length)) return bad(r, "its name holds a zero byte");
    if (mha_utf8_span((const char *)bytes, (size_t)length, NULL) != length)
        return bad(r, "its name is not valid UTF-8");
    *name = names->count;
    MHA_TRY(mhai_vector_add(names, (size_t)length + 1, &copy));
    memcpy(copy, bytes, (size_t)length);
    ((char *)copy)[length] = '\0';
    r->name = copy;
    return MHA_OK;
}

/* ---- Metadata -------------------------------------------------------------------------------- */

const mhai_gguf_value_kind mhai_gguf_value_kinds[MHAI_GGUF_VALUE_KINDS] = {
#define KIND(name, value, bytes) [value] = {#name, bytes},
    MHA_GGUF_VALUE_LIST(KIND)
#undef KIND
};

static mha_status take_strings(reader *r, int64_t count)
{
    mhai_vector *starts = &r->file->starts;
    for (int64_t i = 0;; i++) {
        const uint64_t start = r->at + sizeof(uint64_t);
        const unsigned char *bytes = NULL;
        uint64_t length = 0;
        MHA_TRY(mhai_vector_push(starts, &start));
        if (i == count) return MHA_OK;
        MHA_TRY(take_number(r, &length, sizeof length));
        MHA_TRY(take(r, length, 1, &bytes));
    }
}

static mha_status take_entry(reader *r)
{
    mhai_gguf_entry made = {.count = 1};
    uint32_t type = 0;
    uint64_t count = 1;
    const unsigned char *bytes = NULL;
    MHA_TRY(take_name(r, &made.key));
    MHA_TRY(take_number(r, &type, sizeof type));
    made.array = type == MHA_GGUF_VALUE_ARRAY;
    if (made.array) {
        MHA_TRY(take_number(r, &type, sizeof type));
        MHA_TRY(take_number(r, &count, sizeof count));
    }
    if (type >= MHAI_GGUF_VALUE_KINDS)
        return mha_fail(MHA_ERR_FORMAT,
                        "%s: %s: unknown type %" PRIu32
                        " of a value, known are 0 to %d; the file is damaged, download it again",
                        r->file->path.text, where(r).text, type, MHAI_GGUF_VALUE_KINDS - 1);
    made.type = (mha_gguf_value_type)type;
    if (made.type == MHA_GGUF_VALUE_ARRAY)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "%s: %s: is an array of arrays, which is not supported; convert the model "
                        "without this key",
                        r->file->path.text, where(r).text);
    made.at = r->at;
    if (made.type == MHA_GGUF_VALUE_STRING) {
        made.at = r->file->starts.count;
        if (count > (r->file->view.size - r->at) / sizeof(uint64_t))
            MHA_TRY(take(r, count, sizeof(uint64_t), &bytes));
        MHA_TRY(take_strings(r, (int64_t)count));
    } else {
        MHA_TRY(take(r, count, mhai_gguf_value_kinds[type].bytes, &bytes));
    }
    made.count = (int64_t)count;
    return mhai_vector_push(&r->file->entries, &made);
}

/* ---- Tensors --------------------------------------------------------------------------------- */

/* Read dimensions and type, and derive the sizes. */
static mha_status take_layout(reader *r, mha_gguf_tensor *made)
{
    uint32_t ndim = 0, type = 0;
    MHA_TRY(take_number(r, &ndim, sizeof ndim));
    if (ndim > MHA_GGUF_MAX_DIMS)
        return mha_fail(
            MHA_ERR_FORMAT,
            "%s: %s: has %" PRIu32
            " dimensions, at most %d are possible; the file is damaged, download it again",
            r->file->path.text, where(r).text, ndim, (int)MHA_GGUF_MAX_DIMS);
    made->ndim = (int32_t)ndim;
    made->count = 1;
    for (int i = 0; i < MHA_GGUF_MAX_DIMS; i++) {
        uint64_t length = 1;
        if (i < made->ndim) MHA_TRY(take_number(r, &length, sizeof length));
        if (length == 0) return bad(r, "one of its dimensions is 0");
        if (length > INT64_MAX ||
            __builtin_mul_overflow(made->count, (int64_t)length, &made->count))
            return too_large(r, "elements");
        made->dims[i] = (int64_t)length;
    }
    MHA_TRY(take_number(r, &type, sizeof type));
    const mhai_gguf_kind *kind = mhai_gguf_find_kind(type);
    if (!kind)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "%s: %s: unknown type %" PRIu32 " of elements; convert the model, e.g. to "
                        "F16 or Q8_0",
                        r->file->path.text, where(r).text, type);
    made->type = (mha_gguf_type)type;
    made->type_name = kind->name;
    if (made->dims[0] % kind->elements != 0)
        return mha_fail(
            MHA_ERR_FORMAT,
            "%s: %s: rows of %" PRId64 " elements are not whole blocks of %s, which have %d; the "
            "file is damaged, download it again",
            r->file->path.text, where(r).text, made->dims[0], kind->name, (int)kind->elements);
    if (__builtin_mul_overflow(made->count / kind->elements, (int64_t)kind->bytes, &made->bytes))
        return too_large(r, "bytes");
    return MHA_OK;
}

static mha_status take_tensor(reader *r)
{
    mhai_gguf_tensor made = {0};
    uint64_t offset = 0;
    MHA_TRY(take_name(r, &made.name));
    MHA_TRY(take_layout(r, &made.shown));
    MHA_TRY(take_number(r, &offset, sizeof offset));
    if (offset > INT64_MAX) return too_large(r, "bytes");
    made.shown.offset = (int64_t)offset; /* relative to the data until place() */
    return mhai_vector_push(&r->file->tensors, &made);
}

/* The alignment of tensor offsets. */
static mha_status read_alignment(const mha_gguf *file, uint32_t *alignment)
{
    const int64_t index = mha_gguf_key_find(file, "general.alignment");
    *alignment = 32;
    if (index < 0) return MHA_OK;
    const mhai_gguf_entry *found = mhai_gguf_entry_at(file, index);
    *alignment = 0;
    if (found->type == MHA_GGUF_VALUE_U32 && !found->array)
        memcpy(alignment, file->view.bytes + found->at, sizeof *alignment);
    return *alignment > 0 && (*alignment & (*alignment - 1)) == 0
               ? MHA_OK
               : mha_fail(MHA_ERR_FORMAT,
                          "%s: general.alignment is not a power of two of type U32; the file is "
                          "damaged, download it again",
                          file->path.text);
}

/* Compute the address of the current tensor's data. Its offset is relative to data. Fails if it is
 * unaligned or outside the file. */
static mha_status place(const reader *r, uint32_t alignment, size_t data, mha_gguf_tensor *shown)
{
    const size_t size = r->file->view.size;
    const uint64_t offset = (uint64_t)shown->offset, bytes = (uint64_t)shown->bytes;
    if (offset % alignment != 0)
        return mha_fail(MHA_ERR_FORMAT,
                        "%s: %s: its offset %" PRIu64 " is not a multiple of the alignment %" PRIu32
                        "; the file is damaged, download it again",
                        r->file->path.text, where(r).text, offset, alignment);
    if (data > size || offset > size - data || bytes > size - data - offset)
        return mha_fail(MHA_ERR_FORMAT,
                        "%s: %s: needs %" PRIu64 " bytes from byte %zu + %" PRIu64
                        " on, the file has %zu; it is truncated, download it again",
                        r->file->path.text, where(r).text, bytes, data, offset, size);
    shown->offset += (int64_t)data;
    shown->data = r->file->view.bytes + shown->offset;
    return MHA_OK;
}

static mha_status place_tensors(reader *r)
{
    mha_gguf *file = r->file;
    const size_t count = file->tensors.count;
    uint32_t alignment = 0;
    MHA_TRY(read_alignment(file, &alignment));
    const size_t data = (r->at + alignment - 1) / alignment * alignment;
    void *memory = NULL;
    mhai_vector extents = mhai_vector_make(&file->allocator, sizeof(mhai_extent));
    mha_status status = MHA_OK;
    MHA_TRY_GOTO(mhai_vector_add(&extents, count, &memory), done);
    mhai_extent *order = memory;
    for (size_t i = 0; i < count; i++) {
        mhai_gguf_tensor *t = mhai_gguf_tensor_at(file, (int64_t)i);
        mha_gguf_tensor *shown = &t->shown;
        r->index = i;
        r->name = shown->name = mhai_gguf_name_at(file, t->name);
        t->path = &file->path;
        MHA_TRY_GOTO(place(r, alignment, data, shown), done);
        order[i] = (mhai_extent){shown->offset, shown->offset + shown->bytes, (int64_t)i};
    }
    mhai_file_sort_extents(order, (int64_t)count);
    for (size_t i = 1; i < count && status == MHA_OK; i++)
        if (order[i].begin < order[i - 1].end) {
            r->index = (uint64_t)order[i].index;
            r->name = mhai_gguf_tensor_at(file, order[i].index)->shown.name;
            status = bad(r, "its data overlaps another tensor's");
        }
done:
    mhai_vector_free(&extents);
    return status;
}

/* ---- The whole header ------------------------------------------------------------------------ */

static mha_status take_version(reader *r)
{
    const unsigned char *magic = NULL;
    uint32_t version = 0;
    MHA_TRY(take(r, 4, 1, &magic));
    if (memcmp(magic, "GGUF", 4) != 0)
        return mha_fail(MHA_ERR_FORMAT, "%s: does not begin with GGUF; this is not a GGUF file",
                        r->file->path.text);
    MHA_TRY(take_number(r, &version, sizeof version));
    if (version == 2 || version == 3) return MHA_OK;
    if (version > 0 && version % 65536 == 0)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "%s: is big-endian; convert the model to little-endian",
                        r->file->path.text);
    return mha_fail(MHA_ERR_UNSUPPORTED,
                    "%s: is GGUF of version %" PRIu32 ", supported are 2 and 3; convert the model "
                    "again",
                    r->file->path.text, version);
}

/* Read count items with the function `one`. */
static mha_status take_all(reader *r, const char *what, uint64_t count, mha_status (*one)(reader *))
{
    if (count > INT32_MAX)
        return mha_fail(MHA_ERR_SIZE,
                        "%s: claims %" PRIu64 " %ss, at most %" PRId32
                        " are possible; the file is damaged, download it again",
                        r->file->path.text, count, what, INT32_MAX);
    r->what = what;
    r->count = count;
    for (r->index = 0; r->index < count; r->index++) {
        r->name = NULL;
        MHA_TRY(one(r));
    }
    return MHA_OK;
}

/* Build the lexicon of `count` names. The id of item i is i, and its name is name(file, i). */
static mha_status index_names(const mha_gguf *file, const char *what, size_t count,
                              const char *(*name)(const mha_gguf *, size_t), mhai_lexicon *lexicon)
{
    mhai_lexicon_entry *entries = mhai_vector_alloc(&file->allocator, count, sizeof *entries);
    if (!entries)
        return mha_fail(MHA_ERR_NOMEM, "%s: cannot allocate a table of %zu names", file->path.text,
                        count);
    for (size_t i = 0; i < count; i++)
        entries[i] =
            (mhai_lexicon_entry){name(file, i), (int32_t)strlen(name(file, i)), (int32_t)i};
    const int32_t twice = mhai_lexicon_build(entries, (int32_t)count, lexicon);
    if (twice < 0) return MHA_OK;
    return mha_fail(MHA_ERR_FORMAT,
                    "%s: the %s '%s' occurs twice; the file is damaged, download it again",
                    file->path.text, what, mhai_show_name(entries[twice].text).text);
}

static const char *key_name(const mha_gguf *file, size_t i)
{
    return mhai_gguf_name_at(file, mhai_gguf_entry_at(file, (int64_t)i)->key);
}

static const char *tensor_name(const mha_gguf *file, size_t i)
{
    return mhai_gguf_tensor_at(file, (int64_t)i)->shown.name;
}

mha_status mhai_gguf_index_tensors(mha_gguf *file)
{
    return index_names(file, "tensor", file->tensors.count, tensor_name, &file->tensor_names);
}

mha_status mhai_gguf_read_header(mha_gguf *file)
{
    reader r = {.file = file};
    uint64_t tensors = 0, entries = 0;
    MHA_TRY(take_version(&r));
    MHA_TRY(take_number(&r, &tensors, sizeof tensors));
    MHA_TRY(take_number(&r, &entries, sizeof entries));
    MHA_TRY(take_all(&r, "key", entries, take_entry));
    MHA_TRY(take_all(&r, "tensor", tensors, take_tensor));
    MHA_TRY(index_names(file, "key", file->entries.count, key_name, &file->keys));
    return place_tensors(&r);
}
