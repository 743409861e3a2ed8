/* Memory that is freed together. */
#ifndef MHAI_SHOW_ROOM_H
#define MHAI_SHOW_ROOM_H

#include <multihead/show.h>

typedef struct mhai_room {
    struct mhai_piece *last; /* NULL: empty */
} mhai_room;

/* Allocate count zeroed elements of size bytes, at least one; pointer is the address of a pointer of any
 * type. Errors: MHA_ERR_NOMEM. */
MHA_NODISCARD mha_status mhai_room_alloc(mhai_room *room, int64_t count, size_t size,
                                         void *pointer);

/* The same for elements of the pointer's type. */
#define ROOM_ALLOC(room, count, pointer) mhai_room_alloc(room, count, sizeof **(pointer), pointer)

/* Copy bytes and append a NUL. */
MHA_NODISCARD mha_status mhai_room_text(mhai_room *room, const char *text, size_t bytes,
                                        char **copy);

void mhai_room_free(mhai_room *room);

/* The tokens of maps become those of the text, and rows are blocks of cell of them (show_blocks.c). */
MHA_NODISCARD mha_status mhai_show_blocks(mhai_room *room, int64_t cell, mha_maps *maps);

#endif
