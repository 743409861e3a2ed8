/* Figures, reports, diagrams and charts of arbitrary texts and numbers, with every writer. Page
 * data must be JSON, SVG must be well-formed, and terminal output without colours must not have
 * control characters. */
#include "fuzz.h"

#include <multihead/render.h>

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TEXTS = 96, MOST_PANELS = 4, MOST_CELLS = 64, MOST_POINTS = 6, MOST_MARKS = 6 };

/* The memory of a figure. Each text is a separate string, so that the sanitizer checks its end. */
typedef struct drawing {
    char *texts[MOST_TEXTS];
    int text_count;
    float values[MOST_PANELS][MOST_CELLS], twin[MOST_CELLS];
    uint8_t masked[MOST_CELLS], cells[MOST_CELLS];
    mha_panel panels[MOST_PANELS];
    mha_measure measures[3];
    mha_fact facts[2];
    mha_series series[2];
    mha_curve curves[2];
    mha_column columns[2];
    mha_frame frames[4];
    const float *maps[MOST_PANELS];
    float vectors[MOST_CELLS]; /* queries and keys of up to 8 tokens x 8 channels */
    int64_t line_panels[3];
    double x[MOST_POINTS], y[MOST_POINTS], at[MOST_PANELS];
    const char **labels; /* also allocated separately */
    mha_figure figure;
    mha_report report;
    mha_mark marks[MOST_MARKS];
    mha_diagram_panel cards[2];
    mha_diagram diagram;
    mha_chart chart;
} drawing;

static const char *text(drawing *d, fuzz_part *in)
{
    if (d->text_count == MOST_TEXTS || in->size == 0) return in->size == 0 ? NULL : "full";
    char *made = fuzz_text(in, 24);
    if (made) d->texts[d->text_count++] = made;
    return made;
}

static void make_values(drawing *d, fuzz_part *in)
{
    const bool odd = fuzz_pick(in, 0, 3) == 0;
    for (int p = 0; p < MOST_PANELS; p++)
        for (int i = 0; i < MOST_CELLS; i++)
            d->values[p][i] =
                odd && i % 7 == p ? (float)fuzz_double(in) : (float)((i * 37 + p) % 64) / 64;
    for (int i = 0; i < MOST_CELLS; i++) {
        d->twin[i] = d->values[0][i] * 3;
        d->vectors[i] = d->values[1][i] - 0.5f;
        d->masked[i] = (uint8_t)(i % 5 == 0);
        d->cells[i] = (uint8_t)(i * 11);
    }
}

static void make_panels(drawing *d, fuzz_part *in)
{
    const bool measured = fuzz_pick(in, 0, 1), masked = fuzz_pick(in, 0, 1);
    const int64_t vectors = fuzz_pick(in, 0, 2) ? 0 : fuzz_pick(in, 0, MOST_PANELS);
    for (int i = 0; i < 3; i++)
        d->measures[i] = (mha_measure){.name = text(d, in),
                                       .value = fuzz_double(in),
                                       .chance = fuzz_double(in),
                                       .most = fuzz_double(in),
                                       .count = fuzz_pick(in, -1, 100),
                                       .note = text(d, in)};
    for (int i = 0; i < MOST_PANELS; i++)
        d->panels[i] = (mha_panel){.values = d->values[i],
                                   .name = text(d, in),
                                   .note = text(d, in),
                                   .detail = text(d, in),
                                   .group = fuzz_pick(in, 0, 9) ? 0 : fuzz_pick(in, -1, 3),
                                   .masked = masked ? d->masked : NULL,
                                   .badge = text(d, in),
                                   .measures = measured ? d->measures : NULL,
                                   .measure_count = measured ? fuzz_pick(in, 0, 3) : 0,
                                   .twin = i == 0 && measured ? d->twin : NULL,
                                   .queries = i < vectors ? d->vectors : NULL,
                                   .keys = i < vectors ? d->vectors : NULL,
                                   .channels = vectors ? fuzz_pick(in, 0, 8) : 0,
                                   .score_scale = fuzz_pick(in, 0, 3) ? 0 : fuzz_double(in)};
}

/* Creates the given number of labels, in memory of exactly that size. */
static const char *const *make_labels(drawing *d, fuzz_part *in, int64_t count)
{
    if (fuzz_pick(in, 0, 2) == 0 || d->labels) return NULL;
    d->labels = malloc((size_t)count * sizeof *d->labels + 1);
    fuzz_must(d->labels != NULL, "out of memory");
    for (int64_t i = 0; i < count; i++) d->labels[i] = text(d, in);
    return d->labels;
}

