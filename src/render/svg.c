/* The SVG back end: SVG 1.1 text with presentation attributes only, so that every viewer and
 * printer shows the same picture. */
#include "canvas.h"
#include "layout.h"
#include "number.h"
#include "png.h"
#include "sink.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* The place of the drawing in a larger document. */
typedef struct svg_frame {
    bool inside;         /* inside a page or a drawing: no name spaces */
    const char *suffix;  /* suffix of ids, which must differ within a page */
    const double *place; /* x, y, width, height to fit into; NULL: its own size */
} svg_frame;

typedef struct svg {
    svg_frame frame;
    mhai_writer writer;
    mha_status status; /* errors other than the writer's: out of memory */
    const mhai_canvas *canvas;
    int figures; /* nested figures, whose ids get numbers */
} svg;

static void attribute(svg *s, const char *name, double value)
{
    mhai_sink_print(&s->writer, " %s=\"", name);
    mhai_sink_real(&s->writer, value);
    mhai_sink_text(&s->writer, "\"");
}

static void color_attribute(svg *s, const char *name, mhai_color c)
{
    mhai_sink_print(&s->writer, " %s=\"#%02x%02x%02x\"", name, c.rgb[0], c.rgb[1], c.rgb[2]);
}

static void rect_size(svg *s, double width, double height)
{
    attribute(s, "width", width);
    attribute(s, "height", height);
}

static void rect_attributes(svg *s, double x, double y, double width, double height)
{
    attribute(s, "x", x);
    attribute(s, "y", y);
    rect_size(s, width, height);
}

static void points(svg *s, const double *xy, int count)
{
    for (int i = 0; i < 2 * count; i++) {
        if (i) mhai_sink_text(&s->writer, " ");
        mhai_sink_real(&s->writer, xy[i]);
    }
}

static void svg_triangle(void *user, const double xy[6], mhai_color color)
{
    svg *s = user;
    mhai_sink_text(&s->writer, "<polygon points=\"");
    points(s, xy, 3);
    mhai_sink_text(&s->writer, "\"");
    color_attribute(s, "fill", color);
    mhai_sink_text(&s->writer, "/>\n");
}

static void svg_line(void *user, const double xy[4], double width, mhai_color color)
{
    svg *s = user;
    static const char *const names[] = {"x1", "y1", "x2", "y2"};
    mhai_sink_text(&s->writer, "<line");
    for (int i = 0; i < 4; i++) attribute(s, names[i], xy[i]);
    color_attribute(s, "stroke", color);
    attribute(s, "stroke-width", width);
    mhai_sink_text(&s->writer, "/>\n");
}

static void svg_dot(void *user, double x, double y, double radius, mhai_color color)
{
    svg *s = user;
    mhai_sink_text(&s->writer, "<circle");
    attribute(s, "cx", x);
    attribute(s, "cy", y);
    attribute(s, "r", radius);
    color_attribute(s, "fill", color);
    mhai_sink_text(&s->writer, "/>\n");
}

static void svg_path(void *user, const double *xy, int64_t count, bool curve,
                     const mhai_stroke *stroke)
{
    svg *s = user;
    bool on = false;
    mhai_sink_text(&s->writer, "<path d=\"");
    for (int64_t i = 0; i < count; i++, xy += 2) {
        if (isnan(xy[0])) {
            on = false;
            continue;
        }
        mhai_sink_text(&s->writer, !on ? "M" : !curve ? "L" : i == 1 ? "C" : " ");
        points(s, xy, 1);
        on = true;
    }
    mhai_sink_text(&s->writer, "\" fill=\"none\"");
    color_attribute(s, "stroke", stroke->color);
    attribute(s, "stroke-width", stroke->width);
    for (int i = 0; i < MHAI_MOST_DASHES && stroke->dashes[i] > 0; i++) {
        mhai_sink_text(&s->writer, i ? " " : " stroke-dasharray=\"");
        mhai_sink_real(&s->writer, stroke->dashes[i]);
    }
    mhai_sink_print(&s->writer, "%s%s/>\n", stroke->dashes[0] > 0 ? "\"" : "",
                    stroke->round ? " stroke-linejoin=\"round\"" : "");
}

