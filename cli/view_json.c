/* The maps as JSON; docs/program.md describes the object. Numbers have nine digits, which gives
 * back every float exactly; NaN and infinity, which JSON has not, become null. */
#include "commands.h"
#include "view.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The sink, and the first failure: after it nothing is written. */
typedef struct json_out {
    const mha_sink *sink;
    mha_status status;
} json_out;

static void put(json_out *json, const char *bytes, size_t count)
{
    if (json->status == MHA_OK && count > 0)
        json->status = json->sink->write(json->sink->user, bytes, count);
}

static void print(json_out *json, const char *format, ...) MHA_PRINTF(2, 3);

/* For short pieces: none of the formats here gives 128 bytes. */
static void print(json_out *json, const char *format, ...)
{
    char piece[128];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(piece, sizeof piece, format, arguments);
    va_end(arguments);
    put(json, piece, length < (int)sizeof piece ? (size_t)length : sizeof piece - 1);
}

/* A text in quotes; NULL is null. Bytes that are not UTF-8 (a file's name may hold them) become
 * U+FFFD. */
static void put_text(json_out *json, const char *text, size_t bytes)
{
    if (!text) {
        print(json, "null");
        return;
    }
    print(json, "\"");
    for (size_t at = 0; at < bytes;) {
        size_t valid = maps_valid_utf8(text + at, bytes - at), from = at, end = at + valid;
        for (; at < end; at++) {
            unsigned char c = (unsigned char)text[at];
            if (c >= 0x20 && c != '"' && c != '\\') continue;
            put(json, text + from, at - from);
            from = at + 1;
            if (c < 0x20)
                print(json, "\\u%04x", c);
            else
                print(json, "\\%c", c);
        }
        put(json, text + from, at - from);
        if (at < bytes) {
            print(json, "\xEF\xBF\xBD");
            at++;
        }
    }
    print(json, "\"");
}

static void put_number(json_out *json, double value, const char *before)
{
    if (isfinite(value))
        print(json, "%s%.9g", before, value);
    else
        print(json, "%snull", before);
}

/* An integer; below 0 means that there is none. */
static void put_count(json_out *json, const char *name, int64_t value)
{
    if (value < 0)
        print(json, ", \"%s\": null", name);
    else
        print(json, ", \"%s\": %" PRId64, name, value);
}

static void put_tokens(json_out *json, const char *name, const maps_tokens *tokens)
{
    print(json, "  \"%s\": [", name);
    for (int64_t i = 0; i < tokens->count; i++) {
        const maps_token *token = &tokens->items[i];
        print(json, "%s\n    {\"token\": ", i ? "," : "");
        put_text(json, token->text, strlen(token->text));
        put_count(json, "id", token->id);
        put_count(json, "type", token->type);
        put_count(json, "text", token->sequence);
        put_count(json, "begin", token->begin);
        put_count(json, "end", token->end);
        print(json, ", \"special\": %s}", token->special ? "true" : "false");
    }
    print(json, "\n  ],\n");
}

static void put_map(json_out *json, const float *map, int64_t rows, int64_t cols)
{
    for (int64_t t = 0; t < rows; t++) {
        print(json, "%s\n          [", t ? "," : "");
        for (int64_t s = 0; s < cols; s++)
            put_number(json, (double)map[t * cols + s], s ? ", " : "");
        print(json, "]");
    }
}

static void put_layer(json_out *json, const attention_maps *maps, const maps_picks *picks,
                      int64_t layer)
{
    int64_t rows = maps->rows.count, cols = maps->cols.count;
    const char *separator = "";
    print(json, "    {\"layer\": %" PRId64 ", \"heads\": [", layer);
    for (int64_t h = 0; h < maps->heads; h++) {
        if (!picks->on[layer * maps->heads + h]) continue;
        print(json, "%s\n      {\"head\": %" PRId64 ", \"name\": \"L%" PRId64 "H%" PRId64 "\",",
              separator, h, layer, h);
        print(json, "\n        \"weights\": [");
        put_map(json, maps->layer[layer] + h * rows * cols, rows, cols);
        print(json, "\n        ]}");
        separator = ",";
    }
    print(json, "\n    ]}");
}

mha_status view_write_json(const attention_maps *maps, const maps_picks *picks,
                           const mha_sink *sink)
{
    json_out json = {.sink = sink};
    print(&json, "{\n  \"format\": \"multihead-view\",\n  \"version\": 1,\n");
    print(&json, "  \"producer\": \"multihead " CLI_VERSION "\",\n  \"source\": {\"name\": ");
    put_text(&json, maps->name, strlen(maps->name));
    print(&json, ", \"architecture\": ");
    put_text(&json, maps->architecture, maps->architecture ? strlen(maps->architecture) : 0);
    put_count(&json, "layers", maps->layers);
    put_count(&json, "heads", maps->heads);
    print(&json, "},\n  \"texts\": [");
    for (int i = 0; i < 2 && maps->text[i]; i++) {
        print(&json, "%s", i ? ", " : "");
        put_text(&json, maps->text[i], maps->text_bytes[i]);
    }
    print(&json, "],\n");
    put_tokens(&json, "tokens", &maps->rows);
    if (maps->cols.items != maps->rows.items) put_tokens(&json, "key_tokens", &maps->cols);
    print(&json, "  \"layers\": [");
    const char *separator = "\n";
    for (int64_t l = 0; l < maps->layers; l++) {
        if (maps_picks_in_layer(picks, l) == 0) continue;
        print(&json, "%s", separator);
        put_layer(&json, maps, picks, l);
        separator = ",\n";
    }
    print(&json, "\n  ]\n}\n");
    return json.status;
}
