/* The results of training: numbers on stdout, and pictures. */
#include "train/train_report.h"

#include "common/arena.h"
#include "common/progress.h"
#include "common/words.h"
#include "train/train_evidence.h"
#include "train/train_text.h"
#include "view/view.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MOST_SHOWN = 32 }; /* tokens of a user's text */

/* ---- numbers ------------------------------------------------------------------------------- */

/* The head that attends most to right columns in its weakest kind. */
static void find_best(const mha_transformer_desc *d, const train_scores *s, int64_t *layer,
                      int64_t *head)
{
    double best = -1;
    for (int64_t l = 0; l < d->num_layers; l++)
        for (int64_t h = 0; h < d->num_heads; h++) {
            const double right = train_worst_right(s, l, h);
            if (right > best) {
                best = right;
                *layer = l;
                *head = h;
            }
        }
}

cli_exit train_report_without(train_model *model, const uint8_t *off, train_scores *s)
{
    mha_transformer_desc d;
    float gates[TRAIN_MOST_LAYERS * TRAIN_MOST_HEADS];
    mha_transformer_describe(model->decoder, &d);
    const int64_t shape[] = {d.num_layers, d.num_heads};
    for (int64_t i = 0; i < shape[0] * shape[1]; i++) gates[i] = off[i] ? 0 : 1;
    mha_tensor view = mha_tensor_contiguous(gates, MHA_F32, 2, shape);
    return train_model_score(model, TRAIN_SPLIT_REPORT, model->recipe.probes_to_report, &view, s);
}

static void print_accuracy(const train_task *task, const char *before, const train_scores *s)
{
    cli_print("%s %5.1f %%", before, 100 * train_accuracy(s));
    for (int kind = 0; kind < TRAIN_KINDS && task->kinds[1] && task->kinds[kind]; kind++)
        cli_print("%s%s %.1f %%", kind ? ", " : "  (", task->kinds[kind],
                  100 * train_accuracy_of(s, kind));
    cli_print("%s\n", task->kinds[1] ? ")" : "");
}

/* Measure the scores on the reported data, of the whole model and without each head. */
static cli_exit measure(train_model *model, bool quiet, train_finding *found)
{
    mha_transformer_desc d;
    mha_transformer_describe(model->decoder, &d);
    const int64_t heads = d.num_layers * d.num_heads;
    progress shown = progress_begin(quiet);
    progress_show(&shown, 0, "measuring on held-out data");
    CLI_TRY(train_model_score(model, TRAIN_SPLIT_REPORT, model->recipe.probes_to_report, NULL,
                              &found->all));
    for (int64_t i = 0; i < heads; i++) {
        uint8_t off[TRAIN_MOST_LAYERS * TRAIN_MOST_HEADS] = {0};
        train_scores s;
        off[i] = 1;
        progress_show(&shown, (double)(1 + i) / (double)(1 + heads),
                      "measuring without head %" PRId64 " of %" PRId64, i + 1, heads);
        CLI_TRY(train_report_without(model, off, &s));
        found->left[i] = model->task->text ? mha_exp(s.loss) : train_accuracy(&s);
    }
    progress_clear(&shown);
    return CLI_OK;
}

/* Print each head: where it attends, and the accuracy without it. */
static void print_heads(train_model *model, const train_scores *all, const double *left)
{
    const train_task *task = model->task;
    mha_transformer_desc d;
    mha_transformer_describe(model->decoder, &d);
    cli_print("\n%-6s", "head");
    for (int kind = 0; kind < TRAIN_KINDS && task->kinds[1] && task->kinds[kind]; kind++)
        cli_print("  %6s: right wrong", task->kinds[kind]);
    cli_print("%s  before   accuracy without it\n", task->kinds[1] ? "" : "  right");
    for (int64_t l = 0; l < d.num_layers; l++)
        for (int64_t h = 0; h < d.num_heads; h++) {
            int used = cli_print("L%" PRId64 "H%" PRId64, l, h);
            cli_print("%*s", used < 6 ? 6 - used : 0, "");
            for (int kind = 0; kind < TRAIN_KINDS && task->kinds[1] && task->kinds[kind]; kind++)
                cli_print("          %5.2f %5.2f", train_right(all, kind, l, h),
                          train_wrong(all, kind, l, h));
            if (!task->kinds[1]) cli_print("  %5.2f", train_right(all, 0, l, h));
            cli_print("   %5.2f   %5.1f %%\n", train_previous(all, l, h),
                      100 * left[l * d.num_heads + h]);
        }
}

/* Print the accuracy without the selected head, and without the least important half of the
 * others. */
