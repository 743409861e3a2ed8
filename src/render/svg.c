/* The SVG back end: SVG 1.1 text with presentation attributes only, so that every viewer and
 * printer shows the same. */
#include "svg.h"
#include "layout.h"
#include "number.h"
#include "png.h"
#include "sink.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct svg {
    mhai_svg_frame frame;
    mhai_writer writer;
    mha_status status; /* other than the writer's: out of memory */
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

static void svg_rect(void *user, double x, double y, double width, double height, mhai_color color)
{
    svg *s = user;
    mhai_sink_text(&s->writer, "<rect");
    rect_attributes(s, x, y, width, height);
    color_attribute(s, "fill", color);
    mhai_sink_text(&s->writer, " shape-rendering=\"crispEdges\"/>\n");
}

static void svg_hatch(void *user, double x, double y, double width, double height,
                      const mhai_theme *theme)
{
    svg *s = user;
    (void)theme; /* the pattern is defined once, at the top */
    mhai_sink_text(&s->writer, "<rect");
    rect_attributes(s, x, y, width, height);
    mhai_sink_print(&s->writer, " fill=\"url(#mha-hatch%s)\"/>\n", s->frame.suffix);
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

static void svg_text(void *user, const mhai_pen *pen, const char *text)
{
    svg *s = user;
    static const char *const anchors[] = {"", " text-anchor=\"middle\"", " text-anchor=\"end\""};
    mhai_sink_text(&s->writer, "<text");
    attribute(s, "x", pen->x);
    attribute(s, "y", pen->y);
    attribute(s, "font-size", pen->size);
    mhai_sink_text(&s->writer, anchors[pen->anchor]);
    if (pen->bold) mhai_sink_text(&s->writer, " font-weight=\"600\"");
    color_attribute(s, "fill", pen->color);
    if (pen->angle != 0) {
        const double about[3] = {pen->angle, pen->x, pen->y};
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

/* A panel's cells as pixels, each cell a square of zoom x zoom; NULL if there is no memory. */
static uint8_t *paint_cells(const mhai_map *map, int64_t zoom)
{
    int64_t width = map->cells->cols * zoom, height = map->cells->rows * zoom;
    uint8_t *rgb = mhai_sink_alloc(width * height, 3);
    for (int64_t y = 0; rgb && y < height; y++) {
        uint8_t *row = rgb + y * width * 3;
        if (y % zoom) {
            memcpy(row, row - width * 3, (size_t)width * 3);
            continue;
        }
        for (int64_t x = 0; x < width; x++)
            memcpy(row + 3 * x, mhai_canvas_cell_color(map, y / zoom, x / zoom).rgb, 3);
    }
    return rgb;
}

/* One image per panel. Some viewers always smooth images, so cells are several pixels
 * where the image stays small: only their edges are smoothed then. */
static void map_image(svg *s, const mhai_map *map)
{
    const mhai_cells *cells = map->cells;
    int64_t longest = cells->rows > cells->cols ? cells->rows : cells->cols;
    int64_t zoom = longest > 600 ? 1 : longest > 400 ? 2 : longest > 300 ? 3 : 4;
    uint8_t *rgb = paint_cells(map, zoom);
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

/* "token [3]", the token as it is. */
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

/* The fill of a cell; runs of equal fills are one rectangle. */
static int fill_of(const mhai_map *map, int64_t row, int64_t col)
{
    int64_t at = row * map->cells->cols + col;
    uint8_t kind = map->cells->kind[at];
    return kind == MHAI_CELL_VALUE ? mhai_palette_index(map->scale, (double)map->cells->value[at])
                                   : 255 + kind;
}

static void run_rect(svg *s, const mhai_map *map, int64_t row, int64_t col, int64_t length,
                     int fill)
{
    mhai_sink_text(&s->writer, "<rect");
    rect_attributes(s, (double)col * map->cell_width, (double)row * map->cell_height,
                    (double)length * map->cell_width, map->cell_height);
    if (fill == 255 + MHAI_CELL_MASKED && !map->tiny)
        mhai_sink_print(&s->writer, " fill=\"url(#mha-hatch%s)\"", s->frame.suffix);
    else if (fill == 255 + MHAI_CELL_NOT_FINITE && !map->tiny)
        color_attribute(s, "fill", map->theme->paper);
    else
        color_attribute(s, "fill", mhai_canvas_cell_color(map, row, col));
    if (map->tooltips) {
        mhai_sink_text(&s->writer, ">");
        tooltip(s, map, row, col);
        mhai_sink_text(&s->writer, "</rect>\n");
    } else {
        mhai_sink_text(&s->writer, "/>\n");
    }
}

static void crosses(svg *s, const mhai_map *map)
{
    const mhai_cells *cells = map->cells;
    for (int64_t i = 0; i < cells->rows * cells->cols; i++) {
        if (cells->kind[i] != MHAI_CELL_NOT_FINITE) continue;
        double x = (double)(i % cells->cols) * map->cell_width,
               y = (double)(i / cells->cols) * map->cell_height;
        double w = map->cell_width, h = map->cell_height, in = 0.25;
        const double down[4] = {x + in * w, y + in * h, x + (1 - in) * w, y + (1 - in) * h};
        const double up[4] = {x + in * w, y + (1 - in) * h, x + (1 - in) * w, y + in * h};
        svg_line(s, down, 1.5, map->theme->bad);
        svg_line(s, up, 1.5, map->theme->bad);
    }
}

static void svg_map(void *user, const mhai_map *map)
{
    svg *s = user;
    if (s->status || s->writer.status) return;
    if (map->image) {
        map_image(s, map);
        return;
    }
    mhai_sink_text(&s->writer, "<g transform=\"translate(");
    points(s, (const double[2]){map->x, map->y}, 1);
    mhai_sink_text(&s->writer, ")\" shape-rendering=\"crispEdges\">\n");
    for (int64_t row = 0; row < map->cells->rows; row++)
        for (int64_t col = 0, end; col < map->cells->cols; col = end) {
            int fill = fill_of(map, row, col);
            end = col + 1;
            while (!map->tooltips && end < map->cells->cols && fill_of(map, row, end) == fill)
                end++;
            run_rect(s, map, row, col, end - col, fill);
        }
    if (!map->tiny) crosses(s, map);
    mhai_sink_text(&s->writer, "</g>\n");
}

/* The root, its accessible name, and the hatch. */
static void open_document(svg *s, const mhai_layout *l)
{
    const mha_figure *f = &l->figure;
    const mhai_svg_frame *frame = &s->frame;
    mhai_sink_text(&s->writer,
                   frame->inside ? "<svg"
                                 : "<svg xmlns=\"http://www.w3.org/2000/svg\" "
                                   "xmlns:xlink=\"http://www.w3.org/1999/xlink\" version=\"1.1\"");
    if (frame->place)
        rect_attributes(s, frame->place[0], frame->place[1], frame->place[2], frame->place[3]);
    else
        rect_size(s, l->width, l->height);
    mhai_sink_text(&s->writer, " viewBox=\"");
    points(s, (const double[4]){0, 0, l->width, l->height}, 2);
    mhai_sink_text(
        &s->writer,
        "\" role=\"img\" font-family=\"system-ui, 'DejaVu Sans', sans-serif\">\n<title>");
    mhai_sink_escaped(&s->writer, f->title && *f->title ? f->title : "Heat map");
    mhai_sink_print(&s->writer,
                    "</title>\n<desc>%" PRId64 " %s of %" PRId64 " rows and %" PRId64 " columns. ",
                    f->panel_count, f->panel_count == 1 ? "map" : "maps", f->rows, f->cols);
    for (int i = 0; i < l->remark_lines; i++) mhai_sink_escaped(&s->writer, l->remarks[i].text);
    mhai_sink_print(&s->writer,
                    "</desc>\n<defs><pattern id=\"mha-hatch%s\" width=\"6\" height=\"6\" "
                    "patternUnits=\"userSpaceOnUse\"><rect width=\"6\" height=\"6\"",
                    frame->suffix);
    color_attribute(s, "fill", l->theme.mask_paper);
    mhai_sink_text(&s->writer, "/><path d=\"M-1 1L1 -1M-1 7L7 -1M5 7L7 5\"");
    color_attribute(s, "stroke", l->theme.mask_line);
    mhai_sink_text(&s->writer, " stroke-width=\"1.2\"/></pattern></defs>\n");
}

mha_status mhai_svg_write(const mhai_layout *layout, const mhai_svg_frame *frame,
                          const mha_sink *sink)
{
    svg s = {.frame = frame ? *frame : (mhai_svg_frame){.suffix = ""}};
    mhai_sink_open(&s.writer, sink);
    const mhai_canvas canvas = {&s, svg_rect, svg_hatch, svg_triangle, svg_line, svg_text, svg_map};
    open_document(&s, layout);
    MHA_TRY(mhai_draw(layout, &canvas));
    MHA_TRY(s.status);
    mhai_sink_text(&s.writer, "</svg>\n");
    return mhai_sink_flush(&s.writer);
}

mha_status mhai_svg_cells(const mhai_layout *l, const mhai_svg_frame *frame, const mha_sink *sink)
{
    if (!l->figure.panel_count || !l->figure.rows || !l->figure.cols) return MHA_OK;
    svg s = {.frame = *frame};
    mhai_cells cells;
    MHA_TRY(mhai_cells_alloc(l->row.drawn, l->col.drawn, &cells));
    mha_panel panel = mhai_figure_panel(&l->figure, 0);
    mhai_cells_fill(&l->figure, &panel, l->row.pool, l->col.pool, &cells);
    const mhai_map map = {.x = frame->place[0],
                          .y = frame->place[1],
                          .cell_width = frame->place[2] / (double)cells.cols,
                          .cell_height = frame->place[3] / (double)cells.rows,
                          .cells = &cells,
                          .scale = mhai_ranges_at(&l->ranges, 0),
                          .palette = &l->palette,
                          .theme = &l->theme,
                          .figure = &l->figure,
                          .image = true};
    mhai_sink_open(&s.writer, sink);
    svg_map(&s, &map);
    mhai_cells_free(&cells);
    MHA_TRY(s.status);
    return mhai_sink_flush(&s.writer);
}

mha_status mha_render_svg(const mha_figure *figure, const mha_sink *sink)
{
    if (!sink || !sink->write) return mha_fail(MHA_ERR_NULL, "mha_render_svg: sink is NULL");
    mhai_layout layout;
    mha_status status = mhai_layout_make(figure, &layout);
    if (!status) status = mhai_svg_write(&layout, NULL, sink);
    mhai_layout_free(&layout);
    return status;
}
