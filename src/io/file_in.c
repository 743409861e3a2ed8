/* Reading files, mapped or completely. Only regular files are accepted, because a FIFO may block
 * without limit and a device has no length. */
#include "io/file.h"

#include <multihead/component.h>

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static bool continues(char c) /* inside a UTF-8 sequence */
{
    return ((unsigned char)c & 0xC0) == 0x80;
}

mhai_shown mhai_show_path(const char *path)
{
    mhai_shown shown = {{0}};
    size_t length = strlen(path);
    const char *from = path;
    if (length >= sizeof shown.text) {
        memcpy(shown.text, "...", 3);
        from += length - (sizeof shown.text - 4);
        while (continues(*from)) from++;
    }
    strcpy(shown.text + strlen(shown.text), from);
    return shown;
}

mha_status mhai_path_fail(mha_status status, const char *path, const char *format, ...)
{
    char text[1024]; /* mha_fail() keeps this many bytes */
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return mha_fail(status, "%s: %s", mhai_show_path(path).text, text);
}

mhai_shown mhai_show_name(const char *name)
{
    mhai_shown shown = {{0}};
    size_t length = strlen(name), most = 80;
    if (length <= most) {
        memcpy(shown.text, name, length);
        return shown;
    }
    while (most > 0 && continues(name[most])) most--;
    memcpy(shown.text, name, most);
    memcpy(shown.text + most, "...", 3);
    return shown;
}

static const char *kind_of(mode_t mode)
{
    if (S_ISDIR(mode)) return "a folder";
    if (S_ISFIFO(mode)) return "a FIFO";
    if (S_ISSOCK(mode)) return "a socket";
    return "a device";
}

mha_status mhai_file_open(const char *path, int *fd, size_t *size)
{
    /* O_NONBLOCK, because opening a FIFO would otherwise wait for a writer. */
    int opened = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (opened < 0)
        return mhai_path_fail(MHA_ERR_FILE, path, "%s",
                              errno == ENOENT ? "no such file" : strerror(errno));
    struct stat status;
    const char *trouble = NULL;
    if (fstat(opened, &status) != 0)
        trouble = strerror(errno);
    else if (!S_ISREG(status.st_mode))
        trouble = kind_of(status.st_mode);
    if (trouble) {
        close(opened);
        return mhai_path_fail(MHA_ERR_FILE, path, "is %s, expected a regular file", trouble);
    }
    if ((uintmax_t)status.st_size > PTRDIFF_MAX) {
        close(opened);
        return mhai_path_fail(MHA_ERR_SIZE, path, "the file is larger than the address space");
    }
    *fd = opened;
    *size = (size_t)status.st_size;
    return MHA_OK;
}

mha_status mhai_file_map(const char *path, mhai_file_view *view)
{
    int fd = -1;
    size_t size = 0;
    *view = (mhai_file_view){NULL, 0};
    MHA_TRY(mhai_file_open(path, &fd, &size));
    void *bytes = size > 0 ? mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
    int error = errno;
    close(fd);
    if (bytes == MAP_FAILED)
        return mhai_path_fail(error == ENOMEM ? MHA_ERR_NOMEM : MHA_ERR_FILE, path,
                              "cannot map %zu bytes: %s", size, strerror(error));
    *view = (mhai_file_view){bytes, size};
    return MHA_OK;
}

void mhai_file_unmap(mhai_file_view *view)
{
    /* munmap takes a non-const pointer, but does not write. */
    if (view->bytes) munmap((void *)(uintptr_t)view->bytes, view->size);
    *view = (mhai_file_view){NULL, 0};
}

mha_status mhai_file_convert(const unsigned char *from, mha_dtype from_type, int64_t count,
                             mha_dtype to_type, void *to)
{
    enum { PIECE = 1024, ITEM = 8 };
    _Alignas(ITEM) unsigned char piece[PIECE * ITEM]; /* aligned for every type */
    const size_t size = mha_dtype_size(from_type), to_size = mha_dtype_size(to_type);
    if (from_type == to_type) {
        if (count > 0) memcpy(to, from, (size_t)count * size);
        return MHA_OK;
    }
    for (int64_t i = 0, n; i < count; i += n) {
        n = count - i < PIECE ? count - i : PIECE;
        memcpy(piece, from + (size_t)i * size, (size_t)n * size);
        const mha_tensor in = mha_tensor_contiguous(piece, from_type, 1, &n);
        const mha_tensor out =
            mha_tensor_contiguous((char *)to + (size_t)i * to_size, to_type, 1, &n);
        MHA_TRY(mha_tensor_convert(&in, &out));
    }
    return MHA_OK;
}

static int by_begin(const void *a, const void *b)
{
    const mhai_extent *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

void mhai_file_sort_extents(mhai_extent *extents, int64_t count)
{
    if (count > 0) qsort(extents, (size_t)count, sizeof *extents, by_begin);
}

/* Read exactly size bytes. Fails if the file is truncated during the read. */
static mha_status read_all(int fd, const char *path, char *bytes, size_t size)
{
    const size_t chunk = (size_t)1 << 30; /* Linux reads at most 2 GB per call */
    for (size_t done = 0; done < size;) {
        ssize_t got = read(fd, bytes + done, size - done < chunk ? size - done : chunk);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0)
            return mhai_path_fail(MHA_ERR_FILE, path, "cannot read byte %zu of %zu: %s", done, size,
                                  got == 0 ? "the file was shortened" : strerror(errno));
        done += (size_t)got;
    }
    return MHA_OK;
}

mha_status mha_file_read(const char *path, size_t limit, char **bytes, size_t *size)
{
    MHA_NEED("mha_file_read", path, bytes, size);
    int fd = -1;
    size_t length = 0;
    char *made = NULL;
    MHA_TRY(mhai_file_open(path, &fd, &length));
    mha_status status = MHA_OK;
    if (length > limit) {
        status = mhai_path_fail(MHA_ERR_SIZE, path, "%zu bytes, at most %zu are read here", length,
                                limit);
        goto done;
    }
    made = malloc(length + 1);
    if (!made) {
        status = mhai_path_fail(MHA_ERR_NOMEM, path, "cannot allocate %zu bytes", length + 1);
        goto done;
    }
    MHA_TRY_GOTO(read_all(fd, path, made, length), done);
    made[length] = '\0';
    *bytes = made;
    *size = length;
    made = NULL;
done:
    free(made);
    close(fd);
    return status;
}

void mha_file_free(char *bytes)
{
    free(bytes);
}