static cli_exit print_ablations(train_model *model, const double *left, int64_t best)
{
    mha_transformer_desc d;
    mha_transformer_describe(model->decoder, &d);
    const int64_t heads = d.num_layers * d.num_heads;
    uint8_t off[TRAIN_MOST_LAYERS * TRAIN_MOST_HEADS] = {0};
    train_scores s;
    if (heads < 3) return CLI_OK;
    for (int64_t n = 0; n < (heads - 1) / 2; n++) {
        int64_t least = -1;
        for (int64_t i = 0; i < heads; i++)
            if (i != best && !off[i] && (least < 0 || left[i] > left[least])) least = i;
        off[least] = 1;
    }
    CLI_TRY(train_report_without(model, off, &s));
    char line[96] = "Without the least important head: ";
    if ((heads - 1) / 2 > 1)
        snprintf(line, sizeof line,
                 "Without the %" PRId64 " least important heads: ", (heads - 1) / 2);
    print_accuracy(model->task, line, &s);
    return CLI_OK;
}

void train_report_size(train_model *model)
{
    const int64_t parameters = mha_transformer_size(model->decoder) +
                               (model->encoder ? mha_transformer_size(model->encoder) : 0);
    cli_print("The model: %s parameters, %s a step\n", words_count(parameters).text,
              words_flops(train_model_flops(model)).text);
}

cli_exit train_report_print(train_model *model, bool quiet, train_finding *found)
{
    *found = (train_finding){0};
    CLI_TRY(measure(model, quiet, found));
    if (model->task->text) return train_text_print(model, found);
    const train_task *task = model->task;
    mha_transformer_desc d;
    const train_scores *all = &found->all;
    const double *left = found->left;
    int64_t layer = 0, head = 0;
    mha_transformer_describe(model->decoder, &d);
    if (task->baselines) {
        random_source r = random_make(TRAIN_SPLIT_REPORT, 1);
        task->baselines(&r);
    }
    train_report_size(model);
    print_accuracy(task, "Right on held-out data:", all);
    print_heads(model, all, left);
    find_best(&d, all, &layer, &head);
    found->layer = layer;
    found->head = head;
    cli_print("\nL%" PRId64 "H%" PRId64 " attends most to the right tokens: it has %.0f %%", layer,
              head, 100 * train_right(all, 0, layer, head));
    if (task->kinds[1]) cli_print(" (%s)", task->kinds[0]);
    for (int kind = 1; kind < TRAIN_KINDS && task->kinds[kind]; kind++)
        cli_print(", %.0f %% (%s)", 100 * train_right(all, kind, layer, head), task->kinds[kind]);
    cli_print(" of its weight there; without it %.1f %% are right.\nIts largest weight is on a "
              "right token in %.1f %%",
              100 * left[layer * d.num_heads + head], 100 * train_hits(all, 0, layer, head));
    if (task->kinds[1]) cli_print(" (%s)", task->kinds[0]);
    for (int kind = 1; kind < TRAIN_KINDS && task->kinds[kind]; kind++)
        cli_print(", %.1f %% (%s)", 100 * train_hits(all, kind, layer, head), task->kinds[kind]);
    cli_print(".\n");
    CLI_TRY(print_ablations(model, left, layer * d.num_heads + head));
    return task->more ? task->more(model, all) : CLI_OK;
}

/* ---- pictures ------------------------------------------------------------------------------ */

static int32_t word_number(const train_task *task, const char *word, size_t length)
{
    for (int64_t i = 0; i < task->word_count; i++)
        if (strlen(task->words[i]) == length && !strncmp(task->words[i], word, length))
            return (int32_t)i;
    return -1;
}

cli_exit train_report_set_text(train_model *model, const char *text)
{
    train_batch *batch = &model->probe;
    random_source r = random_make(TRAIN_SPLIT_REPORT, 2);
    model->task->draw(&(train_ask){model->task, &r, TRAIN_SPLIT_REPORT, 0, 1}, batch);
    batch->B = 1;
    if (!text) {
        if (model->task->text && batch->T > MOST_SHOWN) batch->T = batch->lengths[0] = MOST_SHOWN;
        return CLI_OK;
    }
    batch->tokens[0] = word_number(model->task, "<s>", 3);
    batch->T = 1;
    while (*text) {
        size_t length = strcspn(text, " ");
        int32_t id = word_number(model->task, text, length);
        if (id < 0)
            return cli_fail(CLI_BAD_INPUT, "the task '%s' does not know the word '%.*s'",
                            model->task->name, (int)length, text);
        if (batch->T == batch->longest)
            return cli_fail(CLI_BAD_INPUT, "more than %lld words", (long long)batch->longest - 1);
        batch->tokens[batch->T++] = id;
        text += length + (text[length] == ' ');
    }
    batch->lengths[0] = batch->T;
    return CLI_OK;
}

static cli_exit add_tokens(const train_task *task, const int32_t *ids, int64_t count,
                           mha_tokens *tokens)
{
    CLI_TRY(maps_make_tokens(count, tokens));
    for (int64_t i = 0; i < count; i++) {
        tokens->ids[i] = ids[i];
        tokens->labels[i] = task->words[ids[i]];
        tokens->special[i] = task->words[ids[i]][0] == '<';
    }
    return CLI_OK;
}

