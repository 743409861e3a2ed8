/* Where the texts of 'multihead heads' come from: lines of a file, one whole file, CoNLL-U, the
 * command line, the built-in sentences. */
#include "common/texts.h"
#include "heads/heads.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static cli_exit add(heads_sources *sources, heads_source source)
{
    if (sources->count == sources->room) {
        const int64_t room = sources->room ? 2 * sources->room : 64;
        heads_source *grown = realloc(sources->items, (size_t)room * sizeof *grown);
        if (!grown) return cli_fail(CLI_NO_MEMORY, HEADS, "out of memory: a list of texts");
        sources->items = grown;
        sources->room = room;
    }
    sources->items[sources->count++] = source;
    return CLI_OK;
}

static bool is_blank(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (!strchr(" \t\r\n\f\v", text[i]) || text[i] == '\0') return false;
    return true;
}

/* Each line that is not blank. */
static cli_exit add_lines(heads_sources *sources, const char *path, const char *text, size_t size)
{
    int64_t line = 1;
    cli_exit code = CLI_OK;
    for (size_t at = 0; at < size && code == CLI_OK; line++) {
        const char *end = memchr(text + at, '\n', size - at);
        size_t bytes = end ? (size_t)(end - text) - at : size - at;
        const size_t next = at + bytes + 1;
        if (bytes > 0 && text[at + bytes - 1] == '\r') bytes--;
        if (!is_blank(text + at, bytes))
            code =
                add(sources,
                    (heads_source){.text = text + at, .bytes = bytes, .file = path, .line = line});
        at = next;
    }
    return code;
}

static cli_exit add_file(const heads_options *options, heads_sources *sources)
{
    const char *path = options->text_file;
    size_t size = 0;
    if (!strcmp(path, "-") && isatty(STDIN_FILENO))
        return cli_fail(CLI_USAGE, HEADS,
                        "the text is to come from stdin, which is a terminal; pipe it in, or name "
                        "a file");
    cli_exit code = texts_read_file(HEADS, path, &sources->file, &size);
    if (code != CLI_OK) return code;
    const size_t start = size >= 3 && !memcmp(sources->file, "\xEF\xBB\xBF", 3) ? 3 : 0;
    const char *text = sources->file + start;
    if (is_blank(text, size - start))
        return cli_fail(CLI_BAD_INPUT, HEADS, "%s: holds no text", path);
    if (!options->whole) return add_lines(sources, path, text, size - start);
    return add(sources, (heads_source){.text = text, .bytes = size - start, .file = path});
}

static cli_exit add_gold(const heads_options *options, const text_model *model,
                         heads_sources *sources)
{
    cli_exit code = conllu_read(HEADS, options->conllu, model->pieces == NULL, &sources->gold);
    for (int64_t i = 0; i < sources->gold.count && code == CLI_OK; i++) {
        const conllu_sentence *s = &sources->gold.sentences[i];
        code = add(sources, (heads_source){.text = s->text,
                                           .bytes = s->bytes,
                                           .gold = s,
                                           .file = options->conllu,
                                           .line = s->line});
    }
    return code;
}

static cli_exit add_examples(const heads_options *options, heads_sources *sources)
{
    const char *text = NULL;
    cli_exit code = CLI_OK;
    const bool all = !strcmp(options->example, "all");
    if (!all) code = texts_example(HEADS, options->example, &text);
    if (code == CLI_OK && !all)
        code = add(sources, (heads_source){.text = text, .bytes = strlen(text)});
    for (int i = 0; all && code == CLI_OK && (text = texts_example_at(i)) != NULL; i++)
        code = add(sources, (heads_source){.text = text, .bytes = strlen(text)});
    return code;
}

cli_exit heads_sources_read(const heads_options *options, const text_model *model,
                            heads_sources *sources)
{
    cli_exit code = CLI_OK;
    *sources = (heads_sources){0};
    if (options->text_file) code = add_file(options, sources);
    if (code == CLI_OK && options->conllu) code = add_gold(options, model, sources);
    if (code == CLI_OK && options->example) code = add_examples(options, sources);
    for (int i = 0; i < options->texts.count && code == CLI_OK; i++)
        code = add(sources, (heads_source){.text = options->texts.items[i],
                                           .bytes = strlen(options->texts.items[i])});
    return code;
}

void heads_sources_free(heads_sources *sources)
{
    conllu_free(&sources->gold);
    free(sources->items);
    *sources = (heads_sources){0};
}
