/* The page of maps over an image: its data as JSON, and the template around it. */
#include "html.h"
#include "png.h"

#include <multihead/component.h>
#include <multihead/json.h>
#include <multihead/render_picture.h>

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 1 << 26, MOST_EDGE = 1 << 15 };

static mha_status check_map(const mha_picture_page *p, const mha_picture_map *map)
{
    if (!map->values) return mha_fail(MHA_ERR_NULL, "picture page: values of a map are NULL");
    if (map->group < 0 || map->group >= p->group_count || map->measure_count < 0 ||
        map->measure_count > 64 || (map->measure_count > 0 && !map->measures))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "picture page: a map has group %" PRId64 " and %" PRId64
                        " measures, expected a group below %" PRId64 " and 0..64",
                        map->group, map->measure_count, p->group_count);
    return MHA_OK;
}

static mha_status check(const mha_picture_page *given, mha_picture_page *p)
{
    if (!given) return mha_fail(MHA_ERR_NULL, "picture page: page is NULL");
    MHA_TRY(mha_struct_read("mha_picture_page", p, sizeof *p, offsetof(mha_picture_page, producer),
                            given, given->struct_size));
    if (p->map_size != sizeof(mha_picture_map) && p->map_count + p->beside_count > 0)
        return mha_fail(MHA_ERR_ARGUMENT, "picture page: map_size is %u, expected %zu",
                        (unsigned)p->map_size, sizeof(mha_picture_map));
    const int64_t sizes[] = {p->rows, p->cols, p->patch};
    for (int i = 0; i < 3; i++)
        if (sizes[i] < 1 || sizes[i] > MOST_EDGE)
            return mha_fail(MHA_ERR_ARGUMENT,
                            "picture page: rows, cols and patch are %" PRId64 ", %" PRId64
                            ", %" PRId64 "; expected 1..%d",
                            p->rows, p->cols, p->patch, MOST_EDGE);
    if (p->first < 0 || p->first > MOST_EDGE || p->map_count < 0 || p->beside_count < 0 ||
        p->group_count < 0)
        return mha_fail(MHA_ERR_ARGUMENT, "picture page: a count is negative or too large");
    const double cells = pow((double)(p->first + p->rows * p->cols), 2);
    if (cells * (double)(p->map_count + p->beside_count) > MOST ||
        (double)(p->rows * p->cols) * (double)(p->patch * p->patch) > MOST)
        return mha_fail(MHA_ERR_SIZE,
                        "the page would have %.0f cells, at most %d fit; choose "
                        "fewer heads with --layer or --head",
                        cells * (double)(p->map_count + p->beside_count), MOST);
    if (!p->pixels || (p->map_count && !p->maps) || (p->beside_count && !p->beside) ||
        (p->first && !p->labels) || (p->group_count && !p->groups))
        return mha_fail(MHA_ERR_NULL, "picture page: an array is NULL");
    for (int64_t i = 0; i < p->map_count; i++) MHA_TRY(check_map(p, &p->maps[i]));
    for (int64_t i = 0; i < p->beside_count; i++) MHA_TRY(check_map(p, &p->beside[i]));
    return MHA_OK;
}

/* ---- the data -------------------------------------------------------------------------------- */

static void write_names(mha_json *json, const char *name, const char *const *names, int64_t count)
{
    mha_json_array(json, name);
    for (int64_t i = 0; i < count; i++) mha_json_text(json, NULL, names[i]);
    mha_json_end(json);
}

/* Values that are not finite or negative count as 0. */
static float weight_at(const mha_picture_map *map, int64_t i)
{
    return isfinite(map->values[i]) && map->values[i] > 0 ? map->values[i] : 0;
}

/* cells, sums: room for a map, and for each query's sum over patches, which 8-bit cells would
 * falsify. */
static void write_map(const mha_picture_page *p, const mha_picture_map *map, uint8_t *cells,
                      float *sums, mha_json *json)
{
    const int64_t tokens = p->first + p->rows * p->cols;
    float most = 0;
    for (int64_t q = 0; q < tokens; q++) {
        double sum = 0;
        for (int64_t k = p->first; k < tokens; k++) sum += (double)weight_at(map, q * tokens + k);
        sums[q] = (float)sum;
    }
    for (int64_t i = 0; i < tokens * tokens; i++)
        if (weight_at(map, i) > most) most = weight_at(map, i);
    for (int64_t i = 0; i < tokens * tokens; i++)
        cells[i] = most > 0 ? (uint8_t)(255 * sqrt((double)(weight_at(map, i) / most)) + 0.5) : 0;
    mha_json_object(json, NULL);
    mha_json_text(json, "name", map->name);
    mha_json_integer(json, "group", map->group);
    mha_json_number(json, "most", (double)most);
    mha_json_array(json, "measures");
    for (int64_t i = 0; i < map->measure_count; i++) {
        mha_json_object(json, NULL);
        mha_json_text(json, "name", map->measures[i].name);
        mha_json_number(json, "value", map->measures[i].value);
        mha_json_number(json, "chance", map->measures[i].chance);
        mha_json_end(json);
    }
    mha_json_end(json);
    mha_json_base64(json, "cells", cells, (size_t)(tokens * tokens));
    mha_json_base64(json, "on_patches", sums, (size_t)tokens * sizeof *sums);
    mha_json_end(json);
}

