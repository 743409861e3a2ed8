/* Intercepts a program's calls of the C library (LD_PRELOAD): signals it at a chosen file operation or clock reading,
 * logs file operations, or replaces the clock.
 *
 * - WATCH_FILE=n, WATCH_LOOK=n: a signal before file operation n, or before clock reading n, counted from 1; SIGKILL in
 * the middle of a write
 * - WATCH_SIGNAL=number: which signal; default SIGKILL
 * - WATCH_CLOCK=file: the monotonic clock shows the seconds in this file, a 64-bit integer
 * - WATCH_PACE=n: reading number i of the monotonic clock shows i * n milliseconds
 * - WATCH_SHARED=1: the file system claims to be NFS
 * - WATCH_LEFT=n: check n of whether a socket's peer is still connected answers no
 * - WATCH_LOG=file: one line per successful operation, with tabs between fields:
 *   - make PATH
 *   - create INODE PATH
 *   - write INODE OFFSET COUNT, and the bytes
 *   - sync INODE PATH
 *   - rename PATH PATH
 *   - remove PATH
 *
 * Only new files and operations on their names are logged. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

enum { MOST_DESCRIPTORS = 1024 };

static char created[MOST_DESCRIPTORS]; /* created by the program and written to */

static long number_of(const char *name)
{
    const char *text = getenv(name);
    return text ? atol(text) : 0;
}

static long operations, looks, questions; /* so far */

/* Counts one more event of this variable. Returns the signal that is due now, or 0. */
static int signal_now(const char *name, long *count)
{
    const int number = (int)number_of("WATCH_SIGNAL");
    if (__atomic_add_fetch(count, 1, __ATOMIC_RELAXED) != number_of(name)) return 0;
    return number ? number : SIGKILL;
}

static void begin(void)
{
    const int number = signal_now("WATCH_FILE", &operations);
    if (number) kill(getpid(), number);
}

static void log_bytes(const void *bytes, size_t count)
{
    static int descriptor = -1;
    const char *path = getenv("WATCH_LOG");
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

/* The absolute path of a name within an open folder. */
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
    if (number_of("WATCH_SHARED")) kind->f_type = 0x6969;
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
    const int number = ours ? signal_now("WATCH_FILE", &operations) : 0;
    if (number == SIGKILL) syscall(SYS_write, descriptor, bytes, count / 2);
    if (number) kill(getpid(), number);
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

int poll(struct pollfd *files, nfds_t count, int wait)
{
    const struct timespec time = {.tv_sec = wait / 1000, .tv_nsec = wait % 1000 * 1000000L};
    const bool asked = count == 1 && files->events == POLLRDHUP;
    if (asked && ++questions == number_of("WATCH_LEFT")) return 1;
    return (int)syscall(SYS_ppoll, files, count, wait < 0 ? NULL : &time, NULL, 0);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    const char *path = clock == CLOCK_MONOTONIC ? getenv("WATCH_CLOCK") : NULL;
    const int number = signal_now("WATCH_LOOK", &looks);
    if (number) kill(getpid(), number);
    const int result = (int)syscall(SYS_clock_gettime, clock, now);
    const long pace = clock == CLOCK_MONOTONIC ? number_of("WATCH_PACE") : 0;
    if (pace) {
        const long shown = pace * __atomic_load_n(&looks, __ATOMIC_RELAXED);
        *now = (struct timespec){.tv_sec = shown / 1000, .tv_nsec = shown % 1000 * 1000000L};
    }
    if (!path) return result;
    const int file = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    long long seconds = 0;
    if (file < 0 || syscall(SYS_read, file, &seconds, sizeof seconds) != sizeof seconds) abort();
    syscall(SYS_close, file);
    *now = (struct timespec){.tv_sec = (time_t)seconds};
    return 0;
}
