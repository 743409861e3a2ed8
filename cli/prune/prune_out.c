/* What was measured, as a table, CSV and JSON. */
#include "common/json_out.h"
#include "prune/prune.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *prune_measured(const prune_job *job)
{
    return job->data.predicts ? "accuracy" : "cosine";
}

/* Mean, smallest and largest of the random orders. */
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

/* What importance was measured by, in words. */
static void print_measure(const prune_job *job)
{
    const prune_options *o = job->options;
    const mha_importance kind = (mha_importance)o->measure;
    const char *of = job->data.predicts ? "the loss of the next token"
                     : kind >= MHA_IMPORTANCE_ABLATION
                         ? "1 - cosine to the embedding of the whole model"
                         : "the embedding along a random direction";
    if (o->task) of = "the loss of the words that the task asks for";
    cli_print("importance: %s of %s%s; %" PRId64 " head%s per round, measured again after each\n",
              mha_importance_name(kind), of,
              o->normalise ? ", each layer normalised to length 1" : "", o->step,
              o->step == 1 ? "" : "s");
}

static void print_data(const prune_job *job)
{
    const mha_transformer_desc *d = &job->model.desc;
    cli_print("%s: %" PRId64 " heads in %" PRId64 " layers, %" PRId64 " parameters; %" PRId64
              " sequences, %" PRId64 " tokens\n",
              job->model.name, job->heads, d->num_layers, mha_transformer_size(job->model.net),
              job->data.sequences, job->data.tokens);
    if (job->data.cut > 0)
        cli_print("%" PRId64 " tokens are beyond the %" PRId64
                  " positions of the model and were left out\n",
                  job->data.cut, job->model.max_length);
}

static void print_rows(const prune_job *job)
{
    cli_print("\n   heads  %9s  reversed  %-22s  parameters   seconds%s\n", prune_measured(job),
              "5 random orders", job->data.predicts ? "    loss" : "");
    for (int64_t i = 0; i < job->point_count; i++) {
        const prune_point *p = &job->points[i];
        const spread s = spread_of(p);
        cli_print("%c %6" PRId64 "  %9.4f  %8.4f  %.4f (%.4f-%.4f)  %12" PRId64 "  %8.4f",
                  i == job->chosen ? '>' : ' ', p->heads, p->ours.measure, p->reversed.measure,
                  s.mean, s.low, s.high, p->parameters, p->seconds);
        if (job->data.predicts) cli_print("  %6.4f", p->ours.loss);
        cli_print("\n");
    }
}

/* The heads that stay, layer by layer. */
static void print_kept(const prune_job *job)
{
    const prune_point *p = &job->points[job->chosen];
    const int64_t H = job->model.desc.num_heads;
    cli_print("\nkept: %" PRId64 " of %" PRId64 " heads\n", p->heads, job->heads);
    for (int64_t l = 0; l < job->model.desc.num_layers; l++) {
        int64_t kept = 0;
        cli_print("  layer %" PRId64 ":", l);
        for (int64_t h = 0; h < prune_heads_of(job, l); h++) {
            bool gone = false;
            for (int64_t k = 0; k < p->removed; k++) gone = gone || job->order[k] == l * H + h;
            if (gone) continue;
            cli_print(" %" PRId64, h);
            kept++;
        }
        cli_print("%s\n", kept ? "" : " none: only the residual, and the bias of the output");
    }
}

static void print_last(const prune_job *job)
{
    const int64_t few = job->count < 5 ? job->count : 5;
    if (few == 0) return;
    cli_print("first to go:");
    for (int64_t k = 0; k < few; k++) cli_print(" "), print_head(job, job->order[k]);
    cli_print("\nlast to go: ");
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
    cli_print("%-10s  %9s  %9s\n", "", "before", "after");
    cli_print("%-10s  %9.4f  %9.4f\n", "loss", job->whole.loss, job->shared.loss);
    cli_print("%-10s  %9.4f  %9.4f\n", prune_measured(job), job->whole.measure,
              job->shared.measure);
    cli_print("%-10s  %9" PRId64 "  %9" PRId64 "\n", "parameters",
              mha_transformer_size(job->model.net), job->shared_parameters);
    cli_print("the cache of keys and values shrinks by the same factor; such a model should be "
              "trained further\n");
}

/* ---- CSV ------------------------------------------------------------------------------------- */

static void csv_row(json_out *out, const prune_job *job, const prune_point *p, const char *order,
                    const prune_quality *q, bool ours)
{
    json_print(out, "%s,%" PRId64 ",%" PRId64 ",", order, p->heads, p->removed);
    json_print(out, "%.9g,%.9g,%s,", q->loss, q->measure, prune_measured(job));
    if (ours)
        json_print(out, "%" PRId64 ",%.6g\n", p->parameters, p->seconds);
    else
        json_print(out, ",\n");
}

