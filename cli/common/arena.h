/* Memory, and objects with a destructor, that live until the subcommand ends. main() releases
 * everything in reverse order. A loop that would accumulate memory sets a mark and releases
 * everything allocated after it.
 *
 * One arena per process, used by its main thread only.
 */
#ifndef CLI_ARENA_H
#define CLI_ARENA_H

#include "common/exits.h"

#include <stddef.h>
#include <stdint.h>

/* Zeroed memory for count elements of size bytes. pointer is the address of a pointer of any
 * type, NULL after a failure. Errors are printed. */
cli_exit arena_alloc(int64_t count, size_t size, void *pointer);

/* The same for elements of the type that *pointer points to. */
#define ARENA_ALLOC(count, pointer) arena_alloc(count, sizeof **(pointer), pointer)

/* The same memory without a message; returns NULL on failure. */
void *arena_try(int64_t count, size_t size);

/* Grow *pointer, which is NULL or memory of this arena; the added memory is not zeroed. Errors are
 * printed, and *pointer stays valid. */
cli_exit arena_grow(int64_t count, size_t size, void *pointer);

/* A NUL-terminated copy of bytes. Errors are printed. */
cli_exit arena_text(const char *text, size_t bytes, char **copy);

/* The text that printf() would print. Errors are printed. */
cli_exit arena_print(const char **text, const char *format, ...) MHA_PRINTF(2, 3);

/* Register release(thing) to be called at the end. If the arena has no memory for the entry,
 * release(thing) is called at once. thing NULL: no-op. Errors are printed. */
cli_exit arena_keep(void *thing, void (*release)(void *thing));

/* The same for a function that takes a typed pointer. */
#define ARENA_RELEASE(name, destroy) \
    static void name(void *thing)    \
    {                                \
        destroy(thing);              \
    }

/* Release one object, or free one allocation, early. NULL: no-op. */
void arena_drop(const void *thing);

/* Release everything allocated after the mark. */
size_t arena_mark(void);
void arena_release(size_t mark);

/* Release everything. */
void arena_close(void);

#endif
