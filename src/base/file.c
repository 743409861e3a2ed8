/* Files that appear whole or not at all: the bytes go to a new file in the same folder, which takes
 * the name at the end. Devices and pipes cannot be replaced and are written directly. */
#define _XOPEN_SOURCE 700 /* realpath */
#include <multihead/component.h>
#include <multihead/sink.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK = 1 << 16, TRIES = 1000 };

struct mha_file {
    mha_sink sink;
    char *path;      /* what the caller said, for messages */
    char *target;    /* path with symbolic links followed */
    char *temporary; /* NULL: the target is written directly */
    int descriptor;
    size_t used;
    mha_status status;
    char block[BLOCK];
};

/* The end of a long path tells files apart, and leaves room for the reason. */
static mha_status refuse(const mha_file *file, const char *what, int error)
{
    size_t length = strlen(file->path), most = 200;
    const char *from = file->path + (length > most ? length - most : 0);
    while ((*from & 0xC0) == 0x80) from++; /* the rest of a UTF-8 character */
    return mha_fail(MHA_ERR_WRITE, "%s%s: %s: %s", from == file->path ? "" : "...", from, what,
                    error == ENOENT ? "no such folder" : strerror(error));
}

static mha_status write_out(mha_file *file, const char *bytes, size_t count)
{
    while (count && !file->status) {
        ssize_t done = write(file->descriptor, bytes, count);
        if (done < 0) {
            if (errno != EINTR) file->status = refuse(file, "cannot write", errno);
            continue;
        }
        bytes += done;
        count -= (size_t)done;
    }
    return file->status;
}

static mha_status file_write(void *user, const void *bytes, size_t count)
{
    mha_file *file = user;
    if (file->status) return file->status;
    if (count > BLOCK - file->used) {
        size_t pending = file->used;
        file->used = 0;
        MHA_TRY(write_out(file, file->block, pending));
        if (count >= BLOCK) return write_out(file, bytes, count);
    }
    memcpy(file->block + file->used, bytes, count);
    file->used += count;
    return MHA_OK;
}

static void release(mha_file *file)
{
    if (!file) return;
    free(file->path);
    free(file->target);
    free(file->temporary);
    free(file);
}

static char *copy_text(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = malloc(bytes);
    return copy ? memcpy(copy, text, bytes) : NULL;
}

/* A new file beside the target. The name holds the process id, so that two programs writing the
 * same report do not meet, and O_EXCL settles what is left. */
static mha_status open_temporary(mha_file *file, mode_t mode)
{
    size_t bytes = strlen(file->target) + 48;
    file->temporary = malloc(bytes);
    if (!file->temporary) return mha_fail(MHA_ERR_NOMEM, "%s: out of memory", file->path);
    for (int i = 0; i < TRIES; i++) {
        snprintf(file->temporary, bytes, "%s.%ld-%d.part", file->target, (long)getpid(), i);
        file->descriptor = open(file->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
        if (file->descriptor >= 0 || errno != EEXIST) break;
    }
    if (file->descriptor >= 0) return MHA_OK;
    free(file->temporary);
    file->temporary = NULL;
    return refuse(file, "cannot write: no new file can be made there", errno);
}

/* Keep the permissions of a file that is replaced; a file that could not be opened for writing is
 * not replaced either. */
static mha_status open_target(mha_file *file)
{
    struct stat present;
    bool exists = stat(file->path, &present) == 0;
    if (!exists && lstat(file->path, &present) == 0)
        return mha_fail(MHA_ERR_WRITE, "%s: cannot write: a symbolic link to nothing", file->path);
    if (exists && S_ISDIR(present.st_mode)) return refuse(file, "cannot write", EISDIR);
    if (exists && access(file->path, W_OK) != 0) return refuse(file, "cannot write", errno);
    char *resolved = exists ? realpath(file->path, NULL) : NULL;
    file->target = resolved ? resolved : copy_text(file->path);
    if (!file->target) return mha_fail(MHA_ERR_NOMEM, "%s: out of memory", file->path);
    /* /dev/stdout may well be a regular file, but one that belongs to whoever opened it. */
    bool replace = !exists || (S_ISREG(present.st_mode) && strncmp(file->path, "/dev/", 5) != 0);
    if (replace) {
        MHA_TRY(open_temporary(file, 0666));
        if (exists) (void)fchmod(file->descriptor, present.st_mode & 0777);
        return MHA_OK;
    }
    file->descriptor = open(file->path, O_WRONLY | O_CLOEXEC);
    return file->descriptor >= 0 ? MHA_OK : refuse(file, "cannot write", errno);
}

mha_status mha_file_create(const char *path, mha_file **file)
{
    if (!file) return mha_fail(MHA_ERR_NULL, "mha_file_create: file is NULL");
    *file = NULL;
    if (!path) return mha_fail(MHA_ERR_NULL, "mha_file_create: path is NULL");
    mha_file *made = calloc(1, sizeof *made);
    if (made) made->path = copy_text(path);
    if (!made || !made->path) {
        release(made);
        return mha_fail(MHA_ERR_NOMEM, "%s: out of memory", path);
    }
    made->sink = (mha_sink){file_write, made};
    made->descriptor = -1;
    mha_status status = open_target(made);
    if (status)
        release(made);
    else
        *file = made;
    return status;
}

const mha_sink *mha_file_sink(mha_file *file)
{
    return &file->sink;
}

mha_status mha_file_finish(mha_file *file, mha_status status)
{
    if (!file) return status;
    if (!status) status = file->status;
    if (!status) status = write_out(file, file->block, file->used);
    /* Network file systems report a full disk only here. */
    if (close(file->descriptor) != 0 && !status) status = refuse(file, "cannot write", errno);
    if (file->temporary && !status && rename(file->temporary, file->target) != 0)
        status = refuse(file, "cannot rename the finished file to that name", errno);
    if (file->temporary && status) unlink(file->temporary);
    release(file);
    return status;
}
