/* The report's data: one JSON object, in the order of data.js. */
#include "html.h"
#include "text.h"

#include <multihead/component.h>
#include <multihead/json.h>

#include <math.h>
#include <string.h>

/* Write the visible form of each label, in addition to the raw labels; null if both are equal. */
static void member_shown(mha_json *json, const char *name, const char *const *labels, int64_t count)
{
    mha_json_array(json, name);
    for (int64_t i = 0; labels && i < count; i++) {
        mhai_text shown;
        mhai_text_visible(labels[i], i, MHAI_TEXT_LABEL, &shown);
        mha_json_text(json, NULL, labels[i] && !strcmp(labels[i], shown.text) ? NULL : shown.text);
    }
    mha_json_end(json);
}

/* -- maps ------------------------------------------------------------------------------------- */

static void write_extent(const mha_extent *extent, mha_json *json)
{
    mha_json_number(json, "least", extent->least);
    mha_json_number(json, "greatest", extent->greatest);
}

static void write_panel_texts(const mhai_html_page *page, int64_t i, mha_json *json)
{
    const mha_panel panel = mhai_figure_panel(&page->figure, i);
    mhai_text name;
    mhai_text_visible(panel.name, i, MHAI_TEXT_PROSE, &name);
    mha_json_text(json, "name", name.text);
    mha_json_text(json, "badge", panel.badge);
    mha_json_text(json, "note", panel.note);
    mha_json_text(json, "detail", panel.detail);
    mha_json_integer(json, "group", panel.group);
    mha_json_integers(json, "link", (int64_t[]){page->links[i].row, page->links[i].col}, 2);
    mhai_html_write_measures(&panel, json);
}

/* coder NULL: omit the values. */
static mha_status write_twin(const mhai_html_page *page, int64_t i, mhai_html_coder *coder,
                             mha_json *json)
{
    mha_extent extent;
    const mha_panel twin = mhai_html_twin(&page->figure, i);
    if (!twin.values) return MHA_OK;
    MHA_TRY(mhai_html_survey(&page->figure, &twin, &extent));
    mha_json_object(json, "twin");
    mha_json_integer(json, "of", 0);
    write_extent(&extent, json);
    if (coder) mhai_html_coder_write(coder, page, &twin, &extent, page->coding.bits, json);
    mha_json_end(json);
    return MHA_OK;
}

static mha_status write_panels(const mhai_html_page *page, mhai_html_coder *coder, mha_json *json)
{
    mha_json_array(json, "panels");
    for (int64_t i = 0; !json->status && i < page->figure.panel_count; i++) {
        const mha_panel panel = mhai_figure_panel(&page->figure, i);
        const mha_extent *extent = &mhai_ranges_at(&page->panels, i)->extent;
        mha_json_object(json, NULL);
        write_panel_texts(page, i, json);
        write_extent(extent, json);
        if (coder) mhai_html_coder_write(coder, page, &panel, extent, page->coding.bits, json);
        MHA_TRY(write_twin(page, i, coder, json));
        MHA_TRY(mhai_html_write_neurons(page, &panel, coder != NULL, json));
        mha_json_end(json);
    }
    mha_json_end(json);
    return MHA_OK;
}

static mha_status write_frame_map(const mhai_html_page *page, const mha_panel *panel,
                                  mhai_html_coder *coder, mha_json *json)
{
    mha_extent extent;
    if (!panel->values) {
        mha_json_null(json, NULL);
        return MHA_OK;
    }
    MHA_TRY(mhai_html_survey(&page->figure, panel, &extent));
    mha_json_object(json, NULL);
    mha_json_integer(json, "bits", 8);
    write_extent(&extent, json);
    if (coder) mhai_html_coder_write(coder, page, panel, &extent, 8, json);
    mha_json_end(json);
    return MHA_OK;
}