static void make_figure(drawing *d, fuzz_part *in)
{
    const int64_t rows = fuzz_pick(in, 0, 8), cols = fuzz_pick(in, 0, 8);
    d->figure = (mha_figure){.struct_size = sizeof d->figure,
                             .panel_size = sizeof(mha_panel),
                             .title = text(d, in),
                             .subtitle = text(d, in),
                             .footnote = text(d, in),
                             .row_axis = text(d, in),
                             .rows = rows,
                             .cols = cols,
                             .panels = d->panels,
                             .panel_count = fuzz_pick(in, 0, MOST_PANELS),
                             .columns = fuzz_pick(in, 0, 3),
                             .cmap = (mha_cmap)fuzz_pick(in, 0, 7),
                             .range = (mha_range)fuzz_pick(in, 0, 2),
                             .scale = (mha_scale)fuzz_pick(in, 0, 4),
                             .dark = fuzz_pick(in, 0, 1),
                             .print_values = (mha_values)fuzz_pick(in, 0, 2),
                             .value_name = text(d, in)};
    if (d->figure.range == MHA_RANGE_FIXED) {
        d->figure.lo = fuzz_double(in);
        d->figure.hi = fuzz_double(in);
    }
    if (fuzz_pick(in, 0, 3) == 0) { /* names must not be read if their count is 0 */
        d->figure.group_count = fuzz_pick(in, 0, 3);
        d->figure.group_names = make_labels(d, in, d->figure.group_count);
    }
    d->figure.row_labels = make_labels(d, in, rows);
    d->figure.col_labels = make_labels(d, in, cols);
}

static void make_report(drawing *d, fuzz_part *in)
{
    for (int i = 0; i < MOST_POINTS; i++) {
        d->x[i] = i;
        d->y[i] = fuzz_double(in);
    }
    for (int i = 0; i < MOST_PANELS; i++) {
        d->at[i] = fuzz_double(in);
        d->maps[i] = d->values[MOST_PANELS - 1 - i];
        d->frames[i] = (mha_frame){
            .label = text(d, in), .at = i, .maps = fuzz_pick(in, 0, 3) ? d->maps : NULL};
    }
    for (int i = 0; i < 2; i++) {
        d->facts[i] = (mha_fact){text(d, in), text(d, in)};
        d->series[i] = (mha_series){.name = text(d, in),
                                    .x = d->x,
                                    .y = d->y,
                                    .count = fuzz_pick(in, 0, MOST_POINTS),
                                    .baseline = i};
        d->curves[i] = (mha_curve){.title = text(d, in),
                                   .caption = text(d, in),
                                   .x_axis = text(d, in),
                                   .series = d->series,
                                   .series_count = fuzz_pick(in, 0, 2),
                                   .timeline = fuzz_pick(in, 0, 1)};
        d->columns[i] = (mha_column){.name = text(d, in), .about = text(d, in), .values = d->at};
    }
    d->report = (mha_report){.struct_size = sizeof d->report,
                             .text = text(d, in),
                             .facts = d->facts,
                             .fact_count = fuzz_pick(in, 0, 2),
                             .producer = text(d, in),
                             .same_labels = fuzz_pick(in, 0, 1),
                             .most_bytes = fuzz_pick(in, 0, 3) ? fuzz_pick(in, 0, 200000) : 0,
                             .first_panel = fuzz_pick(in, 0, 4),
                             .curve_size = sizeof(mha_curve),
                             .curves = d->curves,
                             .curve_count = fuzz_pick(in, 0, 2),
                             .columns = d->columns,
                             .column_count = fuzz_pick(in, 0, 2),
                             .frames = d->frames,
                             .frame_count = fuzz_pick(in, 0, 1) ? fuzz_pick(in, 0, 4) : 0,
                             .twin_name = text(d, in),
                             .twin_value = text(d, in)};
    if (fuzz_pick(in, 0, 1) == 0) return;
    for (int i = 0; i < 3; i++) d->line_panels[i] = fuzz_pick(in, 0, 9) ? 0 : fuzz_pick(in, -1, 4);
    d->report.guide = text(d, in);
    d->report.view = (mha_view)fuzz_pick(in, 0, 4);
    d->report.only_view = fuzz_pick(in, 0, 1);
    d->report.first_cell = fuzz_pick(in, 0, 1);
    d->report.first_row = fuzz_pick(in, -1, 8);
    d->report.first_col = fuzz_pick(in, 0, 8);
    d->report.line_panels = d->line_panels;
    d->report.line_panel_count = fuzz_pick(in, 0, 3);
    d->report.second_row = fuzz_pick(in, 0, 8);
    d->report.second_col = fuzz_pick(in, 0, 8);
}

