/* Files that the program writes, and stdout: see files.h. */
#define _XOPEN_SOURCE 700 /* realpath */
#include "common/files.h"

#include "common/commands.h"
#include "common/signals.h"

#include <multihead/component.h>
#include <multihead/io.h>
#include <multihead/json.h>

#include <errno.h>
#include <limits.h>
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
    /* The reader has closed the pipe: exit without a message. */
    if (errno == EPIPE) return mha_fail(MHA_ERR_CALLBACK, "stdout: closed");
    return mha_fail(MHA_ERR_WRITE, "stdout: cannot write: %s", strerror(errno ? errno : EIO));
}

const mha_sink files_stdout = {.write = write_stdout};

void files_begin_json(mha_json *json, const char *format)
{
    mha_json_object(json, NULL);
    mha_json_lines(json, 2);
    mha_json_text(json, "format", format);
    mha_json_integer(json, "version", 1);
    mha_json_text(json, "producer", "multihead " CLI_VERSION);
}

/* ---- functions that draw into a sink --------------------------------------------------------- */

/* A signal stops the drawing, and the file is removed. */
static mha_status write_until_signal(void *user, const void *bytes, size_t count)
{
    const mha_sink *inner = user;
    if (signals_came()) return mha_fail(MHA_ERR_CALLBACK, "interrupted");
    return inner->write(inner->user, bytes, count);
}

/* Signals are not held for a FIFO or a device: there is no file to remove, and writes may block
 * without limit. A caller that already holds signals needs the whole file. */
static mha_status draw_file(const char *folder, const char *path, files_draw_fn *draw,
                            const void *user)
{
    struct stat present;
    mha_file *file = NULL;
    const bool holds = folder || stat(path, &present) != 0 || S_ISREG(present.st_mode);
    const bool outermost = holds && signals_hold();
    mha_status status =
        folder ? mha_file_create_in(folder, path, &file) : mha_file_create(path, &file);
    if (status == MHA_OK) {
        mha_sink inner = *mha_file_sink(file);
        status = draw(user, outermost ? &(mha_sink){write_until_signal, &inner} : &inner);
    }
    status = mha_file_finish(file, status);
    if (holds) signals_release();
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
    return mha_fail(errno == ENOMEM ? MHA_ERR_NOMEM : MHA_ERR_WRITE, "%s: cannot write: %s", path,
                    strerror(errno ? errno : EIO));
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

mha_status files_draw_npy(const void *user, const mha_sink *sink)
{
    return mha_npy_write_to(sink, user);
}

mha_status files_write_npy(const char *path, const mha_tensor *tensor)
{
    return files_draw(path, files_draw_npy, tensor);
}

/* ---- Names ----------------------------------------------------------------------------------- */

bool files_beside_program(const char *name, char *path, size_t bytes)
{
    const ssize_t length = readlink("/proc/self/exe", path, bytes - 1);
    path[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(path, '/');
    const size_t used = slash ? (size_t)(slash - path) + 1 : 0;
    if (!slash || used + strlen(name) >= bytes) return false;
    strcpy(path + used, name);
    return true;
}

/* The folder of a path: the part before its last slash. */
static bool folder_of(const char *path, char folder[PATH_MAX])
{
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--;
    while (end > 0 && path[end - 1] != '/') end--;
    if (end > 1) end--;
    return snprintf(folder, PATH_MAX, "%.*s", end ? (int)end : 1, end ? path : ".") < PATH_MAX;
}

/* Resolve a path that exists, or else its folder, with the last name appended. Returns false if the
 * folder does not exist. Nothing is allocated, so that lack of memory cannot make two names of one
 * file look different. */
static bool resolve(const char *path, char place[2 * PATH_MAX])
{
    char folder[PATH_MAX];
    if (realpath(path, place)) return true;
    if (!folder_of(path, folder) || !realpath(folder, place)) return false;
    const char *slash = strrchr(path, '/');
    const size_t used = strlen(place);
    snprintf(place + used, PATH_MAX, "/%s", slash ? slash + 1 : path);
    return true;
}

bool files_same(const char *a, const char *b)
{
    char at_a[2 * PATH_MAX], at_b[2 * PATH_MAX];
    if (!strcmp(a, "-") || !strcmp(b, "-")) return false;
    return !strcmp(a, b) || (resolve(a, at_a) && resolve(b, at_b) && !strcmp(at_a, at_b));
}

/* Whether an entry can be created in the folder of path; returns an errno, or 0. */
static int parent_error(const char *path)
{
    char folder[PATH_MAX];
    if (!folder_of(path, folder)) return ENAMETOOLONG;
    return access(folder, W_OK | X_OK) != 0 ? errno : 0;
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
    return mha_fail(error == ENOMEM ? MHA_ERR_NOMEM : MHA_ERR_WRITE, "%s: cannot write: %s", path,
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

/* ---- Figures --------------------------------------------------------------------------------- */

mha_status files_draw_svg(const void *figure, const mha_sink *sink)
{
    return mha_render_svg(figure, sink);
}

mha_status files_draw_png(const void *figure, const mha_sink *sink)
{
    return mha_render_png(figure, sink);
}

mha_status files_draw_pdf(const void *figure, const mha_sink *sink)
{
    return mha_render_pdf(figure, sink);
}
