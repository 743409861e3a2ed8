/* Atomic file writes. The bytes go to a temporary file in the same folder, which is synced and
 * renamed at the end. Open descriptors, such as /dev/stdout, and files that are not regular cannot
 * be replaced, so they are written directly.
 *
 * If a writer is killed, its temporary file remains; the next writer of the same file removes it. A
 * live writer holds a lock on its temporary file from creation to rename. The kernel releases the
 * lock of a dead process. Only the holder of the lock may unlink or rename the file, and only after
 * checking that the name still refers to it. Therefore no process removes the file of another live
 * writer.
 *
 * On a file system shared by several machines, locks may be local to one machine. Temporary files
 * there get names that no process removes, not even on the server, where the file system is
 * local. */
#define _GNU_SOURCE /* realpath, flock, fstatfs, O_PATH */
#include "need.h"

#include <multihead/component.h>
#include <multihead/sink.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/vfs.h>
#endif

/* NUMBERS exceeds the number of temporary files in use in a folder. A killed writer leaves a file
 * with a number of SWEPT or more only if that many processes wrote the same file at once. */
enum { BLOCK = 1 << 16, NUMBERS = 1 << 20, SWEPT = 16, HOPS = 40 };

struct mha_file {
    mha_sink sink;
    char *path;      /* as the caller passed it, for messages */
    char *name;      /* in its folder; symbolic links are resolved except in our own folder */
    char *temporary; /* in the same folder; NULL: write directly to the descriptor */
    int folder, descriptor;
    size_t used;
    mha_status status;
    char block[BLOCK];
};

/* Shorten a long path to its end, which identifies the file, to leave room for the reason. */
static mha_status refuse(const mha_file *file, const char *what, int error)
{
    size_t length = strlen(file->path), most = 200;
    const char *from = file->path + (length > most ? length - most : 0);
    while ((*from & 0xC0) == 0x80) from++; /* skip the rest of a cut UTF-8 character */
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
    if (file->folder >= 0) close(file->folder);
    free(file->path);
    free(file->name);
    free(file->temporary);
    free(file);
}

