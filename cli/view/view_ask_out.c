/* What --from and --to found: a table for people, an object for machines. */
#include "common/arena.h"
#include "common/files.h"
#include "common/words.h"
#include "view/view_ask.h"
#include "view/view_desk.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

cli_exit view_ask_columns(const view_ask *ask, const maps_picks *picks,
                          mha_column columns[MHA_ANSWER_MEASURES])
{
    static const struct {
        const char *name, *about;
    } all[MHA_ANSWER_MEASURES] = {
        {"weight", "Attention weight from the first word to the second."},
        {"arrives", "Norm of the weighted value of the second word, as a share of the row."},
        {"effect", "Effect of removing the head on the first word's row."}};
    double *values;
    CLI_TRY(ARENA_ALLOC(VIEW, MHA_ANSWER_MEASURES * picks->count, &values));
    for (int by = 0; by < MHA_ANSWER_MEASURES; by++) {
        double *column = values + by * picks->count;
        int64_t panel = 0, next = 0;
        for (int64_t i = 0; i < picks->layers * picks->heads; i++) {
            if (!picks->on[i]) continue;
            const mha_answer_head *head =
                next < ask->answer->count ? &ask->answer->heads[next] : NULL;
            const bool found = head && head->layer * picks->heads + head->head == i;
            column[panel++] = found ? head->value[by] : NAN; /* a layer may have fewer heads */
            next += found;
        }
        columns[by] = (mha_column){.name = all[by].name, .about = all[by].about, .values = column};
    }
    return CLI_OK;
}

/* ---- The table ------------------------------------------------------------------------------- */

enum { SHOWN = 12, WITH_RANKS = 56 }; /* heads; columns that a line with ranks takes */

/* The text's words of a question: "it", token 10; "didn't", tokens 3-5. */
static void describe_word(const ask_word *word, char *out, size_t size)
{
    if (word->at.count == 1)
        snprintf(out, size, "%.60s (token %" PRId64 ")", word->given, word->at.first);
    else
        snprintf(out, size, "%.60s (tokens %" PRId64 "-%" PRId64 ")", word->given, word->at.first,
                 word->at.first + word->at.count - 1);
}

static void print_question(const view_options *options, const view_ask *ask, int64_t width)
{
    char from[120], to[120], line[1400], text[1200];
    describe_word(&ask->from, from, sizeof from);
    describe_word(&ask->to, to, sizeof to);
    snprintf(line, sizeof line, "%s: attention from %s to %s", ask->source.name, from, to);
    cli_print_wrapped("", line, width);
    if (view_join_texts(&ask->source, 140, text, sizeof text)) cli_print_wrapped("", text, width);
    snprintf(line, sizeof line,
             "weight: attention weight in that row; uniform attention: %.4f. arrives: norm of the "
             "weighted value, "
             "||alpha f(x)||, as a share of the row. effect: %s",
             ask->answer->chance,
             ask->predicted
                 ? "decrease of the log-probability of that row's prediction without the head"
                 : "1 - cosine of that row's last hidden state with and without the head");
    cli_print_wrapped("", line, width);
    if (ask->predicted) {
        snprintf(line, sizeof line, "that row predicts: %.80s (probability %.3f)", ask->predicted,
                 ask->answer->probability);
        cli_print_wrapped("", line, width);
    }
    (void)options;
}

static void print_head(const mha_answer_head *head, bool ranks)
{
    char name[48], rank[32];
    snprintf(name, sizeof name, "L%" PRId64 "H%" PRId64, head->layer, head->head);
    cli_print("%-7s", name);
    for (int by = 0; by < MHA_ANSWER_MEASURES; by++) {
        snprintf(rank, sizeof rank, "#%" PRId64, head->rank[by]);
        cli_print(" %8.4f", head->value[by]);
        if (ranks) cli_print(" %5s", rank);
    }
    cli_print("\n");
}

