/* The measurements as a table, CSV and JSON. */
#include "common/csv.h"
#include "common/table.h"
#include "common/words.h"
#include "prune/prune.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *prune_measured(const prune_job *job)
{
    return job->data.predicts ? "accuracy" : "cosine";
}

/* Mean, minimum and maximum of the random orders. */
typedef struct spread {
    double mean, low, high;
} spread;

static spread spread_of(const prune_point *p)
{
    spread s = {0, p->random[0].measure, p->random[0].measure};
    for (int i = 0; i < PRUNE_RANDOM; i++) {
        const double x = p->random[i].measure;
        s.mean += x / PRUNE_RANDOM;
        if (x < s.low) s.low = x;
        if (x > s.high) s.high = x;
    }
    return s;
}

/* ---- the table ------------------------------------------------------------------------------- */

static void print_head(const prune_job *job, int64_t head)
{
    cli_print("L%" PRId64 "H%" PRId64, head / job->model.desc.num_heads,
              head % job->model.desc.num_heads);
}

/* The importance measure in words. */
static void print_measure(const prune_job *job)
{
    const prune_options *o = job->options;
    const mha_importance kind = (mha_importance)o->measure;
    const char *of = job->data.predicts ? "the loss of the next token"
                     : kind >= MHA_IMPORTANCE_ABLATION
                         ? "1 - cosine to the embedding of the full model"
                         : "the embedding along a random direction";
    if (o->task) of = "the loss of the words that the task tests";
    cli_print("importance: %s of %s%s; %" PRId64 " head%s per round, measured again after each\n",
              mha_importance_name(kind), of,
              o->normalise ? ", each layer normalised to length 1" : "", o->step, words_s(o->step));
}

static void print_data(const prune_job *job)
{
    const mha_transformer_desc *d = &job->model.desc;
    cli_print("%s: %" PRId64 " head%s in %" PRId64 " layer%s, %" PRId64 " parameters; %" PRId64
              " sequence%s, %" PRId64 " tokens\n",
              job->model.name, job->heads, words_s(job->heads), d->num_layers,
              words_s(d->num_layers), mha_transformer_size(job->model.net), job->data.sequences,
              words_s(job->data.sequences), job->data.tokens);
    if (job->data.cut > 0)
        cli_print("%" PRId64 " tokens are beyond the %" PRId64
                  " positions of the model and were skipped\n",
                  job->data.cut, job->model.max_length);
}

static void print_rows(const prune_job *job)
{
    const table_column columns[] = {{"heads", 8, 0, TABLE_PLAIN, {0}},
                                    {prune_measured(job), 11, 4, TABLE_PLAIN, {0}},
                                    {"reversed", 10, 4, TABLE_PLAIN, {0}},
                                    {"  5 random orders", -24, 0, TABLE_PLAIN, {0}},
                                    {"parameters", 14, 0, TABLE_PLAIN, {0}},
                                    {"seconds", 10, 4, TABLE_PLAIN, {0}},
                                    {job->data.predicts ? "loss" : NULL, 8, 4, TABLE_PLAIN, {0}}};
    table t = {.columns = columns};
    cli_print("\n");
    table_head(&t, sizeof columns / sizeof *columns);
    for (int64_t i = 0; i < job->point_count; i++) {
        const prune_point *p = &job->points[i];
        const spread s = spread_of(p);
        table_text(&t, "%c %6" PRId64, i == job->chosen ? '>' : ' ', p->heads);
        table_number(&t, p->ours.measure);
        table_number(&t, p->reversed.measure);
        table_text(&t, "  %.4f (%.4f-%.4f)", s.mean, s.low, s.high);
        table_integer(&t, p->parameters);
        table_number(&t, p->seconds);
        if (job->data.predicts) table_number(&t, p->ours.loss);
        table_end(&t);
    }
}

