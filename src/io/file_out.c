/* Writing files, whole or not at all: into a new file beside the place, then renamed over it. A
 * reader never sees half a file, and an older one survives a full disk. */
#define _XOPEN_SOURCE 700 /* realpath */
#include "io/file.h"

#include <multihead/component.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BUFFER_BYTES = 1 << 16, NAME_TRIES = 100 };

static mha_status cannot_write(const char *path, int error)
{
    return mha_fail(MHA_ERR_WRITE, "%s: cannot write: %s", mhai_show_path(path).text,
                    error == ENOENT ? "no such folder" : strerror(error));
}

static char *copy_text(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = malloc(bytes);
    if (copy) memcpy(copy, text, bytes);
    return copy;
}

/* The file that path stands for, and whether it can be replaced by a rename. What could not be
 * opened for writing is not replaced either. */
static mha_status find_place(const char *path, char **place, bool *replace)
{
    struct stat status;
    *replace = true;
    bool link = lstat(path, &status) == 0 && S_ISLNK(status.st_mode);
    if (stat(path, &status) == 0) {
        if (S_ISDIR(status.st_mode)) return cannot_write(path, EISDIR);
        if (access(path, W_OK) != 0) return cannot_write(path, errno);
        *replace = S_ISREG(status.st_mode);
    } else if (errno != ENOENT) {
        return cannot_write(path, errno);
    } else if (link) {
        return mha_fail(MHA_ERR_WRITE, "%s: cannot write: a symbolic link to nothing",
                        mhai_show_path(path).text);
    }
    *place = link && *replace ? realpath(path, NULL) : copy_text(path);
    if (!*place)
        return mha_fail(MHA_ERR_NOMEM, "%s: cannot resolve the name", mhai_show_path(path).text);
    return MHA_OK;
}

/* A new file beside the place, with the permissions of the file that stands there. Not mkstemp(),
 * whose files only their owner may read. */
