/* Maps of a model: load the folder, tokenise, run the encoder, keep the layers that are wanted. */
#include "common/text_model.h"
#include "common/texts.h"
#include "view/view.h"
#include "view/view_pool.h"
#include "view/view_roles.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Texts ----------------------------------------------------------------------------------- */

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
    cli_exit code = texts_read_file(VIEW, path, &bytes, &size);
    if (code == CLI_OK) code = take_text(bytes, size, maps);
    free(bytes);
    return code;
}

/* "-" is stdin. */
cli_exit view_take_texts(const view_options *options, attention_maps *maps)
{
    const char *text = NULL;
    cli_exit code = CLI_OK;
    if (options->example) {
        code = texts_example(VIEW, options->example, &text);
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

/* ---- Tokens ---------------------------------------------------------------------------------- */

static void note_truncation(const view_options *options, const text_tokens *tokens)
{
    if (tokens->dropped > 0)
        cli_note(options->quiet,
                 "truncated: the last %" PRId64 " of %" PRId64 " tokens are left out",
                 tokens->dropped, tokens->dropped + tokens->list.count);
}

/* Rows and columns; those of an encoder-decoder are the target's and the source's. */
static cli_exit tokenise(const view_options *options, const text_model *model, attention_maps *maps,
                         text_tokens *rows, text_tokens *cols)
{
    const text_limits limits = {.most = options->max_tokens, .truncate = options->truncate};
    char *const *text = maps->text;
    const size_t *bytes = maps->text_bytes;
    cli_exit code;
    if (!model->encoder) {
        code = text_model_encode(model, &limits, text[0], bytes[0], text[1], bytes[1], rows);
        maps->rows = maps->cols = rows->list;
    } else if (!text[1]) {
        code = cli_fail(CLI_USAGE, VIEW,
                        "%s: an encoder-decoder takes two texts, a source and a target; %s/encoder "
                        "takes one",
                        options->model, options->model);
    } else {
        code = text_model_encode_source(model, &limits, text[0], bytes[0], cols);
        if (code == CLI_OK)
            code = text_model_encode(model, &limits, text[1], bytes[1], NULL, 0, rows);
        maps->rows = rows->list;
        maps->cols = cols->list;
    }
    if (code != CLI_OK) return code;
    note_truncation(options, rows);
    note_truncation(options, cols);
    return CLI_OK;
}

/* ---- The run --------------------------------------------------------------------------------- */

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
    if (progress->on) cli_print_to(stderr, "\r\033[K");
}

/* A run under way. */
typedef struct view_run {
    const text_model *model;
    const progress_line *progress;
    attention_maps *maps;
} view_run;

static mha_status after_layer(void *user, const mha_activations *activations, int64_t layer)
{
    const view_run *run = user;
    if (run->progress->on)
        cli_print_to(stderr, "\r\033[Klayer %" PRId64 " of %" PRId64, layer + 1,
                     run->progress->layers);
    if (!run->maps->twin || !run->maps->twin[layer]) return MHA_OK;
    return view_make_twin(run->model, activations, layer, run->maps);
}

/* Maps of the layers that are wanted, straight to where they stay. */
static cli_exit run_self(const text_model *model, const text_tokens *tokens,
                         const maps_picks *picks, const progress_line *progress,
                         attention_maps *maps)
{
    void *wanted = NULL, *outputs = NULL, *tensors = NULL;
    cli_exit code = maps_alloc(VIEW, maps->layers, sizeof(mha_attention_outputs *), &wanted);
    if (code == CLI_OK)
        code = maps_alloc(VIEW, maps->layers, sizeof(mha_attention_outputs), &outputs);
    if (code == CLI_OK) code = maps_alloc(VIEW, maps->layers, sizeof(mha_tensor), &tensors);
    for (int64_t l = 0; l < maps->layers && code == CLI_OK; l++) {
        if (maps_picks_in_layer(picks, l) == 0) continue;
        code = maps_add_layer(VIEW, maps, l);
        const int64_t T = tokens->list.count, *list = model->desc.layer_heads;
        const int64_t shape[] = {1, list ? list[l] : maps->heads, T, T};
        mha_tensor *tensor = (mha_tensor *)tensors + l;
        mha_attention_outputs *output = (mha_attention_outputs *)outputs + l;
        *tensor = mha_tensor_contiguous(maps->layer[l], MHA_F32, 4, shape);
        *output = (mha_attention_outputs){.struct_size = sizeof *output, .probabilities = tensor};
        ((const mha_attention_outputs **)wanted)[l] = output;
    }
    view_run run = {model, progress, maps};
    mha_status status = MHA_OK;
    if (code == CLI_OK) status = text_model_run(model, tokens, wanted, after_layer, &run);
    clear_progress(progress);
    if (status != MHA_OK) code = cli_fail_status(VIEW, status);
    maps->causal = model->causal;
    free(wanted);
    free(outputs);
    free(tensors);
    return code;
}

/* Cross-attention of all layers at once; maps then keeps those that are wanted. */
static cli_exit run_cross(const text_model *model, const text_tokens *rows, const text_tokens *cols,
                          const maps_picks *picks, attention_maps *maps)
{
    const int64_t T = maps->rows.count, S = maps->cols.count;
    const int64_t shape[] = {maps->layers, 1, maps->heads, T, S};
    int64_t count = 0;
    void *memory = NULL;
    mha_tensor all = mha_tensor_contiguous(NULL, MHA_F32, 5, shape);
    mha_status status = mha_tensor_count(&all, &count);
    if (status != MHA_OK) return cli_fail_status(VIEW, status);
    cli_exit code = maps_alloc(VIEW, count, sizeof(float), &memory);
    all.data = memory;
    if (code == CLI_OK) code = text_model_run_cross(model, cols, rows, &all);
    for (int64_t l = 0; l < maps->layers && code == CLI_OK; l++) {
        if (maps_picks_in_layer(picks, l) == 0) continue;
        code = maps_add_layer(VIEW, maps, l);
        if (code == CLI_OK)
            memcpy(maps->layer[l], (const float *)memory + l * maps->heads * T * S,
                   (size_t)(maps->heads * T * S) * sizeof(float));
    }
    free(memory);
    return code;
}

/* Weights that are damaged, or too large for f32, show first in the attention: say so, also to
 * someone who only requested a file of numbers. */
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

static cli_exit describe(const text_model *model, attention_maps *maps)
{
    maps->layers = model->layers;
    maps->heads = model->heads;
    maps->name = maps_copy_text(model->name, strlen(model->name));
    maps->architecture = maps_copy_text(model->architecture, strlen(model->architecture));
    if (!maps->name || !maps->architecture)
        return cli_fail(CLI_NO_MEMORY, VIEW, "out of memory: a name");
    void *layers;
    cli_exit code = maps_alloc(VIEW, model->layers, sizeof(float *), &layers);
    maps->layer = layers;
    return code;
}

static cli_exit load(const view_options *options, const progress_line *progress, text_model *model)
{
    if (progress->on) cli_print_to(stderr, "\r\033[Kloading %s", options->model);
    cli_exit code = text_model_open(VIEW, options->model, options->threads, model);
    if (code == CLI_OK) clear_progress(progress);
    return code;
}

static cli_exit run(const view_options *options, const text_model *model, const text_tokens *rows,
                    const text_tokens *cols, const maps_picks *picks, const progress_line *progress,
                    attention_maps *maps)
{
    if (model->encoder) return run_cross(model, rows, cols, picks, maps);
    const int64_t cell = view_pool_cell(options, picks, rows->list.count);
    if (cell > 1) return view_pool_maps(model, rows, cell, picks, progress->on, maps);
    cli_exit code = view_want_twins(options, picks, maps);
    return code == CLI_OK ? run_self(model, rows, picks, progress, maps) : code;
}

cli_exit view_model_maps(const view_options *options, attention_maps *maps, maps_picks *picks,
                         view_roles *roles)
{
    text_model model = {0};
    text_tokens rows = {0}, cols = {0};
    progress_line progress = start_progress(options);
    cli_exit code = view_take_texts(options, maps);
    if (code != CLI_OK) return code;
    code = load(options, &progress, &model);
    if (code == CLI_OK) code = describe(&model, maps);
    progress.layers = model.layers;
    if (code == CLI_OK) code = text_model_pick(&model, &options->layers, &options->heads, picks);
    if (code == CLI_OK) code = tokenise(options, &model, maps, &rows, &cols);
    if (code == CLI_OK) code = run(options, &model, &rows, &cols, picks, &progress, maps);
    if (code == CLI_OK) warn_of_not_finite(options, maps, picks);
    if (code == CLI_OK && roles) code = view_roles_make(options, &model, maps, roles);
    rows.list = cols.list = (maps_tokens){0}; /* they are the maps' now */
    text_tokens_free(&rows);
    text_tokens_free(&cols);
    text_model_close(&model);
    return code;
}
