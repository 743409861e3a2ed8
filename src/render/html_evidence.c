/* The contents of a report other than its maps: the measures on the cards, charts, the table of
 * scores. */
#include "html.h"

void mhai_html_write_measures(const mha_panel *panel, mha_json *json)
{
    static const mha_json_field fields[] = {MHA_JSON_FIELD(TEXT, mha_measure, name),
                                            MHA_JSON_FIELD(NUMBER, mha_measure, value),
                                            MHA_JSON_FIELD(NUMBER, mha_measure, chance),
                                            MHA_JSON_FIELD(NUMBER, mha_measure, most),
                                            MHA_JSON_FIELD(INTEGER, mha_measure, count),
                                            MHA_JSON_FIELD(TEXT, mha_measure, note),
                                            {0}};
    if (!panel->measure_count) return;
    mha_json_structs(json, "measures", fields, panel->measures, sizeof *panel->measures,
                     panel->measure_count);
}

static void write_series(const mha_series *series, mha_json *json)
{
    mha_json_object(json, NULL);
    mha_json_text(json, "name", series->name);
    mha_json_integer(json, "baseline", series->baseline);
    mha_json_numbers(json, "x", series->x, series->count);
    mha_json_numbers(json, "y", series->y, series->count);
    mha_json_end(json);
}

void mhai_html_write_curves(const mha_report *report, mha_json *json)
{
    mha_json_array(json, "curves");
    for (int64_t i = 0; i < report->curve_count; i++) {
        mha_curve curve = mhai_html_curve(report, i);
        mha_json_object(json, NULL);
        mha_json_text(json, "title", curve.title);
        mha_json_text(json, "caption", curve.caption);
        mha_json_text(json, "x_axis", curve.x_axis);
        mha_json_text(json, "y_axis", curve.y_axis);
        mha_json_integer(json, "timeline", curve.timeline);
        mha_json_array(json, "series");
        for (int64_t k = 0; k < curve.series_count; k++) write_series(&curve.series[k], json);
        mha_json_end(json);
        mha_json_end(json);
    }
    mha_json_end(json);
}

void mhai_html_write_columns(const mhai_html_page *page, mha_json *json)
{
    mha_json_array(json, "columns");
    for (int64_t i = 0; i < page->report.column_count; i++) {
        const mha_column *column = &page->report.columns[i];
        mha_json_object(json, NULL);
        mha_json_text(json, "name", column->name);
        mha_json_text(json, "about", column->about);
        mha_json_integer(json, "ascending", column->ascending);
        mha_json_numbers(json, "values", column->values, page->figure.panel_count);
        mha_json_end(json);
    }
    mha_json_end(json);
}
