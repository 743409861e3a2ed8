/* The sources of texts for 'multihead heads': lines of a file, a whole file, CoNLL-U, the command
 * line, the built-in sentences. */
#include "common/arena.h"
#include "common/texts.h"
#include "heads/heads.h"

#include <string.h>
#include <unistd.h>

cli_exit heads_sources_add(heads_sources *sources, heads_source source)
{
    if (sources->count == sources->room) {
        sources->room = sources->room ? 2 * sources->room : 64;
        CLI_TRY(arena_grow(sources->room, sizeof *sources->items, &sources->items));
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
    for (size_t at = 0; at < size; line++) {
        const char *end = memchr(text + at, '\n', size - at);
        size_t bytes = end ? (size_t)(end - text) - at : size - at;
        const size_t next = at + bytes + 1;
        if (bytes > 0 && text[at + bytes - 1] == '\r') bytes--;
        if (!is_blank(text + at, bytes))
            CLI_TRY(heads_sources_add(
                sources,
                (heads_source){.text = text + at, .bytes = bytes, .file = path, .line = line}));
        at = next;
    }
    return CLI_OK;
}

static cli_exit add_file(const heads_options *options, heads_sources *sources)
{
    const char *path = options->text_file;
    char *text;
    size_t size = 0;
    if (!strcmp(path, "-") && isatty(STDIN_FILENO))
        return cli_fail(
            CLI_USAGE,
            "the text would be read from stdin, which is a terminal; pipe it in, or name "
            "a file");
    CLI_TRY(texts_read_file(path, &text, &size));
    if (is_blank(text, size)) return cli_fail(CLI_BAD_INPUT, "%s: holds no text", path);
    if (!options->whole) return add_lines(sources, path, text, size);
    return heads_sources_add(sources, (heads_source){.text = text, .bytes = size, .file = path});
}

static cli_exit add_gold(const heads_options *options, const text_model *model,
                         heads_sources *sources)
{
    CLI_TRY(conllu_read(options->conllu, model->pieces == NULL, &sources->gold));
    for (int64_t i = 0; i < sources->gold.count; i++) {
        const conllu_sentence *s = &sources->gold.sentences[i];
        CLI_TRY(heads_sources_add(sources, (heads_source){.text = s->text,
                                                          .bytes = s->bytes,
                                                          .gold = s,
                                                          .file = options->conllu,
                                                          .line = s->line}));
    }
    return CLI_OK;
}

/* Whether the model's vocabulary contains all words of a text. */
static bool reads(const text_model *model, const char *text, size_t bytes)
{
    const mha_tokens_options how = {
        .struct_size = sizeof how, .flags = MHA_TOKENS_PLAIN, .max_tokens = -1};
    mha_tokens tokens = {.struct_size = sizeof tokens};
    const mha_status status = mha_tokens_read(model->model, &how, text, bytes, NULL, 0, &tokens);
    mha_tokens_free(&tokens);
    return status == MHA_OK;
}

static cli_exit add_examples(const heads_options *options, const text_model *model,
                             heads_sources *sources)
{
    const char *text = NULL;
    const bool all = !strcmp(options->example, "all");
    if (!all) CLI_TRY(texts_example(options->example, &text));
    if (!all)
        CLI_TRY(heads_sources_add(sources, (heads_source){.text = text, .bytes = strlen(text)}));
    int left_out = 0, i = 0;
    for (; all && (text = texts_example_at(i)) != NULL; i++) {
        const size_t bytes = strlen(text);
        if (!reads(model, text, bytes))
            left_out++;
        else
            CLI_TRY(heads_sources_add(sources, (heads_source){.text = text, .bytes = bytes}));
    }
    if (all && left_out == i)
        return cli_fail(CLI_BAD_INPUT,
                        "--example all: each sentence has words that the model does not know; "
                        "'multihead heads %s --words' lists the words that it knows",
                        options->model);
    if (left_out > 0)
        cli_note(options->quiet,
                 "--example all: skipped %d of the sentences, which have words that the model does "
                 "not know",
                 left_out);
    return CLI_OK;
}

static cli_exit cut_all(const heads_options *options, text_model *model, heads_sources *sources)
{
    heads_sources pieces = {.gold = sources->gold};
    for (int64_t i = 0; i < sources->count; i++) {
        if (sources->items[i].gold)
            CLI_TRY(heads_sources_add(&pieces, sources->items[i]));
        else
            CLI_TRY(heads_corpus_cut(options, model, &sources->items[i], &pieces));
    }
    *sources = pieces;
    return CLI_OK;
}

cli_exit heads_sources_read(const heads_options *options, text_model *model, heads_sources *sources)
{
    *sources = (heads_sources){0};
    if (options->text_file) CLI_TRY(add_file(options, sources));
    if (options->conllu) CLI_TRY(add_gold(options, model, sources));
    if (options->example) CLI_TRY(add_examples(options, model, sources));
    for (int i = 0; i < options->texts.count; i++)
        CLI_TRY(
            heads_sources_add(sources, (heads_source){.text = options->texts.items[i],
                                                      .bytes = strlen(options->texts.items[i])}));
    return options->cut > 0 ? cut_all(options, model, sources) : CLI_OK;
}
