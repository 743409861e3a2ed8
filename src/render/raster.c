/* The PNG back end: an RGB raster. Edges of rectangles are rounded to pixels, so cells stay sharp;
 * lines, triangles and text are anti-aliased by coverage. */
#include "font.h"
#include "layout.h"
#include "png.h"
#include "sink.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const int64_t most_pixels = INT64_C(1) << 26, pixels_for_ratio_2 = INT64_C(1) << 25;

typedef struct raster {
    uint8_t *rgb;
    int64_t width, height;
    double ratio;
    mhai_font *font;
    mhai_color ink; /* of the text being drawn */
} raster;

static void blend_pixel(raster *r, int64_t x, int64_t y, mhai_color color, unsigned alpha)
{
    if (x < 0 || y < 0 || x >= r->width || y >= r->height) return;
    uint8_t *at = r->rgb + (y * r->width + x) * 3;
    for (int i = 0; i < 3; i++)
        at[i] = (uint8_t)((at[i] * (255 - alpha) + color.rgb[i] * alpha + 127) / 255);
}

typedef struct box {
    int64_t x0, y0, x1, y1;
} box;

static int64_t clip(double v, int64_t high)
{
    return v <= 0 ? 0 : v >= (double)high ? high : (int64_t)llround(v);
}

/* The pixels of a rectangle: those whose edges round into it. */
static box pixels(const raster *r, double x, double y, double width, double height)
{
    return (box){clip(x * r->ratio, r->width), clip(y * r->ratio, r->height),
                 clip((x + width) * r->ratio, r->width), clip((y + height) * r->ratio, r->height)};
}

static void fill(raster *r, box b, mhai_color color)
{
    for (int64_t y = b.y0; y < b.y1; y++) {
        uint8_t *at = r->rgb + (y * r->width + b.x0) * 3;
        for (int64_t x = b.x0; x < b.x1; x++, at += 3) memcpy(at, color.rgb, 3);
    }
}

static void raster_rect(void *user, double x, double y, double width, double height,
                        mhai_color color)
{
    raster *r = user;
    fill(r, pixels(r, x, y, width, height), color);
}

static unsigned coverage(double c)
{
    return c <= 0 ? 0 : c >= 1 ? 255 : (unsigned)lround(c * 255);
}

/* Diagonals every 6 units of the drawing, whichever cell they cross. */
static void raster_hatch(void *user, double x, double y, double width, double height,
                         const mhai_theme *theme)
{
    raster *r = user;
    box b = pixels(r, x, y, width, height);
    fill(r, b, theme->mask_paper);
    double period = 6 * r->ratio, half_width = 0.6 * r->ratio;
    for (int64_t py = b.y0; py < b.y1; py++)
        for (int64_t px = b.x0; px < b.x1; px++) {
            double phase = fmod((double)(px + py) + 1, period);
            double distance = fmin(phase, period - phase) / sqrt(2);
            blend_pixel(r, px, py, theme->mask_line, coverage(half_width - distance + 0.5));
        }
}

static void raster_line(void *user, const double xy[4], double width, mhai_color color)
{
    raster *r = user;
    double x0 = xy[0] * r->ratio, y0 = xy[1] * r->ratio, x1 = xy[2] * r->ratio,
           y1 = xy[3] * r->ratio;
    double thick = fmax(width * r->ratio, 1), half = thick / 2;
    if (xy[0] == xy[2] || xy[1] == xy[3]) { /* sharp, on whole pixels */
        bool upright = xy[0] == xy[2];
        double left = floor(fmin(x0, x1) - (upright ? half : 0) + 0.5);
        double top = floor(fmin(y0, y1) - (upright ? 0 : half) + 0.5);
        double wide = upright ? round(thick) : fabs(x1 - x0),
               high = upright ? fabs(y1 - y0) : round(thick);
        fill(r,
             (box){clip(left, r->width), clip(top, r->height), clip(left + wide, r->width),
                   clip(top + high, r->height)},
             color);
        return;
    }
    double dx = x1 - x0, dy = y1 - y0, length2 = dx * dx + dy * dy;
    for (int64_t y = (int64_t)floor(fmin(y0, y1) - half); y <= (int64_t)ceil(fmax(y0, y1) + half);
         y++)
        for (int64_t x = (int64_t)floor(fmin(x0, x1) - half);
             x <= (int64_t)ceil(fmax(x0, x1) + half); x++) {
            double px = (double)x + 0.5 - x0, py = (double)y + 0.5 - y0;
            double along = fmin(fmax((px * dx + py * dy) / length2, 0), 1);
            double distance = hypot(px - along * dx, py - along * dy);
            blend_pixel(r, x, y, color, coverage(half - distance + 0.5));
        }
}

/* Distance of a point from the edge a-b, positive on its left. */
static double side(const double *a, const double *b, double x, double y)
{
    double dx = b[0] - a[0], dy = b[1] - a[1];
    return (dx * (y - a[1]) - dy * (x - a[0])) / hypot(dx, dy);
}