static void make_diagram(drawing *d, fuzz_part *in)
{
    for (int i = 0; i < MOST_MARKS; i++)
        d->marks[i] = (mha_mark){.kind = (mha_mark_kind)fuzz_pick(in, 0, 5),
                                 .ink = (mha_ink)fuzz_pick(in, 0, 8),
                                 .flags = (uint32_t)fuzz_take(in, 2) & 0x7FF,
                                 .x = fuzz_double(in),
                                 .y = fuzz_double(in),
                                 .width = fuzz_double(in),
                                 .height = fuzz_double(in),
                                 .size = fuzz_pick(in, 0, 3) ? 0 : fuzz_double(in),
                                 .text = text(d, in),
                                 .detail = text(d, in),
                                 .rows = fuzz_pick(in, 0, 8),
                                 .cols = fuzz_pick(in, 0, 8),
                                 .cells = d->cells,
                                 .figure = fuzz_pick(in, 0, 7) ? &d->figure : NULL};
    for (int i = 0; i < 2; i++)
        d->cards[i] = (mha_diagram_panel){.title = text(d, in),
                                          .caption = text(d, in),
                                          .width = fuzz_pick(in, 0, 1) ? 300 : fuzz_double(in),
                                          .height = fuzz_pick(in, 0, 1) ? 200 : fuzz_double(in),
                                          .marks = d->marks,
                                          .mark_count = fuzz_pick(in, 0, MOST_MARKS)};
    d->diagram = (mha_diagram){.struct_size = sizeof d->diagram,
                               .panel_size = sizeof *d->cards,
                               .mark_size = sizeof *d->marks,
                               .dark = fuzz_pick(in, 0, 1),
                               .width = fuzz_pick(in, 0, 2) ? 0 : fuzz_double(in),
                               .title = text(d, in),
                               .panels = d->cards,
                               .panel_count = fuzz_pick(in, 0, 2)};
    d->chart = (mha_chart){.struct_size = sizeof d->chart,
                           .curve_size = sizeof *d->curves,
                           .curve = d->curves,
                           .width = fuzz_pick(in, 0, 2) ? 0 : fuzz_double(in),
                           .height = fuzz_pick(in, 0, 2) ? 0 : fuzz_double(in),
                           .dark = fuzz_pick(in, 0, 1),
                           .x_falls = fuzz_pick(in, 0, 1)};
}

/* ---- checks of the output -------------------------------------------------------------------- */

/* Checks that attributes are unique, elements nest, and characters are valid in XML. */
static void check_tag(const char *at, const char *end)
{
    char names[32][24];
    int count = 0;
    while (at < end) {
        const char *is = memchr(at, '=', (size_t)(end - at));
        if (!is) return;
        const char *name = is;
        while (name > at && name[-1] != ' ') name--;
        const size_t length = (size_t)(is - name);
        fuzz_must(is + 1 < end && is[1] == '"' && length > 0 && length < 24 && count < 32,
                  "SVG: an attribute without a value");
        memcpy(names[count], name, length);
        names[count][length] = '\0';
        for (int i = 0; i < count; i++)
            fuzz_must(strcmp(names[i], names[count]) != 0, "SVG: an attribute twice");
        count++;
        at = memchr(is + 2, '"', (size_t)(end - is - 2));
        fuzz_must(at != NULL, "SVG: an attribute without an end");
        at++;
    }
}

static void check_svg(const mha_buffer *out)
{
    int depth = 0;
    for (size_t i = 0; i < out->size; i++) {
        const unsigned char c = (unsigned char)out->data[i];
        fuzz_must(c >= 0x20 || c == '\n' || c == '\t' || c == '\r', "SVG: no character of XML");
        if (c != '<') continue;
        const char *at = out->data + i, *end = strchr(at, '>');
        fuzz_must(end != NULL, "SVG: an element without an end");
        if (at[1] == '/')
            depth--;
        else if (at[1] != '?' && at[1] != '!')
            depth += end[-1] != '/';
        fuzz_must(depth >= 0, "SVG: an end without a beginning");
        if (at[1] != '/' && at[1] != '!') check_tag(at + 1, end);
        i = (size_t)(end - out->data);
    }
    fuzz_must(depth == 0, "SVG: a beginning without an end");
}

