/* The report's data: one JSON object, the maps as base64 of little-endian numbers.
 *
 *   32 bits  the float itself; a masked cell is the NaN 0x7FC0A5A5
 *   16, 8    q = round(top * sqrt(|v| / m)), m the panel's greatest magnitude; the two highest
 * codes are "not finite" and "masked". With negative values codes run from -mid to mid, plus mid.
 * The square root spends the codes where attention weights are: near 0. A value is then known
 * within sqrt(|v| m) / top + m / (4 top^2).
 */
#include "html.h"

#include "number.h"
#include "text.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const uint32_t masked_float = 0x7FC0A5A5;

static int64_t ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/* Bytes of the base64 of all panels; at most 2^31 cells, so nothing overflows. */
static int64_t coded_size(const mha_figure *f, const mhai_html_coding *coding)
{
    return f->panel_count * 4 * ceil_div(coding->rows * coding->cols * (coding->bits / 8), 3);
}

mhai_html_coding mhai_html_choose_coding(const mha_figure *f, int64_t most)
{
    static const int bits[] = {32, 16, 8};
    mhai_html_coding coding = {0};
    int64_t longest = f->rows > f->cols ? f->rows : f->cols;
    for (int64_t pool = 1; pool == 1 || pool <= longest; pool += 1 + pool / 16)
        for (size_t i = 0; i < sizeof bits / sizeof *bits; i++) {
            coding =
                (mhai_html_coding){pool, ceil_div(f->rows, pool), ceil_div(f->cols, pool), bits[i]};
            if (coded_size(f, &coding) <= most) return coding;
        }
    return coding;
}

/* -- JSON ------------------------------------------------------------------------------------- */

/* A string that is also safe inside a script element. NULL is null. */
static void json_text(mhai_writer *w, const char *text)
{
    if (!text) {
        mhai_sink_text(w, "null");
        return;
    }
    uint32_t code;
    mhai_sink_text(w, "\"");
    while ((code = mhai_text_next(&text)) != 0) {
        char bytes[4];
        if (code < 0x20 || code == '"' || code == '\\' || code == '<' || code == '>' ||
            code == '&' || code == 0x7F || code == 0x2028 || code == 0x2029)
            mhai_sink_print(w, "\\u%04x", (unsigned)code);
        else
            mhai_sink_bytes(w, bytes, (size_t)mhai_text_encode(code, bytes));
    }
    mhai_sink_text(w, "\"");
}

static void member_text(mhai_writer *w, const char *name, const char *text)
{
    mhai_sink_print(w, ",\n\"%s\":", name);
    json_text(w, text);
}

static void member_integer(mhai_writer *w, const char *name, int64_t value)
{
    mhai_sink_print(w, ",\n\"%s\":%" PRId64, name, value);
}

static void member_real(mhai_writer *w, const char *name, double value)
{
    char text[MHAI_NUMBER_BYTES];
    mhai_number_short(value, 9, text);
    mhai_sink_print(w, ",\"%s\":%s", name, text);
}

static void member_list(mhai_writer *w, const char *name, const char *const *texts, int64_t count)
{
    mhai_sink_print(w, ",\n\"%s\":", name);
    if (!texts) mhai_sink_text(w, "null");
    for (int64_t i = 0; texts && i < count; i++) {
        mhai_sink_text(w, i ? "," : "[");
        json_text(w, texts[i]);
    }
    if (texts) mhai_sink_text(w, count ? "]" : "[]");
}

/* What is drawn for each label, beside the labels as they are; null where that is the same. */
static void member_shown(mhai_writer *w, const char *name, const char *const *labels, int64_t count)
{
    mhai_sink_print(w, ",\n\"%s\":[", name);
    for (int64_t i = 0; labels && i < count; i++) {
        mhai_text shown;
        mhai_text_visible(labels[i], i, MHAI_TEXT_LABEL, &shown);
        if (i) mhai_sink_text(w, ",");
        json_text(w, labels[i] && !strcmp(labels[i], shown.text) ? NULL : shown.text);
    }
    mhai_sink_text(w, "]");
}

/* -- maps ------------------------------------------------------------------------------------- */

