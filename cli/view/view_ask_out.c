/* The answer to --from and --to: a table and a JSON object. */
#include "common/arena.h"
#include "common/files.h"
#include "common/table.h"
#include "common/words.h"
#include "view/view_ask.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

cli_exit view_ask_columns(const view_ask *ask, const mha_maps *maps,
                          mha_column columns[MHA_ANSWER_MEASURES])
{
    static const struct {
        const char *name, *about;
    } all[MHA_ANSWER_MEASURES] = {
        {"weight", "Attention weight from the first word to the second."},
        {"arrives", "Norm of the weighted value of the second word, as a share of the row."},
        {"effect", "Effect of removing the head on the first word's row."}};
    double *values;
    const int64_t count = maps_count(maps);
    CLI_TRY(ARENA_ALLOC(MHA_ANSWER_MEASURES * count, &values));
    for (int by = 0; by < MHA_ANSWER_MEASURES; by++) {
        double *column = values + by * count;
        int64_t panel = 0, next = 0;
        for (int64_t i = 0; i < maps->layers * maps->heads; i++) {
            if (!maps->on[i]) continue;
            const mha_answer_head *head =
                next < ask->answer->count ? &ask->answer->heads[next] : NULL;
            const bool found = head && head->layer * maps->heads + head->head == i;
            column[panel++] = found ? head->value[by] : NAN; /* a layer may have fewer heads */
            next += found;
        }
        columns[by] = (mha_column){.name = all[by].name, .about = all[by].about, .values = column};
    }
    return CLI_OK;
}

/* ---- The table ------------------------------------------------------------------------------- */

enum { SHOWN = 12, WITH_RANKS = 56 }; /* heads; columns of a line with ranks */

/* The words of a question as the text has them: "it", token 10; "didn't", tokens 3-5. */
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

/* Narrow terminals omit the ranks. */
static const table_column columns[] = {{"head", -7, 0, TABLE_PLAIN, {0}},
#define ASK_MEASURE(by, heading, name)                                                 \
    TABLE_FIELD(heading, 9, 4, TABLE_PLAIN, name, NUMBER, mha_answer_head, value[by]), \
        TABLE_FIELD("rank", 6, 0, TABLE_PLAIN, name "_rank", INTEGER, mha_answer_head, rank[by])
                                       ASK_MEASURE(0, "weight", "weight"),
                                       ASK_MEASURE(1, "arrives", "share"),
                                       ASK_MEASURE(2, "effect", "effect")};

enum { COLUMNS = sizeof columns / sizeof *columns };

static void print_head(table *t, const mha_answer_head *head, bool ranks)
{
    table_text(t, "L%" PRId64 "H%" PRId64, head->layer, head->head);
    for (int by = 0; by < MHA_ANSWER_MEASURES; by++) {
        table_number(t, head->value[by]);
        if (ranks) table_text(t, "#%" PRId64, head->rank[by]);
    }
    table_end(t);
}

cli_exit view_ask_print(const view_options *options, const view_ask *ask)
{
    const int64_t width = screen_of(&options->screen).columns;
    const int64_t shown =
        ask->answer->count < SHOWN || options->heads.count > 0 || options->layers.count > 0
            ? ask->answer->count
            : SHOWN;
    const bool ranks = width >= WITH_RANKS;
    const int64_t *order = ask->answer->order[options->sort];
    table_column own[COLUMNS];
    table t = {.columns = own};
    print_question(options, ask, width);
    memcpy(own, columns, sizeof own);
    for (int i = 2; i < COLUMNS && !ranks; i += 2) own[i].heading = NULL;
    cli_print("\n");
    table_head(&t, COLUMNS);
    for (int64_t i = 0; i < shown; i++) print_head(&t, &ask->answer->heads[order[i]], ranks);
    if (shown < ask->answer->count) {
        char line[120];
        snprintf(line, sizeof line, "%" PRId64 " of %" PRId64 " heads, by %s; --json - has all",
                 shown, ask->answer->count, columns[1 + 2 * options->sort].heading);
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
    mha_json_object(json, NULL);
    mha_json_integer(json, "layer", head->layer);
    mha_json_integer(json, "head", head->head);
    mha_json_format(json, "name", "L%" PRId64 "H%" PRId64, head->layer, head->head);
    table_json(columns, COLUMNS, json, head);
    mha_json_end(json);
}

mha_status view_ask_write_json(const view_ask *ask, const mha_sink *sink)
{
    mha_json json = {.sink = sink};
    files_begin_json(&json, "multihead-ask");
    mha_json_object(&json, "source");
    mha_json_text(&json, "name", ask->source.name);
    mha_json_text(&json, "architecture", ask->source.kind);
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
