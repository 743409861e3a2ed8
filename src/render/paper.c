/* The cairo back end: PNG and PDF. In PNG, edges of cells, of the colour bar and of axis-aligned lines are
 * snapped to pixels; other edges and text are anti-aliased. In PDF, text remains text, with the
 * font embedded. */
#include "font.h"
#include "layout.h"
#include "png.h"
#include "text.h"

#include <multihead/component.h>

#include <cairo-pdf.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double most_pixels = 1 << 26, pixels_for_ratio_2 = 1 << 25;
/* Limits of a side, of cairo and of PDF readers. */
static const double most_side = 32767, most_points = 14400;
static const double points_per_unit = 0.75;

typedef struct paper {
    cairo_t *cairo;
    cairo_surface_t *surface;
    mhai_font *font;
    const mha_sink *sink;
    mha_status status; /* error of the sink, or out of memory */
    mhai_color ink;    /* colour of text that is drawn into pixels */
    bool pdf, crisp;
    const mhai_canvas *canvas;
} paper;

static void set_color(paper *p, mhai_color c)
{
    cairo_set_source_rgb(p->cairo, c.rgb[0] / 255.0, c.rgb[1] / 255.0, c.rgb[2] / 255.0);
}

static void set_crisp(paper *p, bool crisp)
{
    cairo_set_antialias(p->cairo, crisp ? CAIRO_ANTIALIAS_NONE : CAIRO_ANTIALIAS_GRAY);
}

static void rounded(cairo_t *cairo, const mhai_box *b)
{
    const double r = b->radius, right = acos(-1) / 2, x1 = b->x + b->width, y1 = b->y + b->height;
    cairo_new_sub_path(cairo);
    cairo_arc(cairo, x1 - r, b->y + r, r, -right, 0);
    cairo_arc(cairo, x1 - r, y1 - r, r, 0, right);
    cairo_arc(cairo, b->x + r, y1 - r, r, right, 2 * right);
    cairo_arc(cairo, b->x + r, b->y + r, r, 2 * right, 3 * right);
    cairo_close_path(cairo);
}

static void mix(const paper *p, int64_t x, int64_t y, mhai_color color, unsigned alpha)
{
    const int64_t width = cairo_image_surface_get_width(p->surface);
    if (x < 0 || y < 0 || x >= width || y >= cairo_image_surface_get_height(p->surface)) return;
    unsigned char *at = cairo_image_surface_get_data(p->surface) + 4 * (y * width + x);
    uint32_t word, mixed = 0;
    memcpy(&word, at, sizeof word);
    for (int i = 16; i >= 0; i -= 8)
        mixed = mixed << 8 |
                ((word >> i & 255) * (255 - alpha) + color.rgb[2 - i / 8] * alpha + 127) / 255;
    memcpy(at, &mixed, sizeof mixed);
}

/* Diagonals every 6 units of the drawing, continuous across cells. */
static void hatch_pixels(paper *p, const mhai_box *box)
{
    double x0 = box->x, y0 = box->y, x1 = x0 + box->width, y1 = y0 + box->height, unit = 1,
           zero = 0;
    cairo_user_to_device(p->cairo, &x0, &y0);
    cairo_user_to_device(p->cairo, &x1, &y1);
    cairo_user_to_device_distance(p->cairo, &unit, &zero);
    cairo_surface_flush(p->surface);
    for (int64_t y = llround(y0); y < llround(y1); y++)
        for (int64_t x = llround(x0); x < llround(x1); x++) {
            const double phase = fmod((double)(x + y) + 1, 6 * unit);
            const double cover = 0.6 * unit - fmin(phase, 6 * unit - phase) / sqrt(2) + 0.5;
            mix(p, x, y, box->hatch->mask_line, (unsigned)lround(255 * fmin(fmax(cover, 0), 1)));
        }
    cairo_surface_mark_dirty(p->surface);
}

static void hatch_lines(paper *p, const mhai_box *b)
{
    const double end = b->y + b->height;
    cairo_save(p->cairo);
    cairo_clip(p->cairo);
    set_color(p, b->hatch->mask_line);
    cairo_set_line_width(p->cairo, 1.2);
    for (double sum = 6 * floor((b->x + b->y) / 6); sum < b->x + b->width + end + 6; sum += 6) {
        cairo_move_to(p->cairo, sum - b->y, b->y);
        cairo_line_to(p->cairo, sum - end, end);
    }
    cairo_stroke(p->cairo);
    cairo_restore(p->cairo);
}

/* PDF viewers show hairlines between adjacent shapes, so crisp shapes extend slightly under the next
 * one. */
