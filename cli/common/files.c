/* Files that the program writes, and stdout: see files.h. */
#define _XOPEN_SOURCE 700 /* realpath */
#include "common/files.h"

#include <multihead/component.h>
#include <multihead/io.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static mha_status write_stdout(void *user, const void *bytes, size_t count)
{
    (void)user;
    errno = 0;
    if (fwrite(bytes, 1, count, stdout) == count) return MHA_OK;
    /* Whoever closed a pipe has seen enough: the silent status. */
    if (errno == EPIPE) return mha_fail(MHA_ERR_CALLBACK, "stdout: closed");
    return mha_fail(MHA_ERR_WRITE, "stdout: cannot write: %s", strerror(errno ? errno : EIO));
}

const mha_sink files_stdout = {.write = write_stdout};

/* ---- Signals --------------------------------------------------------------------------------- */

/* Not for a FIFO or a device: nothing of them can be removed, and they may block forever. */
void files_hold_signals(files_guard *guard, const char *path)
{
    struct stat status;
    guard->holding = stat(path, &status) != 0 || S_ISREG(status.st_mode);
    if (!guard->holding) return;
    sigemptyset(&guard->held);
    sigaddset(&guard->held, SIGINT);
    sigaddset(&guard->held, SIGTERM);
    sigaddset(&guard->held, SIGHUP);
    sigprocmask(SIG_BLOCK, &guard->held, &guard->before);
}

void files_release_signals(files_guard *guard)
{
    if (guard->holding) sigprocmask(SIG_SETMASK, &guard->before, NULL);
    guard->holding = false;
}

bool files_interrupted(const files_guard *guard)
{
    sigset_t pending;
    if (!guard->holding || sigpending(&pending) != 0) return false;
    return sigismember(&pending, SIGINT) == 1 || sigismember(&pending, SIGTERM) == 1 ||
           sigismember(&pending, SIGHUP) == 1;
}

/* ---- Anything that is drawn into a sink ------------------------------------------------------ */

/* A sink that looks for held signals now and then. */
typedef struct guarded_sink {
    files_guard signals;
    const mha_sink *inner;
    size_t unchecked; /* bytes written since signals were last looked for */
} guarded_sink;

static mha_status write_guarded(void *user, const void *bytes, size_t count)
{
    enum { CHECK_EVERY = 1 << 16 }; /* looking for signals is a system call */
    guarded_sink *guard = user;
    guard->unchecked += count;
    if (guard->unchecked >= CHECK_EVERY) {
        guard->unchecked = 0;
        if (files_interrupted(&guard->signals)) return mha_fail(MHA_ERR_CALLBACK, "interrupted");
    }
    return guard->inner->write(guard->inner->user, bytes, count);
}

static mha_status draw_file(const char *folder, const char *path, files_draw_fn *draw,
                            const void *user)
{
    guarded_sink guard = {0};
    mha_file *file = NULL;
    files_hold_signals(&guard.signals, folder ? "" : path);
    mha_status status =
        folder ? mha_file_create_in(folder, path, &file) : mha_file_create(path, &file);
    if (status == MHA_OK) {
        guard.inner = mha_file_sink(file);
        status = draw(user, &(mha_sink){.write = write_guarded, .user = &guard});
    }
    status = mha_file_finish(file, status);
    files_release_signals(&guard.signals);
    return status;
}

mha_status files_draw(const char *path, files_draw_fn *draw, const void *user)
{
    return strcmp(path, "-") ? draw_file(NULL, path, draw, user) : draw(user, &files_stdout);
}

mha_status files_draw_in(const char *folder, const char *name, files_draw_fn *draw,
                         const void *user)
{
    return draw_file(folder, name, draw, user);
}

/* path and reason */
static mha_status cannot_write(const char *path)
{
    return mha_fail(MHA_ERR_WRITE, "%s: cannot write: %s", path, strerror(errno ? errno : EIO));
}

static mha_status write_stream(void *user, const void *bytes, size_t count)
{
    errno = 0;
    return fwrite(bytes, 1, count, user) == count ? MHA_OK : cannot_write("a file");
}

mha_status files_append(const char *path, files_draw_fn *draw, const void *user)
{
    FILE *file = fopen(path, "ab");
    if (!file) return cannot_write(path);
    mha_status status = draw(user, &(mha_sink){.write = write_stream, .user = file});
    errno = 0;
    if (fclose(file) != 0 && status == MHA_OK) status = cannot_write(path);
    return status;
}

static mha_status draw_npy(const void *user, const mha_sink *sink)
{
    return mha_npy_write_to(sink, user);
}

mha_status files_write_npy(const char *path, const mha_tensor *tensor)
{
    return files_draw(path, draw_npy, tensor);
}

/* ---- Names ----------------------------------------------------------------------------------- */

static char *copy_text(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = malloc(bytes);
    if (copy) memcpy(copy, text, bytes);
    return copy;
}

/* Where a path leads: all of it if it exists, else its folder, with the last name behind; NULL: out
 * of memory, or no such folder. */
static char *resolve(const char *path)
{
    char *whole = realpath(path, NULL);
    if (whole) return whole;
    char *folder = copy_text(path);
    if (!folder) return NULL;
    char *slash = strrchr(folder, '/');
    const char *name = slash ? slash + 1 : folder;
    if (slash) *slash = '\0';
    char *place = realpath(!slash ? "." : *folder ? folder : "/", NULL);
    size_t bytes = place ? strlen(place) + strlen(name) + 2 : 0;
    char *made = place ? malloc(bytes) : NULL;
    if (made) snprintf(made, bytes, "%s/%s", place, name);
    free(place);
    free(folder);
    return made;
}

bool files_same(const char *a, const char *b)
{
    if (!strcmp(a, "-") || !strcmp(b, "-")) return false;
    if (!strcmp(a, b)) return true;
    char *at_a = resolve(a), *at_b = resolve(b);
    bool same = at_a && at_b && !strcmp(at_a, at_b);
    free(at_a);
    free(at_b);
    return same;
}

/* Whether the folder that holds path takes a new entry; an errno, or 0. */
static int parent_error(const char *path)
{
    char *folder = copy_text(path);
    if (!folder) return ENOMEM;
    for (size_t end = strlen(folder); end > 1 && folder[end - 1] == '/';) folder[--end] = '\0';
    char *slash = strrchr(folder, '/');
    if (slash) *slash = '\0';
    const char *parent = !slash ? "." : *folder ? folder : "/";
    const int error = access(parent, W_OK | X_OK) != 0 ? errno : 0;
    free(folder);
    return error;
}

static mha_status check_place(const char *path, bool folder)
{
    struct stat status;
    const bool exists = stat(path, &status) == 0;
    int error = exists || errno == ENOENT ? 0 : errno;
    if (exists && !S_ISDIR(status.st_mode) != !folder) error = folder ? ENOTDIR : EISDIR;
    if (exists && !error && access(path, folder ? W_OK | X_OK : W_OK) != 0) error = errno;
    if (!exists && !error) error = parent_error(path);
    if (!error) return MHA_OK;
    return mha_fail(MHA_ERR_WRITE, "%s: cannot write: %s", path,
                    error == ENOENT ? "no such folder" : strerror(error));
}

mha_status files_check_place(const char *path)
{
    return check_place(path, false);
}

mha_status files_check_folder(const char *path)
{
    return check_place(path, true);
}
