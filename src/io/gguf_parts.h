/* An open GGUF file, and the reader of its header. */
#ifndef MHAI_GGUF_PARTS_H
#define MHAI_GGUF_PARTS_H

#include "io/file.h"
#include "io/lexicon.h"
#include "io/vector.h"

#include <multihead/gguf.h>

/* A metadata entry. A value that is not an array is stored as an array of length 1. */
typedef struct mhai_gguf_entry {
    size_t key; /* offset in names */
    mha_gguf_value_type type;
    bool array;
    int64_t count;
    size_t at; /* numbers: offset in the file; strings: index in starts */
} mhai_gguf_entry;

typedef struct mhai_gguf_tensor {
    size_t name; /* offset in names */
    mha_gguf_tensor shown;
    const mhai_shown *path; /* of its file */
} mhai_gguf_tensor;

struct mha_gguf {
    mhai_file_view view;
    mhai_shown path;
    mha_allocator allocator;
    mhai_vector names;   /* of char, each NUL-terminated */
    mhai_vector starts;  /* of uint64_t: offsets of an entry's strings, and of their end */
    mhai_vector entries; /* of mhai_gguf_entry */
    mhai_vector tensors; /* of mhai_gguf_tensor; in the first part, those of all parts */
    mhai_lexicon keys, tensor_names;
    /* The first part of a split model has [parts]: itself, and the others, which it owns. */
    mha_gguf **part; /* NULL: the model is not split */
    int64_t parts;
};

static inline const char *mhai_gguf_name_at(const mha_gguf *file, size_t at)
{
    return (const char *)file->names.items + at;
}

static inline mhai_gguf_entry *mhai_gguf_entry_at(const mha_gguf *file, int64_t index)
{
    return (mhai_gguf_entry *)file->entries.items + index;
}

static inline mhai_gguf_tensor *mhai_gguf_tensor_at(const mha_gguf *file, int64_t index)
{
    return (mhai_gguf_tensor *)file->tensors.items + index;
}

/* Types of values, by number. */
typedef struct mhai_gguf_value_kind {
    const char *name;
    size_t bytes;
} mhai_gguf_value_kind;

enum { MHAI_GGUF_VALUE_KINDS = 13 };
extern const mhai_gguf_value_kind mhai_gguf_value_kinds[MHAI_GGUF_VALUE_KINDS];

/* Fill the tables of a mapped file except tensor_names. Its vectors must be initialised. */
MHA_NODISCARD mha_status mhai_gguf_read_header(mha_gguf *file);

/* Build tensor_names, from the tensors of all parts. */
MHA_NODISCARD mha_status mhai_gguf_index_tensors(mha_gguf *file);

/* Open one file, which may be a part. */
MHA_NODISCARD mha_status mhai_gguf_open_part(const char *path, mha_gguf **file);

/* If *file, opened from path, is a part of a split model, open the other parts, and make *file the
 * first part, with the tensors of all parts. */
MHA_NODISCARD mha_status mhai_gguf_join(const char *path, mha_gguf **file);

#endif
