/* multihead: output sinks: a callback, memory, or a file that is replaced atomically.
 *
 * Writers of pictures, arrays and model files take a sink.
 *
 * Example, given const void *bytes, size_t size:
 *
 *   mha_file *file = NULL;
 *   mha_status status = mha_file_create("out.bin", &file);
 *   const mha_sink *sink = status ? NULL : mha_file_sink(file);
 *   if (sink) status = sink->write(sink->user, bytes, size);
 *   status = mha_file_finish(file, status); // on failure, out.bin keeps its old content
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_SINK_H
#define MULTIHEAD_SINK_H

#include <multihead/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* write takes all count bytes or fails; its status is passed up unchanged (use MHA_ERR_WRITE or
 * MHA_ERR_CALLBACK). It is called with count > 0, in order, and never again after a failure. */
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
 * Errors MHA_ERR_NOMEM from its writes. Threads one per buffer. Since 0.1 */
MHA_API mha_sink mha_buffer_sink(mha_buffer *buffer);

/** Free the bytes and empty the buffer; NULL: a no-op. Memory frees. Errors none. Threads one.
 * Since 0.1 */
MHA_API void mha_buffer_free(mha_buffer *buffer);

typedef struct mha_file mha_file;

/**
 * Begin to write a file. The kind of path determines how:
 *
 *   nothing, or a regular file   the bytes go to a new file beside it, which mha_file_finish()
 *                                renames: readers see the old content or the whole new one. The
 *                                new file gets the permissions of the one that it replaces; a file
 *                                without write permission is not replaced
 *   a device, pipe or socket     written directly
 *   an open file of a process,   by any link (/dev/stdout, /dev/fd/3, /proc/self/fd/1): written
 *                                directly at its current position; output to a redirected stdout
 *                                is appended, as with >>
 *   a symbolic link              followed, not replaced; a dangling link is rejected
 *
 * The new file is called path.mha-N.part, with N the first free number. A process that is killed
 * leaves it behind, and the next process that writes path removes it. A file that is still being
 * written is never removed: its writer holds a lock (flock) on it. On file systems that machines
 * may share (all except ext2 to 4, XFS, btrfs, F2FS, ZFS, overlayfs, tmpfs and ramfs) another
 * machine may not see the lock. There the new file is called path.mha-shared-N.part, and a leftover
 * must be removed by hand.
 *
 * Memory   the caller owns *file and calls mha_file_finish(). Two descriptors until then.
 * Errors   MHA_ERR_NULL; MHA_ERR_WRITE (cannot be created: path and reason in the detail);
 *          MHA_ERR_NOMEM. *file is then NULL.
 * Threads  one per file.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_file_create(const char *path, mha_file **file);

/**
 * Likewise for a file in a folder that the caller owns, such as a saved model: nothing outside the
 * folder is written. An existing entry of this name is replaced, even a symbolic link or a pipe;
 * only a folder and a regular file without write permission are rejected. folder itself may be a
 * link; it is resolved once, by this call, and created if it is missing (its parents are not).
 *
 *   name   without '/'; not "." or ".."
 *
 * Memory   as mha_file_create().
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (name); MHA_ERR_WRITE; MHA_ERR_NOMEM.
 * Threads  one per file.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_file_create_in(const char *folder, const char *name,
                                                    mha_file **file);

/** The file's sink; it is buffered. Memory belongs to file. Errors MHA_ERR_WRITE
 * from its writes; the detail has path and reason. Threads one per file. Since 0.1 */
MHA_API const mha_sink *mha_file_sink(mha_file *file);

/**
 * Finish a file. With status MHA_OK its content is written out and the file gets its name. With any
 * other status, or if writing fails, the unfinished file is removed and an older file of that name
 * is unchanged. (If only the last step fails, the sync of the folder, the new file is complete and
 * in place, but a power loss may bring back the old one.)
 *
 * The content is synced to the disk before the file gets its name, and the folder after that: a
 * power loss leaves the old file or the whole new one, and after MHA_OK the new one. Direct writes
 * are not synced.
 *
 *   file    NULL: only return status
 *   status  the caller's status after writing
 *
 * Memory   frees file.   Errors  status if it was not MHA_OK; MHA_ERR_WRITE with path and reason.
 * Threads  one per file.
 * Cost     two syncs: on the ext4 of a virtual machine 6 ms for a file of 200 KB on average (0.5
 *          to 16), 80 ms for 100 MB; on tmpfs a few microseconds. Training that saves its state
 *          after every step of 125 ms spends a twentieth of its time on them.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_file_finish(mha_file *file, mha_status status);

#ifdef __cplusplus
}
#endif
#endif
