/* Stands between a program and its files (LD_PRELOAD): makes them slow, kills the program at one of
 * their operations, or writes down what was done to them. Built by disk.py.
 *
 * - DISK_DELAY=us: each operation waits first
 * - DISK_KILL=n: SIGKILL before operation n, counted from 1; in the middle of it if it writes
 * - DISK_SHARED=1: the file system says that it is NFS
 * - DISK_LOG=file: a line for each operation that succeeded, its fields separated by tabs:
 *   - make PATH
 *   - create INODE PATH
 *   - write INODE OFFSET COUNT, and the bytes
 *   - sync INODE PATH
 *   - rename PATH PATH
 *   - remove PATH
 *
 * Only new files, and what is done to their names, are of interest here. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { MOST_DESCRIPTORS = 1024 };

static char created[MOST_DESCRIPTORS]; /* by us, and written since */

static long number_of(const char *name)
{
    const char *text = getenv(name);
    return text ? atol(text) : 0;
}

/* Whether this operation is the last one. */
static int dies(void)
{
    static long count;
    const long delay = number_of("DISK_DELAY");
    if (delay > 0) usleep((useconds_t)delay);
    return ++count == number_of("DISK_KILL");
}

static void begin(void)
{
    if (dies()) kill(getpid(), SIGKILL);
}

static void log_bytes(const void *bytes, size_t count)
{
    static int descriptor = -1;
    const char *path = getenv("DISK_LOG");
    if (!path) return;
    if (descriptor < 0)
        descriptor = (int)syscall(SYS_openat, AT_FDCWD, path,
                                  O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    for (const char *at = bytes; count > 0;) {
        const long done = syscall(SYS_write, descriptor, at, count);
        if (done <= 0) abort();
        at += done;
        count -= (size_t)done;
    }
}

static void log_line(const char *format, ...)
{
    char line[3 * PATH_MAX];
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    log_bytes(line, (size_t)length);
}

/* A name within an open folder, from the root. */
static const char *whole(char path[2 * PATH_MAX], int folder, const char *name)
{
    char link[64];
    ssize_t length = 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    if (*name != '/' && folder != AT_FDCWD) length = readlink(link, path, PATH_MAX);
    if (*name != '/' && folder == AT_FDCWD && getcwd(path, PATH_MAX))
        length = (ssize_t)strlen(path);
    snprintf(path + length, PATH_MAX, "%s%s", length && *name ? "/" : "", name);
    return path;
}

static unsigned long long inode(int descriptor)
{
    struct stat status;
    return fstat(descriptor, &status) == 0 ? status.st_ino : 0;
}

int fstatfs(int descriptor, struct statfs *kind)
{
    const int result = (int)syscall(SYS_fstatfs, descriptor, kind);
    if (number_of("DISK_SHARED")) kind->f_type = 0x6969;
    return result;
}

int mkdir(const char *name, mode_t mode)
{
    char path[2 * PATH_MAX];
    begin();
    const int result = (int)syscall(SYS_mkdirat, AT_FDCWD, name, mode);
    if (result == 0) log_line("make\t%s\n", whole(path, AT_FDCWD, name));
    return result;
}

int openat(int folder, const char *name, int flags, ...)
{
    char path[2 * PATH_MAX];
    va_list arguments;
    va_start(arguments, flags);
    const unsigned mode = flags & O_CREAT ? va_arg(arguments, unsigned) : 0;
    va_end(arguments);
    if (flags & O_CREAT) begin();
    const int result = (int)syscall(SYS_openat, folder, name, flags, mode);
    if (result >= 0 && result < MOST_DESCRIPTORS) created[result] = (flags & O_CREAT) != 0;
    if (result >= 0 && flags & O_CREAT)
        log_line("create\t%llu\t%s\n", inode(result), whole(path, folder, name));
    return result;
}

ssize_t write(int descriptor, const void *bytes, size_t count)
{
    const int ours = descriptor >= 0 && descriptor < MOST_DESCRIPTORS && created[descriptor];
    if (ours && dies()) {
        syscall(SYS_write, descriptor, bytes, count / 2);
        kill(getpid(), SIGKILL);
    }
    const long at = ours ? lseek(descriptor, 0, SEEK_CUR) : 0;
    const ssize_t result = syscall(SYS_write, descriptor, bytes, count);
    if (!ours || result <= 0) return result;
    log_line("write\t%llu\t%ld\t%zd\n", inode(descriptor), at, result);
    log_bytes(bytes, (size_t)result);
    return result;
}

int fsync(int descriptor)
{
    char path[2 * PATH_MAX];
    begin();
    const int result = (int)syscall(SYS_fsync, descriptor);
    if (result == 0) log_line("sync\t%llu\t%s\n", inode(descriptor), whole(path, descriptor, ""));
    return result;
}

int renameat(int from, const char *old, int to, const char *new)
{
    char first[2 * PATH_MAX], second[2 * PATH_MAX];
    begin();
    const int result = (int)syscall(SYS_renameat2, from, old, to, new, 0);
    if (result == 0) log_line("rename\t%s\t%s\n", whole(first, from, old), whole(second, to, new));
    return result;
}

int unlinkat(int folder, const char *name, int flags)
{
    char path[2 * PATH_MAX];
    begin();
    const int result = (int)syscall(SYS_unlinkat, folder, name, flags);
    if (result == 0) log_line("remove\t%s\n", whole(path, folder, name));
    return result;
}
