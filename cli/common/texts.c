/* See texts.h. */
#include "common/texts.h"

#include "common/arena.h"
#include "common/args.h"
#include "common/launched.h"

#include <multihead/io.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* ---- files --------------------------------------------------------------------------------- */

static cli_exit cannot_read(const char *path, int error)
{
    return cli_fail(error == ENOMEM ? CLI_NO_MEMORY : CLI_NO_INPUT, "%s: cannot read: %s", path,
                    error == ENOENT ? "no such file" : strerror(error));
}

/* Read the stream to its end, up to a limit far above any model's text. */
static cli_exit read_stream(FILE *file, const char *path, char **bytes, size_t *size)
{
    const size_t limit = (size_t)64 << 20;
    size_t capacity = 0;
    for (;;) {
        if (*size + 1 >= capacity) {
            capacity = capacity ? 2 * capacity : 4096;
            if (capacity > limit)
                return cli_fail(CLI_BAD_INPUT, "%s: longer than %zu bytes", path, limit);
            CLI_TRY(arena_grow((int64_t)capacity, 1, bytes));
        }
        errno = 0;
        size_t got = fread(*bytes + *size, 1, capacity - *size - 1, file);
        *size += got;
        if (ferror(file)) return cannot_read(path, errno);
        if (got == 0) break;
    }
    (*bytes)[*size] = '\0';
    return CLI_OK;
}

/* A launcher passes stdin to rank 0 only, which broadcasts it. */
static cli_exit read_stdin(char **bytes, size_t *size)
{
    if (ranks_first()) CLI_TRY(read_stream(stdin, "stdin", bytes, size));
    CLI_TRY(ranks_share(size, sizeof *size));
    if (!ranks_first()) CLI_TRY(ARENA_ALLOC((int64_t)*size + 1, bytes));
    return ranks_share(*bytes, *size);
}

static cli_exit read_file(const char *path, char **bytes, size_t *size)
{
    FILE *file = fopen(path, "rb");
    if (!file) return cannot_read(path, errno);
    const cli_exit code = read_stream(file, path, bytes, size);
    fclose(file);
    return code;
}

void texts_unmark(char *bytes, size_t *size)
{
    if (*size < 3 || memcmp(bytes, "\xEF\xBB\xBF", 3) != 0) return;
    *size -= 3;
    memmove(bytes, bytes + 3, *size);
    bytes[*size] = '\0';
}

cli_exit texts_read_file(const char *path, char **bytes, size_t *size)
{
    *bytes = NULL;
    *size = 0;
    if (!strcmp(path, "-")) {
        CLI_TRY(read_stdin(bytes, size));
    } else {
        const cli_exit code = read_file(path, bytes, size);
        CLI_TRY(ranks_same("text", *bytes, *size, code));
    }
    texts_unmark(*bytes, size);
    return CLI_OK;
}

ARENA_RELEASE(free_bytes, mha_file_free)

cli_exit texts_read_regular(const char *path, size_t limit, char **bytes, size_t *size)
{
    CLI_TRY(cli_check(mha_file_read(path, limit, bytes, size)));
    return arena_keep(*bytes, free_bytes);
}

cli_exit texts_read_utf8(const char *path, const char **text, size_t *size)
{
    char *bytes;
    CLI_TRY(texts_read_file(path, &bytes, size));
    const size_t valid = mha_utf8_span(bytes, *size, NULL);
    if (valid < *size)
        return cli_fail(CLI_BAD_INPUT, "%s: byte %zu is not valid UTF-8; save it as UTF-8",
                        strcmp(path, "-") != 0 ? path : "stdin", valid);
    *text = bytes;
    return CLI_OK;
}

ARENA_RELEASE(free_json, json_decref)

/* If jansson runs out of memory, it drops a value and continues, or reports malformed text. */
cli_exit texts_json(const char *path, const char *text, size_t size, size_t flags, json_t **root,
                    json_error_t *error)
{
    errno = 0;
    *root = json_loadb(text, size, flags, error);
    if (errno == ENOMEM) {
        json_decref(*root);
        return cli_fail(CLI_NO_MEMORY, "out of memory: %s", path);
    }
    return arena_keep(*root, free_json);
}

/* ---- examples ------------------------------------------------------------------------------ */

static const struct {
    const char *name, *text;
} examples[] = {
    {"animal", "The animal didn't cross the street because it was too tired."},
    {"bank", "The bank by the river was flooded."},
    {"cat", "The cat sat on the mat"},
    {"river", "The river banks overflowed."},
    {"pilot", "The pilot flew the plane to Paris."},
};

enum { EXAMPLE_COUNT = sizeof examples / sizeof *examples };

const char *texts_example_at(int index)
{
    return index < EXAMPLE_COUNT ? examples[index].text : NULL;
}

cli_exit texts_example(const char *name, const char **text)
{
    const char *names[EXAMPLE_COUNT];
    for (int i = 0; i < EXAMPLE_COUNT; i++) {
        char number[] = {(char)('1' + i), '\0'};
        names[i] = examples[i].name;
        if (strcmp(name, names[i]) != 0 && strcmp(name, number) != 0) continue;
        *text = examples[i].text;
        return CLI_OK;
    }
    const char *near = mha_nearest_name(name, names, EXAMPLE_COUNT);
    return cli_fail(CLI_USAGE,
                    "--example %s: expected animal, bank, cat, river, pilot or 1 to 5%s%s%s", name,
                    near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}
