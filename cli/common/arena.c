/* See arena.h. A stack of things, each with its destructor; memory is a thing that ends by free().
 * Every piece is an allocation of its own, so that sanitizers see where it ends. */
#include "common/arena.h"

#include "common/words.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct kept_thing {
    void *thing;
    void (*release)(void *thing);
} kept_thing;

static kept_thing *kept;
static size_t kept_count, kept_room;

static bool remember(void *thing, void (*release)(void *thing))
{
    if (kept_count == kept_room) {
        const size_t room = kept_room ? 2 * kept_room : 64;
        kept_thing *grown = realloc(kept, room * sizeof *grown);
        if (!grown) return false;
        kept = grown;
        kept_room = room;
    }
    kept[kept_count++] = (kept_thing){thing, release};
    return true;
}

/* Most likely one of the last. NULL: none of this arena. */
static kept_thing *find(const void *thing)
{
    for (size_t i = kept_count; i > 0; i--)
        if (kept[i - 1].thing == thing) return &kept[i - 1];
    return NULL;
}

/* At least one element; false if there are more bytes than any object has. */
static bool count_bytes(int64_t count, size_t size, size_t *bytes)
{
    return count >= 0 && !__builtin_mul_overflow((size_t)(count > 0 ? count : 1), size, bytes) &&
           *bytes <= PTRDIFF_MAX;
}

void *arena_try(int64_t count, size_t size)
{
    size_t bytes;
    void *memory = count_bytes(count, size, &bytes) ? calloc(1, bytes) : NULL;
    if (!memory || remember(memory, free)) return memory;
    free(memory);
    return NULL;
}

static cli_exit out_of_memory(const char *command, int64_t count, size_t size)
{
    return cli_fail(CLI_NO_MEMORY, command,
                    "out of memory: %" PRId64 " elements of %zu bytes, %s together; make the input "
                    "smaller, or free memory for the program",
                    count, size, words_bytes((double)count * (double)size).text);
}

cli_exit arena_alloc(const char *command, int64_t count, size_t size, void *pointer)
{
    void *memory = arena_try(count, size);
    memcpy(pointer, &memory, sizeof memory); /* pointers of all types look alike */
    return memory ? CLI_OK : out_of_memory(command, count, size);
}

cli_exit arena_grow(const char *command, int64_t count, size_t size, void *pointer)
{
    void *memory;
    size_t bytes;
    memcpy(&memory, pointer, sizeof memory);
    kept_thing *entry = memory ? find(memory) : NULL;
    if (!entry) return arena_alloc(command, count, size, pointer);
    memory = count_bytes(count, size, &bytes) ? realloc(memory, bytes) : NULL;
    if (!memory) return out_of_memory(command, count, size);
    entry->thing = memory;
    memcpy(pointer, &memory, sizeof memory);
    return CLI_OK;
}

cli_exit arena_text(const char *command, const char *text, size_t bytes, char **copy)
{
    CLI_TRY(arena_alloc(command, (int64_t)bytes + 1, 1, copy));
    if (bytes > 0) memcpy(*copy, text, bytes);
    return CLI_OK;
}

cli_exit arena_keep(const char *command, void *thing, void (*release)(void *thing))
{
    if (!thing || remember(thing, release)) return CLI_OK;
    release(thing);
    return cli_fail(CLI_NO_MEMORY, command,
                    "out of memory; close other programs, or make the input smaller");
}

void arena_drop(const void *thing)
{
    kept_thing *entry = thing ? find(thing) : NULL;
    if (!entry) return;
    const kept_thing gone = *entry;
    kept_count--;
    memmove(entry, entry + 1, (size_t)(kept + kept_count - entry) * sizeof *entry);
    gone.release(gone.thing);
}

size_t arena_mark(void)
{
    return kept_count;
}

void arena_release(size_t mark)
{
    while (kept_count > mark) {
        const kept_thing last = kept[--kept_count];
        last.release(last.thing);
    }
}

void arena_close(void)
{
    arena_release(0);
    free(kept);
    kept = NULL;
    kept_room = 0;
}
