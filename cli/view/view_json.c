/* The maps as JSON; docs/program.md describes the object. Numbers have nine digits, which gives
 * back every float exactly; NaN and infinity, which JSON has not, become null. */
#include "common/commands.h"
#include "common/json_out.h"
#include "view/view.h"

#include <inttypes.h>
#include <string.h>

/* An integer; below 0 means that there is none. */
static void put_count(json_out *json, const char *name, int64_t value)
{
    if (value < 0)
        json_print(json, ", \"%s\": null", name);
    else
        json_print(json, ", \"%s\": %" PRId64, name, value);
}

static void put_tokens(json_out *json, const char *name, const maps_tokens *tokens)
{
    json_print(json, "  \"%s\": [", name);
    for (int64_t i = 0; i < tokens->count; i++) {
        const maps_token *token = &tokens->items[i];
        json_print(json, "%s\n    {\"token\": ", i ? "," : "");
        json_text(json, token->text);
        put_count(json, "id", token->id);
        put_count(json, "type", token->type);
        put_count(json, "text", token->sequence);
        put_count(json, "begin", token->begin);
        put_count(json, "end", token->end);
        json_print(json, ", \"special\": %s}", token->special ? "true" : "false");
    }
    json_print(json, "\n  ],\n");
}

static void put_map(json_out *json, const float *map, int64_t rows, int64_t cols)
{
    for (int64_t t = 0; t < rows; t++) {
        json_print(json, "%s\n          [", t ? "," : "");
        for (int64_t s = 0; s < cols; s++)
            json_number(json, (double)map[t * cols + s], s ? ", " : "");
        json_print(json, "]");
    }
}

static void put_layer(json_out *json, const attention_maps *maps, int64_t layer)
{
    int64_t rows = maps->rows.count, cols = maps->cols.count;
    const char *separator = "";
    json_print(json, "    {\"layer\": %" PRId64 ", \"heads\": [", layer);
    for (int64_t h = 0; h < maps->heads; h++) {
        if (!maps->picks.on[layer * maps->heads + h]) continue;
        json_print(json,
                   "%s\n      {\"head\": %" PRId64 ", \"name\": \"L%" PRId64 "H%" PRId64 "\",",
                   separator, h, layer, h);
        json_print(json, "\n        \"weights\": [");
        put_map(json, maps->layer[layer] + h * rows * cols, rows, cols);
        json_print(json, "\n        ]}");
        separator = ",";
    }
    json_print(json, "\n    ]}");
}

mha_status view_write_json(const attention_maps *maps, const mha_sink *sink)
{
    json_out json = {.sink = sink};
    json_print(&json, "{\n  \"format\": \"multihead-view\",\n  \"version\": 1,\n");
    json_print(&json, "  \"producer\": \"multihead " CLI_VERSION "\",\n  \"source\": {\"name\": ");
    json_text(&json, maps->name);
    json_print(&json, ", \"architecture\": ");
    json_text(&json, maps->architecture);
    put_count(&json, "layers", maps->layers);
    put_count(&json, "heads", maps->heads);
    json_print(&json, "},\n  \"texts\": [");
    for (int i = 0; i < 2 && maps->text[i]; i++) {
        json_print(&json, "%s", i ? ", " : "");
        json_text_bytes(&json, maps->text[i], maps->text_bytes[i]);
    }
    json_print(&json, "],\n");
    put_tokens(&json, "tokens", &maps->rows);
    if (maps->cols.items != maps->rows.items) put_tokens(&json, "key_tokens", &maps->cols);
    if (maps->contrast) put_tokens(&json, "contrast_tokens", &maps->other);
    json_print(&json, "  \"quantity\": \"%s\",\n", maps->contrast ? "difference" : "weight");
    json_print(&json, "  \"layers\": [");
    const char *separator = "\n";
    for (int64_t l = 0; l < maps->layers; l++) {
        if (maps_picks_in_layer(&maps->picks, l) == 0) continue;
        json_print(&json, "%s", separator);
        put_layer(&json, maps, l);
        separator = ",\n";
    }
    json_print(&json, "\n  ]\n}\n");
    return json.status;
}