static void check_html(const mha_buffer *out)
{
    static const char type[] = "type=\"application/json\"";
    const char *at = strstr(out->data, type);
    const char *begin = at ? strchr(at, '>') : NULL;
    const char *end = begin ? strstr(begin, "</script>") : NULL;
    json_error_t error;
    fuzz_must(end != NULL, "HTML: no data");
    json_t *data = json_loadb(begin + 1, (size_t)(end - begin - 1), JSON_DECODE_ANY, &error);
    fuzz_must(data != NULL, "HTML: data that is no JSON");
    json_decref(data);
}

/* One attribute contains the whole document: an unescaped '"' from a label would end it early. */
static void check_inset(const mha_buffer *out)
{
    static const char attribute[] = " srcdoc=\"", end[] = "\"></iframe>\n";
    const char *from = strstr(out->data, attribute);
    fuzz_must(from != NULL, "inset: no document");
    from += sizeof attribute - 1;
    fuzz_must(!strcmp(from + strcspn(from, "\""), end), "inset: the document ends early");
}

static mha_status draw_inset(const drawing *d, int64_t pages, const mha_sink *sink)
{
    const mha_inset_page list[] = {{d->figure.title, &d->figure, &d->report},
                                   {NULL, &d->figure, NULL}};
    const mha_inset inset = {
        .struct_size = sizeof inset, .page_size = sizeof *list, .pages = list, .page_count = pages};
    return mha_render_inset(&inset, sink);
}

static void check_terminal(const mha_buffer *out)
{
    for (size_t i = 0; i < out->size; i++) {
        const unsigned char c = (unsigned char)out->data[i];
        fuzz_must((c >= 0x20 && c != 0x7f) || c == '\n', "terminal: a control character");
    }
}

static void draw(drawing *d, fuzz_part *in)
{
    const int writer = (int)fuzz_pick(in, 0, 9);
    mha_buffer out = {0};
    const mha_sink sink = mha_buffer_sink(&out);
    const mha_terminal terminal = {.struct_size = sizeof terminal,
                                   .columns = (int32_t)fuzz_pick(in, 19, 90),
                                   .ascii = fuzz_pick(in, 0, 1)};
    mha_status status;
    switch (writer) {
    case 0: status = mha_render_svg(&d->figure, &sink); break;
    case 1: status = mha_render_png(&d->figure, &sink); break;
    case 2:
        status = mha_render_html(&d->figure, fuzz_pick(in, 0, 7) ? &d->report : NULL, &sink);
        break;
    case 3: status = mha_render_terminal(&d->figure, &terminal, &sink); break;
    case 4: status = mha_render_diagram(&d->diagram, &sink); break;
    case 7: status = mha_render_pdf(&d->figure, &sink); break;
    case 8:
        d->diagram.pdf = true;
        status = mha_render_diagram(&d->diagram, &sink);
        break;
    case 9:
        d->chart.pdf = true;
        status = mha_render_chart(&d->chart, &sink);
        break;
    case 6: status = draw_inset(d, fuzz_pick(in, 1, 2), &sink); break;
    default: status = mha_render_chart(&d->chart, &sink);
    }
    fuzz_must_speak(status);
    if (status == MHA_OK) {
        fuzz_must(out.size > 0, "nothing is written");
        if (writer == 0 || writer == 4 || writer == 5) check_svg(&out);
        if (writer == 6) check_inset(&out);
        if (writer == 2) check_html(&out);
        if (writer == 3) check_terminal(&out);
    }
    mha_buffer_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_part in = {data, size};
    drawing *d = calloc(1, sizeof *d);
    fuzz_must(d != NULL, "out of memory");
    fuzz_part writer = {data, size < 4 ? size : 4};
    fuzz_take(&in, 4);
    make_figure(d, &in);
    make_values(d, &in);
    make_panels(d, &in);
    make_report(d, &in);
    make_diagram(d, &in);
    draw(d, &writer);
    for (int i = 0; i < d->text_count; i++) free(d->texts[i]);
    free(d->labels);
    free(d);
    return 0;
}