static void svg_text(void *user, const mhai_pen *pen, const char *text)
{
    svg *s = user;
    const double about[3] = {pen->angle, pen->x, pen->y};
    static const char *const anchors[] = {"", " text-anchor=\"middle\"", " text-anchor=\"end\""};
    mhai_sink_text(&s->writer, "<text");
    attribute(s, "x", pen->x);
    attribute(s, "y", pen->y);
    attribute(s, "font-size", pen->size);
    mhai_sink_text(&s->writer, anchors[pen->anchor]);
    if (pen->bold) mhai_sink_text(&s->writer, " font-weight=\"600\"");
    if (pen->mono)
        mhai_sink_text(&s->writer, " font-family=\"ui-monospace, 'DejaVu Sans Mono', monospace\"");
    color_attribute(s, "fill", pen->color);
    if (pen->angle != 0) {
        mhai_sink_text(&s->writer, " transform=\"rotate(");
        for (int i = 0; i < 3; i++) {
            if (i) mhai_sink_text(&s->writer, " ");
            mhai_sink_real(&s->writer, about[i]);
        }
        mhai_sink_text(&s->writer, ")\"");
    }
    mhai_sink_text(&s->writer, ">");
    mhai_sink_escaped(&s->writer, text);
    mhai_sink_text(&s->writer, "</text>\n");
}

/* Write one image per panel. */
static void svg_image(void *user, const mhai_map *map)
{
    svg *s = user;
    if (s->status || s->writer.status) return;
    const mhai_cells *cells = map->cells;
    int64_t zoom;
    uint8_t *rgb = mhai_canvas_paint(map, &zoom);
    if (!rgb) {
        s->status = mha_fail(MHA_ERR_NOMEM, "SVG: no memory for the image of a panel");
        return;
    }
    mha_buffer png = {0};
    mha_sink sink = mha_buffer_sink(&png);
    s->status = mhai_png_write(rgb, cells->cols * zoom, cells->rows * zoom, &sink);
    free(rgb);
    if (!s->status) {
        mhai_sink_text(&s->writer, "<image");
        rect_attributes(s, map->x, map->y, (double)cells->cols * map->cell_width,
                        (double)cells->rows * map->cell_height);
        mhai_sink_text(&s->writer,
                       " preserveAspectRatio=\"none\" image-rendering=\"optimizeSpeed\" "
                       "style=\"image-rendering:pixelated\" "
                       "xlink:href=\"data:image/png;base64,");
        mhai_sink_base64(&s->writer, png.data, png.size);
        mhai_sink_text(&s->writer, "\"/>\n");
    }
    mha_buffer_free(&png);
}

/* "token [3]", with the unchanged token. */
static void tooltip_label(svg *s, const char *const *labels, int64_t i)
{
    if (labels && labels[i]) {
        mhai_text text;
        mhai_text_visible(labels[i], i, MHAI_TEXT_LABEL, &text);
        mhai_sink_escaped(&s->writer, text.text);
        mhai_sink_print(&s->writer, " [%" PRId64 "]", i);
    } else {
        mhai_sink_print(&s->writer, "[%" PRId64 "]", i);
    }
}

static void tooltip(svg *s, const mhai_map *map, int64_t row, int64_t col)
{
    int64_t at = row * map->cells->cols + col;
    char value[MHAI_NUMBER_BYTES];
    mhai_number_short((double)map->cells->value[at], 4, value);
    uint8_t kind = map->cells->kind[at];
    mhai_sink_text(&s->writer, "<title>");
    tooltip_label(s, map->figure->row_labels, row);
    mhai_sink_text(&s->writer, " \xE2\x86\x92 ");
    tooltip_label(s, map->figure->col_labels, col);
    mhai_sink_print(&s->writer, ": %s</title>",
                    kind == MHAI_CELL_MASKED       ? "masked"
                    : kind == MHAI_CELL_NOT_FINITE ? "not finite"
                                                   : value);
}

static void svg_rect(void *user, const mhai_box *box)
{
    svg *s = user;
    mhai_sink_text(&s->writer, "<rect");
    rect_attributes(s, box->x, box->y, box->width, box->height);
    if (box->radius > 0) attribute(s, "rx", box->radius);
    if (box->hatch)
        mhai_sink_print(&s->writer, " fill=\"url(#mha-hatch%s)\"", s->frame.suffix);
    else
        color_attribute(s, "fill", box->fill);
    if (box->edge) color_attribute(s, "stroke", *box->edge);
    mhai_sink_print(&s->writer, "%s%s", box->edge ? " stroke-width=\"1.5\"" : "",
                    box->crisp ? " shape-rendering=\"crispEdges\"" : "");
    if (box->map && box->map->tooltips) {
        mhai_sink_text(&s->writer, ">");
        tooltip(s, box->map, box->row, box->col);
        mhai_sink_text(&s->writer, "</rect>\n");
    } else {
        mhai_sink_text(&s->writer, "/>\n");
    }
}