static mha_status write_frames(const mhai_html_page *page, mhai_html_coder *coder, mha_json *json)
{
    const int64_t count = page->report.frame_count;
    mha_json_integer(json, "frame_count", count);
    mha_json_integer(json, "frame_step", page->coding.frame_step);
    mha_json_array(json, "frames");
    for (int64_t i = 0; !json->status && i < count; i = mhai_html_next_frame(page, i)) {
        mha_json_object(json, NULL);
        mha_json_text(json, "label", page->report.frames[i].label);
        mha_json_number(json, "at", page->report.frames[i].at);
        mha_json_array(json, "maps");
        for (int64_t k = 0; !json->status && k < page->figure.panel_count; k++) {
            const mha_panel panel = mhai_html_frame(page, i, k);
            MHA_TRY(write_frame_map(page, &panel, coder, json));
        }
        mha_json_end(json);
        mha_json_end(json);
    }
    mha_json_end(json);
    return MHA_OK;
}

static mha_status write_maps(const mhai_html_page *page, bool maps, mha_json *json)
{
    mhai_html_coder coder = {0};
    mha_status status = maps ? mhai_html_coder_open(page, &coder) : MHA_OK;
    if (!status) status = write_panels(page, maps ? &coder : NULL, json);
    if (!status) status = write_frames(page, maps ? &coder : NULL, json);
    mhai_html_coder_close(&coder);
    return status;
}

/* -- everything else ----------------------------------------------------------------------------
 */

static void write_colors(mha_json *json, const char *name, mha_cmap cmap, bool dark)
{
    uint8_t rgb[256][3];
    for (int i = 0; i < 256; i++) mha_cmap_color(cmap, dark, i / 255.0, rgb[i]);
    mha_json_base64(json, name, rgb, sizeof rgb);
}

static void write_cmaps(mha_json *json)
{
    static const struct {
        mha_cmap cmap;
        bool is_signed;
    } cmaps[] = {
#define CMAP_ROW(name, value, text, is_signed) {name, is_signed},
        MHA_CMAP_LIST(CMAP_ROW)
#undef CMAP_ROW
    };
    mha_json_array(json, "cmaps");
    for (size_t i = 0; i < sizeof cmaps / sizeof *cmaps; i++) {
        mha_json_object(json, NULL);
        mha_json_text(json, "name", mha_cmap_name(cmaps[i].cmap));
        mha_json_bool(json, "signed", cmaps[i].is_signed);
        write_colors(json, "light", cmaps[i].cmap, false);
        write_colors(json, "dark", cmaps[i].cmap, true);
        mha_json_end(json);
    }
    mha_json_end(json);
}

/* Write the labels of all tokens; the page combines them to labels of blocks. */
static void write_tokens(const mhai_html_page *page, mha_json *json)
{
    const mha_report *report = &page->report;
    mha_json_texts(json, "row_labels", report->tokens, report->token_count);
    member_shown(json, "row_shown", report->tokens, report->token_count);
}

static void write_labels(const mhai_html_page *page, mha_json *json)
{
    const mha_figure *f = &page->figure;
    bool same = (page->report.same_labels || page->report.tokens) && f->rows == f->cols;
    mha_json_bool(json, "same_labels", same);
    if (page->report.tokens) {
        write_tokens(page, json);
        return;
    }
    const char *const *rows = same && !f->row_labels ? f->col_labels : f->row_labels;
    mha_json_texts(json, "row_labels", rows, f->rows);
    member_shown(json, "row_shown", rows, f->rows);
    if (same) return;
    mha_json_texts(json, "col_labels", f->col_labels, f->cols);
    member_shown(json, "col_shown", f->col_labels, f->cols);
}

static void write_options(const mhai_html_page *page, mha_json *json)
{
    static const char *const ranges[] = {"shared", "panel", "fixed"};
    static const char *const values[] = {"auto", "always", "never"};
    const mha_figure *f = &page->figure;
    mha_json_text(json, "title", f->title);
    mha_json_text(json, "row_axis", f->row_axis ? f->row_axis : "row");
    mha_json_text(json, "col_axis", f->col_axis ? f->col_axis : "column");
    mha_json_text(json, "value_name", f->value_name);
    mha_json_texts(json, "groups", f->group_names, f->group_count);
    mha_json_text(json, "cmap", mha_cmap_name(f->cmap));
    mha_json_text(json, "scale", mha_scale_name(f->scale));
    mha_json_text(json, "range", ranges[f->range]);
    if (f->range == MHA_RANGE_FIXED) {
        mha_json_number(json, "lo", f->lo);
        mha_json_number(json, "hi", f->hi);
    }
    mha_json_text(json, "values", values[f->print_values]);
    mha_json_integer(json, "first_panel", page->report.first_panel);
    mha_json_text(json, "twin_name", page->report.twin_name);
    mha_json_text(json, "twin_value", page->report.twin_value);
    mha_json_texts(json, "special", page->report.special, page->report.special_count);
}

