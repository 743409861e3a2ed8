/* Attention maps as the program holds them: memory, names, UTF-8. */
#define _XOPEN_SOURCE 700 /* realpath */
#include "common/maps.h"

#include "common/arena.h"

#include <multihead/base.h>

#include <stdlib.h>
#include <string.h>

ARENA_RELEASE(forget, mha_maps_free)

cli_exit maps_new(mha_maps **maps)
{
    CLI_TRY(ARENA_ALLOC(1, maps));
    (*maps)->struct_size = sizeof **maps;
    return arena_keep(*maps, forget);
}

cli_exit maps_make_tokens(int64_t count, mha_tokens *tokens)
{
    mha_tokens *t = tokens;
    *t = (mha_tokens){.struct_size = sizeof *t, .count = count};
    CLI_TRY(ARENA_ALLOC(count, &t->ids));
    CLI_TRY(ARENA_ALLOC(count, &t->types));
    CLI_TRY(ARENA_ALLOC(count, &t->begin));
    CLI_TRY(ARENA_ALLOC(count, &t->end));
    CLI_TRY(ARENA_ALLOC(count, &t->sequence));
    CLI_TRY(ARENA_ALLOC(count, &t->special));
    CLI_TRY(ARENA_ALLOC(count, &t->separators));
    CLI_TRY(ARENA_ALLOC(count, &t->sentences));
    CLI_TRY(ARENA_ALLOC(count, &t->labels));
    for (int64_t i = 0; i < count; i++) {
        t->ids[i] = t->types[i] = t->sequence[i] = -1;
        t->begin[i] = t->end[i] = -1;
    }
    return CLI_OK;
}

cli_exit maps_add_layer(mha_maps *maps, int64_t layer)
{
    int64_t shape[] = {maps->heads, maps->rows.count, maps->cols.count}, count;
    mha_tensor all = mha_tensor_contiguous(NULL, MHA_F32, 3, shape);
    CLI_TRY(cli_check(mha_tensor_count(&all, &count)));
    return ARENA_ALLOC(count, &maps->layer[layer]);
}

cli_exit maps_name_of_path(const char *path, char **out)
{
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/') begin--;
    const char *name = path + begin;
    size_t bytes = end - begin;
    /* "." and ".." take the name of the folder that they resolve to. */
    if ((bytes == 1 && name[0] == '.') || (bytes == 2 && !strncmp(name, "..", 2))) {
        char *resolved = realpath(path, NULL);
        CLI_TRY(arena_keep(resolved, free));
        if (resolved) return maps_name_of_path(resolved, out);
    }
    return arena_text(bytes > 0 ? name : "/", bytes > 0 ? bytes : 1, out);
}

int64_t maps_count(const mha_maps *maps)
{
    int64_t count = 0;
    for (int64_t l = 0; l < maps->layers; l++) count += mha_maps_count(maps, l);
    return count;
}

bool maps_rectangular(const mha_maps *maps)
{
    const uint8_t *first = NULL;
    for (int64_t l = 0; maps->on && l < maps->layers; l++) {
        if (mha_maps_count(maps, l) == 0) continue;
        const uint8_t *row = maps->on + l * maps->heads;
        if (first && memcmp(first, row, (size_t)maps->heads) != 0) return false;
        first = row;
    }
    return true;
}
