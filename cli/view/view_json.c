/* The maps as JSON; docs/program.md describes the object. Numbers have nine digits, which gives
 * back every float exactly; NaN and infinity, which JSON has not, become null. */
#include "common/files.h"
#include "view/view.h"

#include <inttypes.h>

/* An integer; below 0 means that there is none. */
static void put_count(mha_json *json, const char *name, int64_t value)
{
    if (value < 0)
        mha_json_null(json, name);
    else
        mha_json_integer(json, name, value);
}

static void put_tokens(mha_json *json, const char *name, const mha_tokens *tokens)
{
    mha_json_array(json, name);
    mha_json_lines(json, 4);
    for (int64_t i = 0; i < tokens->count; i++) {
        mha_json_object(json, NULL);
        mha_json_text(json, "token", tokens->labels[i]);
        put_count(json, "id", tokens->ids[i]);
        put_count(json, "type", tokens->types[i]);
        put_count(json, "text", tokens->sequence[i]);
        put_count(json, "begin", tokens->begin[i]);
        put_count(json, "end", tokens->end[i]);
        mha_json_bool(json, "special", tokens->special[i]);
        mha_json_end(json);
    }
    mha_json_end(json);
}

static void put_layer(mha_json *json, const attention_maps *maps, int64_t layer)
{
    const int64_t rows = maps->rows.count, cols = maps->cols.count;
    mha_json_object(json, NULL);
    mha_json_integer(json, "layer", layer);
    mha_json_array(json, "heads");
    mha_json_lines(json, 6);
    for (int64_t h = 0; h < maps->heads; h++) {
        if (!maps->picks.on[layer * maps->heads + h]) continue;
        mha_json_object(json, NULL);
        mha_json_integer(json, "head", h);
        mha_json_format(json, "name", "L%" PRId64 "H%" PRId64, layer, h);
        mha_json_line(json, 8);
        mha_json_array(json, "weights");
        mha_json_lines(json, 10);
        for (int64_t t = 0; t < rows; t++)
            mha_json_floats(json, NULL, maps->layer[layer] + (h * rows + t) * cols, cols);
        mha_json_end(json);
        mha_json_end(json);
    }
    mha_json_end(json);
    mha_json_end(json);
}

mha_status view_write_json(const attention_maps *maps, const mha_sink *sink)
{
    mha_json json = {.sink = sink};
    files_begin_json(&json, "multihead-view");
    mha_json_object(&json, "source");
    mha_json_text(&json, "name", maps->name);
    mha_json_text(&json, "architecture", maps->architecture);
    put_count(&json, "layers", maps->layers);
    put_count(&json, "heads", maps->heads);
    mha_json_end(&json);
    mha_json_array(&json, "texts");
    for (int i = 0; i < 2 && maps->text[i]; i++)
        mha_json_bytes(&json, NULL, maps->text[i], maps->text_bytes[i]);
    mha_json_end(&json);
    put_tokens(&json, "tokens", &maps->rows);
    if (maps->cols.labels != maps->rows.labels) put_tokens(&json, "key_tokens", &maps->cols);
    if (maps->contrast) put_tokens(&json, "contrast_tokens", &maps->other);
    mha_json_text(&json, "quantity", maps->contrast ? "difference" : "weight");
    mha_json_array(&json, "layers");
    mha_json_lines(&json, 4);
    for (int64_t l = 0; l < maps->layers; l++)
        if (maps_picks_in_layer(&maps->picks, l) > 0) put_layer(&json, maps, l);
    mha_json_end(&json);
    mha_json_end(&json);
    return mha_json_finish(&json);
}
