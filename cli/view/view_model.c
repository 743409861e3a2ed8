/* Maps of a model: load the folder, tokenise, run the model, keep the requested layers. */
#include "common/arena.h"
#include "common/launched.h"
#include "common/progress.h"
#include "common/screen.h"
#include "common/text_model.h"
#include "common/texts.h"
#include "view/view.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Texts ----------------------------------------------------------------------------------- */

static cli_exit take_text(const char *text, size_t bytes, mha_maps *maps)
{
    int i = maps->text[0] ? 1 : 0;
    char *copy;
    CLI_TRY(arena_text(text, bytes, &copy));
    maps->text[i] = copy;
    maps->text_bytes[i] = bytes;
    return CLI_OK;
}

static cli_exit take_text_file(const char *path, mha_maps *maps)
{
    const char *text;
    size_t size;
    if (!strcmp(path, "-") && isatty(STDIN_FILENO))
        return cli_fail(
            CLI_USAGE,
            "the text would be read from stdin, which is a terminal; pipe it in, or give "
            "it in quotes");
    CLI_TRY(texts_read_utf8(path, &text, &size));
    if (strspn(text, " \t\r\n") == size)
        return cli_fail(CLI_BAD_INPUT, "%s: the text is empty; give at least one word",
                        strcmp(path, "-") != 0 ? path : "stdin");
    return take_text(text, size, maps);
}

/* "-" is stdin. */
cli_exit view_take_texts(const view_options *options, mha_maps *maps)
{
    const char *text = NULL;
    if (options->example) {
        CLI_TRY(texts_example(options->example, &text));
        CLI_TRY(take_text(text, strlen(text), maps));
    }
    if (options->text_file) CLI_TRY(take_text_file(options->text_file, maps));
    for (int i = 0; i < options->texts.count; i++) {
        text = options->texts.items[i];
        CLI_TRY(strcmp(text, "-") != 0 ? take_text(text, strlen(text), maps)
                                       : take_text_file("-", maps));
    }
    return CLI_OK;
}

/* ---- Tokens ---------------------------------------------------------------------------------- */

static void note_truncation(const view_options *options, const mha_tokens *tokens)
{
    const int64_t dropped = tokens->dropped[0] + tokens->dropped[1];
    cli_note(options->quiet || dropped == 0,
             "truncated: the last %" PRId64 " of %" PRId64 " tokens are omitted", dropped,
             dropped + tokens->count);
}

/* Tokenise rows and columns; for an encoder-decoder, the target and the source. */
static cli_exit tokenise(const view_options *options, const text_model *model, const mha_maps *maps,
                         mha_tokens **rows, mha_tokens **cols)
{
    const text_limits limits = {.most = options->max_tokens, .truncate = options->truncate};
    const char *const *text = maps->text;
    const size_t *bytes = maps->text_bytes;
    if (!model->encoder) {
        CLI_TRY(text_model_encode(model, &limits, text[0], bytes[0], text[1], bytes[1], rows));
        *cols = *rows;
    } else if (!text[1]) {
        return cli_fail(CLI_USAGE,
                        "%s: an encoder-decoder takes two texts, a source and a target; %s/encoder "
                        "takes one",
                        options->model, options->model);
    } else {
        CLI_TRY(text_model_encode_source(model, &limits, text[0], bytes[0], cols));
        CLI_TRY(text_model_encode(model, &limits, text[1], bytes[1], NULL, 0, rows));
    }
    note_truncation(options, *rows);
    if (model->encoder) note_truncation(options, *cols);
    return CLI_OK;
}

/* ---- The run --------------------------------------------------------------------------------- */

/* The progress of a run: texts, then random tokens, on separate lines. */
typedef struct view_run {
    progress shown;
    bool quiet, random;
    const mha_maps *maps;
    int64_t tokens;
} view_run;

static mha_status show_study(void *user, const mha_study_progress *at)
{
    view_run *run = user;
    if (at->random && !run->random) run->shown = progress_begin(run->quiet);
    run->random = at->random;
    text_show_study(&run->shown, at);
    return MHA_OK;
}

static void show_layer(void *user, int64_t layer, int64_t row)
{
    view_run *run = user;
    const int64_t layers = run->maps->layers;
    if (run->maps->cell > 1)
        progress_show(&run->shown,
                      ((double)layer + (double)row / (double)run->tokens) / (double)layers,
                      "layer %" PRId64 " of %" PRId64 ", token %" PRId64 " of %" PRId64, layer + 1,
                      layers, row, run->tokens);
    else
        progress_show(&run->shown, (double)(layer + 1) / (double)layers,
                      "layer %" PRId64 " of %" PRId64, layer + 1, layers);
}

/* Damaged weights, or weights too large for f32, first appear in the attention. Report them even if
 * only a file of numbers was requested. */
static void warn_of_not_finite(const view_options *options, const mha_maps *maps)
{
    int64_t size = maps->rows.count * maps->cols.count, count = 0;
    for (int64_t i = 0; i < maps->layers * maps->heads; i++) {
        if (!maps->on[i]) continue;
        const float *map = maps->layer[i / maps->heads] + i % maps->heads * size;
        for (int64_t j = 0; j < size; j++) count += !isfinite(map[j]);
    }
    if (count > 0)
        cli_warn("%s: %" PRId64 " attention weights are NaN or infinite: the model's weights are "
                 "damaged, or too large for 32 bits; download the model again",
                 options->model, count);
}

