/* multihead page: the page of serve as one HTML file, with the library as WebAssembly and the model
 * inside. */
#include "common/arena.h"
#include "common/commands.h"
#include "common/files.h"
#include "common/option_rows.h"
#include "common/print.h"
#include "common/text_model.h"

#include <multihead/component.h>
#include <multihead/io.h>
#include <multihead/live.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct page_options {
    const char *model, *text, *output, *module;
    int quiet;
} page_options;

static const args_option option_table[] = {
    ROW_HEADING("Output"),
    ROW_OUTPUT(page_options, output, "FILE", "write to this file; default: explorer.html"),
    ROW_HEADING("Other"),
    ROW_TEXT(
        "module", page_options, module, "FILE",
        "read the library as gzip-compressed WebAssembly;\ndefault: the file beside the program"),
    ROW_QUIET(page_options, "print no notes on stderr, only warnings and errors"),
    ROW_HELP,
};

const args_page page_page = {
    .usage = "page [options] MODEL [\"text\"]",
    .examples = "multihead page MODEL -o explorer.html\n"
                "multihead page MODEL \"the king was cold\"",
    .notes = "The file holds the page, the library as WebAssembly and the model. A browser\n"
             "opens it from disk, without a server or a network; readers may open other\n"
             "models in it. docs/explorer.md is the manual.",
    .takes = "MODEL [TEXT]",
    .spare = "put quotes around the text",
    ARGS_OPTIONS(option_table),
};

/* Limits of a page: base64 adds a third, and browsers limit strings to 512 MB. */
enum { MOST_BYTES = 256 << 20, MOST_FILES = 256, PATH_BYTES = 4096 };

typedef struct page_files {
    mha_explorer_file items[MOST_FILES];
    int64_t count;
    const char *model; /* the name of its folder */
} page_files;

static void forget(void *bytes)
{
    mha_file_free(bytes);
}

/* ---- the model's files ----------------------------------------------------------------------- */

/* Called by mha_model_files(). */
static mha_status add_file(void *user, const char *name, const char *path)
{
    page_files *files = user;
    char *bytes = NULL, *own;
    size_t size = 0;
    if (files->count == MOST_FILES)
        return mha_fail(MHA_ERR_UNSUPPORTED, "%s: more than %d files", path, (int)MOST_FILES);
    const char *end = name ? strrchr(name, '.') : NULL;
    if (end && strcmp(end, ".gguf") == 0)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "%s: is a part of a model, and a page contains one GGUF file; merge the "
                        "parts with llama-gguf-split --merge %s WHOLE.gguf",
                        path, name);
    MHA_TRY(mha_file_read(path, MOST_BYTES, &bytes, &size));
    const size_t length = strlen(files->model) + (name ? strlen(name) + 1 : 0) + 1;
    if (arena_keep(bytes, forget) != CLI_OK || ARENA_ALLOC((int64_t)length, &own))
        return MHA_ERR_CALLBACK;
    snprintf(own, length, "%s%s%s", files->model, name ? "/" : "", name ? name : "");
    files->items[files->count++] = (mha_explorer_file){own, bytes, size};
    return MHA_OK;
}

static int by_name(const void *a, const void *b)
{
    const mha_explorer_file *x = a, *y = b;
    return strcmp(x->name, y->name);
}

ARENA_RELEASE(end_buffer, mha_buffer_free)

/* Add the snapshots of a training; the page needs nothing else of its state. */
static cli_exit add_training(const mha_live *live, page_files *files)
{
    mha_buffer *buffer;
    char *own;
    const size_t length = strlen(files->model) + sizeof "/training.safetensors";
    CLI_TRY(ARENA_ALLOC(1, &buffer));
    CLI_TRY(arena_keep(buffer, end_buffer));
    const mha_sink sink = mha_buffer_sink(buffer);
    CLI_TRY(cli_check(mha_live_training(live, &sink)));
    if (!buffer->size || files->count == MOST_FILES) return CLI_OK;
    CLI_TRY(ARENA_ALLOC((int64_t)length, &own));
    snprintf(own, length, "%s/training.safetensors", files->model);
    files->items[files->count++] = (mha_explorer_file){own, buffer->data, buffer->size};
    return CLI_OK;
}

