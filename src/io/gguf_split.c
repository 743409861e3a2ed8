/* Opening the parts of a split GGUF file. Each part is a complete file with the keys split.no,
 * split.count and split.tensors.count. The first one has the metadata. Parts are found by the
 * names that llama.cpp writes: NAME-00001-of-00003.gguf. */
#include "io/gguf_split.h"

#include "io/gguf_parts.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PARTS = 4096, MOST_SUFFIX = 32 };

typedef struct place {
    int64_t part, parts;
    int64_t tensors; /* of all parts; -1: unknown */
} place;

static mha_status read_number(const mha_gguf *file, const char *key, int64_t most, int64_t *number)
{
    mha_gguf_value value;
    if (mha_gguf_key_find(file, key) < 0) return MHA_OK;
    MHA_TRY(mha_gguf_value_of(file, key, &value));
    return mha_gguf_integer(&value, 0, 0, most, number);
}

static mha_status read_place(const mha_gguf *file, place *at)
{
    *at = (place){0, 1, -1};
    MHA_TRY(read_number(file, "split.count", MOST_PARTS, &at->parts));
    if (at->parts == 0) at->parts = 1; /* llama.cpp accepts this value too */
    if (at->parts == 1) return MHA_OK;
    MHA_TRY(read_number(file, "split.no", at->parts - 1, &at->part));
    return read_number(file, "split.tensors.count", INT32_MAX, &at->tensors);
}

static size_t print_suffix(char suffix[MOST_SUFFIX], int64_t part, int64_t parts)
{
    return (size_t)snprintf(suffix, MOST_SUFFIX, "-%05" PRId64 "-of-%05" PRId64 ".gguf", part + 1,
                            parts);
}

static mha_status check_name(const char *path, const place *at)
{
    char suffix[MOST_SUFFIX];
    const size_t length = print_suffix(suffix, at->part, at->parts), size = strlen(path);
    if (size > length && strcmp(path + size - length, suffix) == 0) return MHA_OK;
    return mhai_path_fail(MHA_ERR_MODEL, path,
                          "is part %" PRId64 " of %" PRId64
                          " of a model, whose other parts are found by name; its name must end in "
                          "%s",
                          at->part + 1, at->parts, suffix);
}

/* The path of another part; NULL: no memory. */
static char *other_path(const char *path, int64_t part, int64_t parts)
{
    char suffix[MOST_SUFFIX];
    const size_t length = print_suffix(suffix, part, parts), size = strlen(path);
    char *made = malloc(size + 1);
    if (made) {
        memcpy(made, path, size - length);
        memcpy(made + size - length, suffix, length + 1);
    }
    return made;
}

/* Open part `part` of the model to which the file at `path` belongs. */
static mha_status open_other(const char *path, const place *own, int64_t part, mha_gguf **file)
{
    char detail[300];
    place found;
    char *other = other_path(path, part, own->parts);
    if (!other) return mhai_path_fail(MHA_ERR_NOMEM, path, "cannot allocate a name");
    mha_status status = mhai_gguf_open_part(other, file);
    if (status == MHA_ERR_FILE) {
        snprintf(detail, sizeof detail, "%s", mha_error_detail());
        status = mha_fail(MHA_ERR_FILE,
                          "%s; all %" PRId64 " parts of the model must be in the same folder",
                          detail, own->parts);
    }
    if (status == MHA_OK) status = read_place(*file, &found);
    if (status == MHA_OK && (found.part != part || found.parts != own->parts))
        status =
            mhai_path_fail(MHA_ERR_MODEL, other,
                           "is part %" PRId64 " of %" PRId64 " of a model, expected part %" PRId64
                           " of %" PRId64 "; download the parts again",
                           found.part + 1, found.parts, part + 1, own->parts);
    if (status == MHA_OK && found.tensors != own->tensors)
        status = mhai_path_fail(MHA_ERR_MODEL, other,
                                "split.tensors.count is not that of %s; the parts belong to "
                                "different models, download them again",
                                mhai_show_path(path).text);
    free(other);
    return status;
}

static mha_status join_tensors(mha_gguf *first, int64_t tensors)
{
    for (int64_t i = 1; i < first->parts; i++) {
        const mhai_vector *more = &first->part[i]->tensors;
        if (more->count > (size_t)INT32_MAX - first->tensors.count)
            return mha_fail(MHA_ERR_SIZE, "%s: its parts have more than %" PRId32 " tensors",
                            first->path.text, INT32_MAX);
        MHA_TRY(mhai_vector_append(&first->tensors, more->items, more->count));
    }
    if (tensors >= 0 && (size_t)tensors != first->tensors.count)
        return mha_fail(MHA_ERR_MODEL,
                        "%s: its parts have %zu tensors, but split.tensors.count is %" PRId64
                        "; download them again",
                        first->path.text, first->tensors.count, tensors);
    return MHA_OK;
}

mha_status mhai_gguf_join(const char *path, mha_gguf **file)
{
    place at;
    MHA_TRY(read_place(*file, &at));
    if (at.parts == 1) return MHA_OK;
    MHA_TRY(check_name(path, &at));
    mha_gguf **part = calloc((size_t)at.parts, sizeof(mha_gguf *)), *own = *file;
    if (!part) return mhai_path_fail(MHA_ERR_NOMEM, path, "cannot allocate a table of its parts");
    mha_status status = MHA_OK;
    part[at.part] = own;
    for (int64_t i = 0; i < at.parts && status == MHA_OK; i++)
        if (i != at.part) status = open_other(path, &at, i, &part[i]);
    if (status == MHA_OK) {
        part[0]->part = part;
        part[0]->parts = at.parts;
        *file = part[0]; /* owns all parts, also if join_tensors() fails */
        return join_tensors(part[0], at.tensors);
    }
    for (int64_t i = 0; i < at.parts; i++)
        if (i != at.part) mha_gguf_close(part[i]);
    free(part);
    return status;
}

int64_t mhai_gguf_parts(const mha_gguf *file)
{
    return file->parts;
}

char *mhai_gguf_part_path(const mha_gguf *file, const char *path, int64_t part)
{
    return file->part ? other_path(path, part, file->parts) : strdup(path);
}

size_t mhai_gguf_part_header(const mha_gguf *file, int64_t part)
{
    const mha_gguf *owner = file->part ? file->part[part] : file;
    size_t header = SIZE_MAX;
    for (size_t i = 0; i < owner->tensors.count; i++) {
        const mhai_gguf_tensor *tensor = mhai_gguf_tensor_at(owner, (int64_t)i);
        if (tensor->path == &owner->path && (size_t)tensor->shown.offset < header)
            header = (size_t)tensor->shown.offset;
    }
    return header;
}
