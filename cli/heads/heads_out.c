/* The table of heads for machines: CSV and JSON. docs/program.md describes both. */
#include "common/commands.h"
#include "common/files.h"
#include "common/json_out.h"
#include "heads/heads.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 96 };

/* ---- CSV ----------------------------------------------------------------------------------- */

/* A text as a cell: quoted where it must be, and with ' before what a spreadsheet would take for a
 * formula (OWASP, CSV injection): relations are named by files, and no name is a number. */
static void print_cell(const char *text)
{
    const char *quote = strpbrk(text, "\",") ? "\"" : "";
    cli_print("%s%s", quote, *text && strchr("=+-@", *text) ? "'" : "");
    while (*text) {
        const size_t bytes = strcspn(text, "\"");
        cli_print("%.*s%s", (int)bytes, text, text[bytes] ? "\"\"" : "");
        text += bytes + (text[bytes] != 0);
    }
    cli_print("%s", quote);
}

static void print_number(mha_head_score s, double value)
{
    if (s.rows > 0)
        cli_print(",%.9g", value);
    else
        cli_print(",");
}

void heads_print_csv(const heads_found *found, const heads_row *rows, int64_t count)
{
    static const char *const suffix[] = {"", "_chance", "_rows"};
    char name[NAME_BYTES], cell[HEADS_MOST_ROLES * NAME_BYTES];
    const int64_t scores = heads_score_count(found);
    cli_print("layer,head,roles");
    for (int64_t s = 0; s < scores; s++) {
        heads_score_name(found, s, name, sizeof name);
        for (int i = 0; i < 3; i++) {
            snprintf(cell, sizeof cell, "%s%s", name, suffix[i]);
            cli_print(",");
            print_cell(cell);
        }
    }
    cli_print("\n");
    for (int64_t i = 0; i < count; i++) {
        mha_head_role roles[HEADS_MOST_ROLES];
        const int64_t n = heads_roles(found, rows[i].layer, rows[i].head, roles);
        size_t used = 0;
        cell[0] = '\0';
        cli_print("%" PRId64 ",%" PRId64 ",", rows[i].layer, rows[i].head);
        for (int64_t r = 0; r < n; r++) {
            heads_role_name(found, &roles[r], name, sizeof name);
            used += (size_t)snprintf(cell + used, sizeof cell - used, "%s%s", r ? ";" : "", name);
        }
        print_cell(cell);
        for (int64_t s = 0; s < scores; s++) {
            const mha_head_score score = heads_score(found, rows[i].layer, rows[i].head, s);
            print_number(score, score.value);
            print_number(score, score.chance);
            cli_print(",%" PRId64, score.rows);
        }
        cli_print("\n");
    }
}

/* ---- JSON ---------------------------------------------------------------------------------- */

typedef struct json_job {
    const heads_options *options;
    const heads_found *found;
    const heads_row *rows;
    int64_t count;
} json_job;

static void put_score(json_out *json, mha_head_score s)
{
    if (s.rows == 0) {
        json_print(json, "null");
        return;
    }
    json_number(json, s.value, "{\"value\": ");
    json_number(json, s.chance, ", \"chance\": ");
    json_number(json, s.corrected, ", \"corrected\": ");
    json_print(json, ", \"rows\": %" PRId64 "}", s.rows);
}

static void put_role(json_out *json, const heads_found *found, const mha_head_role *role)
{
    const mha_role_info info = mha_role_describe(role->role);
    char name[NAME_BYTES];
    heads_role_name(found, role, name, sizeof name);
    json_print(json, "\n      {\"role\": ");
    json_text(json, info.name);
    json_print(json, ", \"name\": ");
    json_text(json, name);
    json_print(json, ", \"evidence\": ");
    json_text(json, role->evidence);
    json_print(json, ", \"score\": ");
    put_score(json, role->score);
    json_number(json, info.threshold, ", \"threshold\": ");
    if (role->role == MHA_ROLE_POSITIONAL || role->role == MHA_ROLE_DIAGONAL)
        json_print(json, ", \"offset\": %" PRId64, role->offset);
    json_print(json, "}");
}

static void put_relation(json_out *json, const heads_found *found, const heads_row *row,
                         int64_t relation, int direction)
{
    const mha_head_relation r =
        mha_head_measures_relation(found->texts, row->layer, row->head, relation, direction);
    json_print(json, "{\"accuracy\": ");
    put_score(json, r.accuracy);
    json_print(json, ", \"mass\": ");
    put_score(json, r.mass);
    json_number(json, r.baseline, ", \"baseline\": ");
    json_print(json, ", \"baseline_offset\": %" PRId64 "}", r.baseline_offset);
}

static void put_relations(json_out *json, const heads_found *found, const heads_row *row)
{
    json_print(json, ",\n     \"relations\": {");
    for (int64_t r = 0; r < found->relation_count; r++) {
        json_print(json, "%s\n      ", r ? "," : "");
        json_text(json, found->relations[r]);
        json_print(json, ": {\"forward\": ");
        put_relation(json, found, row, r, MHA_LINK_FORWARD);
        json_print(json, ",\n        \"backward\": ");
        put_relation(json, found, row, r, MHA_LINK_BACKWARD);
        json_print(json, "}");
    }
    json_print(json, "}");
}

