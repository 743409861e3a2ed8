/* The report's data: one JSON object, in the order of the page's own data.js. */
#include "html.h"
#include "html_json.h"
#include "text.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <string.h>

/* What is drawn for each label, beside the labels as they are; null where that is the same. */
static void member_shown(mhai_writer *w, const char *name, const char *const *labels, int64_t count)
{
    mhai_sink_print(w, ",\n\"%s\":[", name);
    for (int64_t i = 0; labels && i < count; i++) {
        mhai_text shown;
        mhai_text_visible(labels[i], i, MHAI_TEXT_LABEL, &shown);
        if (i) mhai_sink_text(w, ",");
        mhai_html_json_text(w, labels[i] && !strcmp(labels[i], shown.text) ? NULL : shown.text);
    }
    mhai_sink_text(w, "]");
}

/* -- maps ------------------------------------------------------------------------------------- */

static void write_extent(const mha_extent *extent, mhai_writer *w)
{
    mhai_html_json_member_real(w, "least", extent->least);
    mhai_html_json_member_real(w, "greatest", extent->greatest);
}

static void write_panel_texts(const mhai_html_page *page, int64_t i, mhai_writer *w)
{
    mha_panel panel = mhai_figure_panel(&page->figure, i);
    mhai_text name;
    mhai_text_visible(panel.name, i, MHAI_TEXT_PROSE, &name);
    mhai_sink_text(w, i ? ",\n{\"name\":" : "\n{\"name\":");
    mhai_html_json_text(w, name.text);
    mhai_html_json_member(w, "badge", panel.badge);
    mhai_html_json_member(w, "note", panel.note);
    mhai_html_json_member(w, "detail", panel.detail);
    mhai_sink_print(w, ",\"group\":%" PRId64, panel.group);
    mhai_sink_print(w, ",\"link\":[%" PRId64 ",%" PRId64 "]", page->links[i].row,
                    page->links[i].col);
    mhai_html_write_measures(&panel, w);
}

/* coder NULL: all but the values. */
static mha_status write_twin(const mhai_html_page *page, int64_t i, mhai_html_coder *coder,
                             mhai_writer *w)
{
    mha_extent extent;
    mha_panel twin = mhai_html_twin(&page->figure, i);
    if (!twin.values) return MHA_OK;
    MHA_TRY(mhai_html_survey(&page->figure, &twin, &extent));
    mhai_sink_text(w, ",\n\"twin\":{\"of\":0");
    write_extent(&extent, w);
    if (coder) mhai_html_coder_write(coder, page, &twin, &extent, page->coding.bits, w);
    mhai_sink_text(w, "}");
    return MHA_OK;
}

static mha_status write_panels(const mhai_html_page *page, mhai_html_coder *coder, mhai_writer *w)
{
    mhai_sink_text(w, ",\n\"panels\":[");
    for (int64_t i = 0; !w->status && i < page->figure.panel_count; i++) {
        mha_panel panel = mhai_figure_panel(&page->figure, i);
        const mha_extent *extent = &mhai_ranges_at(&page->panels, i)->extent;
        write_panel_texts(page, i, w);
        write_extent(extent, w);
        if (coder) mhai_html_coder_write(coder, page, &panel, extent, page->coding.bits, w);
        MHA_TRY(write_twin(page, i, coder, w));
        MHA_TRY(mhai_html_write_neurons(page, &panel, coder != NULL, w));
        mhai_sink_text(w, "}");
    }
    mhai_sink_text(w, "]");
    return MHA_OK;
}

static mha_status write_frame(const mhai_html_page *page, int64_t frame, mhai_html_coder *coder,
                              mhai_writer *w)
{
    mhai_sink_text(w, "{\"label\":");
    mhai_html_json_text(w, page->report.frames[frame].label);
    mhai_html_json_member_real(w, "at", page->report.frames[frame].at);
    mhai_sink_text(w, ",\n\"maps\":[");
    for (int64_t i = 0; !w->status && i < page->figure.panel_count; i++) {
        mha_extent extent;
        mha_panel panel = mhai_html_frame(page, frame, i);
        if (i) mhai_sink_text(w, ",");
        if (!panel.values) {
            mhai_sink_text(w, "null");
            continue;
        }
        MHA_TRY(mhai_html_survey(&page->figure, &panel, &extent));
        mhai_sink_text(w, "{\"bits\":8");
        write_extent(&extent, w);
        if (coder) mhai_html_coder_write(coder, page, &panel, &extent, 8, w);
        mhai_sink_text(w, "}");
    }
    mhai_sink_text(w, "]}");
    return MHA_OK;
}

static mha_status write_frames(const mhai_html_page *page, mhai_html_coder *coder, mhai_writer *w)
{
    int64_t count = page->report.frame_count;
    mhai_html_json_member_integer(w, "frame_count", count);
    mhai_html_json_member_integer(w, "frame_step", page->coding.frame_step);
    mhai_sink_text(w, ",\n\"frames\":[");
    for (int64_t i = 0; !w->status && i < count; i = mhai_html_next_frame(page, i)) {
        if (i) mhai_sink_text(w, ",\n");
        MHA_TRY(write_frame(page, i, coder, w));
    }
    mhai_sink_text(w, "]");
    return MHA_OK;
}

