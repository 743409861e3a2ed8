/* multihead: where bytes go: a callback, memory, or a file that appears whole or not at all.
 *
 * What writes (pictures, arrays, model files) takes a sink and knows nothing of its end.
 *
 *   mha_file *file;
 *   mha_status status = mha_file_create("maps.svg", &file);
 *   if (!status) status = mha_render_svg(&figure, mha_file_sink(file));
 *   status = mha_file_finish(file, status);       a half-written file is never left behind
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_SINK_H
#define MULTIHEAD_SINK_H

#include <multihead/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* write takes all count bytes or fails; its status is passed up unchanged (use MHA_ERR_WRITE or
 * MHA_ERR_CALLBACK). It is called with count > 0, in order, and not again after a failure. */
typedef struct mha_sink {
    mha_status (*write)(void *user, const void *bytes, size_t count);
    void *user;
} mha_sink;

/* Bytes in memory. Start from {0}; data ends with a NUL that size does not count. */
typedef struct mha_buffer {
    char *data;
    size_t size, capacity;
} mha_buffer;

/** A sink that appends to buffer. Memory borrows buffer; the bytes are freed by mha_buffer_free().
 * Errors its writes give MHA_ERR_NOMEM. Threads one per buffer. Since 0.1 */
MHA_API mha_sink mha_buffer_sink(mha_buffer *buffer);

/** Free the bytes and empty the buffer; NULL is fine. Memory frees. Errors none. Threads one.
 * Since 0.1 */
MHA_API void mha_buffer_free(mha_buffer *buffer);

typedef struct mha_file mha_file;

/**
 * Begin to write a file. The bytes go to a new file beside path, which mha_file_finish() renames to
 * path: readers see the old content or the whole new one. A path that exists and is not a regular
 * file (a device, a pipe) is written directly. A symbolic link is followed, not replaced. The file
 * that is replaced leaves its permissions; one that may not be written is not replaced.
 *
 * Memory   the caller owns *file and ends it with mha_file_finish().
 * Errors   MHA_ERR_NULL; MHA_ERR_WRITE (cannot be created: path and reason in the detail);
 *          MHA_ERR_NOMEM. *file is then NULL.
 * Threads  one per file.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_file_create(const char *path, mha_file **file);

/** The file's sink; it is buffered. Memory belongs to file. Errors its writes give MHA_ERR_WRITE
 * with path and reason. Threads one per file. Since 0.1 */
MHA_API const mha_sink *mha_file_sink(mha_file *file);

/**
 * End a file. With status MHA_OK its content is written out and takes its name; with any other, and
 * when that fails, everything begun is removed and an older file of that name stays as it was.
 *
 *   file    may be NULL: then only status is handed back
 *   status  what the writing gave
 *
 * Memory   frees file.   Errors  status if it was not MHA_OK; MHA_ERR_WRITE with path and reason.
 * Threads  one per file.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_file_finish(mha_file *file, mha_status status);

#ifdef __cplusplus
}
#endif
#endif
