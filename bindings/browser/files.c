/* The POSIX calls of the model library in a browser, over functions of the worker that holds the
 * user's files. Mapping a file reads it completely, in slices. Files cannot be written. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Functions of worker.js. A file is a number, NONE or FOLDER. Reading returns the number of bytes read, or -1. */
enum { NONE = -1, FOLDER = -2 };
#define FROM_WORKER(name) __attribute__((import_module("files"), import_name(#name))) extern
FROM_WORKER(find) int files_find(const char *path);
FROM_WORKER(size) double files_size(int file);
FROM_WORKER(read) int files_read(int file, double from, void *to, int bytes);

enum { FIRST = 16, OPEN = 16, SLICE = 1 << 22 };

static struct {
    int file; /* 1 + the file; 0: free */
    off_t at;
} opened[OPEN];

static int refuse(int error)
{
    errno = error;
    return -1;
}

static int fill(int file, struct stat *status)
{
    if (file == NONE) return refuse(ENOENT);
    memset(status, 0, sizeof *status);
    status->st_mode = file == FOLDER ? S_IFDIR | 0555 : S_IFREG | 0444;
    status->st_size = file == FOLDER ? 0 : (off_t)files_size(file);
    return 0;
}

static int file_of(int descriptor)
{
    const int i = descriptor - FIRST;
    return i >= 0 && i < OPEN ? opened[i].file - 1 : NONE;
}

int open(const char *path, int flags, ...)
{
    const int file = files_find(path);
    if (file == NONE) return refuse(flags & O_CREAT ? EROFS : ENOENT);
    if (file == FOLDER || (flags & O_ACCMODE) != O_RDONLY) return refuse(EACCES);
    for (int i = 0; i < OPEN; i++)
        if (!opened[i].file) {
            opened[i].file = file + 1;
            opened[i].at = 0;
            return FIRST + i;
        }
    return refuse(EMFILE);
}

int close(int descriptor)
{
    if (file_of(descriptor) == NONE) return refuse(EBADF);
    opened[descriptor - FIRST].file = 0;
    return 0;
}

int stat(const char *restrict path, struct stat *restrict status)
{
    return fill(files_find(path), status);
}

int fstat(int descriptor, struct stat *status)
{
    const int file = file_of(descriptor);
    return file == NONE ? refuse(EBADF) : fill(file, status);
}

int access(const char *path, int mode)
{
    const int file = files_find(path);
    if (file == NONE) return refuse(ENOENT);
    return mode & W_OK ? refuse(EROFS) : 0;
}

/* Read in slices, so that memory holds two copies of only one slice. */
ssize_t pread(int descriptor, void *to, size_t bytes, off_t from)
{
    const int file = file_of(descriptor);
    if (file == NONE) return refuse(EBADF);
    const int count = bytes < SLICE ? (int)bytes : SLICE;
    const int got = files_read(file, (double)from, to, count);
    return got < 0 ? refuse(EIO) : got;
}

ssize_t read(int descriptor, void *to, size_t bytes)
{
    const ssize_t got = file_of(descriptor) == NONE
                            ? refuse(EBADF)
                            : pread(descriptor, to, bytes, opened[descriptor - FIRST].at);
    if (got > 0) opened[descriptor - FIRST].at += got;
    return got;
}

void *mmap(void *hint, size_t bytes, int protection, int flags, int descriptor, off_t from)
{
    (void)hint, (void)protection, (void)flags;
    char *made = malloc(bytes);
    if (!made) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    for (size_t done = 0; done < bytes;) {
        const ssize_t got = pread(descriptor, made + done, bytes - done, from + (off_t)done);
        if (got <= 0) {
            free(made);
            errno = EIO;
            return MAP_FAILED;
        }
        done += (size_t)got;
    }
    return made;
}

int munmap(void *bytes, size_t size)
{
    (void)size;
    free(bytes);
    return 0;
}