static mha_status write_maps(const mhai_html_page *page, bool maps, mhai_writer *w)
{
    mhai_html_coder coder = {0};
    mha_status status = maps ? mhai_html_coder_open(page, &coder) : MHA_OK;
    if (!status) status = write_panels(page, maps ? &coder : NULL, w);
    if (!status) status = write_frames(page, maps ? &coder : NULL, w);
    mhai_html_coder_close(&coder);
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

/* The labels of all tokens stand for those of blocks; the page makes the latter. */
static void write_tokens(const mhai_html_page *page, mhai_writer *w)
{
    const mha_report *report = &page->report;
    mhai_html_json_member_texts(w, "row_labels", report->tokens, report->token_count);
    member_shown(w, "row_shown", report->tokens, report->token_count);
}

static void write_labels(const mhai_html_page *page, mhai_writer *w)
{
    const mha_figure *f = &page->figure;
    bool same = (page->report.same_labels || page->report.tokens) && f->rows == f->cols;
    mhai_sink_print(w, ",\n\"same_labels\":%s", same ? "true" : "false");
    if (page->report.tokens) {
        write_tokens(page, w);
        return;
    }
    const char *const *rows = same && !f->row_labels ? f->col_labels : f->row_labels;
    mhai_html_json_member_texts(w, "row_labels", rows, f->rows);
    member_shown(w, "row_shown", rows, f->rows);
    if (same) return;
    mhai_html_json_member_texts(w, "col_labels", f->col_labels, f->cols);
    member_shown(w, "col_shown", f->col_labels, f->cols);
}

static void write_options(const mhai_html_page *page, mhai_writer *w)
{
    static const char *const ranges[] = {"shared", "panel", "fixed"};
    static const char *const values[] = {"auto", "always", "never"};
    const mha_figure *f = &page->figure;
    mhai_html_json_member(w, "title", f->title);
    mhai_html_json_member(w, "row_axis", f->row_axis ? f->row_axis : "row");
    mhai_html_json_member(w, "col_axis", f->col_axis ? f->col_axis : "column");
    mhai_html_json_member(w, "value_name", f->value_name);
    mhai_html_json_member_texts(w, "groups", f->group_names, f->group_count);
    mhai_html_json_member(w, "cmap", mha_cmap_name(f->cmap));
    mhai_html_json_member(w, "scale", mha_scale_name(f->scale));
    mhai_html_json_member(w, "range", ranges[f->range]);
    if (f->range == MHA_RANGE_FIXED) {
        mhai_html_json_member_real(w, "lo", f->lo);
        mhai_html_json_member_real(w, "hi", f->hi);
    }
    mhai_html_json_member(w, "values", values[f->print_values]);
    mhai_html_json_member_integer(w, "first_panel", page->report.first_panel);
    mhai_html_json_member(w, "twin_name", page->report.twin_name);
    mhai_html_json_member(w, "twin_value", page->report.twin_value);
    mhai_html_json_member_texts(w, "special", page->report.special, page->report.special_count);
}

/* What is shown at first. */
static void write_views(const mhai_html_page *page, mhai_writer *w)
{
    static const char *const views[] = {"map", "lines", "model", "neurons"};
    const mha_report *report = &page->report;
    mhai_html_json_member(w, "view", views[report->view]);
    mhai_html_json_member_integer(w, "only_view", report->only_view);
    mhai_html_json_member(w, "guide", report->guide);
    mhai_html_json_member_integer(w, "first_row", report->first_cell ? report->first_row : -1);
    mhai_html_json_member_integer(w, "first_col", report->first_cell ? report->first_col : -1);
    mhai_html_json_member_integer(w, "second_row", report->second_row);
    mhai_html_json_member_integer(w, "second_col", report->second_col);
    mhai_html_json_member_integer(w, "neuron_bits", page->coding.neuron_bits);
    mhai_sink_text(w, ",\n\"line_panels\":[");
    for (int64_t i = 0; i < report->line_panel_count; i++)
        mhai_sink_print(w, "%s%" PRId64, i ? "," : "", report->line_panels[i]);
    mhai_sink_text(w, "]");
}

mha_status mhai_html_write_data(const mhai_html_page *page, bool maps, mhai_writer *w)
{
    const mhai_html_coding *coding = &page->coding;
    mhai_sink_text(w, "{\"format\":\"multihead-report 1\"");
    mhai_html_json_member_integer(w, "rows", page->figure.rows);
    mhai_html_json_member_integer(w, "cols", page->figure.cols);
    mhai_html_json_member_integer(w, "bits", coding->bits);
    mhai_html_json_member_integer(w, "pool", coding->pool);
    mhai_html_json_member_integer(w, "negative", page->negative);
    mhai_html_json_member_integer(w, "cell_tokens", page->report.cell_tokens);
    if (page->map_tokens) mhai_html_json_member_integer(w, "map_tokens", page->map_tokens);
    mhai_html_json_member_integer(w, "token_count", page->report.token_count);
    write_options(page, w);
    write_views(page, w);
    write_labels(page, w);
    write_cmaps(w);
    mhai_html_write_curves(&page->report, w);
    mhai_html_write_columns(page, w);
    MHA_TRY(write_maps(page, maps, w));
    mhai_sink_text(w, "}\n");
    return w->status;
}