static void put(uint8_t *out, uint32_t value, int bits)
{
    for (int i = 0; i < bits / 8; i++) out[i] = (uint8_t)(value >> (8 * i));
}

static uint32_t code_of(double value, mhai_cell kind, double greatest, bool negative, int bits)
{
    uint32_t last = bits == 8 ? 255 : 65535;
    if (kind == MHAI_CELL_MASKED) return last;
    if (kind == MHAI_CELL_NOT_FINITE) return last - 1;
    double root = greatest > 0 ? sqrt(fabs(value) / greatest) : 0;
    double middle = (last - 3) / 2;
    if (negative) return (uint32_t)lround(middle + (value < 0 ? -root : root) * middle);
    return (uint32_t)lround(root * (last - 2));
}

static uint32_t float_bits(float value, mhai_cell kind)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (kind == MHAI_CELL_MASKED) return masked_float;
    return isnan(value) ? 0x7FC00000 : bits;
}

/* A float that is not finite is written as it is: blocks, which only say so, are never exact. */
static uint32_t exact_bits(const mha_panel *panel, const mhai_html_coding *coding,
                           const mhai_cells *cells, int64_t i)
{
    mhai_cell kind = (mhai_cell)cells->kind[i];
    if (kind != MHAI_CELL_NOT_FINITE) return float_bits(cells->value[i], kind);
    float value = coding->pool > 1
                      ? NAN
                      : panel->values[i / cells->cols * panel->row_stride + i % cells->cols];
    return float_bits(value, kind);
}

static void write_map(const mhai_html_page *page, const mha_panel *panel, const mha_extent *extent,
                      mhai_cells *cells, uint8_t *bytes, mhai_writer *w)
{
    const mhai_html_coding *coding = &page->coding;
    size_t step = (size_t)coding->bits / 8;
    double greatest = fmax(fabs(extent->least), fabs(extent->greatest));
    mhai_cells_fill(&page->figure, panel, coding->pool, coding->pool, cells);
    for (int64_t i = 0; i < cells->rows * cells->cols; i++) {
        uint32_t code = coding->bits == 32
                            ? exact_bits(panel, coding, cells, i)
                            : code_of((double)cells->value[i], (mhai_cell)cells->kind[i], greatest,
                                      page->negative, coding->bits);
        put(bytes + (size_t)i * step, code, coding->bits);
    }
    mhai_sink_text(w, ",\"data\":\"");
    mhai_sink_base64(w, bytes, (size_t)(cells->rows * cells->cols) * step);
    mhai_sink_text(w, "\"");
}

static void write_panel_texts(const mhai_html_page *page, int64_t i, mhai_writer *w)
{
    mha_panel panel = mhai_figure_panel(&page->figure, i);
    const mha_extent *extent = &mhai_ranges_at(&page->panels, i)->extent;
    mhai_text name;
    mhai_text_visible(panel.name, i, MHAI_TEXT_PROSE, &name);
    mhai_sink_text(w, i ? ",\n{\"name\":" : "\n{\"name\":");
    json_text(w, name.text);
    mhai_sink_text(w, ",\"note\":");
    json_text(w, panel.note);
    mhai_sink_text(w, ",\"detail\":");
    json_text(w, panel.detail);
    mhai_sink_print(w, ",\"group\":%" PRId64, panel.group);
    member_real(w, "least", extent->least);
    member_real(w, "greatest", extent->greatest);
}

static mha_status write_panels(const mhai_html_page *page, bool maps, mhai_writer *w)
{
    const mhai_html_coding *coding = &page->coding;
    mhai_cells cells = {0};
    mha_status status = MHA_OK;
    uint8_t *bytes = NULL;
    if (maps) {
        MHA_TRY(mhai_cells_alloc(coding->rows, coding->cols, &cells));
        bytes = mhai_sink_alloc(coding->rows * coding->cols, (size_t)coding->bits / 8);
        if (!bytes) status = mha_fail(MHA_ERR_NOMEM, "report: no memory for the data of a panel");
    }
    mhai_sink_text(w, ",\n\"panels\":[");
    for (int64_t i = 0; !status && !w->status && i < page->figure.panel_count; i++) {
        mha_panel panel = mhai_figure_panel(&page->figure, i);
        write_panel_texts(page, i, w);
        if (maps)
            write_map(page, &panel, &mhai_ranges_at(&page->panels, i)->extent, &cells, bytes, w);
        mhai_sink_text(w, "}");
    }
    mhai_sink_text(w, "]");
    free(bytes);
    mhai_cells_free(&cells);
    return status;
}