static void raster_triangle(void *user, const double xy[6], mhai_color color)
{
    raster *r = user;
    double p[6];
    for (int i = 0; i < 6; i++) p[i] = xy[i] * r->ratio;
    double turn = side(p, p + 2, p[4], p[5]) < 0 ? -1 : 1;
    int64_t x0 = (int64_t)fmin(fmin(p[0], p[2]), p[4]) - 1,
            x1 = (int64_t)fmax(fmax(p[0], p[2]), p[4]) + 2;
    int64_t y0 = (int64_t)fmin(fmin(p[1], p[3]), p[5]) - 1,
            y1 = (int64_t)fmax(fmax(p[1], p[3]), p[5]) + 2;
    for (int64_t y = y0; y < y1; y++)
        for (int64_t x = x0; x < x1; x++) {
            double at_x = (double)x + 0.5, at_y = (double)y + 0.5;
            double inside =
                fmin(fmin(turn * side(p, p + 2, at_x, at_y), turn * side(p + 2, p + 4, at_x, at_y)),
                     turn * side(p + 4, p, at_x, at_y));
            blend_pixel(r, x, y, color, coverage(inside + 0.5));
        }
}

static void blend_glyph(void *user, int64_t x, int64_t y, int width, int height,
                        const unsigned char *bytes, int stride)
{
    raster *r = user;
    for (int row = 0; row < height; row++)
        for (int col = 0; col < width; col++)
            blend_pixel(r, x + col, y + row, r->ink, bytes[row * stride + col]);
}

static void raster_text(void *user, const mhai_pen *pen, const char *text)
{
    raster *r = user;
    mhai_pen scaled = *pen;
    scaled.x *= r->ratio;
    scaled.y *= r->ratio;
    scaled.size *= r->ratio;
    r->ink = pen->color;
    mhai_font_draw(r->font, &scaled, text, blend_glyph, r);
}

static void draw_cross(raster *r, double x, double y, const mhai_map *map)
{
    double w = map->cell_width, h = map->cell_height, in = 0.25;
    const double down[4] = {x + in * w, y + in * h, x + (1 - in) * w, y + (1 - in) * h};
    const double up[4] = {x + in * w, y + (1 - in) * h, x + (1 - in) * w, y + in * h};
    raster_line(r, down, 1.5, map->theme->bad);
    raster_line(r, up, 1.5, map->theme->bad);
}

static void raster_map(void *user, const mhai_map *map)
{
    raster *r = user;
    const mhai_cells *cells = map->cells;
    for (int64_t row = 0; row < cells->rows; row++)
        for (int64_t col = 0; col < cells->cols; col++) {
            double x = map->x + (double)col * map->cell_width,
                   y = map->y + (double)row * map->cell_height;
            uint8_t kind = cells->kind[row * cells->cols + col];
            if (!map->tiny && kind == MHAI_CELL_MASKED) {
                raster_hatch(r, x, y, map->cell_width, map->cell_height, map->theme);
            } else if (!map->tiny && kind == MHAI_CELL_NOT_FINITE) {
                raster_rect(r, x, y, map->cell_width, map->cell_height, map->theme->paper);
                draw_cross(r, x, y, map);
            } else {
                raster_rect(r, x, y, map->cell_width, map->cell_height,
                            mhai_canvas_cell_color(map, row, col));
            }
        }
}

static mha_status raster_open(raster *r, const mhai_layout *l)
{
    double area = ceil(l->width) * ceil(l->height);
    r->ratio = l->figure.pixel_ratio;
    if (r->ratio == 0) r->ratio = 4 * area <= (double)pixels_for_ratio_2 ? 2 : 1;
    if (area * r->ratio * r->ratio > (double)most_pixels)
        return mha_fail(MHA_ERR_SIZE, "PNG: %.0f x %.0f pixels are too many: draw fewer panels%s",
                        l->width * r->ratio, l->height * r->ratio,
                        r->ratio > 1 ? " or lower pixel_ratio" : "");
    r->width = (int64_t)ceil(l->width * r->ratio);
    r->height = (int64_t)ceil(l->height * r->ratio);
    MHA_TRY(mhai_font_open(l->figure.font_file, &r->font));
    r->rgb = mhai_sink_alloc(r->width * r->height, 3);
    if (!r->rgb)
        return mha_fail(MHA_ERR_NOMEM, "PNG: no memory for %" PRId64 " x %" PRId64 " pixels",
                        r->width, r->height);
    return MHA_OK;
}

mha_status mha_render_png(const mha_figure *figure, const mha_sink *sink)
{
    if (!sink || !sink->write) return mha_fail(MHA_ERR_NULL, "mha_render_png: sink is NULL");
    raster r = {0};
    mhai_layout layout;
    mha_status status;
    MHA_TRY_GOTO(mhai_layout_make(figure, &layout), done);
    MHA_TRY_GOTO(raster_open(&r, &layout), done);
    const mhai_canvas canvas = {&r,          raster_rect, raster_hatch, raster_triangle,
                                raster_line, raster_text, raster_map};
    MHA_TRY_GOTO(mhai_draw(&layout, &canvas), done);
    MHA_TRY_GOTO(mhai_font_check(r.font), done);
    status = mhai_png_write(r.rgb, r.width, r.height, sink);
done:
    free(r.rgb);
    mhai_font_close(r.font);
    mhai_layout_free(&layout);
    return status;
}
