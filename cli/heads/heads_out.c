/* The table of heads as CSV and JSON. docs/program.md describes both. */
#include "common/csv.h"
#include "common/files.h"
#include "heads/heads.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = MHA_STUDY_NAME_BYTES };

/* ---- CSV ----------------------------------------------------------------------------------- */

static void put_names(csv_out *csv, const mha_study_found *found)
{
    static const char *const suffix[] = {"", "_chance", "_rows"};
    char name[NAME_BYTES], cell[2 * NAME_BYTES];
    csv_text(csv, "layer");
    csv_text(csv, "head");
    csv_text(csv, "roles");
    for (int64_t s = 0; s < mha_study_score_count(found); s++) {
        mha_study_score_name(found, s, name);
        for (int i = 0; i < 3; i++) {
            snprintf(cell, sizeof cell, "%s%s", name, suffix[i]);
            csv_text(csv, cell);
        }
    }
    csv_end_row(csv);
}

static void put_roles(csv_out *csv, const heads_row *row)
{
    char cell[MHA_STUDY_MOST_ROLES * NAME_BYTES] = "";
    size_t used = 0;
    for (int64_t r = 0; r < row->role_count; r++)
        used += (size_t)snprintf(cell + used, sizeof cell - used, "%s%s", r ? ";" : "",
                                 row->roles[r].name);
    csv_text(csv, cell);
}

void heads_print_csv(const mha_study_found *found, const heads_row *rows, int64_t count)
{
    csv_out csv = {.sink = &files_stdout};
    put_names(&csv, found);
    for (int64_t i = 0; i < count; i++) {
        csv_integer(&csv, rows[i].layer);
        csv_integer(&csv, rows[i].head);
        put_roles(&csv, &rows[i]);
        for (int64_t s = 0; s < mha_study_score_count(found); s++) {
            const mha_head_score score = mha_study_score(found, rows[i].layer, rows[i].head, s);
            csv_number(&csv, score.value, 9, score.rows > 0);
            csv_number(&csv, score.chance, 9, score.rows > 0);
            csv_integer(&csv, score.rows);
        }
        csv_end_row(&csv);
    }
}

/* ---- JSON ---------------------------------------------------------------------------------- */

typedef struct json_job {
    const heads_options *options;
    const heads_found *found;
    const heads_row *rows;
    int64_t count;
} json_job;

static void put_score(mha_json *json, const char *name, mha_head_score s)
{
    static const mha_json_field fields[] = {MHA_JSON_FIELD(NUMBER, mha_head_score, value),
                                            MHA_JSON_FIELD(NUMBER, mha_head_score, chance),
                                            MHA_JSON_FIELD(NUMBER, mha_head_score, corrected),
                                            MHA_JSON_FIELD(INTEGER, mha_head_score, rows),
                                            {0}};
    if (s.rows == 0) {
        mha_json_null(json, name);
        return;
    }
    mha_json_struct(json, name, fields, &s);
}

static void put_role(mha_json *json, const heads_role *of)
{
    const mha_head_role *role = &of->is;
    const mha_role_info info = mha_role_describe(role->role);
    mha_json_line(json, 6);
    mha_json_object(json, NULL);
    mha_json_text(json, "role", info.name);
    mha_json_text(json, "name", of->name);
    mha_json_text(json, "evidence", role->evidence);
    put_score(json, "score", role->score);
    mha_json_number(json, "threshold", info.threshold);
    if (role->role == MHA_ROLE_POSITIONAL || role->role == MHA_ROLE_DIAGONAL)
        mha_json_integer(json, "offset", role->offset);
    mha_json_end(json);
}

static void put_relation(mha_json *json, const char *name, const mha_head_measures *texts,
                         const heads_row *row, int64_t relation, int direction)
{
    const mha_head_relation r =
        mha_head_measures_relation(texts, row->layer, row->head, relation, direction);
    mha_json_object(json, name);
    put_score(json, "accuracy", r.accuracy);
    put_score(json, "mass", r.mass);
    mha_json_number(json, "baseline", r.baseline);
    mha_json_integer(json, "baseline_offset", r.baseline_offset);
    mha_json_end(json);
}

static void put_relations(mha_json *json, const mha_study_found *found, const heads_row *row)
{
    mha_json_line(json, 5);
    mha_json_object(json, "relations");
    for (int64_t r = 0; r < found->relation_count; r++) {
        mha_json_line(json, 6);
        mha_json_object(json, found->relations[r]);
        put_relation(json, "forward", found->texts, row, r, MHA_LINK_FORWARD);
        mha_json_line(json, 8);
        put_relation(json, "backward", found->texts, row, r, MHA_LINK_BACKWARD);
        mha_json_end(json);
    }
    mha_json_end(json);
}

