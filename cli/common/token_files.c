/* See token_files.h. */
#include "common/token_files.h"

#include "common/arena.h"
#include "common/texts.h"

#include <multihead/render.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- Tokens ---------------------------------------------------------------------------------- */

/* Names of tokens that models add and that are not text. */
static bool looks_special(const char *text)
{
    static const char *const names[] = {"[CLS]", "[SEP]", "[PAD]",         "[MASK]",
                                        "[UNK]", "<s>",   "</s>",          "<pad>",
                                        "<bos>", "<eos>", "<|endoftext|>", "<|begin_of_text|>"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(text, names[i])) return true;
    return false;
}

typedef struct token_list {
    char **items;
    int64_t count;
} token_list;

static cli_exit append(token_list *list, const char *text, size_t bytes)
{
    const int64_t count = list->count;
    /* Capacity doubles whenever the count is a power of two. */
    if ((count & (count - 1)) == 0)
        CLI_TRY(arena_grow(count > 0 ? 2 * count : 1, sizeof *list->items, &list->items));
    char **copy = &list->items[list->count++];
    CLI_TRY(arena_text(text, bytes, copy));
    /* In place, because the text is never longer: "the" for a piece with a leading space. */
    mha_text_piece(*copy, *copy, bytes + 1);
    return CLI_OK;
}

static cli_exit take_lines(const char *text, size_t size, token_list *list)
{
    size_t at = 0;
    while (at < size) {
        const char *end = memchr(text + at, '\n', size - at);
        size_t length = end ? (size_t)(end - text) - at : size - at;
        size_t shown = length > 0 && text[at + length - 1] == '\r' ? length - 1 : length;
        CLI_TRY(append(list, text + at, shown));
        at += length + 1;
    }
    return CLI_OK;
}

/* ---- A JSON list of texts, and no other JSON -------------------------------------------------- */

static cli_exit malformed_list(const char *path, const char *unit, size_t at)
{
    return cli_fail(CLI_BAD_INPUT,
                    "%s: %s %zu: expected a JSON list of strings, such as [\"the\", \"cat\"]", path,
                    unit, at);
}

/* jansson rejects a text with U+0000, where labels would end, and lone surrogates. */
static cli_exit take_json(const char *path, const char *text, size_t size, token_list *read)
{
    json_error_t error;
    size_t index;
    json_t *item, *list;
    CLI_TRY(texts_json(path, text, size, 0, &list, &error));
    if (!list) return malformed_list(path, "byte", (size_t)error.position);
    if (!json_is_array(list)) return malformed_list(path, "byte", 0);
    json_array_foreach(list, index, item)
    {
        if (!json_is_string(item)) return malformed_list(path, "item", index + 1);
        CLI_TRY(append(read, json_string_value(item), json_string_length(item)));
    }
    return CLI_OK;
}

cli_exit token_files_read(const char *path, mha_tokens *tokens)
{
    const char *text;
    size_t size, length = strlen(path);
    token_list list = {0};
    CLI_TRY(texts_read_utf8(path, &text, &size));
    if (memchr(text, '\0', size)) return cli_fail(CLI_BAD_INPUT, "%s: holds a zero byte", path);
    CLI_TRY(length > 5 && !strcmp(path + length - 5, ".json") ? take_json(path, text, size, &list)
                                                              : take_lines(text, size, &list));
    CLI_TRY(maps_make_tokens(list.count, tokens));
    for (int64_t i = 0; i < list.count; i++) {
        tokens->labels[i] = list.items[i];
        tokens->special[i] = looks_special(list.items[i]);
    }
    return CLI_OK;
}
