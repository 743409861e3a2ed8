/* What --from and --to found: a table for people, an object for machines. */
#include "common/arena.h"
#include "common/commands.h"
#include "common/json_out.h"
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
        {"weight", "What of its attention the word gives to the other one."},
        {"arrives", "What of the length of all that arrives at the word comes from the other one."},
        {"effect", "What changes at the word when the head is removed."}};
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
    snprintf(line, sizeof line, "%s: heads that look from %s at %s", ask->source.name, from, to);
    cli_print_wrapped("", line, width);
    if (view_join_texts(&ask->source, 140, text, sizeof text)) cli_print_wrapped("", text, width);
    snprintf(
        line, sizeof line,
        "weight: of the attention of that row; %.4f by chance. arrives: the same of the length "
        "of what arrives, ||alpha f(x)||. effect: %s",
        ask->answer->chance,
        ask->predicted
            ? "without the head, the fall of the log-probability of what that row predicts"
            : "without the head, the turn of that row's last hidden state, 1 - cosine");
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

static void put_word(json_out *json, const char *name, const ask_word *word)
{
    json_print(json, "  \"%s\": {\"word\": ", name);
    json_text(json, word->given);
    json_print(json, ", \"tokens\": [");
    for (int64_t i = 0; i < word->at.count; i++)
        json_print(json, "%s%" PRId64, i ? ", " : "", word->at.first + i);
    json_print(json, "]},\n");
}

static void put_effect(json_out *json, const view_ask *ask)
{
    json_print(json, "  \"effect\": {\"of\": \"%s\", \"row\": %" PRId64,
               ask->predicted ? "log-probability" : "hidden state",
               ask->from.at.first + ask->from.at.count - 1);
    if (ask->predicted) {
        json_print(json, ", \"predicted\": ");
        json_text(json, ask->predicted);
        json_number(json, ask->answer->probability, ", \"probability\": ");
    }
    json_print(json, "},\n");
}

static void put_head(json_out *json, const mha_answer_head *head)
{
    static const char *const names[MHA_ANSWER_MEASURES] = {"weight", "share", "effect"};
    json_print(json,
               "{\"layer\": %" PRId64 ", \"head\": %" PRId64 ", \"name\": \"L%" PRId64 "H%" PRId64
               "\"",
               head->layer, head->head, head->layer, head->head);
    for (int by = 0; by < MHA_ANSWER_MEASURES; by++) {
        json_print(json, ", \"%s\": ", names[by]);
        json_number(json, head->value[by], "");
        json_print(json, ", \"%s_rank\": %" PRId64, names[by], head->rank[by]);
    }
    json_print(json, "}");
}

mha_status view_ask_write_json(const view_ask *ask, const mha_sink *sink)
{
    json_out json = {.sink = sink};
    json_print(&json, "{\n  \"format\": \"multihead-ask\",\n  \"version\": 1,\n");
    json_print(&json, "  \"producer\": \"multihead " CLI_VERSION "\",\n  \"source\": {\"name\": ");
    json_text(&json, ask->source.name);
    json_print(&json, ", \"architecture\": ");
    json_text(&json, ask->source.architecture);
    json_print(&json, ", \"layers\": %" PRId64 ", \"heads\": %" PRId64 "},\n", ask->source.layers,
               ask->source.heads);
    json_print(&json, "  \"text\": ");
    json_text_bytes(&json, ask->source.text[0], ask->source.text_bytes[0]);
    json_print(&json, ",\n  \"tokens\": [");
    for (int64_t i = 0; i < ask->source.rows.count; i++) {
        json_print(&json, "%s", i ? ", " : "");
        json_text(&json, ask->source.rows.items[i].text);
    }
    json_print(&json, "],\n");
    put_word(&json, "from", &ask->from);
    put_word(&json, "to", &ask->to);
    json_number(&json, ask->answer->chance, "  \"chance\": ");
    json_print(&json, ",\n");
    put_effect(&json, ask);
    json_print(&json, "  \"heads\": [");
    for (int64_t i = 0; i < ask->answer->count; i++) {
        json_print(&json, "%s\n    ", i ? "," : "");
        put_head(&json, &ask->answer->heads[i]);
    }
    json_print(&json, "\n  ]\n}\n");
    return json.status;
}
