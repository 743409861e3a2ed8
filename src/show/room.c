/* See room.h. */
#include "show/room.h"

#include <multihead/component.h>

#include <stdlib.h>
#include <string.h>

typedef struct mhai_piece {
    struct mhai_piece *before;
    max_align_t memory[];
} mhai_piece;

mha_status mhai_room_alloc(mhai_room *room, int64_t count, size_t size, void *pointer)
{
    size_t bytes;
    mhai_piece *piece = NULL;
    if (count >= 0 && !__builtin_mul_overflow((size_t)(count > 0 ? count : 1), size, &bytes) &&
        bytes <= PTRDIFF_MAX - sizeof *piece)
        piece = calloc(1, sizeof *piece + bytes);
    if (!piece)
        return mha_fail(
            MHA_ERR_NOMEM,
            "out of memory: %lld elements of %zu bytes; make the input smaller, or free "
            "memory for the program",
            (long long)count, size);
    piece->before = room->last;
    room->last = piece;
    void *memory = piece->memory;
    memcpy(pointer, &memory, sizeof memory); /* pointers of all types have one representation */
    return MHA_OK;
}

mha_status mhai_room_text(mhai_room *room, const char *text, size_t bytes, char **copy)
{
    MHA_TRY(mhai_room_alloc(room, (int64_t)bytes + 1, 1, copy));
    if (bytes > 0) memcpy(*copy, text, bytes);
    return MHA_OK;
}

void mhai_room_free(mhai_room *room)
{
    for (mhai_piece *piece = room->last; piece;) {
        mhai_piece *before = piece->before;
        free(piece);
        piece = before;
    }
    room->last = NULL;
}