static void paper_rect(void *user, const mhai_box *box)
{
    paper *p = user;
    const bool crisp = box->crisp || p->crisp || box->hatch;
    const double under = p->pdf && crisp ? 0.25 : 0;
    set_crisp(p, crisp);
    if (box->radius > 0)
        rounded(p->cairo, box);
    else
        cairo_rectangle(p->cairo, box->x, box->y, box->width + under, box->height + under);
    set_color(p, box->hatch ? box->hatch->mask_paper : box->fill);
    cairo_fill_preserve(p->cairo);
    if (box->edge) {
        set_color(p, *box->edge);
        cairo_set_line_width(p->cairo, 1.5);
        cairo_stroke_preserve(p->cairo);
    }
    if (box->hatch && p->pdf) hatch_lines(p, box);
    if (box->hatch && !p->pdf && !cairo_status(p->cairo)) hatch_pixels(p, box);
    cairo_new_path(p->cairo);
}

static void paper_triangle(void *user, const double xy[6], mhai_color color)
{
    paper *p = user;
    set_crisp(p, false);
    for (int i = 0; i < 6; i += 2) cairo_line_to(p->cairo, xy[i], xy[i + 1]);
    set_color(p, color);
    cairo_fill(p->cairo);
}

static void paper_dot(void *user, double x, double y, double radius, mhai_color color)
{
    paper *p = user;
    set_crisp(p, false);
    cairo_arc(p->cairo, x, y, radius, 0, 2 * acos(-1));
    set_color(p, color);
    cairo_fill(p->cairo);
}

static void stroke(paper *p, const mhai_stroke *s)
{
    int dashes = 0;
    while (dashes < MHAI_MOST_DASHES && s->dashes[dashes] > 0) dashes++;
    set_color(p, s->color);
    cairo_set_line_width(p->cairo, s->width);
    cairo_set_dash(p->cairo, s->dashes, dashes, 0);
    cairo_set_line_join(p->cairo, s->round ? CAIRO_LINE_JOIN_ROUND : CAIRO_LINE_JOIN_MITER);
    cairo_stroke(p->cairo);
    cairo_set_dash(p->cairo, NULL, 0, 0);
}

static void paper_line(void *user, const double xy[4], double width, mhai_color color)
{
    paper *p = user;
    set_crisp(p, xy[0] == xy[2] || xy[1] == xy[3]);
    cairo_move_to(p->cairo, xy[0], xy[1]);
    cairo_line_to(p->cairo, xy[2], xy[3]);
    stroke(p, &(mhai_stroke){.color = color, .width = width});
}

static void paper_path(void *user, const double *xy, int64_t count, bool curve,
                       const mhai_stroke *look)
{
    paper *p = user;
    bool on = false;
    set_crisp(p, false);
    for (int64_t i = 0; i < count; i++, xy += 2) {
        if (isnan(xy[0]))
            on = false;
        else if (!on)
            cairo_move_to(p->cairo, xy[0], xy[1]), on = true;
        else if (!curve)
            cairo_line_to(p->cairo, xy[0], xy[1]);
        else if (i == 1)
            cairo_curve_to(p->cairo, xy[0], xy[1], xy[2], xy[3], xy[4], xy[5]);
    }
    stroke(p, look);
}

static void blend(void *user, int64_t left, int64_t top, int width, int height,
                  const unsigned char *coverage, int stride)
{
    const paper *p = user;
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++) mix(p, left + x, top + y, p->ink, coverage[y * stride + x]);
}

static void text_pixels(paper *p, const mhai_pen *pen, const char *text)
{
    mhai_pen scaled = *pen;
    double zero = 0;
    p->ink = pen->color;
    cairo_user_to_device(p->cairo, &scaled.x, &scaled.y);
    cairo_user_to_device_distance(p->cairo, &scaled.size, &zero);
    cairo_surface_flush(p->surface);
    mhai_font_draw(p->font, &scaled, text, blend, p);
    cairo_surface_mark_dirty(p->surface);
}

