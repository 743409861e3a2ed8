/* Attention maps as the program holds them: memory, names, UTF-8. */
#define _XOPEN_SOURCE 700 /* realpath */
#include "common/maps.h"

#include <multihead/base.h>
#include <multihead/render.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

cli_exit maps_alloc(const char *command, int64_t count, size_t size, void **memory)
{
    *memory = count < 0 ? NULL : calloc(count > 0 ? (size_t)count : 1, size);
    if (*memory) return CLI_OK;
    return cli_fail(CLI_NO_MEMORY, command,
                    "out of memory: %" PRId64 " elements of %zu bytes; choose fewer layers", count,
                    size);
}

char *maps_copy_text(const char *text, size_t bytes)
{
    char *copy = malloc(bytes + 1);
    if (!copy) return NULL;
    if (bytes > 0) memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    return copy;
}

cli_exit maps_add_layer(const char *command, attention_maps *maps, int64_t layer)
{
    int64_t shape[] = {maps->heads, maps->rows.count, maps->cols.count}, count;
    mha_tensor all = mha_tensor_contiguous(NULL, MHA_F32, 3, shape);
    mha_status status = mha_tensor_count(&all, &count);
    if (status != MHA_OK) return cli_fail_status(command, status);
    void *memory;
    cli_exit code = maps_alloc(command, count, sizeof(float), &memory);
    maps->layer[layer] = memory;
    return code;
}

void maps_tokens_free(maps_tokens *tokens)
{
    for (int64_t i = 0; tokens->items && i < tokens->count; i++) {
        free(tokens->items[i].text);
        free(tokens->items[i].label);
    }
    free(tokens->items);
    *tokens = (maps_tokens){0};
}

void maps_free(attention_maps *maps)
{
    for (int64_t i = 0; maps->layer && i < maps->layers; i++) free(maps->layer[i]);
    free(maps->layer);
    for (int64_t i = 0; maps->twin && i < maps->layers; i++) free(maps->twin[i]);
    free(maps->twin);
    if (maps->cols.items != maps->rows.items) maps_tokens_free(&maps->cols);
    maps_tokens_free(&maps->rows);
    maps_tokens_free(&maps->tokens);
    maps_tokens_free(&maps->other);
    for (int i = 0; i < 2; i++) free(maps->text[i]);
    free(maps->name);
    free(maps->architecture);
    *maps = (struct attention_maps){0};
}

char *maps_name_of_path(const char *path)
{
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/') begin--;
    const char *name = path + begin;
    size_t bytes = end - begin;
    /* "." and ".." say nothing: ask where they lead. */
    if ((bytes == 1 && name[0] == '.') || (bytes == 2 && !strncmp(name, "..", 2))) {
        char *resolved = realpath(path, NULL);
        char *resolved_name = resolved ? maps_name_of_path(resolved) : NULL;
        free(resolved);
        if (resolved_name) return resolved_name;
    }
    return maps_copy_text(bytes > 0 ? name : "/", bytes > 0 ? bytes : 1);
}

size_t maps_valid_utf8(const char *text, size_t bytes)
{
    const char *end = text + bytes;
    for (const char *at = text; at < end;) {
        const char *from = at;
        bool hidden;
        if (mha_text_next(&at, end, &hidden) == 0xFFFD && at - from == 1)
            return (size_t)(from - text);
    }
    return bytes;
}