static void svg_group(void *user, double x, double y, bool crisp)
{
    svg *s = user;
    mhai_sink_text(&s->writer, "<g");
    if (x != 0 || y != 0) {
        mhai_sink_text(&s->writer, " transform=\"translate(");
        points(s, (const double[2]){x, y}, 1);
        mhai_sink_text(&s->writer, ")\"");
    }
    mhai_sink_text(&s->writer, crisp ? " shape-rendering=\"crispEdges\">\n" : ">\n");
}

static void svg_end_group(void *user)
{
    mhai_sink_text(&((svg *)user)->writer, "</g>\n");
}

/* Write the root and its accessible name. */
static void open_document(svg *s, const char *title, double width, double height)
{
    const svg_frame *frame = &s->frame;
    mhai_sink_text(&s->writer,
                   frame->inside ? "<svg"
                                 : "<svg xmlns=\"http://www.w3.org/2000/svg\" "
                                   "xmlns:xlink=\"http://www.w3.org/1999/xlink\" version=\"1.1\"");
    if (frame->place)
        rect_attributes(s, frame->place[0], frame->place[1], frame->place[2], frame->place[3]);
    else
        rect_size(s, width, height);
    mhai_sink_text(&s->writer, " viewBox=\"");
    points(s, (const double[4]){0, 0, width, height}, 2);
    mhai_sink_text(
        &s->writer,
        "\" role=\"img\" font-family=\"system-ui, 'DejaVu Sans', sans-serif\">\n<title>");
    mhai_sink_escaped(&s->writer, title);
    mhai_sink_text(&s->writer, "</title>\n");
}

/* Write the description of a figure, and its hatch. */
static void describe(svg *s, const mhai_layout *l)
{
    const mha_figure *f = &l->grid.figure;
    mhai_sink_print(&s->writer,
                    "<desc>%" PRId64 " %s of %" PRId64 " rows and %" PRId64 " columns. ",
                    f->panel_count, f->panel_count == 1 ? "map" : "maps", f->rows, f->cols);
    for (int i = 0; i < l->remark_lines; i++) mhai_sink_escaped(&s->writer, l->remarks[i].text);
    mhai_sink_print(&s->writer,
                    "</desc>\n<defs><pattern id=\"mha-hatch%s\" width=\"6\" height=\"6\" "
                    "patternUnits=\"userSpaceOnUse\"><rect width=\"6\" height=\"6\"",
                    s->frame.suffix);
    color_attribute(s, "fill", l->grid.theme.mask_paper);
    mhai_sink_text(&s->writer, "/><path d=\"M-1 1L1 -1M-1 7L7 -1M5 7L7 5\"");
    color_attribute(s, "stroke", l->grid.theme.mask_line);
    mhai_sink_text(&s->writer, " stroke-width=\"1.2\"/></pattern></defs>\n");
}

static mha_status svg_figure(void *user, const mhai_layout *l, const double place[4])
{
    svg *s = user;
    char suffix[32];
    const svg_frame outer = s->frame;
    snprintf(suffix, sizeof suffix, "-%d", ++s->figures);
    s->frame = (svg_frame){.inside = true, .suffix = suffix, .place = place};
    open_document(s, mhai_layout_title(l), l->width, l->height);
    describe(s, l);
    const mha_status status = mhai_draw(l, s->canvas);
    mhai_sink_text(&s->writer, "</svg>\n");
    s->frame = outer;
    return status;
}

static mha_status write_sheet(const mhai_sheet *sheet, const svg_frame *frame, const mha_sink *sink)
{
    svg s = {.frame = *frame};
    mhai_sink_open(&s.writer, sink);
    const mhai_canvas canvas = {&s,         svg_rect,  svg_triangle, svg_dot,
                                svg_line,   svg_path,  svg_text,     svg_image,
                                svg_figure, svg_group, svg_end_group};
    s.canvas = &canvas;
    open_document(&s, sheet->title, sheet->width, sheet->height);
    if (sheet->layout) describe(&s, sheet->layout);
    MHA_TRY(sheet->draw(sheet->what, &canvas));
    MHA_TRY(s.status);
    mhai_sink_text(&s.writer, "</svg>\n");
    return mhai_sink_flush(&s.writer);
}

mha_status mhai_svg_sheet(const mhai_sheet *sheet, const mha_sink *sink)
{
    return write_sheet(sheet, &(svg_frame){.suffix = ""}, sink);
}

mha_status mhai_svg_inside(const mhai_layout *layout, const mha_sink *sink)
{
    const mhai_sheet sheet = mhai_layout_sheet(layout, MHAI_SVG);
    return write_sheet(&sheet, &(svg_frame){.inside = true, .suffix = ""}, sink);
}
