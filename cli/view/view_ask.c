/* The heads that attend from one word to another: convert the command line's words to the library's
 * question. */
#include "view/view_ask.h"

#include "common/arena.h"
#include "common/progress.h"
#include "common/text_model.h"

#include <inttypes.h>
#include <stdio.h>

/* Find the word "it" or "it:2". Messages name option. */
static cli_exit find_word(const char *option, const char *given, const mha_tokens *tokens,
                          const mha_maps *source, ask_word *word)
{
    word->given = given;
    const mha_status status =
        mha_tokens_find_word(tokens, source->text[0], source->text_bytes[0], given, &word->at);
    if (status == MHA_OK) return CLI_OK;
    return cli_fail(status == MHA_ERR_ARGUMENT ? CLI_USAGE : CLI_BAD_INPUT, "%s %s", option,
                    mha_error_detail());
}

static mha_status show_progress(int64_t done, int64_t total, void *shown)
{
    progress_show(shown, (double)done / (double)total, "without head %" PRId64 " of %" PRId64,
                  done + 1, total);
    return MHA_OK;
}

ARENA_RELEASE(forget, mha_answer_free)

static cli_exit measure(const view_options *options, const text_model *model,
                        const mha_tokens *tokens, const maps_picks *picks, view_ask *ask)
{
    progress shown = progress_begin(options->quiet);
    const mha_question question = {.struct_size = sizeof question,
                                   .from = ask->from.at,
                                   .to = ask->to.at,
                                   .heads = picks->on,
                                   .progress = show_progress,
                                   .progress_user = &shown};
    CLI_TRY(ARENA_ALLOC(1, &ask->answer));
    const mha_status status =
        mha_question_ask(model->context, model->net, tokens, &question, ask->answer);
    progress_clear(&shown);
    CLI_TRY(cli_check(status));
    CLI_TRY(arena_keep(ask->answer, forget));
    if (ask->answer->predicted < 0) return CLI_OK;
    return text_model_token(model, ask->answer->predicted, &ask->predicted);
}

static cli_exit open_model(const view_options *options, text_model *model, mha_maps *source)
{
    CLI_TRY(view_open_model(options, model));
    if (model->encoder)
        return cli_fail(CLI_UNSUPPORTED,
                        "--from and --to ask about self-attention; give the encoder alone: "
                        "%s/encoder",
                        options->model);
    return view_name_source(model, source);
}

cli_exit view_ask_measure(const view_options *options, text_model *model, view_ask *ask)
{
    mha_maps *source = &ask->source;
    mha_tokens *tokens;
    maps_picks picks;
    *ask = (view_ask){0};
    const text_limits limits = {.most = options->max_tokens, .truncate = options->truncate};
    CLI_TRY(view_take_texts(options, source));
    CLI_TRY(open_model(options, model, source));
    CLI_TRY(maps_pick(&options->layers, &options->heads, model->layers, model->heads, &picks));
    CLI_TRY(text_model_encode(model, &limits, source->text[0], source->text_bytes[0], NULL, 0,
                              &tokens));
    source->rows = source->cols = *tokens;
    CLI_TRY(find_word("--from", options->from, tokens, source, &ask->from));
    CLI_TRY(find_word("--to", options->to, tokens, source, &ask->to));
    if (model->causal && ask->to.at.first >= ask->from.at.first + ask->from.at.count)
        return cli_fail(CLI_USAGE,
                        "--to %s comes after --from %s, and this model attends only to earlier "
                        "tokens: exchange the words",
                        ask->to.given, ask->from.given);
    return measure(options, model, tokens, &picks, ask);
}
