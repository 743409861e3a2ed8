/* Intercepts allocations (LD_PRELOAD): counts them, makes some fail, or raises a signal at one. The
 * number of allocations is a clock that is the same on every machine.
 *
 * - MEMORY_FAIL=n: allocation n fails, counted from 1; MEMORY_FAIL=-n: allocation n and all later ones
 * - MEMORY_SIGNAL=n, WATCH_SIGNAL=number: raise a signal at allocation n
 * - MEMORY_COUNT=file: write the number of allocations to the file at exit
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *memory, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

static long count, fail, signal_at; /* fail and signal_at are 0 before the program begins */
static int number;

static long number_of(const char *name)
{
    const char *text = getenv(name);
    return text ? atol(text) : 0;
}

__attribute__((constructor)) static void begin(void)
{
    fail = number_of("MEMORY_FAIL");
    number = (int)number_of("WATCH_SIGNAL");
    signal_at = number_of("MEMORY_SIGNAL");
    count = 0;
}

__attribute__((destructor)) static void end(void)
{
    const char *path = getenv("MEMORY_COUNT");
    const int file = path ? open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600) : -1;
    if (file < 0) return;
    dprintf(file, "%ld\n", count);
    close(file);
}

/* Whether the next allocation must fail. */
static int fails(void)
{
    const long n = __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED);
    if (n == signal_at) kill(getpid(), number);
    if (n != fail && (fail >= 0 || n < -fail)) return 0;
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t size)
{
    return fails() ? NULL : __libc_malloc(size);
}

void *calloc(size_t items, size_t size)
{
    return fails() ? NULL : __libc_calloc(items, size);
}

void *realloc(void *memory, size_t size)
{
    return fails() ? NULL : __libc_realloc(memory, size);
}

void *memalign(size_t alignment, size_t size)
{
    return fails() ? NULL : __libc_memalign(alignment, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    return memalign(alignment, size);
}

int posix_memalign(void **memory, size_t alignment, size_t size)
{
    void *made = memalign(alignment, size);
    if (made) *memory = made;
    return made ? 0 : ENOMEM;
}
