/* The counts as JSON; docs/program.md describes the object. Every count is a whole number. */
#include "common/files.h"
#include "count/count.h"

#include <math.h>

#define REPORT(name, type, member) MHA_JSON_NAMED(name, type, count_report, member)

static void put_configuration(mha_json *json, const count_report *r)
{
    static const mha_json_field fields[] = {
        REPORT("name", CHARS, config.name),
        REPORT("source", TEXT, config.source),
        REPORT("note", TEXT, config.note),
        MHA_JSON_BREAK(4),
        REPORT("embed", INTEGER, config.shape.embed),
        REPORT("heads", INTEGER, config.shape.heads),
        REPORT("kv_heads", INTEGER, config.shape.kv_heads),
        REPORT("head_dim", INTEGER, config.shape.head_dim),
        REPORT("layers", INTEGER, config.shape.layers),
        REPORT("cached_layers", INTEGER, config.shape.cached),
        REPORT("batch", INTEGER, config.shape.batch),
        REPORT("length", INTEGER, config.shape.length),
        MHA_JSON_BREAK(4),
        REPORT("dtype", TEXT, dtype),
        REPORT("element_bytes", INTEGER, config.shape.element_bytes),
        REPORT("causal", BOOL, config.causal),
        REPORT("qkv_bias", BOOL, config.shape.qkv_bias),
        REPORT("out_bias", BOOL, config.shape.out_bias),
        REPORT("left_keys", GIVEN, config.shape.left),
        REPORT("right_keys", GIVEN, config.shape.right),
        {0}};
    mha_json_object(json, "configuration");
    mha_json_fields(json, fields, r);
    mha_json_decimals(json, "published_parameters",
                      r->config.published > 0 ? r->config.published : NAN, 0);
    mha_json_end(json);
}

static void put_counts(mha_json *json, const count_report *r)
{
    static const mha_json_field fields[] = {
        MHA_JSON_BEGINS("layer"),
        MHA_JSON_BEGINS("parameters"),
        REPORT("W_q", INTEGER, counts.parameters.q),
        REPORT("W_k", INTEGER, counts.parameters.k),
        REPORT("W_v", INTEGER, counts.parameters.v),
        REPORT("W_o", INTEGER, counts.parameters.o),
        REPORT("biases", INTEGER, counts.parameters.biases),
        REPORT("all", INTEGER, counts.parameters.all),
        MHA_JSON_ENDS,
        MHA_JSON_BREAK(4),
        MHA_JSON_BEGINS("flops"),
        REPORT("q", INTEGER, counts.flops.q),
        REPORT("k", INTEGER, counts.flops.k),
        REPORT("v", INTEGER, counts.flops.v),
        REPORT("scores", INTEGER, counts.flops.scores),
        REPORT("softmax", INTEGER, counts.flops.softmax),
        REPORT("weighted_sum", INTEGER, counts.flops.sum),
        REPORT("out", INTEGER, counts.flops.o),
        REPORT("all", INTEGER, counts.flops.all),
        MHA_JSON_ENDS,
        MHA_JSON_BREAK(4),
        REPORT("pairs", INTEGER, counts.pairs),
        REPORT("visible_pairs", INTEGER, counts.visible_pairs),
        REPORT("matrix_bytes", INTEGER, counts.matrix_bytes),
        REPORT("cache_bytes", INTEGER, counts.cache_bytes),
        REPORT("window_cache_bytes", INTEGER, counts.window_cache_bytes),
        REPORT("allocated_cache_bytes", INTEGER, allocated),
        REPORT("allocated_window_cache_bytes", INTEGER, allocated_window),
        MHA_JSON_ENDS,
        MHA_JSON_BEGINS("model"),
        REPORT("parameters", INTEGER, counts.all_parameters),
        REPORT("flops", INTEGER, counts.all_flops),
        REPORT("matrix_bytes", INTEGER, counts.all_matrix_bytes),
        REPORT("cache_bytes", INTEGER, counts.all_cache_bytes),
        REPORT("window_cache_bytes", INTEGER, counts.all_window_cache_bytes),
        {0}};
    mha_json_fields(json, fields, r);
    mha_json_integer(json, "allocated_cache_bytes", r->allocated * r->config.shape.cached);
    mha_json_integer(json, "allocated_window_cache_bytes",
                     r->allocated_window * r->config.shape.cached);
    mha_json_integer(json, "cache_bytes_of_a_token", r->counts.token_bytes);
    mha_json_end(json);
}

static void put_rows(mha_json *json, const char *name, const count_row *rows, int count)
{
    mha_json_array(json, name);
    mha_json_lines(json, 4);
    for (int i = 0; i < count; i++) {
        mha_json_object(json, NULL);
        if (rows[i].name) mha_json_text(json, "name", rows[i].name);
        table_json(count_columns, COUNT_COLUMNS, json, &rows[i]);
        mha_json_end(json);
    }
    mha_json_end(json);
}

mha_status count_write_json(const count_report *report, const mha_sink *sink)
{
    mha_json json = {.sink = sink};
    files_begin_json(&json, "multihead-count");
    put_configuration(&json, report);
    put_counts(&json, report);
    put_rows(&json, "sharing", report->sharing, report->sharing_count);
    put_rows(&json, "one_head_against_many", report->heads, report->heads_count);
    mha_json_end(&json);
    return mha_json_finish(&json);
}