static mha_status open_beside(mhai_file_out *out)
{
    size_t bytes = strlen(out->place) + 48;
    out->temp = malloc(bytes);
    if (!out->temp) return mha_fail(MHA_ERR_NOMEM, "cannot allocate a file name");
    for (int i = 0; i < NAME_TRIES; i++) {
        snprintf(out->temp, bytes, "%s.%ld.%d.part", out->place, (long)getpid(), i);
        out->fd = open(out->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (out->fd >= 0) {
            struct stat older;
            if (stat(out->place, &older) == 0) (void)fchmod(out->fd, older.st_mode & 0777);
            return MHA_OK;
        }
        if (errno != EEXIST) break;
    }
    int error = errno;
    free(out->temp); /* not ours to unlink */
    out->temp = NULL;
    return cannot_write(out->place, error);
}

mha_status mhai_file_begin(const char *path, mhai_file_out *out)
{
    *out = (mhai_file_out){.fd = -1};
    bool replace = true;
    mha_status status = MHA_OK;
    MHA_TRY_GOTO(find_place(path, &out->place, &replace), done);
    out->buffer = malloc(BUFFER_BYTES);
    if (!out->buffer) {
        status = mha_fail(MHA_ERR_NOMEM, "%s: cannot allocate %d bytes", mhai_show_path(path).text,
                          (int)BUFFER_BYTES);
        goto done;
    }
    if (replace) {
        MHA_TRY_GOTO(open_beside(out), done);
    } else {
        out->fd = open(out->place, O_WRONLY | O_CLOEXEC);
        if (out->fd < 0) status = cannot_write(path, errno);
    }
done:
    if (status != MHA_OK) mhai_file_abandon(out);
    return status;
}

static mha_status write_all(mhai_file_out *out, const unsigned char *bytes, size_t size)
{
    const size_t chunk = (size_t)1 << 30;
    while (size > 0) {
        ssize_t put = write(out->fd, bytes, size < chunk ? size : chunk);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return cannot_write(out->place, errno);
        bytes += put;
        size -= (size_t)put;
    }
    return MHA_OK;
}

static mha_status flush(mhai_file_out *out)
{
    size_t used = out->used;
    out->used = 0;
    return write_all(out, out->buffer, used);
}

mha_status mhai_file_append(mhai_file_out *out, const void *bytes, size_t size)
{
    if (size > BUFFER_BYTES - out->used) MHA_TRY(flush(out));
    if (size > BUFFER_BYTES) return write_all(out, bytes, size);
    if (size > 0) memcpy(out->buffer + out->used, bytes, size);
    out->used += size;
    return MHA_OK;
}

mha_status mhai_file_finish(mhai_file_out *out)
{
    MHA_TRY(flush(out));
    int fd = out->fd;
    out->fd = -1;
    if (close(fd) != 0) return cannot_write(out->place, errno);
    if (out->temp && rename(out->temp, out->place) != 0) return cannot_write(out->place, errno);
    free(out->temp);
    out->temp = NULL;
    return MHA_OK;
}

void mhai_file_abandon(mhai_file_out *out)
{
    if (out->fd >= 0) close(out->fd);
    if (out->temp) unlink(out->temp);
    free(out->temp);
    free(out->place);
    free(out->buffer);
    *out = (mhai_file_out){.fd = -1};
}

mha_status mha_file_write(const char *path, const void *bytes, size_t size)
{
    if (!path || (!bytes && size > 0))
        return mha_fail(MHA_ERR_NULL, "mha_file_write: NULL argument");
    mhai_file_out out;
    MHA_TRY(mhai_file_begin(path, &out));
    mha_status status = mhai_file_append(&out, bytes, size);
    if (status == MHA_OK) status = mhai_file_finish(&out);
    mhai_file_abandon(&out);
    return status;
}

mha_status mhai_file_tensor_bytes(const char *name, const mha_tensor *tensor, int64_t *bytes)
{
    int64_t count = 0, size = (int64_t)mha_dtype_size(tensor->dtype), reach;
    if (size == 0) return mha_fail(MHA_ERR_DTYPE, "%s: unknown dtype %d", name, (int)tensor->dtype);
    MHA_TRY(mha_tensor_count(tensor, &count));
    if (__builtin_mul_overflow(count, size, bytes))
        return mha_fail(MHA_ERR_SIZE, "%s: more bytes than 63 bits count", name);
    if (count > 0 && !tensor->data) return mha_fail(MHA_ERR_NULL, "%s: data is NULL", name);
    for (int i = 0; i < tensor->ndim && count > 0; i++)
        if (__builtin_mul_overflow(tensor->shape[i] - 1, tensor->stride[i], &reach) ||
            reach > PTRDIFF_MAX / 64 || reach < -(PTRDIFF_MAX / 64))
            return mha_fail(MHA_ERR_SIZE, "%s: dim %d reaches beyond the address space", name, i);
    return MHA_OK;
}

/* One row of the last axis. */
static mha_status append_row(mhai_file_out *out, const unsigned char *row, int64_t length,
                             int64_t stride, size_t size)
{
    if (stride == 1 || length == 1) return mhai_file_append(out, row, (size_t)length * size);
    for (int64_t i = 0; i < length; i++)
        MHA_TRY(mhai_file_append(out, row + i * stride * (int64_t)size, size));
    return MHA_OK;
}

mha_status mhai_file_append_tensor(mhai_file_out *out, const mha_tensor *tensor)
{
    int last = tensor->ndim - 1;
    int64_t size = (int64_t)mha_dtype_size(tensor->dtype), at[MHA_MAX_DIMS] = {0};
    const unsigned char *data = tensor->data;
    for (int i = 0; i <= last; i++)
        if (tensor->shape[i] == 0) return MHA_OK;
    if (last < 0) return mhai_file_append(out, data, (size_t)size);
    for (;;) {
        int64_t offset = 0;
        for (int i = 0; i < last; i++) offset += at[i] * tensor->stride[i];
        MHA_TRY(append_row(out, data + offset * size, tensor->shape[last], tensor->stride[last],
                           (size_t)size));
        int axis = last - 1; /* the next row, as an odometer turns */
        while (axis >= 0 && ++at[axis] == tensor->shape[axis]) at[axis--] = 0;
        if (axis < 0) return MHA_OK;
    }
}
