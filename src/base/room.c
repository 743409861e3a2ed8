/* See mha_room in component.h. Each piece is a separate allocation, so that
 * sanitizers detect overruns. */
#include <multihead/component.h>

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef struct mha_room_piece {
    struct mha_room_piece *before;
    void *thing;                  /* NULL: the piece is `memory` */
    void (*release)(void *thing); /* NULL: free() the piece, nothing else */
    max_align_t memory[];
} piece;

/* The size of count elements, at least one. Returns false if it exceeds the largest object size. */
static bool count_bytes(int64_t count, size_t size, size_t *bytes)
{
    return count >= 0 && !__builtin_mul_overflow((size_t)(count > 0 ? count : 1), size, bytes) &&
           *bytes <= PTRDIFF_MAX - sizeof(piece);
}

static mha_status out_of_memory(int64_t count, size_t size)
{
    return mha_fail(MHA_ERR_NOMEM,
                    "out of memory: %lld elements of %zu bytes; make the input smaller, or free "
                    "memory for the program",
                    (long long)count, size);
}

static void push(mha_room *room, piece *p)
{
    p->before = room->last;
    room->last = p;
    room->count++;
}

/* Pointers of all types have the same representation. */
mha_status mha_room_alloc(mha_room *room, int64_t count, size_t size, void *pointer)
{
    size_t bytes;
    piece *p = count_bytes(count, size, &bytes) ? calloc(1, sizeof *p + bytes) : NULL;
    void *memory = p ? p->memory : NULL;
    memcpy(pointer, &memory, sizeof memory);
    if (!p) return out_of_memory(count, size);
    push(room, p);
    return MHA_OK;
}

mha_status mha_room_text(mha_room *room, const char *text, size_t bytes, char **copy)
{
    MHA_TRY(mha_room_alloc(room, (int64_t)bytes + 1, 1, copy));
    if (bytes > 0) memcpy(*copy, text, bytes);
    return MHA_OK;
}

mha_status mha_room_keep(mha_room *room, void *thing, void (*release)(void *thing))
{
    if (!thing) return MHA_OK;
    piece *p = malloc(sizeof *p);
    if (!p) {
        release(thing);
        return out_of_memory(1, sizeof *p);
    }
    *p = (piece){.thing = thing, .release = release};
    push(room, p);
    return MHA_OK;
}

/* The link to the piece that holds this thing, starting the search at the newest; NULL: not in the
 * room. */
static piece **find(mha_room *room, const void *thing)
{
    for (piece **at = &room->last; *at; at = &(*at)->before)
        if ((*at)->thing ? (*at)->thing == thing : (*at)->memory == thing) return at;
    return NULL;
}

mha_status mha_room_grow(mha_room *room, int64_t count, size_t size, void *pointer)
{
    void *memory;
    size_t bytes;
    memcpy(&memory, pointer, sizeof memory);
    if (!memory) return mha_room_alloc(room, count, size, pointer);
    piece **at = find(room, memory);
    piece *p = at && count_bytes(count, size, &bytes) ? realloc(*at, sizeof *p + bytes) : NULL;
    if (!p) return out_of_memory(count, size);
    *at = p;
    memory = p->memory;
    memcpy(pointer, &memory, sizeof memory);
    return MHA_OK;
}

static void end(mha_room *room, piece **at)
{
    piece *gone = *at;
    *at = gone->before;
    room->count--;
    if (gone->release) gone->release(gone->thing);
    free(gone);
}

void mha_room_drop(mha_room *room, const void *thing)
{
    piece **at = thing ? find(room, thing) : NULL;
    if (at) end(room, at);
}

void mha_room_release(mha_room *room, size_t mark)
{
    while (room->count > mark) end(room, &room->last);
}