/* Bold text is filled and also stroked. */
static void paper_text(void *user, const mhai_pen *pen, const char *text)
{
    paper *p = user;
    char shown[4 * MHAI_TEXT_BYTES];
    cairo_text_extents_t size;
    cairo_font_face_t *face = p->pdf ? mhai_font_face(p->font, pen->mono) : NULL;
    if (p->status || cairo_status(p->cairo)) return;
    if (!p->pdf) text_pixels(p, pen, text);
    if (!face) return;
    mhai_font_text(p->font, text, shown, sizeof shown);
    cairo_save(p->cairo);
    cairo_set_font_face(p->cairo, face);
    cairo_set_font_size(p->cairo, pen->size);
    cairo_translate(p->cairo, pen->x, pen->y);
    cairo_rotate(p->cairo, pen->angle * acos(-1) / 180);
    cairo_text_extents(p->cairo, shown, &size);
    const double x = -size.x_advance * (int)pen->anchor / 2;
    set_color(p, pen->color);
    cairo_move_to(p->cairo, x, 0);
    cairo_show_text(p->cairo, shown);
    cairo_move_to(p->cairo, x, 0);
    if (pen->bold) {
        cairo_text_path(p->cairo, shown);
        cairo_set_line_width(p->cairo, pen->size / 22);
        cairo_stroke(p->cairo);
    }
    cairo_new_path(p->cairo);
    cairo_restore(p->cairo);
}

static void paper_image(void *user, const mhai_map *map)
{
    paper *p = user;
    if (p->status) return;
    int64_t zoom;
    uint8_t *pixels = mhai_canvas_paint(map, &zoom);
    const int width = (int)(map->cells->cols * zoom), height = (int)(map->cells->rows * zoom);
    if (!pixels) {
        p->status = mha_fail(MHA_ERR_NOMEM, "picture: no memory for the image of a panel");
        return;
    }
    for (int64_t i = (int64_t)width * height - 1; i >= 0;
         i--) { /* convert to cairo's 32-bit words, in place */
        const uint8_t *rgb = pixels + 3 * i;
        const uint32_t word = (uint32_t)rgb[0] << 16 | (uint32_t)rgb[1] << 8 | rgb[2];
        memcpy(pixels + 4 * i, &word, sizeof word);
    }
    cairo_surface_t *image =
        cairo_image_surface_create_for_data(pixels, CAIRO_FORMAT_RGB24, width, height, 4 * width);
    cairo_save(p->cairo);
    set_crisp(p, true);
    cairo_rectangle(p->cairo, map->x, map->y, (double)map->cells->cols * map->cell_width,
                    (double)map->cells->rows * map->cell_height);
    cairo_translate(p->cairo, map->x, map->y);
    cairo_scale(p->cairo, map->cell_width / (double)zoom, map->cell_height / (double)zoom);
    cairo_set_source_surface(p->cairo, image, 0, 0);
    cairo_pattern_set_filter(cairo_get_source(p->cairo), CAIRO_FILTER_NEAREST);
    cairo_fill(p->cairo);
    cairo_restore(p->cairo);
    cairo_surface_finish(image); /* the PDF has copied the image, or failed */
    cairo_surface_destroy(image);
    free(pixels);
}

static mha_status paper_figure(void *user, const mhai_layout *l, const double place[4])
{
    paper *p = user;
    const double scale = fmin(place[2] / l->width, place[3] / l->height);
    cairo_save(p->cairo);
    cairo_translate(p->cairo, place[0] + (place[2] - scale * l->width) / 2,
                    place[1] + (place[3] - scale * l->height) / 2);
    if (scale > 0) cairo_scale(p->cairo, scale, scale);
    const mha_status status = scale > 0 ? mhai_draw(l, p->canvas) : MHA_OK;
    cairo_restore(p->cairo);
    return status;
}

static void paper_group(void *user, double x, double y, bool crisp)
{
    paper *p = user;
    cairo_save(p->cairo);
    cairo_translate(p->cairo, x, y);
    p->crisp = crisp;
}

static void paper_end_group(void *user)
{
    paper *p = user;
    cairo_restore(p->cairo);
    p->crisp = false;
}

/* ---- Files ----------------------------------------------------------------------------------- */

static cairo_status_t on_write(void *user, const unsigned char *bytes, unsigned count)
{
    paper *p = user;
    mhai_font_note(p->font);
    if (!p->status && count) p->status = p->sink->write(p->sink->user, bytes, count);
    return p->status ? CAIRO_STATUS_WRITE_ERROR : CAIRO_STATUS_SUCCESS;
}

/* The first error of drawing, from the sink, cairo or memory. */
static mha_status check(const paper *p)
{
    cairo_status_t drawn = cairo_status(p->cairo);
    if (!drawn) drawn = cairo_surface_status(p->surface);
    mhai_font_note(p->font);
    if (p->status) return p->status;
    MHA_TRY(mhai_font_check(p->font));
    if (!drawn) return MHA_OK;
    return mha_fail(drawn == CAIRO_STATUS_NO_MEMORY ? MHA_ERR_NOMEM : MHA_ERR_FILE,
                    "picture: cairo cannot draw it: %s", cairo_status_to_string(drawn));
}