static cli_exit add_model(const text_model *model, const mha_live *live, page_files *files)
{
    files->model = model->name;
    CLI_TRY(cli_check(mha_model_files(model->folder, add_file, files)));
    CLI_TRY(add_training(live, files));
    qsort(files->items, (size_t)files->count, sizeof *files->items, by_name);
    return CLI_OK;
}

/* ---- the library ------------------------------------------------------------------------------ */

static cli_exit add_module(const page_options *options, mha_explorer *explorer)
{
    static const char *const places[] = {"page/explorer.wasm.gz",
                                         "../share/multihead/explorer.wasm.gz"};
    char path[PATH_BYTES], *bytes = NULL;
    mha_status status = MHA_ERR_FILE;
    for (size_t i = 0; i < sizeof places / sizeof *places && !options->module && status; i++)
        if (files_beside_program(places[i], path, sizeof path))
            status = mha_file_read(path, MOST_BYTES, &bytes, &explorer->module_bytes);
    if (options->module)
        CLI_TRY(
            cli_check(mha_file_read(options->module, MOST_BYTES, &bytes, &explorer->module_bytes)));
    else if (status)
        return cli_fail(CLI_UNSUPPORTED,
                        "the library compiled to WebAssembly is missing: build it with script/page "
                        "in the sources (it installs Debian's emscripten, 400 MB), or name "
                        "explorer.wasm.gz with --module");
    explorer->module = bytes;
    CLI_TRY(arena_keep(bytes, forget));
    if (explorer->module_bytes < 2 || memcmp(bytes, "\x1f\x8b", 2) != 0)
        return cli_fail(CLI_BAD_INPUT, "--module: %s is not compressed by gzip",
                        options->module ? options->module : path);
    return CLI_OK;
}

/* ---- the page --------------------------------------------------------------------------------- */

typedef struct drawing {
    const mha_live *live;
    const mha_explorer *explorer;
} drawing;

static mha_status draw(const void *user, const mha_sink *sink)
{
    const drawing *d = user;
    return mha_live_explorer(d->live, d->explorer, sink);
}

ARENA_RELEASE(end_live, mha_live_destroy)

static cli_exit check_text(const page_options *options, const text_model *model)
{
    mha_tokens *tokens;
    if (!options->text) return CLI_OK;
    return text_model_encode(model, &(text_limits){0}, options->text, strlen(options->text), NULL,
                             0, &tokens);
}

static cli_exit run(const page_options *options)
{
    text_model model;
    mha_live *live = NULL;
    page_files *files;
    mha_explorer explorer = {.struct_size = sizeof explorer, .text = options->text};
    CLI_TRY(text_model_open(options->model, 0, false, &model));
    if (model.encoder)
        return cli_fail(CLI_UNSUPPORTED,
                        "%s: an encoder-decoder needs two texts; write a page of %s/encoder",
                        options->model, options->model);
    CLI_TRY(check_text(options, &model));
    CLI_TRY(add_module(options, &explorer));
    const mha_live_options how = {
        .struct_size = sizeof how, .name = model.name, .folder = model.folder};
    CLI_TRY(cli_check(mha_live_create(model.context, model.model, &how, &live)));
    CLI_TRY(arena_keep(live, end_live));
    CLI_TRY(ARENA_ALLOC(1, &files));
    CLI_TRY(add_model(&model, live, files));
    explorer.path = explorer.name = model.name;
    explorer.files = files->items;
    explorer.file_count = files->count;
    const drawing drawn = {.live = live, .explorer = &explorer};
    CLI_TRY(cli_check(files_draw(options->output, draw, &drawn)));
    cli_note(options->quiet, "wrote %s: open it in a browser", options->output);
    return cli_finish_stdout(CLI_OK);
}

cli_exit cmd_page(int count, char *const *arguments)
{
    page_options options = {0};
    args_line line = {0};
    CLI_TRY(args_parse(&page_page, count, arguments, &options, &line));
    options.model = line.plain.items[0];
    options.text = line.plain.count > 1 ? line.plain.items[1] : NULL;
    if (!options.output) options.output = "explorer.html";
    return run(&options);
}