/* -- everything else ----------------------------------------------------------------------------
 */

static void write_colors(mhai_writer *w, const char *name, mha_cmap cmap, bool dark)
{
    uint8_t rgb[256][3];
    for (int i = 0; i < 256; i++) mha_cmap_color(cmap, dark, i / 255.0, rgb[i]);
    mhai_sink_print(w, ",\"%s\":\"", name);
    mhai_sink_base64(w, rgb, sizeof rgb);
    mhai_sink_text(w, "\"");
}

static void write_cmaps(mhai_writer *w)
{
    static const struct {
        mha_cmap cmap;
        int is_signed;
    } cmaps[] = {
#define CMAP_ROW(name, value, text, is_signed) {name, is_signed},
        MHA_CMAP_LIST(CMAP_ROW)
#undef CMAP_ROW
    };
    mhai_sink_text(w, ",\n\"cmaps\":[");
    for (size_t i = 0; i < sizeof cmaps / sizeof *cmaps; i++) {
        mhai_sink_print(w, "%s\n{\"name\":\"%s\",\"signed\":%s", i ? "," : "",
                        mha_cmap_name(cmaps[i].cmap), cmaps[i].is_signed ? "true" : "false");
        write_colors(w, "light", cmaps[i].cmap, false);
        write_colors(w, "dark", cmaps[i].cmap, true);
        mhai_sink_text(w, "}");
    }
    mhai_sink_text(w, "]");
}

static void write_labels(const mhai_html_page *page, mhai_writer *w)
{
    const mha_figure *f = &page->figure;
    bool same = page->report.same_labels && f->rows == f->cols;
    mhai_sink_print(w, ",\n\"same_labels\":%s", same ? "true" : "false");
    const char *const *rows = same && !f->row_labels ? f->col_labels : f->row_labels;
    member_list(w, "row_labels", rows, f->rows);
    member_shown(w, "row_shown", rows, f->rows);
    if (same) return;
    member_list(w, "col_labels", f->col_labels, f->cols);
    member_shown(w, "col_shown", f->col_labels, f->cols);
}

static void write_options(const mhai_html_page *page, mhai_writer *w)
{
    static const char *const ranges[] = {"shared", "panel", "fixed"};
    static const char *const values[] = {"auto", "always", "never"};
    const mha_figure *f = &page->figure;
    member_text(w, "title", f->title);
    member_text(w, "row_axis", f->row_axis ? f->row_axis : "row");
    member_text(w, "col_axis", f->col_axis ? f->col_axis : "column");
    member_text(w, "value_name", f->value_name);
    member_list(w, "groups", f->group_names, f->group_count);
    member_text(w, "cmap", mha_cmap_name(f->cmap));
    member_text(w, "scale", mha_scale_name(f->scale));
    member_text(w, "range", ranges[f->range]);
    if (f->range == MHA_RANGE_FIXED) {
        member_real(w, "lo", f->lo);
        member_real(w, "hi", f->hi);
    }
    member_text(w, "values", values[f->print_values]);
    member_integer(w, "first_panel", page->report.first_panel);
    member_list(w, "special", page->report.special, page->report.special_count);
}

mha_status mhai_html_write_data(const mhai_html_page *page, bool maps, mhai_writer *w)
{
    const mhai_html_coding *coding = &page->coding;
    mhai_sink_text(w, "{\"format\":\"multihead-report 1\"");
    member_integer(w, "rows", page->figure.rows);
    member_integer(w, "cols", page->figure.cols);
    member_integer(w, "bits", coding->bits);
    member_integer(w, "pool", coding->pool);
    member_integer(w, "negative", page->negative);
    write_options(page, w);
    write_labels(page, w);
    write_cmaps(w);
    MHA_TRY(write_panels(page, maps, w));
    mhai_sink_text(w, "}\n");
    return w->status;
}