static char *copy_text(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = malloc(bytes);
    return copy ? memcpy(copy, text, bytes) : NULL;
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* ---- the temporary file -------------------------------------------------------------------- */

/* Whether locks work between all processes that may write in this folder. They do if all processes
 * run on one kernel. */
static bool locks_are_known(int folder)
{
#if defined(__linux__)
    static const unsigned long local[] = {0xEF53 /* ext2, 3, 4 */,    0x58465342 /* XFS */,
                                          0x9123683E /* btrfs */,     0x01021994 /* tmpfs */,
                                          0xF2F52010 /* F2FS */,      0x2FC12FC1 /* ZFS */,
                                          0x794C7630 /* overlayfs */, 0x858458F6 /* ramfs */};
    struct statfs kind;
    if (fstatfs(folder, &kind) != 0) return false;
    for (size_t i = 0; i < sizeof local / sizeof *local; i++)
        if ((unsigned long)kind.f_type == local[i]) return true;
#else
    (void)folder;
#endif
    return false;
}

/* Lock the file unless another process has locked it, then check that the name still refers to it.
 * Returns 0 or an errno. */
static int lock(int folder, const char *name, int descriptor)
{
    struct stat opened, named;
    if (flock(descriptor, LOCK_EX | LOCK_NB) != 0) return errno;
    if (fstat(descriptor, &opened) == 0 && S_ISREG(opened.st_mode) &&
        fstatat(folder, name, &named, AT_SYMLINK_NOFOLLOW) == 0 && same_file(&opened, &named))
        return 0;
    return EWOULDBLOCK;
}

static void remove_if_abandoned(int folder, const char *name)
{
    int found = openat(folder, name, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    if (found < 0) return;
    if (lock(folder, name, found) == 0) unlinkat(folder, name, 0);
    close(found);
}

/* Create the temporary file with the first free number. If another writer removed the file before
 * it was locked, try the next number. */
static mha_status open_temporary(mha_file *file, mode_t mode)
{
    const bool locks = locks_are_known(file->folder);
    const char *kind = locks ? "" : "shared-";
    const size_t bytes = strlen(file->name) + sizeof ".mha-shared-1234567.part";
    char *name = malloc(bytes);
    int error = 0;
    if (!name) return MHA_NO_MEMORY(file->path);
    for (int i = 0; locks && i < SWEPT; i++) {
        snprintf(name, bytes, "%s.mha-%d.part", file->name, i);
        remove_if_abandoned(file->folder, name);
    }
    for (int i = 0; i < NUMBERS && file->descriptor < 0; i++) {
        snprintf(name, bytes, "%s.mha-%s%d.part", file->name, kind, i);
        int made = openat(file->folder, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
        error = made < 0 ? errno : locks ? lock(file->folder, name, made) : 0;
        if (error == 0)
            file->descriptor = made;
        else if (made >= 0)
            close(made);
        if (error != EEXIST && error != EWOULDBLOCK) break;
    }
    if (file->descriptor >= 0) {
        file->temporary = name;
        return MHA_OK;
    }
    free(name);
    return refuse(file, "cannot write: no new file can be made there", error);
}

/* Without read permission, a folder can only be opened with O_PATH and cannot be synced. */
static int open_folder(const char *path)
{
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
#if defined(O_PATH)
    if (folder < 0 && errno == EACCES) folder = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
#endif
    return folder;
}

/* Sync a descriptor. Returns 0 or an errno; 0 if the file system cannot sync folders. */
static int sync_out(int descriptor)
{
    while (fsync(descriptor) != 0)
        if (errno != EINTR) return errno == EINVAL || errno == EBADF ? 0 : errno;
    return 0;
}

/* Split path in place and open its folder. *name is the last component. */
static int open_parent(char *path, const char **name)
{
    char *slash = strrchr(path, '/');
    *name = slash ? slash + 1 : path;
    if (!slash) return open_folder(".");
    if (slash == path) return open_folder("/");
    *slash = '\0';
    return open_folder(path);
}

/* Keep the permissions of a file that is replaced. */
static mha_status replace(mha_file *file, const struct stat *present)
{
    MHA_TRY(open_temporary(file, present ? 0600 : 0666));
    if (present) (void)fchmod(file->descriptor, present->st_mode & 0777);
    return MHA_OK;
}

/* ---- the path of the caller ------------------------------------------------------------------ */

/* Whether this is /proc/123/fd, whose links are the open files of a process. */
static bool holds_descriptors(const char *folder)
{
#if defined(__linux__)
    struct statfs kind;
    const size_t length = strlen(folder);
    return statfs(folder, &kind) == 0 && kind.f_type == 0x9FA0 /* proc */ && length > 3 &&
           strcmp(folder + length - 3, "/fd") == 0;
#else
    return strcmp(folder, "/dev/fd") == 0;
#endif
}

/* The descriptor to which a path such as /dev/stdout or /dev/fd/3 leads through links; -1: none. It
 * may belong to another process. */
static int find_descriptor(const char *path)
{
    char at[2 * PATH_MAX], link[PATH_MAX], folder[PATH_MAX];
    const int given = snprintf(at, sizeof at, "%s", path);
    if (given < 0 || given >= (int)sizeof at) return -1;
    for (int hop = 0; hop < HOPS; hop++) {
        const ssize_t length = readlink(at, link, sizeof link - 1);
        if (length < 0) return -1;
        link[length] = '\0';
        char *slash = strrchr(at, '/');
        const char *name = slash ? slash + 1 : at;
        const int number = *name >= '0' && *name <= '9' ? atoi(name) : -1;
        if (slash) slash[slash == at] = '\0';
        if (!realpath(slash ? at : ".", folder)) return -1;
        const bool found = number >= 0 && holds_descriptors(folder);
        const int used = snprintf(at, sizeof at, "%s%s%s", *link == '/' ? "" : folder,
                                  *link == '/' ? "" : "/", link);
        if (found) return number;
        if (used < 0 || used >= (int)sizeof at) return -1;
    }
    return -1;
}

/* Continue an open file at its position: duplicate a descriptor of this process, or append to a
 * file of another process. Pipes and devices have no position and are opened again. Sockets
 * cannot be opened again. */
static mha_status write_directly(mha_file *file, const struct stat *present, int number)
{
    struct stat own;
    const bool regular = S_ISREG(present->st_mode);
    if ((regular || S_ISSOCK(present->st_mode)) && number >= 0 && fstat(number, &own) == 0 &&
        same_file(&own, present) && (fcntl(number, F_GETFL) & O_ACCMODE) != O_RDONLY)
        file->descriptor = fcntl(number, F_DUPFD_CLOEXEC, 0);
    else
        file->descriptor = open(file->path, O_WRONLY | O_CLOEXEC | (regular ? O_APPEND : 0));
    return file->descriptor >= 0 ? MHA_OK : refuse(file, "cannot write", errno);
}

/* A file without write permission must not be replaced. */
static mha_status open_target(mha_file *file)
{
    struct stat present;
    const char *name;
    const bool exists = stat(file->path, &present) == 0;
    if (!exists && lstat(file->path, &present) == 0)
        return mha_fail(MHA_ERR_WRITE, "%s: cannot write: a dangling symbolic link", file->path);
    if (exists && S_ISDIR(present.st_mode)) return refuse(file, "cannot write", EISDIR);
    const int number = exists ? find_descriptor(file->path) : -1;
    if (exists && (number >= 0 || !S_ISREG(present.st_mode)))
        return write_directly(file, &present, number);
    if (exists && access(file->path, W_OK) != 0) return refuse(file, "cannot write", errno);
    char *resolved = exists ? realpath(file->path, NULL) : copy_text(file->path);
    if (!resolved)
        return errno == ENOMEM ? MHA_NO_MEMORY(file->path) : refuse(file, "cannot write", errno);
    file->folder = open_parent(resolved, &name);
    const int error = errno;
    file->name = copy_text(name);
    free(resolved);
    if (!file->name) return MHA_NO_MEMORY(file->path);
    if (file->folder < 0) return refuse(file, "cannot write: no new file can be made there", error);
    return replace(file, exists ? &present : NULL);
}

/* Create a folder and sync its parent, so that after a power failure the folder
 * exists if its files do. */
static mha_status make_folder(mha_file *file, const char *folder)
{
    const char *name;
    file->folder = open_folder(folder);
    if (file->folder < 0 && errno == ENOENT && mkdir(folder, 0777) == 0) {
        char *path = copy_text(folder);
        if (!path) return MHA_NO_MEMORY(file->path);
        for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--) path[n - 1] = '\0';
        int parent = open_parent(path, &name);
        free(path);
        if (parent >= 0) (void)sync_out(parent);
        if (parent >= 0) close(parent);
        file->folder = open_folder(folder);
    }
    if (file->folder >= 0) return MHA_OK;
    return mha_fail(MHA_ERR_WRITE, "%s: %s: %s", folder,
                    errno == ENOTDIR ? "exists and is not a folder" : "cannot create the folder",
                    strerror(errno));
}

static mha_status open_in_folder(mha_file *file, const char *folder, const char *name)
{
    struct stat present;
    MHA_TRY(make_folder(file, folder));
    file->name = copy_text(name);
    if (!file->name) return MHA_NO_MEMORY(file->path);
    if (fstatat(file->folder, name, &present, AT_SYMLINK_NOFOLLOW) != 0) return replace(file, NULL);
    if (S_ISDIR(present.st_mode)) return refuse(file, "cannot write", EISDIR);
    if (!S_ISREG(present.st_mode)) return replace(file, NULL);
    if (faccessat(file->folder, name, W_OK, 0) != 0) return refuse(file, "cannot write", errno);
    return replace(file, &present);
}

static mha_status begin(const char *folder, const char *name, mha_file **file)
{
    const size_t bytes = (folder ? strlen(folder) + 1 : 0) + strlen(name) + 1;
    mha_file *made = calloc(1, sizeof *made);
    if (made) made->path = malloc(bytes);
    if (!made || !made->path) {
        free(made);
        return mha_fail(MHA_ERR_NOMEM, "%s: out of memory", name);
    }
    snprintf(made->path, bytes, "%s%s%s", folder ? folder : "", folder ? "/" : "", name);
    made->sink = (mha_sink){file_write, made};
    made->folder = made->descriptor = -1;
    mha_status status = folder ? open_in_folder(made, folder, name) : open_target(made);
    if (status)
        release(made);
    else
        *file = made;
    return status;
}

mha_status mha_file_create(const char *path, mha_file **file)
{
    if (!file) return mha_fail(MHA_ERR_NULL, "mha_file_create: file is NULL");
    *file = NULL;
    if (!path) return mha_fail(MHA_ERR_NULL, "mha_file_create: path is NULL");
    return begin(NULL, path, file);
}

mha_status mha_file_create_in(const char *folder, const char *name, mha_file **file)
{
    if (!file) return mha_fail(MHA_ERR_NULL, "mha_file_create_in: file is NULL");
    *file = NULL;
    MHA_NEED("mha_file_create_in", folder, name);
    if (!*name || strchr(name, '/') || !strcmp(name, ".") || !strcmp(name, ".."))
        return mha_fail(MHA_ERR_ARGUMENT, "mha_file_create_in: '%.100s' is not the name of a file",
                        name);
    return begin(folder, name, file);
}

const mha_sink *mha_file_sink(mha_file *file)
{
    return &file->sink;
}

/* Sync the content before the rename. After a power failure, the file has the old or the new
 * content, and is never empty. */
static mha_status take_name(mha_file *file)
{
    int error = sync_out(file->descriptor); /* network file systems report a full disk here */
    if (error) return refuse(file, "cannot write", error);
    if (renameat(file->folder, file->temporary, file->folder, file->name) != 0)
        return refuse(file, "cannot rename the finished file to that name", errno);
    free(file->temporary);
    file->temporary = NULL;
    error = sync_out(file->folder);
    return error ? refuse(file, "written, but its folder cannot be synced", error) : MHA_OK;
}

mha_status mha_file_finish(mha_file *file, mha_status status)
{
    if (!file) return status;
    if (!status) status = file->status;
    if (!status) status = write_out(file, file->block, file->used);
    if (!status && file->temporary) status = take_name(file);
    if (file->temporary) unlinkat(file->folder, file->temporary, 0); /* the lock is still held */
    if (close(file->descriptor) != 0 && !status) status = refuse(file, "cannot write", errno);
    release(file);
    return status;
}
