/* Maps of a model: load the folder, tokenise, run the encoder, keep the layers that are wanted. */
#include "common/arena.h"
#include "common/launched.h"
#include "common/progress.h"
#include "common/screen.h"
#include "common/text_model.h"
#include "common/texts.h"
#include "view/view.h"
#include "view/view_pool.h"
#include "view/view_roles.h"

#include <multihead/component.h>

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
    maps->text_bytes[i] = bytes;
    return arena_text(VIEW, text, bytes, &maps->text[i]);
}

/* Before the model is loaded, and by its name. */
static cli_exit take_text_file(const char *path, attention_maps *maps)
{
    const char *text;
    size_t size;
    if (!strcmp(path, "-") && isatty(STDIN_FILENO))
        return cli_fail(
            CLI_USAGE, VIEW,
            "the text would be read from stdin, which is a terminal; pipe it in, or give "
            "it in quotes");
    CLI_TRY(texts_read_utf8(VIEW, path, &text, &size));
    if (strspn(text, " \t\r\n") == size)
        return cli_fail(CLI_BAD_INPUT, VIEW, "%s: the text is empty; give at least one word",
                        strcmp(path, "-") != 0 ? path : "stdin");
    return take_text(text, size, maps);
}

/* "-" is stdin. */
cli_exit view_take_texts(const view_options *options, attention_maps *maps)
{
    const char *text = NULL;
    if (options->example) {
        CLI_TRY(texts_example(VIEW, options->example, &text));
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
             "truncated: the last %" PRId64 " of %" PRId64 " tokens are left out", dropped,
             dropped + tokens->count);
}

/* Rows and columns; those of an encoder-decoder are the target's and the source's. */
static cli_exit tokenise(const view_options *options, const text_model *model, attention_maps *maps,
                         mha_tokens **rows, mha_tokens **cols)
{
    const text_limits limits = {.most = options->max_tokens, .truncate = options->truncate};
    char *const *text = maps->text;
    const size_t *bytes = maps->text_bytes;
    if (!model->encoder) {
        CLI_TRY(text_model_encode(model, &limits, text[0], bytes[0], text[1], bytes[1], rows));
        *cols = *rows;
    } else if (!text[1]) {
        return cli_fail(CLI_USAGE, VIEW,
                        "%s: an encoder-decoder takes two texts, a source and a target; %s/encoder "
                        "takes one",
                        options->model, options->model);
    } else {
        CLI_TRY(text_model_encode_source(model, &limits, text[0], bytes[0], cols));
        CLI_TRY(text_model_encode(model, &limits, text[1], bytes[1], NULL, 0, rows));
    }
    maps->rows = **rows;
    maps->cols = **cols;
    note_truncation(options, *rows);
    if (model->encoder) note_truncation(options, *cols);
    return CLI_OK;
}

/* ---- The run --------------------------------------------------------------------------------- */

/* A run under way. */
typedef struct view_run {
    const text_model *model;
    progress *shown;
    attention_maps *maps;
} view_run;

static mha_status after_layer(void *user, const mha_activations *activations, int64_t layer)
{
    const view_run *run = user;
    progress_show(run->shown, (double)(layer + 1) / (double)run->maps->layers,
                  "layer %" PRId64 " of %" PRId64, layer + 1, run->maps->layers);
    if (run->maps->queries && run->maps->queries[layer])
        MHA_TRY(view_take_neurons(activations, layer, run->maps));
    if (!run->maps->twin || !run->maps->twin[layer]) return MHA_OK;
    return view_make_twin(run->model, activations, layer, run->maps);
}

/* Maps of the layers that are wanted, straight to where they stay: what a run has to visit. */
static cli_exit begin_self(const text_model *model, progress *shown, attention_maps *maps,
                           text_visit *visit)
{
    const mha_attention_outputs **wanted;
    mha_attention_outputs *outputs;
    mha_tensor *tensors;
    view_run *run;
    CLI_TRY(ARENA_ALLOC(VIEW, maps->layers, &wanted));
    CLI_TRY(ARENA_ALLOC(VIEW, maps->layers, &outputs));
    CLI_TRY(ARENA_ALLOC(VIEW, maps->layers, &tensors));
    CLI_TRY(ARENA_ALLOC(VIEW, 1, &run));
    for (int64_t l = 0; l < maps->layers; l++) {
        if (maps_picks_in_layer(&maps->picks, l) == 0) continue;
        CLI_TRY(maps_add_layer(VIEW, maps, l));
        const int64_t T = maps->rows.count, *list = model->desc.layer_heads;
        const int64_t shape[] = {1, list ? list[l] : maps->heads, T, T};
        tensors[l] = mha_tensor_contiguous(maps->layer[l], MHA_F32, 4, shape);
        outputs[l] =
            (mha_attention_outputs){.struct_size = sizeof *outputs, .probabilities = &tensors[l]};
        wanted[l] = &outputs[l];
    }
    *run = (view_run){model, shown, maps};
    *visit = (text_visit){.outputs = wanted, .after_layer = after_layer, .user = run};
    return CLI_OK;
}