/* The initial state of the page. */
static void write_views(const mhai_html_page *page, mha_json *json)
{
    static const char *const views[] = {"map", "lines", "model", "neurons"};
    const mha_report *report = &page->report;
    mha_json_text(json, "view", views[report->view]);
    mha_json_integer(json, "only_view", report->only_view);
    mha_json_text(json, "guide", report->guide);
    mha_json_integer(json, "first_row", report->first_cell ? report->first_row : -1);
    mha_json_integer(json, "first_col", report->first_cell ? report->first_col : -1);
    mha_json_integer(json, "second_row", report->second_row);
    mha_json_integer(json, "second_col", report->second_col);
    mha_json_integer(json, "neuron_bits", page->coding.neuron_bits);
    mha_json_integers(json, "line_panels", report->line_panels, report->line_panel_count);
}

/* Weights in thousandths. */
static void write_choices(const mhai_html_page *page, mha_json *json)
{
    const mha_report *report = &page->report;
    mha_json_text(json, "choice_title", report->choice_title);
    mha_json_array(json, "choices");
    for (int64_t i = 0; i < report->choice_count; i++) {
        const mha_choice *c = &report->choices[i];
        mha_json_object(json, NULL);
        mha_json_text(json, "name", c->name);
        mha_json_integer(json, "count", c->count);
        mha_json_integer(json, "used", c->used);
        mha_json_array(json, "numbers");
        for (int64_t k = 0; k < page->figure.rows * c->used; k++)
            mha_json_integer(json, NULL, c->numbers[k]);
        mha_json_end(json);
        mha_json_array(json, "weights");
        for (int64_t k = 0; k < page->figure.rows * c->used; k++)
            mha_json_number(json, NULL, round(1000 * (double)c->weights[k]));
        mha_json_end(json);
        mha_json_end(json);
    }
    mha_json_end(json);
}

static void write_track(const mhai_html_page *page, mha_json *json)
{
    const mha_report *report = &page->report;
    const size_t bytes = (size_t)(report->track_rows * page->figure.cols);
    if (!report->track) return;
    mha_json_integer(json, "track_rows", report->track_rows);
    mha_json_text(json, "track_name", report->track_name);
    mha_json_base64(json, "track", report->track, bytes);
}

mha_status mhai_html_write_data(const mhai_html_page *page, bool maps, mhai_writer *writer)
{
    const mhai_html_coding *coding = &page->coding;
    const mha_sink sink = mhai_sink_of(writer);
    mha_json json = {.sink = &sink, .compact = true};
    mha_json_object(&json, NULL);
    mha_json_text(&json, "format", "multihead-report 1");
    mha_json_integer(&json, "rows", page->figure.rows);
    mha_json_integer(&json, "cols", page->figure.cols);
    mha_json_integer(&json, "bits", coding->bits);
    mha_json_integer(&json, "pool", coding->pool);
    mha_json_integer(&json, "negative", page->negative);
    mha_json_integer(&json, "cell_tokens", page->report.cell_tokens);
    if (page->map_tokens) mha_json_integer(&json, "map_tokens", page->map_tokens);
    mha_json_integer(&json, "token_count", page->report.token_count);
    write_options(page, &json);
    write_views(page, &json);
    write_labels(page, &json);
    if (!page->map_tokens) write_cmaps(&json); /* a live page has all colour maps */
    mhai_html_write_curves(&page->report, &json);
    write_choices(page, &json);
    write_track(page, &json);
    mhai_html_write_columns(page, &json);
    MHA_TRY(write_maps(page, maps, &json));
    mha_json_end(&json);
    return mha_json_finish(&json);
}
