/* What a report says beside its maps: the measures on the cards, charts, the table of scores. */
#include "html.h"
#include "html_json.h"

void mhai_html_write_measures(const mha_panel *panel, mhai_writer *w)
{
    if (!panel->measure_count) return;
    mhai_sink_text(w, ",\n\"measures\":[");
    for (int64_t i = 0; i < panel->measure_count; i++) {
        const mha_measure *measure = &panel->measures[i];
        mhai_sink_text(w, i ? ",{\"name\":" : "{\"name\":");
        mhai_html_json_text(w, measure->name);
        mhai_html_json_member_real(w, "value", measure->value);
        mhai_html_json_member_real(w, "chance", measure->chance);
        mhai_html_json_member_real(w, "most", measure->most);
        mhai_html_json_member_integer(w, "count", measure->count);
        mhai_html_json_member(w, "note", measure->note);
        mhai_sink_text(w, "}");
    }
    mhai_sink_text(w, "]");
}

static void write_series(const mha_series *series, mhai_writer *w)
{
    mhai_sink_text(w, "{\"name\":");
    mhai_html_json_text(w, series->name);
    mhai_html_json_member_integer(w, "baseline", series->baseline);
    mhai_html_json_member_reals(w, "x", series->x, series->count);
    mhai_html_json_member_reals(w, "y", series->y, series->count);
    mhai_sink_text(w, "}");
}

void mhai_html_write_curves(const mha_report *report, mhai_writer *w)
{
    mhai_sink_text(w, ",\n\"curves\":[");
    for (int64_t i = 0; i < report->curve_count; i++) {
        mha_curve curve = mhai_html_curve(report, i);
        mhai_sink_text(w, i ? ",\n{\"title\":" : "\n{\"title\":");
        mhai_html_json_text(w, curve.title);
        mhai_html_json_member(w, "caption", curve.caption);
        mhai_html_json_member(w, "x_axis", curve.x_axis);
        mhai_html_json_member(w, "y_axis", curve.y_axis);
        mhai_html_json_member_integer(w, "timeline", curve.timeline);
        mhai_sink_text(w, ",\n\"series\":[");
        for (int64_t k = 0; k < curve.series_count; k++) {
            if (k) mhai_sink_text(w, ",");
            write_series(&curve.series[k], w);
        }
        mhai_sink_text(w, "]}");
    }
    mhai_sink_text(w, "]");
}

void mhai_html_write_columns(const mhai_html_page *page, mhai_writer *w)
{
    mhai_sink_text(w, ",\n\"columns\":[");
    for (int64_t i = 0; i < page->report.column_count; i++) {
        const mha_column *column = &page->report.columns[i];
        mhai_sink_text(w, i ? ",\n{\"name\":" : "\n{\"name\":");
        mhai_html_json_text(w, column->name);
        mhai_html_json_member(w, "about", column->about);
        mhai_html_json_member_integer(w, "ascending", column->ascending);
        mhai_html_json_member_reals(w, "values", column->values, page->figure.panel_count);
        mhai_sink_text(w, "}");
    }
    mhai_sink_text(w, "]");
}
