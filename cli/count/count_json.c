/* The counts as JSON; docs/program.md describes the object. Every count is a whole number. */
#include "common/commands.h"
#include "common/json_out.h"
#include "count/count.h"

#include <inttypes.h>

static void put_int(json_out *json, const char *before, const char *name, int64_t value)
{
    json_print(json, "%s\"%s\": %" PRId64, before, name, value);
}

static void put_bool(json_out *json, const char *name, bool value)
{
    json_print(json, ", \"%s\": %s", name, value ? "true" : "false");
}

static void put_configuration(json_out *json, const count_report *r)
{
    const counts_shape *s = &r->config.shape;
    json_print(json, "  \"configuration\": {\"name\": ");
    json_text(json, r->config.name);
    json_print(json, ", \"source\": ");
    json_text(json, r->config.source);
    json_print(json, ", \"note\": ");
    json_text(json, r->config.note);
    json_print(json, ",\n    ");
    put_int(json, "", "embed", s->embed);
    put_int(json, ", ", "heads", s->heads);
    put_int(json, ", ", "kv_heads", s->kv_heads);
    put_int(json, ", ", "head_dim", s->head_dim);
    put_int(json, ", ", "layers", s->layers);
    put_int(json, ", ", "cached_layers", s->cached);
    put_int(json, ", ", "batch", s->batch);
    put_int(json, ", ", "length", s->length);
    json_print(json, ",\n    \"dtype\": ");
    json_text(json, r->dtype);
    put_int(json, ", ", "element_bytes", s->element_bytes);
    put_bool(json, "causal", r->config.causal);
    put_bool(json, "qkv_bias", s->qkv_bias);
    put_bool(json, "out_bias", s->out_bias);
    if (s->left >= 0) put_int(json, ", ", "left_keys", s->left);
    if (s->right >= 0) put_int(json, ", ", "right_keys", s->right);
    json_print(json, ", \"published_parameters\": ");
    if (r->config.published > 0)
        json_print(json, "%.0f", r->config.published);
    else
        json_print(json, "null");
    json_print(json, "},\n");
}

static void put_parameters(json_out *json, const counts_parameters *p)
{
    json_print(json, "\"parameters\": {");
    put_int(json, "", "W_q", p->q);
    put_int(json, ", ", "W_k", p->k);
    put_int(json, ", ", "W_v", p->v);
    put_int(json, ", ", "W_o", p->o);
    put_int(json, ", ", "biases", p->biases);
    put_int(json, ", ", "all", p->all);
    json_print(json, "}");
}

static void put_flops(json_out *json, const counts_flops *f)
{
    json_print(json, "\"flops\": {");
    put_int(json, "", "q", f->q);
    put_int(json, ", ", "k", f->k);
    put_int(json, ", ", "v", f->v);
    put_int(json, ", ", "scores", f->scores);
    put_int(json, ", ", "softmax", f->softmax);
    put_int(json, ", ", "weighted_sum", f->sum);
    put_int(json, ", ", "out", f->o);
    put_int(json, ", ", "all", f->all);
    json_print(json, "}");
}

static void put_counts(json_out *json, const count_report *r)
{
    const counts *c = &r->counts;
    json_print(json, "  \"layer\": {");
    put_parameters(json, &c->parameters);
    json_print(json, ",\n    ");
    put_flops(json, &c->flops);
    json_print(json, ",\n    ");
    put_int(json, "", "pairs", c->pairs);
    put_int(json, ", ", "visible_pairs", c->visible_pairs);
    put_int(json, ", ", "matrix_bytes", c->matrix_bytes);
    put_int(json, ", ", "cache_bytes", c->cache_bytes);
    put_int(json, ", ", "window_cache_bytes", c->window_cache_bytes);
    put_int(json, ", ", "allocated_cache_bytes", r->allocated);
    put_int(json, ", ", "allocated_window_cache_bytes", r->allocated_window);
    json_print(json, "},\n  \"model\": {");
    put_int(json, "", "parameters", c->all_parameters);
    put_int(json, ", ", "flops", c->all_flops);
    put_int(json, ", ", "matrix_bytes", c->all_matrix_bytes);
    put_int(json, ", ", "cache_bytes", c->all_cache_bytes);
    put_int(json, ", ", "window_cache_bytes", c->all_window_cache_bytes);
    put_int(json, ", ", "allocated_cache_bytes", r->allocated * r->config.shape.cached);
    put_int(json, ", ", "allocated_window_cache_bytes",
            r->allocated_window * r->config.shape.cached);
    put_int(json, ", ", "cache_bytes_of_a_token", c->token_bytes);
    json_print(json, "},\n");
}

static void put_rows(json_out *json, const char *name, const count_row *rows, int count)
{
    json_print(json, "  \"%s\": [", name);
    for (int i = 0; i < count; i++) {
        const count_row *row = &rows[i];
        json_print(json, "%s\n    {", i ? "," : "");
        if (row->name) json_print(json, "\"name\": \"%s\", ", row->name);
        put_int(json, "", "heads", row->shape.heads);
        put_int(json, ", ", "kv_heads", row->shape.kv_heads);
        put_int(json, ", ", "head_dim", row->shape.head_dim);
        put_int(json, ", ", "parameters", row->counts.parameters.all);
        put_int(json, ", ", "flops", row->counts.flops.all);
        put_int(json, ", ", "matrix_bytes", row->counts.matrix_bytes);
        put_int(json, ", ", "cache_bytes", row->counts.cache_bytes);
        put_bool(json, "asked", row->asked);
        json_print(json, "}");
    }
    json_print(json, "\n  ]");
}

mha_status count_write_json(const count_report *report, const mha_sink *sink)
{
    json_out json = {.sink = sink};
    json_print(&json, "{\n  \"format\": \"multihead-count\",\n  \"version\": 1,\n");
    json_print(&json, "  \"producer\": \"multihead " CLI_VERSION "\",\n");
    put_configuration(&json, report);
    put_counts(&json, report);
    put_rows(&json, "sharing", report->sharing, report->sharing_count);
    json_print(&json, ",\n");
    put_rows(&json, "one_head_against_many", report->heads, report->heads_count);
    json_print(&json, "\n}\n");
    return json.status;
}