static mha_status write_image(const mha_picture_page *p, mha_json *json)
{
    mha_buffer png = {0};
    const mha_sink sink = mha_buffer_sink(&png);
    const mha_status status =
        mhai_png_write(p->pixels, p->cols * p->patch, p->rows * p->patch, &sink);
    if (status == MHA_OK) mha_json_base64(json, "image", png.data, png.size);
    mha_buffer_free(&png);
    return status;
}

static mha_status write_data(mhai_writer *w, const mha_picture_page *p)
{
    const int64_t tokens = p->first + p->rows * p->cols;
    const mha_sink sink = mhai_sink_of(w);
    mha_json json = {.sink = &sink, .compact = true};
    uint8_t rgb[256][3], *cells = mhai_sink_alloc(tokens * tokens, 1);
    float *sums = mhai_sink_alloc(tokens, sizeof *sums);
    if (!cells || !sums) {
        free(cells);
        free(sums);
        return MHA_NO_MEMORY("picture page");
    }
    mha_json_object(&json, NULL);
    mha_json_integer(&json, "rows", p->rows);
    mha_json_integer(&json, "cols", p->cols);
    mha_json_integer(&json, "patch", p->patch);
    write_names(&json, "labels", p->labels, p->first);
    write_names(&json, "groups", p->groups, p->group_count);
    for (int i = 0; i < 256; i++) mha_cmap_color(MHA_CMAP_VIRIDIS, true, i / 255.0, rgb[i]);
    mha_json_base64(&json, "colours", rgb, sizeof rgb);
    mha_status status = write_image(p, &json);
    mha_json_array(&json, "maps");
    for (int64_t i = 0; i < p->map_count && !json.status; i++)
        write_map(p, &p->maps[i], cells, sums, &json);
    mha_json_end(&json);
    mha_json_array(&json, "beside");
    for (int64_t i = 0; i < p->beside_count && !json.status; i++)
        write_map(p, &p->beside[i], cells, sums, &json);
    mha_json_end(&json);
    mha_json_end(&json);
    free(cells);
    free(sums);
    const mha_status end = mha_json_finish(&json);
    return status ? status : end;
}

/* ---- the page -------------------------------------------------------------------------------- */

static mha_status fill(const void *of, const char *name, size_t length, mhai_writer *w)
{
    const mha_picture_page *p = of;
    if (length == 4 && !memcmp(name, "data", 4)) return write_data(w, p);
    if (length == 5 && !memcmp(name, "title", 5)) mhai_sink_escaped(w, p->title ? p->title : "");
    if (length == 4 && !memcmp(name, "head", 4)) {
        mhai_sink_element(w, "<h1><bdi>", p->title, "</bdi></h1>\n");
        mhai_sink_element(w, "<p class=\"subtitle\" dir=\"auto\">", p->subtitle, "</p>\n");
    }
    if (length == 4 && !memcmp(name, "foot", 4))
        mhai_sink_element(w, "<p class=\"producer\">", p->producer, "</p>\n");
    if (length == 5 && !memcmp(name, "style", 5)) {
        mhai_sink_bytes(w, mhai_html_style.bytes, mhai_html_style.size);
        mhai_sink_bytes(w, mhai_html_picture_style.bytes, mhai_html_picture_style.size);
    }
    if (length == 6 && !memcmp(name, "script", 6))
        mhai_sink_bytes(w, mhai_html_picture_script.bytes, mhai_html_picture_script.size);
    return MHA_OK;
}

mha_status mha_render_picture_page(const mha_picture_page *given, const mha_sink *sink)
{
    mha_picture_page page;
    if (!sink || !sink->write)
        return mha_fail(MHA_ERR_NULL, "mha_render_picture_page: sink is NULL");
    MHA_TRY(check(given, &page));
    return mhai_html_fill(&mhai_html_picture_template, fill, &page, sink);
}
