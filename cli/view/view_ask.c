/* Which heads look from one word at another: words of the command line become tokens, and what the
 * library measures of each head becomes a list. */
#include "view/view_ask.h"

#include "common/arena.h"
#include "common/progress.h"
#include "common/text_model.h"

#include <multihead/attribution.h>

#include <inttypes.h>
#include <stdio.h>

/* A model at work on a question. */
typedef struct ask_run {
    const view_options *options;
    text_model *model;
    text_tokens tokens;
    maps_picks picks;
    view_ask *ask;
    int64_t T;
} ask_run;

/* ---- The question ---------------------------------------------------------------------------- */

static cli_exit find_words(ask_run *run)
{
    view_ask *ask = run->ask;
    CLI_TRY(view_find_word("--from", run->options->from, &ask->source, &ask->from));
    CLI_TRY(view_find_word("--to", run->options->to, &ask->source, &ask->to));
    const int64_t from_end = ask->from.first + ask->from.count;
    if (run->model->causal && ask->to.first >= from_end)
        return cli_fail(
            CLI_USAGE, VIEW,
            "--to %s comes after --from %s, and this model attends only to earlier tokens: "
            "ask the other way round",
            ask->to.given, ask->from.given);
    for (int64_t t = ask->from.first; t < from_end; t++) {
        const int64_t seen = run->model->causal ? t + 1 : run->T;
        int64_t there = 0;
        for (int64_t s = ask->to.first; s < ask->to.first + ask->to.count; s++) there += s < seen;
        ask->chance += (double)there / (double)seen / (double)ask->from.count;
    }
    return CLI_OK;
}

/* ---- The answer ------------------------------------------------------------------------------ */

static mha_status show_progress(int64_t done, int64_t total, void *shown)
{
    progress_show(shown, (double)done / (double)total, "without head %" PRId64 " of %" PRId64,
                  done + 1, total);
    return MHA_OK;
}

/* The heads that are wanted and that their layer has. */
static void list_heads(ask_run *run, double *const values[ASK_MEASURES])
{
    view_ask *ask = run->ask;
    const mha_transformer_desc *d = &run->model->desc;
    for (int64_t i = 0; i < d->num_layers * d->num_heads; i++) {
        const int64_t layer = i / d->num_heads, head = i % d->num_heads;
        if (!run->picks.on[i] || (d->layer_heads && head >= d->layer_heads[layer])) continue;
        ask_head *to = &ask->heads[ask->count++];
        *to = (ask_head){.layer = layer, .head = head};
        for (int by = 0; by < ASK_MEASURES; by++) to->value[by] = values[by][i];
    }
}

static cli_exit measure(ask_run *run)
{
    view_ask *ask = run->ask;
    const int64_t heads = run->model->layers * run->model->heads;
    progress shown = progress_begin(run->options->quiet);
    double *values[ASK_MEASURES];
    CLI_TRY(ARENA_ALLOC(VIEW, heads, &ask->heads));
    const size_t mark = arena_mark();
    for (int by = 0; by < ASK_MEASURES; by++) CLI_TRY(ARENA_ALLOC(VIEW, heads, &values[by]));
    const mha_tensor tokens =
        mha_tensor_contiguous(run->tokens.ids, MHA_I32, 1, (const int64_t[]){run->T});
    const mha_head_attribution_desc desc = {.struct_size = sizeof desc,
                                            .from_first = ask->from.first,
                                            .from_count = ask->from.count,
                                            .to_first = ask->to.first,
                                            .to_count = ask->to.count,
                                            .heads = run->picks.on,
                                            .progress = show_progress,
                                            .progress_user = &shown};
    mha_head_attribution found = {.struct_size = sizeof found,
                                  .weights = values[ASK_WEIGHT],
                                  .shares = values[ASK_SHARE],
                                  .effects = values[ASK_EFFECT]};
    const mha_status status = mha_transformer_head_attribution(run->model->context, run->model->net,
                                                               &tokens, &desc, &found);
    progress_clear(&shown);
    CLI_TRY(cli_check(VIEW, status));
    list_heads(run, values);
    arena_release(mark);
    ask->predicts = found.predicted >= 0;
    ask->probability = found.probability;
    return ask->predicts ? text_model_token(run->model, found.predicted, &ask->predicted) : CLI_OK;
}

/* Ranks from 1, ties by layer and head. */
static cli_exit rank(view_ask *ask)
{
    for (int by = 0; by < ASK_MEASURES; by++) {
        int64_t *order;
        CLI_TRY(view_ask_order(ask, (ask_measure)by, &order));
        for (int64_t i = 0; i < ask->count; i++) ask->heads[order[i]].rank[by] = i + 1;
    }
    return CLI_OK;
}

static cli_exit open_model(ask_run *run)
{
    CLI_TRY(view_open_model(run->options, run->model));
    if (run->model->encoder)
        return cli_fail(CLI_UNSUPPORTED, VIEW,
                        "--from and --to ask about self-attention; give the encoder alone: "
                        "%s/encoder",
                        run->options->model);
    return view_name_source(run->model, &run->ask->source);
}

cli_exit view_ask_measure(const view_options *options, text_model *model, view_ask *ask)
{
    ask_run run = {.options = options, .model = model, .ask = ask};
    attention_maps *source = &ask->source;
    *ask = (view_ask){0};
    const text_limits limits = {.most = options->max_tokens, .truncate = options->truncate};
    CLI_TRY(view_take_texts(options, source));
    CLI_TRY(open_model(&run));
    CLI_TRY(maps_pick(VIEW, &options->layers, &options->heads, run.model->layers, run.model->heads,
                      &run.picks));
    CLI_TRY(text_model_encode(run.model, &limits, source->text[0], source->text_bytes[0], NULL, 0,
                              &run.tokens));
    source->rows = source->cols = run.tokens.list;
    run.T = source->rows.count;
    CLI_TRY(find_words(&run));
    CLI_TRY(measure(&run));
    return rank(ask);
}
