/* The vectors behind the cells, as base64 of little-endian numbers:
 *
 *   32 bits  the float itself
 *   16, 8    q = round(v / m * mid) + mid, m the greatest magnitude of the panel's queries or keys,
 *            mid 32,767 or 127; the highest code is "not finite". The error of a value is at most m / (2 mid)
 */
#include "html.h"

#include <multihead/component.h>
#include <multihead/json.h>

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PART = 4 /* share of most_bytes: a quarter */ };

static int64_t coded_size(int64_t count, int bits)
{
    return (count * (bits / 8) + 2) / 3 * 4;
}

/* In floating point, because the product of rows and columns, panels and channels (at most 2^31,
 * 2^16 and 2^16) may not fit into 64 bits. */
static double size_of_all(const mhai_html_page *page, int bits)
{
    const mha_figure *f = &page->figure;
    double size = 0;
    for (int64_t i = 0; i < f->panel_count; i++) {
        const mha_panel panel = mhai_figure_panel(f, i);
        if (!panel.queries) continue;
        size += (double)coded_size(f->rows * panel.channels, bits);
        size += (double)coded_size(f->cols * panel.channels, bits);
    }
    return size;
}

mha_status mhai_html_neuron_bits(const mhai_html_page *page, int *bits, int64_t *size)
{
    const double most = (double)page->report.most_bytes / PART;
    *size = 0;
    for (*bits = 32; *bits >= 8; *bits /= 2) {
        const double all = size_of_all(page, *bits);
        if (all > most) continue;
        *size = (int64_t)all;
        return MHA_OK;
    }
    return mha_fail(MHA_ERR_SIZE,
                    "report: queries and keys take %.0f MB, at most %.1f MB are allowed; choose "
                    "fewer panels, or omit queries and keys",
                    ceil(size_of_all(page, 8) / 1e6), most / 1e6);
}

static float greatest(const float *values, int64_t count)
{
    float most = 0;
    for (int64_t i = 0; i < count; i++)
        if (isfinite(values[i]) && fabsf(values[i]) > most) most = fabsf(values[i]);
    return most;
}

static uint32_t code_of(float value, float most, int bits)
{
    const uint32_t last = bits == 8 ? 255 : 65535, middle = last / 2;
    uint32_t exact;
    memcpy(&exact, &value, sizeof exact);
    if (bits == 32) return exact;
    if (!isfinite(value)) return last;
    return (uint32_t)lround((most > 0 ? (double)value / (double)most : 0) * middle + middle);
}

static mha_status write_vectors(const char *name, const float *values, int64_t count, int bits,
                                mha_json *json)
{
    const size_t step = (size_t)bits / 8;
    const float most = greatest(values, count);
    uint8_t *bytes = mhai_sink_alloc(count, step);
    if (!bytes) return mha_fail(MHA_ERR_NOMEM, "report: no memory for queries and keys");
    for (int64_t i = 0; i < count; i++) {
        const uint32_t code = code_of(values[i], most, bits);
        for (size_t b = 0; b < step; b++) bytes[(size_t)i * step + b] = (uint8_t)(code >> (8 * b));
    }
    mha_json_object(json, name);
    mha_json_number(json, "most", (double)most);
    mha_json_base64(json, "data", bytes, (size_t)count * step);
    mha_json_end(json);
    free(bytes);
    return json->status;
}

mha_status mhai_html_write_neurons(const mhai_html_page *page, const mha_panel *panel, bool values,
                                   mha_json *json)
{
    const mha_figure *f = &page->figure;
    const int bits = page->coding.neuron_bits;
    if (!panel->queries || page->coding.pool > 1 || page->report.cell_tokens > 1)
        return MHA_OK; /* a row of blocks has no single query */
    mha_json_integer(json, "channels", panel->channels);
    mha_json_number(json, "score_scale", panel->score_scale);
    if (!values) return json->status;
    MHA_TRY(write_vectors("queries", panel->queries, f->rows * panel->channels, bits, json));
    return write_vectors("keys", panel->keys, f->cols * panel->channels, bits, json);
}