/* The remaining heads, layer by layer. */
static void print_kept(const prune_job *job)
{
    const prune_point *p = &job->points[job->chosen];
    const int64_t H = job->model.desc.num_heads;
    cli_print("\nkept: %" PRId64 " of %" PRId64 " heads\n", p->heads, job->heads);
    for (int64_t l = 0; l < job->model.desc.num_layers; l++) {
        int64_t kept = 0;
        cli_print("  layer %" PRId64 ":", l);
        for (int64_t h = 0; h < mha_transformer_heads(&job->model.desc, l); h++) {
            bool gone = false;
            for (int64_t k = 0; k < p->removed; k++) gone = gone || job->order[k] == l * H + h;
            if (gone) continue;
            cli_print(" %" PRId64, h);
            kept++;
        }
        cli_print("%s\n",
                  kept ? "" : " none: only the residual connection and the bias of the output");
    }
}

static void print_last(const prune_job *job)
{
    const int64_t few = job->count < 5 ? job->count : 5;
    if (few == 0) return;
    cli_print("first removed:");
    for (int64_t k = 0; k < few; k++) cli_print(" "), print_head(job, job->order[k]);
    cli_print("\nlast removed: ");
    for (int64_t k = 0; k < few; k++) {
        cli_print(" ");
        print_head(job, job->order[job->count - 1 - k]);
    }
    cli_print("\n");
}

void prune_print(const prune_job *job)
{
    print_data(job);
    print_measure(job);
    print_rows(job);
    print_kept(job);
    print_last(job);
}

void prune_print_shared(const prune_job *job)
{
    const mha_transformer_desc *d = &job->model.desc;
    print_data(job);
    cli_print("key/value heads: %" PRId64 " -> %" PRId64 ", each the mean of %" PRId64 "\n",
              d->kv_heads, job->options->kv_heads, d->kv_heads / job->options->kv_heads);
    static const table_column columns[] = {{"", -10, 0, TABLE_PLAIN, {0}},
                                           {"before", 11, 4, TABLE_PLAIN, {0}},
                                           {"after", 11, 4, TABLE_PLAIN, {0}}};
    table t = {.columns = columns};
    table_head(&t, sizeof columns / sizeof *columns);
    table_text(&t, "loss");
    table_number(&t, job->whole.loss);
    table_number(&t, job->shared.loss);
    table_end(&t);
    table_text(&t, "%s", prune_measured(job));
    table_number(&t, job->whole.measure);
    table_number(&t, job->shared.measure);
    table_end(&t);
    table_text(&t, "parameters");
    table_integer(&t, mha_transformer_size(job->model.net));
    table_integer(&t, job->shared_parameters);
    table_end(&t);
    cli_print("the cache of keys and values shrinks by the same factor; such a model should be "
              "trained further\n");
}

/* ---- CSV ------------------------------------------------------------------------------------- */

static void csv_row(csv_out *csv, const prune_job *job, const prune_point *p, const char *order,
                    const prune_quality *q)
{
    const bool ours = q == &p->ours;
    csv_text(csv, order);
    csv_integer(csv, p->heads);
    csv_integer(csv, p->removed);
    csv_number(csv, q->loss, 9, true);
    csv_number(csv, q->measure, 9, true);
    csv_text(csv, prune_measured(job));
    csv_number(csv, (double)p->parameters, 15, ours);
    csv_number(csv, p->seconds, 6, ours);
    csv_end_row(csv);
}

