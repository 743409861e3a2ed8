/* Maps of long texts: the size of cells, and the labels of blocks of tokens. */
#include "show/room.h"

#include <multihead/component.h>

#include <math.h>
#include <string.h>

/* Pool maps beyond FULL_BYTES, to the number of 8-bit cells that a report of 10 MB holds. */
static const double FULL_BYTES = 256e6, POOLED_CELLS = 7e6;

int64_t mha_show_cell(int64_t heads, int64_t tokens)
{
    const double n = (double)tokens, maps = (double)heads;
    int64_t cell = 2;
    if (maps * n * n * sizeof(float) <= FULL_BYTES) return 1;
    while (cell < tokens && maps * ceil(n / (double)cell) * ceil(n / (double)cell) > POOLED_CELLS)
        cell++;
    return cell;
}

/* The label of a block is its first token: "the...". */
mha_status mhai_show_blocks(mhai_room *room, int64_t cell, mha_maps *maps)
{
    const mha_axis all = maps->rows;
    const int64_t blocks = (all.count + cell - 1) / cell;
    char **labels;
    MHA_TRY(ROOM_ALLOC(room, blocks, &labels));
    for (int64_t i = 0; i < blocks; i++) {
        const char *first = all.labels[i * cell];
        const size_t bytes = strlen(first) + 4;
        MHA_TRY(mhai_room_alloc(room, (int64_t)bytes, 1, &labels[i]));
        mha_format(labels[i], bytes, "%s\u2026", first);
    }
    maps->tokens = all;
    maps->rows = (mha_axis){.count = blocks, .labels = (const char *const *)labels};
    maps->cell = cell;
    return MHA_OK;
}