/* Make the maps of the probe batch, which has one sequence. */
static cli_exit make_maps(train_model *model, const char *text, mha_maps *maps)
{
    const train_batch *batch = &model->probe;
    mha_transformer_desc d;
    mha_transformer_describe(model->decoder, &d);
    if (model->task->text) /* the model is that of the best step */
        CLI_TRY(
            arena_print(&maps->name, "a text of %s %s", words_count(model->task->text->count).text,
                        model->task->splitting == MHA_SPLIT_CHARACTERS ? "characters" : "words"));
    else
        CLI_TRY(arena_print(&maps->name, "%s, step %" PRId64, model->task->name, model->step));
    maps->struct_size = sizeof *maps;
    maps->kind = "transformer, trained here";
    maps->text[0] = text;
    maps->text_bytes[0] = text ? strlen(text) : 0;
    maps->layers = d.num_layers;
    maps->heads = d.num_heads;
    maps->flags = model->encoder ? 0 : MHA_MAPS_SAME;
    if (!model->encoder && d.flags & MHA_TRANSFORMER_CAUSAL) maps->flags |= MHA_MAPS_CAUSAL;
    CLI_TRY(add_tokens(model->task, batch->tokens, batch->T, &maps->rows));
    maps->cols = maps->rows;
    if (model->encoder) CLI_TRY(add_tokens(model->task, batch->source, batch->S, &maps->cols));
    CLI_TRY(ARENA_ALLOC(d.num_layers, &maps->layer));
    const int64_t count = d.num_heads * maps->rows.count * maps->cols.count;
    for (int64_t l = 0; l < d.num_layers; l++) {
        CLI_TRY(maps_add_layer(maps, l));
        memcpy(maps->layer[l], model->probabilities + l * count, (size_t)count * sizeof(float));
    }
    return CLI_OK;
}

/* Draw the selected head on the terminal. */
static cli_exit print_map(const train_finding *found, const mha_maps *maps)
{
    char head[64];
    mha_maps one = *maps;
    maps_picks picks;
    view_options chosen = {0};
    snprintf(head, sizeof head, "L%" PRId64 "H%" PRId64, found->layer, found->head);
    chosen.heads = (args_texts){.items = {head}, .count = 1};
    CLI_TRY(maps_pick(&chosen.layers, &chosen.heads, maps->layers, maps->heads, &picks));
    one.on = picks.on;
    return view_print(&chosen, &one);
}

/* The row to probe: the last probe's row of a random sequence, or the last position of an example's
 * word; -1: none. */
static int64_t judged_row(const train_model *model, int example)
{
    const train_batch *batch = &model->probe;
    const train_task *task = model->task;
    const char *word = task->looks[example];
    int64_t row = -1;
    for (int64_t i = 0; !task->examples[example] && i < batch->probe_count; i++)
        if (batch->probes[i].b == 0 && batch->probes[i].row < batch->T) row = batch->probes[i].row;
    for (int64_t t = 0; word && t < batch->T; t++)
        if (!strcmp(task->words[batch->tokens[t]], word)) row = t;
    return row;
}

/* Open the report on the largest weight of that row of the selected head. */
static void choose_first(const train_run *run, const train_finding *found, int example,
                         const mha_maps *maps, view_options *options)
{
    const int64_t cols = maps->cols.count, row = judged_row(&run->model, example);
    options->first_panel = found->layer * maps->heads + found->head;
    options->first_cell = row >= 0;
    if (row < 0) return;
    const float *weights =
        maps->layer[found->layer] + (found->head * maps->rows.count + row) * cols;
    options->first_row = row;
    options->first_col = 0;
    for (int64_t s = 1; s < cols; s++)
        if (weights[s] > weights[options->first_col]) options->first_col = s;
}

static cli_exit write_html(const train_run *run, const train_finding *found, int example,
                           const mha_maps *maps, bool quiet)
{
    train_evidence evidence;
    mha_maps all = *maps;
    maps_picks picks;
    view_options options = {.folder = run->folder,
                            .html = example ? "report-2.html" : "report.html",
                            .quiet = quiet,
                            .extra = &evidence.extra};
    choose_first(run, found, example, maps, &options);
    CLI_TRY(train_evidence_make(run, found, example, &evidence));
    CLI_TRY(maps_pick(&options.layers, &options.heads, maps->layers, maps->heads, &picks));
    all.on = picks.on;
    return view_write_files(&options, &all);
}

static cli_exit make_picture(train_run *run, const train_finding *found, int example, bool quiet)
{
    mha_maps maps = {0};
    const char *text = run->model.task->examples[example];
    CLI_TRY(train_report_set_text(&run->model, text));
    CLI_TRY(train_model_look(&run->model, NULL, NULL));
    CLI_TRY(make_maps(&run->model, text, &maps));
    if (run->folder) CLI_TRY(write_html(run, found, example, &maps, quiet));
    return example == 0 ? print_map(found, &maps) : CLI_OK;
}

cli_exit train_report_pictures(train_run *run, const train_finding *found, bool quiet)
{
    CLI_TRY(make_picture(run, found, 0, quiet));
    return run->model.task->examples[1] ? make_picture(run, found, 1, quiet) : CLI_OK;
}