mha_status prune_write_csv(const void *user, const mha_sink *sink)
{
    const prune_job *job = user;
    csv_out csv = {.sink = sink};
    char name[16];
    csv_names(&csv, "order,heads,removed,loss,quality,measure,parameters,seconds");
    for (int64_t i = 0; i < job->point_count; i++) {
        const prune_point *p = &job->points[i];
        csv_row(&csv, job, p, "importance", &p->ours);
        csv_row(&csv, job, p, "reversed", &p->reversed);
        for (int k = 0; k < PRUNE_RANDOM; k++) {
            snprintf(name, sizeof name, "random-%d", k);
            csv_row(&csv, job, p, name, &p->random[k]);
        }
    }
    return csv.status;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static const mha_json_field quality[] = {MHA_JSON_FIELD(NUMBER, prune_quality, loss),
                                         MHA_JSON_NAMED("quality", NUMBER, prune_quality, measure),
                                         {0}};

static void json_quality(mha_json *json, const char *name, const prune_quality *q)
{
    mha_json_struct(json, name, quality, q);
}

static void json_point(mha_json *json, const prune_point *p)
{
    static const mha_json_field fields[] = {MHA_JSON_FIELD(INTEGER, prune_point, heads),
                                            MHA_JSON_FIELD(INTEGER, prune_point, removed),
                                            MHA_JSON_FIELD(INTEGER, prune_point, parameters),
                                            MHA_JSON_FIELD(NUMBER, prune_point, seconds),
                                            {0}};
    mha_json_line(json, 4);
    mha_json_object(json, NULL);
    mha_json_fields(json, fields, p);
    mha_json_lines(json, 5);
    json_quality(json, "importance", &p->ours);
    json_quality(json, "reversed", &p->reversed);
    mha_json_array(json, "random");
    for (int i = 0; i < PRUNE_RANDOM; i++) json_quality(json, NULL, &p->random[i]);
    mha_json_end(json);
    mha_json_lines(json, -1);
    mha_json_end(json);
}

/* Every head: its importance in the whole model, and when it was removed. */
static void json_heads(mha_json *json, const prune_job *job)
{
    const int64_t H = job->model.desc.num_heads;
    const int64_t removed = job->points[job->chosen].removed;
    for (int64_t l = 0; l < job->model.desc.num_layers; l++)
        for (int64_t h = 0; h < mha_transformer_heads(&job->model.desc, l); h++) {
            int64_t place = -1;
            for (int64_t k = 0; k < job->count; k++)
                if (job->order[k] == l * H + h) place = k;
            mha_json_line(json, 4);
            mha_json_object(json, NULL);
            mha_json_integer(json, "layer", l);
            mha_json_integer(json, "head", h);
            mha_json_number(json, "importance", job->importance[l * H + h]);
            if (place >= 0) mha_json_integer(json, "goes", place);
            if (place >= 0) mha_json_number(json, "importance_then", job->scores[place]);
            mha_json_bool(json, "kept", place < 0 || place >= removed);
            mha_json_end(json);
        }
}

static void json_model(mha_json *json, const prune_job *job)
{
    const mha_transformer_desc *d = &job->model.desc;
    mha_json_line(json, 2);
    mha_json_text(json, "model", job->model.name);
    mha_json_line(json, 2);
    mha_json_integer(json, "layers", d->num_layers);
    mha_json_integer(json, "heads_of_a_layer", d->num_heads);
    mha_json_integer(json, "parameters", mha_transformer_size(job->model.net));
    mha_json_line(json, 2);
    mha_json_integer(json, "sequences", job->data.sequences);
    mha_json_integer(json, "tokens", job->data.tokens);
    mha_json_line(json, 2);
    mha_json_text(json, "quality", prune_measured(job));
    mha_json_line(json, 2);
}

static void json_curve(mha_json *json, const prune_job *job)
{
    mha_json_text(json, "measure", mha_importance_name((mha_importance)job->options->measure));
    mha_json_integer(json, "kept", job->points[job->chosen].heads);
    mha_json_line(json, 2);
    mha_json_array(json, "heads");
    json_heads(json, job);
    mha_json_end(json);
    mha_json_line(json, 2);
    mha_json_array(json, "curve");
    for (int64_t i = 0; i < job->point_count; i++) json_point(json, &job->points[i]);
    mha_json_end(json);
}

mha_status prune_write_json(const void *user, const mha_sink *sink)
{
    const prune_job *job = user;
    mha_json json = {.sink = sink};
    mha_json_object(&json, NULL);
    json_model(&json, job);
    if (job->options->kv_heads > 0) {
        mha_json_integer(&json, "kv_heads", job->options->kv_heads);
        mha_json_integer(&json, "parameters_after", job->shared_parameters);
        mha_json_line(&json, 2);
        json_quality(&json, "before", &job->whole);
        mha_json_line(&json, 2);
        json_quality(&json, "after", &job->shared);
    } else {
        json_curve(&json, job);
    }
    mha_json_line(&json, 0);
    mha_json_end(&json);
    return mha_json_finish(&json);
}
