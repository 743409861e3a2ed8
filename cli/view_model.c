/* Maps of a model: load the folder, tokenise, run the encoder, keep the layers that are wanted. */
#include "view.h"

#include <multihead/model.h>
#include <multihead/tokenizer.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The sentences that lessons on attention use. */
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

/* ------------------------------------------------------------------------------------------------
 * Texts
 * --------------------------------------------------------------------------------------------- */

static cli_exit find_example(const char *name, const char **text)
{
    const char *names[EXAMPLE_COUNT];
    for (int i = 0; i < EXAMPLE_COUNT; i++) {
        char number[] = {(char)('1' + i), '\0'};
        names[i] = examples[i].name;
        if (strcmp(name, names[i]) != 0 && strcmp(name, number) != 0) continue;
        *text = examples[i].text;
        return CLI_OK;
    }
    const char *near = args_nearest(name, names, EXAMPLE_COUNT);
    return cli_fail(CLI_USAGE, VIEW,
                    "--example %s: animal, bank, cat, river, pilot or 1 to 5 is wanted%s%s%s", name,
                    near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

static cli_exit take_text(const char *text, size_t bytes, attention_maps *maps)
{
    int i = maps->text[0] ? 1 : 0;
    maps->text[i] = maps_copy_text(text, bytes);
    maps->text_bytes[i] = bytes;
    if (maps->text[i]) return CLI_OK;
    return cli_fail(CLI_NO_MEMORY, VIEW, "out of memory: a text of %zu bytes", bytes);
}

static cli_exit take_text_file(const char *path, attention_maps *maps)
{
    if (!strcmp(path, "-") && isatty(STDIN_FILENO))
        return cli_fail(CLI_USAGE, VIEW,
                        "the text is to come from stdin, which is a terminal; pipe it in, or give "
                        "it in quotes");
    char *bytes = NULL;
    size_t size = 0;
    cli_exit code = view_read_text(path, &bytes, &size);
    if (code == CLI_OK) code = take_text(bytes, size, maps);
    free(bytes);
    return code;
}

/* From --example, --text-file, and the command line, "-" being stdin. */
static cli_exit take_texts(const view_options *options, attention_maps *maps)
{
    const char *text = NULL;
    cli_exit code = CLI_OK;
    if (options->example) {
        code = find_example(options->example, &text);
        if (code == CLI_OK) code = take_text(text, strlen(text), maps);
    }
    if (code == CLI_OK && options->text_file) code = take_text_file(options->text_file, maps);
    for (int i = 0; i < options->texts.count && code == CLI_OK; i++) {
        text = options->texts.items[i];
        code = strcmp(text, "-") != 0 ? take_text(text, strlen(text), maps)
                                      : take_text_file("-", maps);
    }
    return code;
}

/* ------------------------------------------------------------------------------------------------
 * Tokens
 * --------------------------------------------------------------------------------------------- */

static cli_exit check_not_empty(const mha_encoding *encoding, int sequence)
{
    for (int64_t i = 0; i < encoding->count; i++)
        if (encoding->sequence[i] == sequence) return CLI_OK;
    if (encoding->dropped[sequence] > 0)
        return cli_fail(CLI_USAGE, VIEW,
                        "--truncate leaves no token of the %s text; raise --max-tokens",
                        sequence == 0 ? "first" : "second");
    return cli_fail(CLI_BAD_INPUT, VIEW,
                    sequence == 0 ? "the text is empty; give at least one word"
                                  : "the second text is empty; give at least one word, or leave "
                                    "it out");
}

static cli_exit check_length(const view_options *options, const mha_encoding *encoding,
                             int64_t limit)
{
    int64_t dropped = encoding->dropped[0] + encoding->dropped[1];
    if (dropped > 0)
        cli_note(options->quiet,
                 "truncated: the last %" PRId64 " of %" PRId64 " tokens are left out", dropped,
                 dropped + encoding->count);
    if (encoding->count <= limit) return CLI_OK;
    return cli_fail(CLI_BAD_INPUT, VIEW,
                    "the text has %" PRId64 " tokens, the limit is %" PRId64
                    "%s; shorten it, or add --truncate",
                    encoding->count, limit, options->max_tokens ? "" : " (the model's positions)");
}

static cli_exit copy_token(const mha_tokenizer *tokenizer, const mha_encoding *encoding, int64_t i,
                           maps_token *token)
{
    const char *text = mha_tokenizer_token(tokenizer, encoding->ids[i]);
    *token = (maps_token){.text = maps_copy_text(text ? text : "?", text ? strlen(text) : 1),
                          .id = encoding->ids[i],
                          .type = encoding->type_ids[i],
                          .begin = encoding->begin[i],
                          .end = encoding->end[i],
                          .sequence = encoding->sequence[i],
                          .special = encoding->special[i] != 0};
    if (token->text) return CLI_OK;
    return cli_fail(CLI_NO_MEMORY, VIEW, "out of memory: the text of a token");
}

static cli_exit copy_tokens(const mha_tokenizer *tokenizer, const mha_encoding *encoding,
                            attention_maps *maps)
{
    void *items;
    cli_exit code = maps_alloc(VIEW, encoding->count, sizeof(maps_token), &items);
    maps->rows = (maps_tokens){.items = items, .count = items ? encoding->count : 0};
    for (int64_t i = 0; i < encoding->count && code == CLI_OK; i++)
        code = copy_token(tokenizer, encoding, i, &maps->rows.items[i]);
    maps->cols = maps->rows;
    return code;
}

static cli_exit tokenise(const view_options *options, const mha_model *model,
                         const mha_model_info *info, attention_maps *maps, mha_encoding *encoding)
{
    const mha_tokenizer *tokenizer = mha_model_tokenizer(model);
    int64_t limit = options->max_tokens ? options->max_tokens : info->max_positions;
    if (limit > info->max_positions)
        return cli_fail(CLI_USAGE, VIEW,
                        "--max-tokens %" PRId64 ": the model takes at most %" PRId64, limit,
                        info->max_positions);
    if (maps->text[1] && info->type_vocab_size < 2)
        return cli_fail(CLI_UNSUPPORTED, VIEW,
                        "%s: the model knows no second text (its type_vocab_size is 1); give one",
                        options->model);
    mha_encode_options encode = {.struct_size = sizeof encode};
    if (options->truncate) {
        encode.max_length = limit;
        encode.truncation = MHA_TRUNCATE_LONGEST_FIRST;
    }
    mha_status status = mha_tokenizer_encode(tokenizer, &encode, maps->text[0], maps->text_bytes[0],
                                             maps->text[1], maps->text_bytes[1], encoding);
    if (status == MHA_ERR_UTF8)
        return cli_fail(CLI_BAD_INPUT, VIEW, "%s; save or type it as UTF-8", mha_error_detail());
    if (status != MHA_OK) return cli_fail_status(VIEW, status);
    cli_exit code = check_not_empty(encoding, 0);
    if (code == CLI_OK && maps->text[1]) code = check_not_empty(encoding, 1);
    if (code == CLI_OK) code = check_length(options, encoding, limit);
    if (code == CLI_OK) code = copy_tokens(tokenizer, encoding, maps);
    return code;
}

/* ------------------------------------------------------------------------------------------------
 * The run
 * --------------------------------------------------------------------------------------------- */

/* Says on a terminal what is going on, in one line that disappears again. */
typedef struct progress_line {
    bool on;
    int64_t layers;
} progress_line;

static progress_line start_progress(const view_options *options)
{
    const char *term = getenv("TERM");
    bool dumb = !term || !*term || !strcmp(term, "dumb");
    return (progress_line){.on = !options->quiet && !dumb && isatty(STDERR_FILENO)};
}

static void clear_progress(const progress_line *progress)
{
    if (progress->on) fputs("\r\033[K", stderr);
}

static mha_status after_layer(void *user, int64_t layer)
{
    const progress_line *progress = user;
    if (progress->on)
        fprintf(stderr, "\r\033[Klayer %" PRId64 " of %" PRId64, layer + 1, progress->layers);
    return MHA_OK;
}

/* Run the model; every layer with a head that is wanted leaves its maps. */
static cli_exit run(mha_context *context, const mha_model *model, const mha_encoding *encoding,
                    const maps_picks *picks, progress_line *progress, attention_maps *maps)
{
    void *wanted = NULL, *outputs = NULL, *tensors = NULL;
    cli_exit code = maps_alloc(VIEW, maps->layers, sizeof(mha_module_outputs *), &wanted);
    if (code == CLI_OK) code = maps_alloc(VIEW, maps->layers, sizeof(mha_module_outputs), &outputs);
    if (code == CLI_OK) code = maps_alloc(VIEW, maps->layers, sizeof(mha_tensor), &tensors);
    int64_t shape[] = {1, maps->heads, encoding->count, encoding->count};
    for (int64_t l = 0; l < maps->layers && code == CLI_OK; l++) {
        if (maps_picks_in_layer(picks, l) == 0) continue;
        code = maps_add_layer(VIEW, maps, l);
        mha_tensor *tensor = (mha_tensor *)tensors + l;
        mha_module_outputs *output = (mha_module_outputs *)outputs + l;
        *tensor = mha_tensor_contiguous(maps->layer[l], MHA_F32, 4, shape);
        *output = (mha_module_outputs){.struct_size = sizeof *output, .probabilities = tensor};
        ((const mha_module_outputs **)wanted)[l] = output;
    }
    if (code == CLI_OK) {
        mha_batch batch = {.struct_size = sizeof batch,
                           .batch = 1,
                           .length = encoding->count,
                           .ids = encoding->ids,
                           .type_ids = encoding->type_ids};
        mha_model_outputs all = {.struct_size = sizeof all,
                                 .attention = wanted,
                                 .after_layer = after_layer,
                                 .after_layer_user = progress};
        mha_status status = mha_model_forward(context, model, &batch, &all);
        clear_progress(progress);
        if (status != MHA_OK) code = cli_fail_status(VIEW, status);
    }
    free(wanted);
    free(outputs);
    free(tensors);
    return code;
}

/* Weights that are damaged, or too large for f32, show first in the attention: say so, also to
 * someone who only asked for a file of numbers. */
static void warn_of_not_finite(const view_options *options, const attention_maps *maps,
                               const maps_picks *picks)
{
    int64_t size = maps->rows.count * maps->cols.count, count = 0;
    for (int64_t i = 0; i < picks->layers * picks->heads; i++) {
        if (!picks->on[i]) continue;
        const float *map = maps->layer[i / picks->heads] + i % picks->heads * size;
        for (int64_t j = 0; j < size; j++) count += !isfinite(map[j]);
    }
    if (count > 0)
        cli_warn(VIEW,
                 "%s: %" PRId64 " attention weights came out as NaN or infinite: the model's "
                 "weights are damaged, or too large for 32 bits; fetch the model again",
                 options->model, count);
}

static cli_exit describe(const mha_model *model, mha_model_info *info, attention_maps *maps)
{
    mha_status status = mha_model_describe(model, info);
    if (status != MHA_OK) return cli_fail_status(VIEW, status);
    maps->layers = info->layers;
    maps->heads = info->heads;
    maps->architecture = maps_copy_text(info->architecture, strlen(info->architecture));
    void *layers;
    cli_exit code = maps_alloc(VIEW, info->layers, sizeof(float *), &layers);
    maps->layer = layers;
    return code;
}

static cli_exit load(const view_options *options, mha_context *context,
                     const progress_line *progress, mha_model **model)
{
    if (progress->on) fprintf(stderr, "\r\033[Kloading %s", options->model);
    mha_status status = mha_model_load(context, options->model, NULL, model);
    clear_progress(progress);
    return status == MHA_OK ? CLI_OK : cli_fail_status(VIEW, status);
}

cli_exit view_model_maps(const view_options *options, attention_maps *maps, maps_picks *picks)
{
    mha_context *context = NULL;
    mha_model *model = NULL;
    mha_encoding encoding = {.struct_size = sizeof encoding};
    mha_model_info info = {.struct_size = sizeof info};
    progress_line progress = start_progress(options);
    cli_exit code = take_texts(options, maps);
    if (code != CLI_OK) return code;
    mha_context_desc desc = {.struct_size = sizeof desc, .num_threads = (int32_t)options->threads};
    mha_status status = mha_context_create(&desc, &context);
    if (status != MHA_OK) return cli_fail_status(VIEW, status);
    code = load(options, context, &progress, &model);
    if (code == CLI_OK) code = describe(model, &info, maps);
    progress.layers = info.layers;
    if (code == CLI_OK)
        code = maps_pick(VIEW, &options->layers, &options->heads, info.layers, info.heads, picks);
    if (code == CLI_OK) code = tokenise(options, model, &info, maps, &encoding);
    if (code == CLI_OK) code = run(context, model, &encoding, picks, &progress, maps);
    if (code == CLI_OK) {
        maps->name = maps_name_of_path(options->model);
        if (!maps->name) code = cli_fail(CLI_NO_MEMORY, VIEW, "out of memory: a name");
        warn_of_not_finite(options, maps, picks);
    }
    mha_encoding_free(&encoding);
    mha_model_destroy(model);
    mha_context_destroy(context);
    return code;
}