static mha_status open_png(paper *p, const mhai_sheet *sheet, double *ratio)
{
    const double area = ceil(sheet->width) * ceil(sheet->height),
                 side = fmax(sheet->width, sheet->height);
    *ratio = sheet->pixel_ratio;
    if (*ratio == 0) *ratio = 4 * area <= pixels_for_ratio_2 && 2 * side <= most_side ? 2 : 1;
    if (area * *ratio * *ratio > most_pixels || ceil(side * *ratio) > most_side)
        return mha_fail(MHA_ERR_SIZE, "PNG: %.0f x %.0f pixels are too many: draw fewer panels%s",
                        sheet->width * *ratio, sheet->height * *ratio,
                        *ratio > 1 ? " or lower pixel_ratio" : "");
    p->surface = cairo_image_surface_create(CAIRO_FORMAT_RGB24, (int)ceil(sheet->width * *ratio),
                                            (int)ceil(sheet->height * *ratio));
    return MHA_OK;
}

/* Omit the date, so that the same drawing gives the same bytes. */
static mha_status open_pdf(paper *p, const mhai_sheet *sheet, double *ratio)
{
    const double width = sheet->width * points_per_unit, height = sheet->height * points_per_unit;
    mhai_text title;
    *ratio = points_per_unit;
    if (width > most_points || height > most_points)
        return mha_fail(MHA_ERR_SIZE,
                        "PDF: a page of %.0f x %.0f points is too large, the most is %.0f: draw "
                        "fewer panels, or PNG",
                        width, height, most_points);
    p->surface = cairo_pdf_surface_create_for_stream(on_write, p, width, height);
    cairo_pdf_surface_restrict_to_version(p->surface,
                                          CAIRO_PDF_VERSION_1_4); /* accepted by publishers */
    cairo_pdf_surface_set_metadata(p->surface, CAIRO_PDF_METADATA_CREATE_DATE, "");
    mhai_text_visible(sheet->title, 0, MHAI_TEXT_PROSE, &title); /* cairo rejects anything else */
    cairo_pdf_surface_set_metadata(p->surface, CAIRO_PDF_METADATA_TITLE, title.text);
    return MHA_OK;
}

/* Convert cairo's 32-bit words to bytes, in place. */
static mha_status write_png(paper *p)
{
    cairo_surface_flush(p->surface);
    const int width = cairo_image_surface_get_width(p->surface),
              height = cairo_image_surface_get_height(p->surface);
    uint8_t *data = cairo_image_surface_get_data(p->surface);
    for (int64_t i = 0; i < (int64_t)width * height; i++) {
        uint32_t word;
        memcpy(&word, data + 4 * i, sizeof word);
        for (int k = 0; k < 3; k++) data[3 * i + k] = (uint8_t)(word >> (16 - 8 * k));
    }
    return mhai_png_write(data, width, height, p->sink);
}

static mha_status draw(paper *p, const mhai_sheet *sheet)
{
    double ratio;
    const mhai_canvas canvas = {
        p,          paper_rect,  paper_triangle, paper_dot,   paper_line,     paper_path,
        paper_text, paper_image, paper_figure,   paper_group, paper_end_group};
    p->canvas = &canvas;
    MHA_TRY(mhai_font_open(sheet->font_file, &p->font));
    MHA_TRY(p->pdf ? open_pdf(p, sheet, &ratio) : open_png(p, sheet, &ratio));
    p->cairo = cairo_create(p->surface);
    cairo_font_options_t *options = cairo_font_options_create();
    cairo_font_options_set_hint_style(options, CAIRO_HINT_STYLE_NONE);
    cairo_font_options_set_hint_metrics(options, CAIRO_HINT_METRICS_OFF);
    cairo_set_font_options(p->cairo, options);
    cairo_font_options_destroy(options);
    cairo_scale(p->cairo, ratio, ratio);
    MHA_TRY(sheet->draw(sheet->what, &canvas));
    MHA_TRY(check(p));
    if (!p->pdf) return write_png(p);
    cairo_show_page(p->cairo);
    cairo_surface_finish(p->surface);
    return check(p);
}

mha_status mhai_paper_sheet(const mhai_sheet *sheet, const mha_sink *sink)
{
    paper p = {.sink = sink, .pdf = sheet->picture == MHAI_PDF};
    const mha_status status = draw(&p, sheet);
    p.status = status; /* stop writing an abandoned PDF */
    cairo_destroy(p.cairo);
    cairo_surface_destroy(p.surface);
    mhai_font_close(p.font);
    return status;
}