/* Cross-attention of all layers at once; maps then keeps those that are wanted. */
static cli_exit run_cross(const text_model *model, const mha_tokens *rows, const mha_tokens *cols,
                          attention_maps *maps)
{
    const int64_t T = maps->rows.count, S = maps->cols.count;
    const int64_t shape[] = {maps->layers, 1, maps->heads, T, S};
    int64_t count = 0;
    float *memory;
    mha_tensor all = mha_tensor_contiguous(NULL, MHA_F32, 5, shape);
    CLI_TRY(cli_check(VIEW, mha_tensor_count(&all, &count)));
    CLI_TRY(ARENA_ALLOC(VIEW, count, &memory));
    all.data = memory;
    CLI_TRY(text_model_run_cross(model, cols, rows, &all));
    for (int64_t l = 0; l < maps->layers; l++) {
        if (maps_picks_in_layer(&maps->picks, l) == 0) continue;
        CLI_TRY(maps_add_layer(VIEW, maps, l));
        memcpy(maps->layer[l], memory + l * maps->heads * T * S,
               (size_t)(maps->heads * T * S) * sizeof(float));
    }
    arena_drop(memory);
    return CLI_OK;
}

/* Weights that are damaged, or too large for f32, show first in the attention: say so, also to
 * someone who only requested a file of numbers. */
static void warn_of_not_finite(const view_options *options, const attention_maps *maps)
{
    int64_t size = maps->rows.count * maps->cols.count, count = 0;
    for (int64_t i = 0; i < maps->picks.layers * maps->picks.heads; i++) {
        if (!maps->picks.on[i]) continue;
        const float *map = maps->layer[i / maps->picks.heads] + i % maps->picks.heads * size;
        for (int64_t j = 0; j < size; j++) count += !isfinite(map[j]);
    }
    if (count > 0)
        cli_warn(VIEW,
                 "%s: %" PRId64 " attention weights came out as NaN or infinite: the model's "
                 "weights are damaged, or too large for 32 bits; fetch the model again",
                 options->model, count);
}

cli_exit view_name_source(const text_model *model, attention_maps *maps)
{
    maps->layers = model->layers;
    maps->heads = model->heads;
    maps->name = model->name;
    return arena_text(VIEW, model->architecture, strlen(model->architecture), &maps->architecture);
}

cli_exit view_open_model(const view_options *options, text_model *model)
{
    progress shown = progress_begin(options->quiet);
    progress_show(&shown, 0, "loading %s", options->model);
    CLI_TRY(text_model_open(VIEW, options->model, options->threads, true, model));
    progress_clear(&shown);
    return CLI_OK;
}

/* One run of the text gives the maps, and roles where they are wanted. */
static cli_exit run_self(const view_options *options, text_model *model, const mha_tokens *tokens,
                         const text_visit *visit, attention_maps *maps, view_roles *roles)
{
    maps->causal = model->causal;
    if (roles && view_roles_wanted(options, maps))
        CLI_TRY(view_roles_make(options, model, tokens, visit, roles));
    if (roles && roles->layers > 0) return CLI_OK;
    return cli_check(VIEW, text_model_run(model, tokens, visit));
}

static cli_exit run(const view_options *options, text_model *model, const mha_tokens *rows,
                    const mha_tokens *cols, progress *shown, attention_maps *maps,
                    view_roles *roles)
{
    text_visit visit;
    CLI_TRY(view_want_neurons(options, model, maps));
    if (model->encoder) return run_cross(model, rows, cols, maps);
    const int64_t cell = view_pool_cell(options, &maps->picks, rows->count);
    if (cell > 1) {
        CLI_TRY(view_pool_begin(model, cell, shown, maps, &visit));
    } else {
        CLI_TRY(view_want_twins(options, maps));
        CLI_TRY(begin_self(model, shown, maps, &visit));
    }
    const cli_exit code = run_self(options, model, rows, &visit, maps, roles);
    progress_clear(shown);
    return code;
}

cli_exit view_model_maps(const view_options *options, text_model *model, attention_maps *maps,
                         view_roles *roles)
{
    mha_tokens *rows, *cols;
    if (!maps->text[0]) CLI_TRY(view_take_texts(options, maps));
    if (!model->model) CLI_TRY(view_open_model(options, model));
    CLI_TRY(view_name_source(model, maps));
    CLI_TRY(ARENA_ALLOC(VIEW, maps->layers, &maps->layer));
    CLI_TRY(text_model_pick(model, &options->layers, &options->heads, &maps->picks));
    CLI_TRY(tokenise(options, model, maps, &rows, &cols));
    /* Roles are measured in the same run, which then has a line of its own. */
    progress shown = progress_begin(options->quiet || (roles && view_roles_wanted(options, maps)));
    CLI_TRY(run(options, model, rows, cols, &shown, maps, roles));
    warn_of_not_finite(options, maps);
    return CLI_OK;
}
