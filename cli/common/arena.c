/* See arena.h: wraps an mha_room (component.h), and reports errors like the rest of the program. */
#include "common/arena.h"

#include "common/words.h"

#include <multihead/component.h>

#include <inttypes.h>

static mha_room room;

static cli_exit out_of_memory(int64_t count, size_t size)
{
    return cli_fail(CLI_NO_MEMORY,
                    "out of memory: %" PRId64
                    " elements of %zu bytes, %s in total; make the input smaller, or free memory",
                    count, size, words_bytes((double)count * (double)size).text);
}

void *arena_try(int64_t count, size_t size)
{
    void *memory;
    return mha_room_alloc(&room, count, size, &memory) == MHA_OK ? memory : NULL;
}

cli_exit arena_alloc(int64_t count, size_t size, void *pointer)
{
    const mha_status status = mha_room_alloc(&room, count, size, pointer);
    return status == MHA_OK ? CLI_OK : out_of_memory(count, size);
}

cli_exit arena_grow(int64_t count, size_t size, void *pointer)
{
    const mha_status status = mha_room_grow(&room, count, size, pointer);
    return status == MHA_OK ? CLI_OK : out_of_memory(count, size);
}

cli_exit arena_text(const char *text, size_t bytes, char **copy)
{
    const mha_status status = mha_room_text(&room, text, bytes, copy);
    return status == MHA_OK ? CLI_OK : out_of_memory((int64_t)bytes + 1, 1);
}

cli_exit arena_print(const char **text, const char *format, ...)
{
    va_list arguments;
    char *made;
    va_start(arguments, format);
    const int bytes = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    CLI_TRY(arena_alloc((int64_t)bytes + 1, 1, &made));
    va_start(arguments, format);
    vsnprintf(made, (size_t)bytes + 1, format, arguments);
    va_end(arguments);
    *text = made;
    return CLI_OK;
}

cli_exit arena_keep(void *thing, void (*release)(void *thing))
{
    if (mha_room_keep(&room, thing, release) == MHA_OK) return CLI_OK;
    return cli_fail(CLI_NO_MEMORY,
                    "out of memory; close other programs, or make the input smaller");
}

void arena_drop(const void *thing)
{
    mha_room_drop(&room, thing);
}

size_t arena_mark(void)
{
    return room.count;
}

void arena_release(size_t mark)
{
    mha_room_release(&room, mark);
}

void arena_close(void)
{
    mha_room_release(&room, 0);
}