static void put_scores(mha_json *json, const mha_study_found *found, const heads_row *row)
{
    const int64_t count = mha_study_score_count(found) - 2 * found->relation_count;
    char name[NAME_BYTES];
    mha_json_line(json, 5);
    mha_json_object(json, "scores");
    for (int64_t s = 0; s < count; s++) {
        mha_study_score_name(found, s, name);
        mha_json_line(json, 6);
        put_score(json, name, mha_study_score(found, row->layer, row->head, s));
    }
    mha_json_end(json);
}

static void put_details(mha_json *json, const mha_head_measures *texts, const heads_row *row)
{
    const mha_head_details d = mha_head_measures_details(texts, row->layer, row->head);
    mha_json_line(json, 5);
    mha_json_integer(json, "diagonal_offset", d.diagonal_offset);
    mha_json_integer(json, "positional_offset", d.positional_offset);
    mha_json_line(json, 5);
    mha_json_object(json, "columns");
    mha_json_integer(json, "text", d.column_text);
    mha_json_integers(json, "tokens", d.column, d.columns);
    mha_json_end(json);
}

static void put_head(mha_json *json, const heads_found *found, const heads_row *row)
{
    mha_json_object(json, NULL);
    heads_json_head(json, row);
    mha_json_line(json, 5);
    mha_json_array(json, "roles");
    for (int64_t r = 0; r < row->role_count; r++) put_role(json, &row->roles[r]);
    mha_json_end(json);
    put_scores(json, &found->of, row);
    if (found->of.texts) put_details(json, found->of.texts, row);
    if (found->of.relation_count > 0) put_relations(json, &found->of, row);
    if (found->of.corpus && heads_corpus_json(json, found, row) != CLI_OK)
        json->status = MHA_ERR_CALLBACK;
    mha_json_end(json);
}

static void put_without(mha_json *json, const heads_found *found)
{
    mha_json_line(json, 2);
    mha_json_array(json, "without");
    for (int64_t i = 0; i < found->of.layers * found->model->heads; i++)
        if (found->gates[i] == 0)
            mha_json_format(json, NULL, "L%" PRId64 "H%" PRId64, i / found->model->heads,
                            i % found->model->heads);
    mha_json_end(json);
}

void heads_json_head(mha_json *json, const heads_row *row)
{
    mha_json_integer(json, "layer", row->layer);
    mha_json_integer(json, "head", row->head);
    mha_json_format(json, "name", "L%" PRId64 "H%" PRId64, row->layer, row->head);
}

void heads_json_begin(mha_json *json, const char *format, const heads_found *found, int64_t heads)
{
    files_begin_json(json, format);
    mha_json_object(json, "source");
    mha_json_text(json, "name", found->model->name);
    mha_json_text(json, "architecture", found->model->architecture);
    if (heads_attention(found)) mha_json_text(json, "attention", heads_attention(found));
    mha_json_integer(json, "layers", found->of.layers);
    mha_json_integer(json, "heads", heads);
    mha_json_end(json);
}

static void put_measures(mha_json *json)
{
    mha_json_object(json, "measures");
    for (int m = 0; m < MHA_MEASURES; m++) {
        const mha_measure_info info = mha_measure_describe((mha_head_measure)m);
        mha_json_line(json, 4);
        mha_json_text(json, info.name, info.text);
    }
    mha_json_end(json);
}

static mha_status draw_json(const void *user, const mha_sink *sink)
{
    const json_job *job = user;
    const heads_found *f = job->found;
    mha_json json = {.sink = sink};
    heads_json_begin(&json, "multihead-heads", f, f->count);
    mha_json_integer(&json, f->images ? "images" : "texts", f->of.text_count);
    mha_json_lines(&json, -1);
    mha_json_integer(&json, "tokens", f->of.token_count);
    if (f->model->encoder) mha_json_integer(&json, "generated_targets", f->made);
    mha_json_lines(&json, 2);
    mha_json_object(&json, "random");
    mha_json_integer(&json, "sequences", f->of.random_count);
    mha_json_integer(&json, "tokens", f->of.plan ? f->of.plan->how.block : 0);
    mha_json_integer(&json, "repeats", f->of.plan ? f->of.plan->how.repeats : 0);
    mha_json_end(&json);
    put_measures(&json);
    if (f->of.corpus) heads_corpus_json_luck(&json, f->of.corpus);
    if (f->gates) put_without(&json, f);
    mha_json_array(&json, "heads");
    mha_json_lines(&json, 4);
    for (int64_t i = 0; i < job->count && !json.status; i++) put_head(&json, f, &job->rows[i]);
    mha_json_end(&json);
    if (f->of.distances && heads_put_distances(&json, f, job->options->clusters.value) != CLI_OK)
        return MHA_ERR_CALLBACK; /* the error is already reported */
    mha_json_end(&json);
    return mha_json_finish(&json);
}

cli_exit heads_write_json(const heads_options *options, const heads_found *found,
                          const heads_row *rows, int64_t count)
{
    const json_job job = {.options = options, .found = found, .rows = rows, .count = count};
    return cli_check(files_draw("-", draw_json, &job));
}
