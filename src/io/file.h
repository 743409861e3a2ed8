/* Files for readers and writers: mapped, read completely, or written. Names of files and tensors,
 * shortened for error messages. */
#ifndef MHAI_FILE_H
#define MHAI_FILE_H

#include <multihead/base.h>
#include <multihead/io.h>
#include <multihead/sink.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "safetensors, GGUF and .npy are read and written as they lie in memory: little-endian only"
#endif

/* A name cut at a UTF-8 boundary, to leave room for the rest of a message. Returned by value, so
 * that it can be an argument: mha_fail(..., mhai_show_path(path).text). */
typedef struct mhai_shown {
    char text[168];
} mhai_shown;

/* The end of a path, which identifies the file. */
mhai_shown mhai_show_path(const char *path);

/* The beginning of a name or text from a file. */
mhai_shown mhai_show_name(const char *name);

/* mha_fail() with "PATH: " before the text. */
mha_status mhai_path_fail(mha_status status, const char *path, const char *format, ...)
    MHA_PRINTF(3, 4);

/* Open a regular file for reading. */
MHA_NODISCARD mha_status mhai_file_open(const char *path, int *fd, size_t *size);

/* A regular file, mapped read-only. If it is empty, bytes is NULL and size is 0. */
typedef struct mhai_file_view {
    const unsigned char *bytes;
    size_t size;
} mhai_file_view;

MHA_NODISCARD mha_status mhai_file_map(const char *path, mhai_file_view *view);
void mhai_file_unmap(mhai_file_view *view);

/* Convert count elements from a file to another type. They may be unaligned. Errors: those
 * of mha_tensor_convert(). */
MHA_NODISCARD mha_status mhai_file_convert(const unsigned char *from, mha_dtype from_type,
                                           int64_t count, mha_dtype to_type, void *to);

/* The byte range of tensor `index` in memory. */
typedef struct mhai_extent {
    int64_t begin, end, index;
} mhai_extent;

/* Sort by begin, then by end. */
void mhai_file_sort_extents(mhai_extent *extents, int64_t count);

/* Write bytes to a sink, which may be NULL. */
MHA_NODISCARD mha_status mhai_file_append(const mha_sink *sink, const void *bytes, size_t size);

/* Check a tensor's view, and return the number of bytes of its elements in a file.
 * name is used in messages. */
MHA_NODISCARD mha_status mhai_file_tensor_bytes(const char *name, const mha_tensor *tensor,
                                                int64_t *bytes);

/* Append the elements of a checked tensor in row order. */
MHA_NODISCARD mha_status mhai_file_append_tensor(const mha_sink *sink, const mha_tensor *tensor);

#endif