cli_exit view_ask_print(const view_options *options, const view_ask *ask)
{
    static const char *const names[MHA_ANSWER_MEASURES] = {"weight", "arrives", "effect"};
    const int64_t width = screen_of(&options->screen).columns;
    const int64_t shown =
        ask->answer->count < SHOWN || options->heads.count > 0 || options->layers.count > 0
            ? ask->answer->count
            : SHOWN;
    const bool ranks = width >= WITH_RANKS;
    const int64_t *order = ask->answer->order[options->sort];
    print_question(options, ask, width);
    cli_print("\n%-7s", "head");
    for (int by = 0; by < MHA_ANSWER_MEASURES; by++)
        cli_print(ranks ? " %8s %5s" : " %8s%s", names[by], ranks ? "rank" : "");
    cli_print("\n");
    for (int64_t i = 0; i < shown; i++) print_head(&ask->answer->heads[order[i]], ranks);
    if (shown < ask->answer->count) {
        char line[120];
        snprintf(line, sizeof line, "%" PRId64 " of %" PRId64 " heads, by %s; --json - has all",
                 shown, ask->answer->count, names[options->sort]);
        cli_print_wrapped("", line, width);
    }
    return CLI_OK;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void put_word(mha_json *json, const char *name, const ask_word *word)
{
    mha_json_object(json, name);
    mha_json_text(json, "word", word->given);
    mha_json_array(json, "tokens");
    for (int64_t i = 0; i < word->at.count; i++) mha_json_integer(json, NULL, word->at.first + i);
    mha_json_end(json);
    mha_json_end(json);
}

static void put_effect(mha_json *json, const view_ask *ask)
{
    mha_json_object(json, "effect");
    mha_json_text(json, "of", ask->predicted ? "log-probability" : "hidden state");
    mha_json_integer(json, "row", ask->from.at.first + ask->from.at.count - 1);
    if (ask->predicted) {
        mha_json_text(json, "predicted", ask->predicted);
        mha_json_number(json, "probability", ask->answer->probability);
    }
    mha_json_end(json);
}

static void put_head(mha_json *json, const mha_answer_head *head)
{
    static const char *const names[MHA_ANSWER_MEASURES] = {"weight", "share", "effect"};
    static const char *const ranks[MHA_ANSWER_MEASURES] = {"weight_rank", "share_rank",
                                                           "effect_rank"};
    mha_json_object(json, NULL);
    mha_json_integer(json, "layer", head->layer);
    mha_json_integer(json, "head", head->head);
    mha_json_format(json, "name", "L%" PRId64 "H%" PRId64, head->layer, head->head);
    for (int by = 0; by < MHA_ANSWER_MEASURES; by++) {
        mha_json_number(json, names[by], head->value[by]);
        mha_json_integer(json, ranks[by], head->rank[by]);
    }
    mha_json_end(json);
}

mha_status view_ask_write_json(const view_ask *ask, const mha_sink *sink)
{
    mha_json json = {.sink = sink};
    files_begin_json(&json, "multihead-ask");
    mha_json_object(&json, "source");
    mha_json_text(&json, "name", ask->source.name);
    mha_json_text(&json, "architecture", ask->source.architecture);
    mha_json_integer(&json, "layers", ask->source.layers);
    mha_json_integer(&json, "heads", ask->source.heads);
    mha_json_end(&json);
    mha_json_bytes(&json, "text", ask->source.text[0], ask->source.text_bytes[0]);
    mha_json_array(&json, "tokens");
    for (int64_t i = 0; i < ask->source.rows.count; i++)
        mha_json_text(&json, NULL, ask->source.rows.labels[i]);
    mha_json_end(&json);
    put_word(&json, "from", &ask->from);
    put_word(&json, "to", &ask->to);
    mha_json_number(&json, "chance", ask->answer->chance);
    put_effect(&json, ask);
    mha_json_array(&json, "heads");
    mha_json_lines(&json, 4);
    for (int64_t i = 0; i < ask->answer->count; i++) put_head(&json, &ask->answer->heads[i]);
    mha_json_end(&json);
    mha_json_end(&json);
    return mha_json_finish(&json);
}