mha_status prune_write_csv(const void *user, const mha_sink *sink)
{
    const prune_job *job = user;
    json_out out = {.sink = sink};
    char name[16];
    json_print(&out, "order,heads,removed,loss,quality,measure,parameters,seconds\n");
    for (int64_t i = 0; i < job->point_count; i++) {
        const prune_point *p = &job->points[i];
        csv_row(&out, job, p, "importance", &p->ours, true);
        csv_row(&out, job, p, "reversed", &p->reversed, false);
        for (int k = 0; k < PRUNE_RANDOM; k++) {
            snprintf(name, sizeof name, "random-%d", k);
            csv_row(&out, job, p, name, &p->random[k], false);
        }
    }
    return out.status;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void json_quality(json_out *out, const char *before, const prune_quality *q)
{
    json_number(out, q->loss, before);
    json_number(out, q->measure, ", \"quality\": ");
    json_print(out, "}");
}

static void json_point(json_out *out, const prune_point *p)
{
    json_print(out, "{\"heads\": %" PRId64 ", \"removed\": %" PRId64, p->heads, p->removed);
    json_print(out, ", \"parameters\": %" PRId64, p->parameters);
    json_number(out, p->seconds, ", \"seconds\": ");
    json_quality(out, ",\n     \"importance\": {\"loss\": ", &p->ours);
    json_quality(out, ",\n     \"reversed\": {\"loss\": ", &p->reversed);
    json_print(out, ",\n     \"random\": [");
    for (int i = 0; i < PRUNE_RANDOM; i++)
        json_quality(out, i ? ", {\"loss\": " : "{\"loss\": ", &p->random[i]);
    json_print(out, "]}");
}

/* Every head: its importance in the whole model, and when it went. */
static void json_heads(json_out *out, const prune_job *job)
{
    const int64_t H = job->model.desc.num_heads;
    const char *comma = "";
    const int64_t removed = job->points[job->chosen].removed;
    for (int64_t l = 0; l < job->model.desc.num_layers; l++)
        for (int64_t h = 0; h < prune_heads_of(job, l); h++) {
            int64_t place = -1;
            for (int64_t k = 0; k < job->count; k++)
                if (job->order[k] == l * H + h) place = k;
            json_print(out, "%s\n    {\"layer\": %" PRId64 ", \"head\": %" PRId64, comma, l, h);
            json_number(out, job->importance[l * H + h], ", \"importance\": ");
            if (place >= 0) json_print(out, ", \"goes\": %" PRId64, place);
            if (place >= 0) json_number(out, job->scores[place], ", \"importance_then\": ");
            json_print(out, ", \"kept\": %s}", place >= 0 && place < removed ? "false" : "true");
            comma = ",";
        }
}

static void json_model(json_out *out, const prune_job *job)
{
    const mha_transformer_desc *d = &job->model.desc;
    json_print(out, "{\n  \"model\": ");
    json_text(out, job->model.name);
    json_print(out, ",\n  \"layers\": %" PRId64 ", \"heads_of_a_layer\": %" PRId64, d->num_layers,
               d->num_heads);
    json_print(out, ", \"parameters\": %" PRId64, mha_transformer_size(job->model.net));
    json_print(out, ",\n  \"sequences\": %" PRId64 ", \"tokens\": %" PRId64, job->data.sequences,
               job->data.tokens);
    json_print(out, ",\n  \"quality\": \"%s\"", prune_measured(job));
}

static void json_shared(json_out *out, const prune_job *job)
{
    json_print(out, ",\n  \"kv_heads\": %" PRId64, job->options->kv_heads);
    json_print(out, ", \"parameters_after\": %" PRId64, job->shared_parameters);
    json_quality(out, ",\n  \"before\": {\"loss\": ", &job->whole);
    json_quality(out, ",\n  \"after\": {\"loss\": ", &job->shared);
    json_print(out, "\n}\n");
}

mha_status prune_write_json(const void *user, const mha_sink *sink)
{
    const prune_job *job = user;
    json_out out = {.sink = sink};
    json_model(&out, job);
    if (job->options->kv_heads > 0) {
        json_shared(&out, job);
        return out.status;
    }
    json_print(&out, ",\n  \"measure\": \"%s\"",
               mha_importance_name((mha_importance)job->options->measure));
    json_print(&out, ", \"kept\": %" PRId64, job->points[job->chosen].heads);
    json_print(&out, ",\n  \"heads\": [");
    json_heads(&out, job);
    json_print(&out, "],\n  \"curve\": [");
    for (int64_t i = 0; i < job->point_count; i++) {
        json_print(&out, i ? ",\n    " : "\n    ");
        json_point(&out, &job->points[i]);
    }
    json_print(&out, "]\n}\n");
    return out.status;
}