static void put_scores(json_out *json, const heads_found *found, const heads_row *row)
{
    const int64_t count = heads_score_count(found) - 2 * found->relation_count;
    char name[NAME_BYTES];
    json_print(json, ",\n     \"scores\": {");
    for (int64_t s = 0; s < count; s++) {
        heads_score_name(found, s, name, sizeof name);
        json_print(json, "%s\n      ", s ? "," : "");
        json_text(json, name);
        json_print(json, ": ");
        put_score(json, heads_score(found, row->layer, row->head, s));
    }
    json_print(json, "}");
}

static void put_details(json_out *json, const heads_found *found, const heads_row *row)
{
    const mha_head_details d = mha_head_measures_details(found->texts, row->layer, row->head);
    json_print(json, ",\n     \"diagonal_offset\": %" PRId64 ", \"positional_offset\": %" PRId64,
               d.diagonal_offset, d.positional_offset);
    json_print(json, ",\n     \"columns\": {\"text\": %" PRId64 ", \"tokens\": [", d.column_text);
    for (int64_t i = 0; i < d.columns; i++)
        json_print(json, "%s%" PRId64, i ? ", " : "", d.column[i]);
    json_print(json, "]}");
}

static void put_head(json_out *json, const heads_found *found, const heads_row *row)
{
    mha_head_role roles[HEADS_MOST_ROLES];
    const int64_t count = heads_roles(found, row->layer, row->head, roles);
    json_print(json, "    {\"layer\": %" PRId64 ", \"head\": %" PRId64, row->layer, row->head);
    json_print(json, ", \"name\": \"L%" PRId64 "H%" PRId64 "\",\n     \"roles\": [", row->layer,
               row->head);
    for (int64_t r = 0; r < count; r++) {
        if (r) json_print(json, ",");
        put_role(json, found, &roles[r]);
    }
    json_print(json, "]");
    put_scores(json, found, row);
    if (found->texts) put_details(json, found, row);
    if (found->relation_count > 0) put_relations(json, found, row);
    if (found->corpus && heads_corpus_json(json, found, row) != CLI_OK)
        json->status = MHA_ERR_CALLBACK;
    json_print(json, "}");
}

static void put_without(json_out *json, const heads_found *found)
{
    bool first = true;
    json_print(json, ",\n  \"without\": [");
    for (int64_t i = 0; i < found->layers * found->model->heads; i++) {
        if (found->gates[i] != 0) continue;
        json_print(json, "%s\"L%" PRId64 "H%" PRId64 "\"", first ? "" : ", ",
                   i / found->model->heads, i % found->model->heads);
        first = false;
    }
    json_print(json, "]");
}

void heads_json_source(json_out *json, const heads_found *found, int64_t heads)
{
    json_print(json, "  \"producer\": \"multihead " CLI_VERSION "\",\n  \"source\": {\"name\": ");
    json_text(json, found->model->name);
    json_print(json, ", \"architecture\": ");
    json_text(json, found->model->architecture);
    json_print(json, ", \"layers\": %" PRId64 ", \"heads\": %" PRId64 "},\n", found->layers, heads);
}

static mha_status draw_json(const void *user, const mha_sink *sink)
{
    const json_job *job = user;
    const heads_found *f = job->found;
    json_out json = {.sink = sink};
    json_print(&json, "{\n  \"format\": \"multihead-heads\",\n  \"version\": 1,\n");
    heads_json_source(&json, f, f->count);
    json_print(&json, "  \"texts\": %" PRId64 ", \"tokens\": %" PRId64 ",\n", f->text_count,
               f->token_count);
    json_print(&json, "  \"random\": {\"sequences\": %" PRId64 ", \"tokens\": %" PRId64,
               f->random_count, f->random_block);
    json_print(&json, ", \"repeats\": %" PRId64 "},\n  \"measures\": {", f->random_repeats);
    for (int m = 0; m < MHA_MEASURES; m++) {
        const mha_measure_info info = mha_measure_describe((mha_head_measure)m);
        json_print(&json, "%s\n    ", m ? "," : "");
        json_text(&json, info.name);
        json_print(&json, ": ");
        json_text(&json, info.text);
    }
    json_print(&json, "}");
    if (f->corpus) heads_corpus_json_luck(&json, f);
    if (f->gates) put_without(&json, f);
    json_print(&json, ",\n  \"heads\": [");
    for (int64_t i = 0; i < job->count && json.status == MHA_OK; i++) {
        json_print(&json, "%s\n", i ? "," : "");
        put_head(&json, f, &job->rows[i]);
    }
    json_print(&json, "\n  ]");
    if (f->distances && heads_put_distances(&json, f, job->options->clusters.value) != CLI_OK)
        return MHA_ERR_CALLBACK; /* the error is already reported */
    json_print(&json, "\n}\n");
    return json.status;
}

cli_exit heads_write_json(const heads_options *options, const heads_found *found,
                          const heads_row *rows, int64_t count)
{
    const json_job job = {.options = options, .found = found, .rows = rows, .count = count};
    mha_status status = files_draw("-", draw_json, &job);
    return status == MHA_OK ? CLI_OK : cli_fail_status(HEADS, status);
}