/* Set the fields of maps that describe their model. */
cli_exit view_name_source(const text_model *model, mha_maps *maps)
{
    maps->layers = model->layers;
    maps->heads = model->heads;
    maps->name = model->name;
    return arena_print(&maps->kind, "%s", model->architecture);
}

cli_exit view_open_model(const view_options *options, text_model *model)
{
    progress shown = progress_begin(options->quiet);
    progress_show(&shown, 0, "loading %s", options->model);
    CLI_TRY(text_model_open(options->model, options->threads, true, model));
    progress_clear(&shown);
    return CLI_OK;
}

ARENA_RELEASE(destroy_study, mha_study_destroy)
ARENA_RELEASE(free_cards, mha_cards_free)

static cli_exit make_cards(const mha_study *study, mha_cards **cards)
{
    CLI_TRY(ARENA_ALLOC(1, cards));
    CLI_TRY(cli_check(mha_cards_make(mha_study_results(study), *cards)));
    return arena_keep(*cards, free_cards);
}

enum { RANDOM_SEQUENCES = 4 };

/* Use blocks of tokens if whole maps are too large and no output needs the weights themselves. */
static int64_t cell_of(const view_options *options, int64_t heads, int64_t tokens)
{
    const bool whole = options->json || options->npy || options->hide.count > 0;
    return whole ? 1 : mha_show_cell(heads, tokens);
}

/* Get the maps, and roles if a report of one text needs them, from one run of the text. */
static cli_exit run_text(const view_options *options, const text_model *model,
                         const maps_picks *picks, const mha_tokens *rows, const mha_tokens *cols,
                         mha_maps *maps, mha_cards **cards)
{
    const bool one = !maps->text[1] && !model->encoder, roles = cards && options->html && one;
    const bool twins = options->html && one && !options->contrast;
    bool measured = false;
    view_run run = {.shown = progress_begin(options->quiet),
                    .quiet = options->quiet,
                    .maps = maps,
                    .tokens = rows->count};
    const mha_study_desc how = {
        .struct_size = sizeof how, .progress = show_study, .progress_user = &run};
    mha_study *study = NULL;
    if (roles) CLI_TRY(cli_check(mha_study_create(model->context, model->model, &how, &study)));
    CLI_TRY(arena_keep(study, destroy_study));
    const mha_maps_desc desc = {
        .struct_size = sizeof desc,
        .flags = (twins ? MHA_MAPS_TWINS : 0) | (options->neurons ? MHA_MAPS_NEURONS : 0) |
                 (options->self ? MHA_MAPS_SELF : 0),
        .tokens = rows,
        .source = model->encoder ? cols : NULL,
        .on = picks->on,
        .cell = model->encoder ? 1 : cell_of(options, picks->count, rows->count),
        .study = study,
        .sequences = RANDOM_SEQUENCES,
        .measured = &measured,
        .progress = roles ? NULL : show_layer,
        .progress_user = &run};
    const mha_status status = mha_maps_run(model->context, model->model, &desc, maps);
    progress_clear(&run.shown);
    CLI_TRY(cli_check(status));
    if (measured) CLI_TRY(make_cards(study, cards));
    arena_drop(study);
    return CLI_OK;
}

cli_exit view_model_maps(const view_options *options, text_model *model, mha_maps *maps,
                         mha_cards **cards)
{
    mha_tokens *rows, *cols;
    maps_picks picks;
    if (!maps->text[0]) CLI_TRY(view_take_texts(options, maps));
    if (!model->model) CLI_TRY(view_open_model(options, model));
    if (options->experts && !view_has_files(options)) /* a layer with experts may have no heads */
        CLI_TRY(maps_pick(&options->layers, &options->heads, model->layers, model->heads, &picks));
    else
        CLI_TRY(text_model_pick(model, &options->layers, &options->heads, &picks));
    CLI_TRY(tokenise(options, model, maps, &rows, &cols));
    if (options->self && !model->encoder)
        return cli_fail(CLI_USAGE, "--self: %s is no encoder-decoder; omit it", options->model);
    if (options->neurons && model->encoder)
        return cli_fail(CLI_UNSUPPORTED,
                        "--neurons shows self-attention; give the encoder alone: %s/encoder",
                        options->model);
    maps->name = model->name;
    CLI_TRY(run_text(options, model, &picks, rows, cols, maps, cards));
    warn_of_not_finite(options, maps);
    return CLI_OK;
}

/* ---- Two texts ------------------------------------------------------------------------------- */

/* The options for a run of only the other text. */
static view_options other_options(const view_options *options)
{
    view_options other = *options;
    other.example = other.text_file = other.contrast = other.html = NULL; /* no report */
    other.texts = (args_texts){0};
    return other;
}

cli_exit view_contrast_maps(const view_options *options, text_model *model, mha_maps *maps)
{
    view_options again = other_options(options);
    mha_maps *other;
    bool same;
    CLI_TRY(maps_new(&other));
    again.texts.items[again.texts.count++] = options->contrast;
    CLI_TRY(view_model_maps(options, model, maps, NULL));
    CLI_TRY(view_model_maps(&again, model, other, NULL));
    const mha_status status = mha_maps_subtract(maps, other, &same);
    if (status == MHA_ERR_SIZE || status == MHA_ERR_UNSUPPORTED)
        return cli_fail(status == MHA_ERR_SIZE ? CLI_BAD_INPUT : CLI_UNSUPPORTED, "--contrast: %s",
                        mha_error_detail());
    CLI_TRY(cli_check(status));
    if (same) cli_warn("--contrast: both texts have the same tokens, all differences are 0");
    return CLI_OK;
}
