/* Maps and desks as JSON. */
#include "study/routes.h"

#include <multihead/grid.h>
#include <multihead/json.h>
#include <multihead/maps.h>

#include <inttypes.h>

/* Write an integer; negative: null. */
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
        put_count(json, "id", tokens->ids ? tokens->ids[i] : -1);
        put_count(json, "type", tokens->types ? tokens->types[i] : -1);
        put_count(json, "text", tokens->sequence ? tokens->sequence[i] : -1);
        put_count(json, "begin", tokens->begin ? tokens->begin[i] : -1);
        put_count(json, "end", tokens->end ? tokens->end[i] : -1);
        mha_json_bool(json, "special", tokens->special && tokens->special[i]);
        mha_json_end(json);
    }
    mha_json_end(json);
}

static void put_image(mha_json *json, const mha_picture *p)
{
    if (!p) return;
    mha_json_object(json, "image");
    mha_json_integer(json, "rows", p->rows);
    mha_json_integer(json, "cols", p->cols);
    mha_json_integer(json, "first", p->first);
    mha_json_integer(json, "registers", p->registers);
    mha_json_end(json);
}

/* The measures of a head over an image. */
static void put_measures(mha_json *json, const mha_picture *p, float *map)
{
    if (!p) return;
    const mha_grid grid = {p->rows, p->cols, p->first, p->registers};
    const int64_t T = p->first + p->rows * p->cols, shape[] = {T, T};
    const mha_tensor tensor = mha_tensor_contiguous(map, MHA_F32, 2, shape);
    mha_grid_measures found;
    if (mha_grid_measure(&grid, &tensor, &found, NULL) != MHA_OK) return;
    mha_json_object(json, "measures");
#define PUT_MEASURE(name, text) mha_json_number(json, #name, found.name);
    MHA_GRID_MEASURE_LIST(PUT_MEASURE)
#undef PUT_MEASURE
    mha_json_end(json);
}

static void put_layer(mha_json *json, const mha_maps *maps, int64_t layer)
{
    const int64_t rows = maps->rows.count, cols = maps->cols.count;
    mha_json_object(json, NULL);
    mha_json_integer(json, "layer", layer);
    mha_json_array(json, "heads");
    mha_json_lines(json, 6);
    for (int64_t h = 0; h < maps->heads; h++) {
        if (maps->on && !maps->on[layer * maps->heads + h]) continue;
        mha_json_object(json, NULL);
        mha_json_integer(json, "head", h);
        mha_json_format(json, "name", "L%" PRId64 "H%" PRId64, layer, h);
        put_measures(json, maps->cell > 1 ? NULL : maps->rows.picture,
                     maps->layer[layer] + h * rows * cols);
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

static void begin(mha_json *json, const char *format)
{
    mha_json_object(json, NULL);
    mha_json_lines(json, 2);
    mha_json_text(json, "format", format);
    mha_json_integer(json, "version", 1);
    mha_json_format(json, "producer", "multihead %s", mha_version());
}

mha_status mha_maps_write_json(const mha_maps *maps, const mha_sink *sink)
{
    mha_json json = {.sink = sink};
    const bool contrast = maps->flags & MHA_MAPS_CONTRAST;
    begin(&json, "multihead-view");
    mha_json_object(&json, "source");
    mha_json_text(&json, "name", maps->name);
    mha_json_text(&json, "architecture", maps->kind);
    if (mha_maps_attention(maps)) mha_json_text(&json, "attention", mha_maps_attention(maps));
    put_count(&json, "layers", maps->layers);
    put_count(&json, "heads", maps->heads);
    mha_json_end(&json);
    mha_json_array(&json, "texts");
    for (int i = 0; i < 2 && maps->text[i]; i++)
        mha_json_bytes(&json, NULL, maps->text[i], maps->text_bytes[i]);
    mha_json_end(&json);
    put_tokens(&json, "tokens", &maps->rows);
    if (!(maps->flags & MHA_MAPS_SAME)) put_tokens(&json, "key_tokens", &maps->cols);
    if (contrast) put_tokens(&json, "contrast_tokens", &maps->other);
    put_image(&json, maps->rows.picture);
    mha_json_text(&json, "quantity", contrast ? "difference" : "weight");
    if (maps->cell > 1) mha_json_integer(&json, "cell", maps->cell);
    mha_json_array(&json, "layers");
    mha_json_lines(&json, 4);
    for (int64_t l = 0; l < maps->layers; l++)
        if (mha_maps_count(maps, l) > 0) put_layer(&json, maps, l);
    mha_json_end(&json);
    mhai_routes_write_json(&maps->routes, &json);
    mha_json_end(&json);
    return mha_json_finish(&json);
}

/* ---- the desk -------------------------------------------------------------------------------- */

static void put_rows(mha_json *json, const char *name, const float *values, int64_t rows,
                     int64_t cols)
{
    mha_json_line(json, 3);
    mha_json_array(json, name);
    for (int64_t r = 0; r < rows; r++) mha_json_floats(json, NULL, values + r * cols, cols);
    mha_json_end(json);
}

static void put_head(mha_json *json, const mha_desk *d, int64_t h)
{
    const int64_t T = d->tokens, E = d->features;
    mha_json_line(json, 2);
    mha_json_object(json, NULL);
    mha_json_integer(json, "head", h);
    mha_json_format(json, "name", "L%" PRId64 "H%" PRId64, d->layer, h);
    mha_json_line(json, 3);
    mha_json_floats(json, "norms", d->norms + h * T, T);
    mha_json_line(json, 3);
    mha_json_floats(json, "shares", d->shares + h * T, T);
    mha_json_line(json, 3);
    mha_json_floats(json, "cosines", d->cosines + h * d->heads, d->heads);
    mha_json_line(json, 3);
    mha_json_floats(json, "weight_norms", d->weight_norms + h * E, E);
    put_rows(json, "terms", d->terms + h * T * E, T, E);
    mha_json_end(json);
}

mha_status mha_desk_write_json(const mha_desk *d, const mha_maps *source, const mha_sink *sink)
{
    mha_json json = {.sink = sink};
    if (source->rows.count != d->tokens)
        return mha_fail(MHA_ERR_SHAPE,
                        "mha_desk_write_json: source has %" PRId64 " rows, expected the %" PRId64
                        " tokens of the desk",
                        source->rows.count, d->tokens);
    mha_json_object(&json, NULL);
    mha_json_text(&json, "format", "multihead-desk");
    mha_json_integer(&json, "version", 1);
    mha_json_object(&json, "source");
    mha_json_text(&json, "name", source->name);
    mha_json_end(&json);
    mha_json_integer(&json, "layer", d->layer);
    mha_json_texts(&json, "tokens", source->rows.labels, d->tokens);
    put_rows(&json, "before", d->before, d->tokens, d->heads * d->head_dim);
    put_rows(&json, "after", d->after, d->tokens, d->features);
    mha_json_line(&json, 1);
    mha_json_array(&json, "heads");
    for (int64_t h = 0; h < d->heads; h++) put_head(&json, d, h);
    mha_json_line(&json, 1);
    mha_json_end(&json);
    mha_json_end(&json);
    return mha_json_finish(&json);
}
