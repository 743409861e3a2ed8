/* Line charts. Positions do not depend on libm, so that every host draws the same chart. */
#include "chart.h"
#include "canvas.h"

#include "number.h"
#include "sink.h"
#include "text.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_SERIES = 64,
    MOST_POINTS = 100000,
    MOST_TICKS = 16,
    DOTTED_POINTS = 40, /* a longer series has no dots */
    PAD = 16,
    RIGHT = 24,
    LEGEND_LINE = 20,
    LEGEND_DASH = 26,
    CAPTION_LINE = 17,
    CAPTION_LINES = 4,
    LINES = 5
};
static const double least_width = 160, most_width = 10000, face = 12, most_number = 1e100;

/* Okabe and Ito's colours. Dashes also distinguish the series. */
static const struct {
    uint32_t light, dark;
    double dashes[MHAI_MOST_DASHES];
} lines[LINES] = {{0x0072b2, 0x56b4e9, {0}},
                  {0xd55e00, 0xf0824f, {7, 4}},
                  {0x009e73, 0x3fc49d, {2, 3}},
                  {0xb8558f, 0xdd93bb, {9, 3, 2, 3}},
                  {0xa97600, 0xe6b04d, {12, 4}}};

/* An axis: its ends, and ticks at round numbers. */
typedef struct axis {
    double low, high, at[MOST_TICKS];
    int ticks, digits;
} axis;

typedef struct drawing {
    mha_chart chart; /* checked */
    mha_curve curve;
    axis x, y;
    mhai_text title, x_name, y_name, caption[CAPTION_LINES];
    int caption_lines, legend_lines;
    double left, top, width, height, whole_height; /* of the plot; whole_height: of the picture */
    const mhai_canvas *canvas;
} drawing;

/* ---- checks ---------------------------------------------------------------------------------- */

mha_status mhai_curve_read(const char *what, const void *at, uint32_t size, int64_t i,
                           int64_t *points, mha_curve *curve)
{
    MHA_TRY(mha_struct_read("mha_curve", curve, sizeof *curve, 0, at, size));
    if (curve->series_count < 0 || curve->series_count > MOST_SERIES)
        return mha_fail(MHA_ERR_SIZE,
                        "%s: curve %" PRId64 " has %" PRId64 " series, expected 0..%d", what, i,
                        curve->series_count, MOST_SERIES);
    if (curve->series_count && !curve->series)
        return mha_fail(MHA_ERR_NULL, "%s: the series of curve %" PRId64 " are NULL", what, i);
    for (int64_t k = 0; k < curve->series_count; k++) {
        const mha_series *series = &curve->series[k];
        if (series->count < 0 || series->count > MOST_POINTS - *points)
            return mha_fail(MHA_ERR_SIZE,
                            "%s: the curves have more than %d points (or fewer than 0)", what,
                            MOST_POINTS);
        if (series->count && (!series->x || !series->y))
            return mha_fail(MHA_ERR_NULL, "%s: x or y of curve %" PRId64 " is NULL", what, i);
        *points += series->count;
    }
    return MHA_OK;
}

static mha_status check(const mha_chart *chart, drawing *d)
{
    mha_chart *own = &d->chart;
    int64_t points = 0;
    if (!chart) return mha_fail(MHA_ERR_NULL, "chart is NULL");
    MHA_TRY(mha_struct_read("mha_chart", own, sizeof *own, 2 * sizeof(uint32_t), chart,
                            chart->struct_size));
    if (!own->curve || !own->curve_size)
        return mha_fail(own->curve ? MHA_ERR_ARGUMENT : MHA_ERR_NULL, "chart: %s",
                        own->curve ? "curve_size is not set" : "curve is NULL");
    if (own->width == 0) own->width = 640;
    if (own->height == 0) own->height = 280;
    if (!(own->width >= least_width && own->width <= most_width) ||
        !(own->height >= least_width / 2 && own->height <= most_width))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "chart: width and height must be 0, or 160 and 80 .. 10^4");
    return mhai_curve_read("chart", own->curve, own->curve_size, 0, &points, &d->curve);
}

/* ---- axes ------------------------------------------------------------------------------------ */

static bool is_point(const mha_series *s, int64_t i)
{
    return fabs(s->x[i]) <= most_number && fabs(s->y[i]) <= most_number;
}

static axis range_of(const mha_curve *curve, bool of_x)
{
    axis a = {.low = INFINITY, .high = -INFINITY};
    for (int64_t k = 0; k < curve->series_count; k++)
        for (int64_t i = 0; i < curve->series[k].count; i++) {
            const double v = of_x ? curve->series[k].x[i] : curve->series[k].y[i];
            if (!is_point(&curve->series[k], i)) continue;
            if (v < a.low) a.low = v;
            if (v > a.high) a.high = v;
        }
    if (a.low > a.high) a.low = 0, a.high = 1;
    return a;
}

static bool is_whole(const mha_curve *curve)
{
    for (int64_t k = 0; k < curve->series_count; k++)
        for (int64_t i = 0; i < curve->series[k].count; i++)
            if (is_point(&curve->series[k], i) &&
                floor(curve->series[k].x[i]) != curve->series[k].x[i])
                return false;
    return true;
}

/* The smallest round number of at least raw: 1, 2 or 5 times a power of ten. */
static double round_step(double raw)
{
    static const double factors[] = {1, 2, 5};
    double power = 1;
    while (power > raw && power > 1e-300) power /= 10;
    while (power * 10 <= raw) power *= 10;
    for (int i = 0; i < 3; i++)
        if (factors[i] * power >= raw * 0.999) return factors[i] * power;
    return 10 * power;
}

/* Set about `about` ticks between the ends, or, if the ends may move, from end to end. */
static void set_ticks(axis *a, int about, bool whole, bool moves)
{
    double each = round_step((a->high - a->low) / about);
    if (whole && each < 1) each = 1;
    if (moves) {
        a->low = floor(a->low / each + 1e-9) * each;
        a->high = ceil(a->high / each - 1e-9) * each;
    }
    for (double k = ceil(a->low / each - 1e-9); a->ticks < MOST_TICKS; k++) {
        if (!(k * each <= a->high + each * 1e-9)) break;
        a->at[a->ticks++] = k * each;
    }
}

static void tick_text(const axis *a, int i, char text[MHAI_NUMBER_BYTES])
{
    mhai_number_short(a->at[i], a->digits, text);
}

/* The number of digits that distinguishes the ticks. */
static void set_digits(axis *a)
{
    bool alike = true;
    for (a->digits = 5; alike && a->digits < 9;) {
        a->digits++;
        alike = false;
        for (int i = 1; i < a->ticks; i++) {
            char one[MHAI_NUMBER_BYTES], next[MHAI_NUMBER_BYTES];
            tick_text(a, i - 1, one);
            tick_text(a, i, next);
            alike |= strcmp(one, next) == 0;
        }
    }
}

/* Equal values still need a span, whose ticks nine digits must distinguish. */
static void widen(axis *a)
{
    const double size = fmax(fabs(a->low), fabs(a->high)), room = size > 1e-90 ? size / 2 : 0.5;
    if (!(a->high - a->low > 1e-7 * size + 1e-100)) a->low -= room, a->high += room;
}

static void set_axes(drawing *d)
{
    axis *x = &d->x, *y = &d->y;
    *x = range_of(&d->curve, true);
    *y = range_of(&d->curve, false);
    if (y->low > 0 && y->low < 0.5 * y->high) y->low = 0;
    widen(x);
    widen(y);
    set_ticks(y, d->chart.height >= 200 ? 5 : 3, false, true);
    set_ticks(x, d->chart.width >= 400 ? 8 : 4, is_whole(&d->curve), false);
    set_digits(y);
    set_digits(x);
}

static double x_of(const drawing *d, double x)
{
    const double part = (x - d->x.low) / (d->x.high - d->x.low);
    return d->left + d->width * (d->chart.x_falls ? 1 - part : part);
}

static double y_of(const drawing *d, double y)
{
    return d->top + d->height * (1 - (y - d->y.low) / (d->y.high - d->y.low));
}

/* ---- layout ---------------------------------------------------------------------------------- */

static double entry_width(const mha_series *series)
{
    mhai_text name;
    mhai_text_visible(series->name, 0, MHAI_TEXT_PROSE, &name);
    return LEGEND_DASH + 8 + face * mhai_text_em(name.text) + 22;
}

static bool in_legend(const mha_series *series)
{
    return series->name && *series->name;
}

static void lay_out(drawing *d)
{
    char text[MHAI_NUMBER_BYTES];
    double widest = 0, line = 0;
    const double across = d->chart.width - 2 * PAD;
    for (int i = 0; i < d->y.ticks; i++) {
        tick_text(&d->y, i, text);
        const double em = mhai_text_em(text);
        if (em > widest) widest = em;
    }
    const mha_curve *c = &d->curve;
    if (c->title) mhai_text_visible(c->title, 0, MHAI_TEXT_PROSE, &d->title);
    if (c->x_axis) mhai_text_visible(c->x_axis, 0, MHAI_TEXT_PROSE, &d->x_name);
    if (c->y_axis) mhai_text_visible(c->y_axis, 0, MHAI_TEXT_PROSE, &d->y_name);
    mhai_text_cut_em(&d->title, across / 16);
    d->caption_lines =
        mhai_text_wrap(c->caption, across / face, MHAI_TEXT_EM, d->caption, CAPTION_LINES);
    for (int64_t k = 0; k < c->series_count; k++) {
        if (!in_legend(&c->series[k])) continue;
        const double entry = entry_width(&c->series[k]);
        if (d->legend_lines == 0 || line + entry > across) d->legend_lines++, line = 0;
        line += entry;
    }
    d->left = PAD + face * widest + 8;
    d->width = d->chart.width - RIGHT - d->left;
    d->top = PAD + (*d->title.text ? 26 : 0) + (*d->y_name.text ? 20 : 0);
    d->height = d->chart.height;
    d->whole_height = d->top + d->height + 22 + (*d->x_name.text ? 20 : 0) +
                      LEGEND_LINE * d->legend_lines + (d->legend_lines ? 14 : 0) +
                      CAPTION_LINE * d->caption_lines + PAD;
}

/* ---- drawing --------------------------------------------------------------------------------- */

typedef struct colors {
    uint32_t paper, ink, muted, grid, baseline;
} colors;

static colors colors_of(const drawing *d)
{
    return d->chart.dark ? (colors){0x15171b, 0xe3e6ea, 0xb4b8c0, 0x2d3138, 0x959ca8}
                         : (colors){0xffffff, 0x1b1b1f, 0x555a64, 0xe3e5e9, 0x8b909a};
}

static void write_text(const drawing *d, double x, double y, mhai_anchor anchor, uint32_t color,
                       const char *words)
{
    const mhai_pen pen = {
        .x = x, .y = y, .size = face, .anchor = anchor, .color = mhai_color_of(color)};
    if (*words) d->canvas->text(d->canvas->user, &pen, words);
}

static void draw_line(const drawing *d, double x0, double y0, double x1, double y1, uint32_t color)
{
    const double xy[4] = {x0, y0, x1, y1};
    d->canvas->line(d->canvas->user, xy, 1, mhai_color_of(color));
}

static void draw_head(const drawing *d)
{
    const colors c = colors_of(d);
    const mhai_pen pen = {
        .x = PAD, .y = PAD + 14, .size = 16, .color = mhai_color_of(c.ink), .bold = true};
    d->canvas->rect(d->canvas->user, &(mhai_box){0, 0, d->chart.width, d->whole_height,
                                                 .fill = mhai_color_of(c.paper)});
    if (*d->title.text) d->canvas->text(d->canvas->user, &pen, d->title.text);
    write_text(d, PAD, d->top - 12, MHAI_START, c.muted, d->y_name.text);
}

static void draw_axes(const drawing *d)
{
    char text[MHAI_NUMBER_BYTES];
    const colors c = colors_of(d);
    const double bottom = d->top + d->height, right = d->left + d->width;
    for (int i = 0; i < d->y.ticks; i++) {
        const double y = y_of(d, d->y.at[i]);
        tick_text(&d->y, i, text);
        draw_line(d, d->left, y, right, y, c.grid);
        write_text(d, d->left - 8, y + 4, MHAI_END, c.muted, text);
    }
    for (int i = 0; i < d->x.ticks; i++) {
        const double x = x_of(d, d->x.at[i]);
        tick_text(&d->x, i, text);
        draw_line(d, x, bottom, x, bottom + 5, c.muted);
        write_text(d, x, bottom + 18, MHAI_MIDDLE, c.muted, text);
    }
    draw_line(d, d->left, bottom, right, bottom, c.muted);
    write_text(d, d->left + d->width / 2, bottom + 38, MHAI_MIDDLE, c.muted, d->x_name.text);
}

/* A series without a name has the style of the previous one. */
static mhai_stroke stroke_of(const drawing *d, int64_t k)
{
    const mha_series *series = d->curve.series;
    int look = -1;
    for (int64_t i = 0; i <= k; i++)
        look += (i == 0 || in_legend(&series[i])) && !series[i].baseline;
    look = look < 0 ? 0 : look % LINES;
    mhai_stroke stroke = {.width = 2.2, .round = true};
    stroke.color = mhai_color_of(d->chart.dark ? lines[look].dark : lines[look].light);
    memcpy(stroke.dashes, lines[look].dashes, sizeof stroke.dashes);
    if (series[k].baseline)
        stroke = (mhai_stroke){mhai_color_of(colors_of(d).baseline), 1.2, {3, 3}, true};
    return stroke;
}

static void draw_dots(const drawing *d, int64_t k)
{
    const mha_series *s = &d->curve.series[k];
    const mhai_color color = stroke_of(d, k).color;
    for (int64_t i = 0; i < s->count; i++) {
        const bool alone =
            (i == 0 || !is_point(s, i - 1)) && (i + 1 == s->count || !is_point(s, i + 1));
        if (!is_point(s, i) || (!alone && (s->baseline || s->count > DOTTED_POINTS))) continue;
        d->canvas->dot(d->canvas->user, x_of(d, s->x[i]), y_of(d, s->y[i]), 3, color);
    }
}

/* Draw a series, with gaps where a point is not finite. */
static mha_status draw_series(const drawing *d, int64_t k)
{
    const mha_series *s = &d->curve.series[k];
    const mhai_stroke stroke = stroke_of(d, k);
    bool any = false;
    double *xy = mhai_sink_alloc(s->count, 2 * sizeof *xy);
    if (!xy) return mha_fail(MHA_ERR_NOMEM, "chart: no memory for %" PRId64 " points", s->count);
    for (int64_t i = 0; i < s->count; i++) {
        const bool drawn = is_point(s, i);
        xy[2 * i] = drawn ? x_of(d, s->x[i]) : (double)NAN;
        xy[2 * i + 1] = drawn ? y_of(d, s->y[i]) : (double)NAN;
        any = any || drawn;
    }
    if (any) d->canvas->path(d->canvas->user, xy, s->count, false, &stroke);
    if (any) draw_dots(d, k);
    free(xy);
    return MHA_OK;
}

static void draw_legend(const drawing *d)
{
    const colors c = colors_of(d);
    const double across = d->chart.width - 2 * PAD;
    double x = PAD, y = d->top + d->height + 22 + (*d->x_name.text ? 20 : 0) + 18;
    for (int64_t k = 0; k < d->curve.series_count; k++) {
        const mha_series *s = &d->curve.series[k];
        mhai_text name;
        if (!in_legend(s)) continue;
        const double entry = entry_width(s);
        if (x > PAD && x - PAD + entry > across) x = PAD, y += LEGEND_LINE;
        const double xy[4] = {x, y, x + LEGEND_DASH, y};
        const mhai_stroke stroke = stroke_of(d, k);
        d->canvas->path(d->canvas->user, xy, 2, false, &stroke);
        mhai_text_visible(s->name, 0, MHAI_TEXT_PROSE, &name);
        mhai_text_cut_em(&name, (across - LEGEND_DASH - 8) / face);
        write_text(d, x + LEGEND_DASH + 8, y + 4, MHAI_START, c.ink, name.text);
        x += entry;
    }
    y = d->whole_height - PAD - CAPTION_LINE * (d->caption_lines - 1);
    for (int i = 0; i < d->caption_lines; i++)
        write_text(d, PAD, y + CAPTION_LINE * i, MHAI_START, c.muted, d->caption[i].text);
}

static mha_status draw(const void *what, const mhai_canvas *canvas)
{
    drawing d = *(const drawing *)what;
    d.canvas = canvas;
    draw_head(&d);
    draw_axes(&d);
    for (int64_t k = d.curve.series_count - 1; k >= 0; k--) /* the first series is on top */
        MHA_TRY(draw_series(&d, k));
    draw_legend(&d);
    return MHA_OK;
}

mha_status mha_render_chart(const mha_chart *chart, const mha_sink *sink)
{
    drawing d = {.top = 0};
    MHA_TRY(check(chart, &d));
    set_axes(&d);
    lay_out(&d);
    const mhai_sheet sheet = {.picture = d.chart.pdf ? MHAI_PDF : MHAI_SVG,
                              .title = *d.title.text ? d.title.text : "Chart",
                              .width = d.chart.width,
                              .height = d.whole_height,
                              .draw = draw,
                              .what = &d};
    return mhai_sheet_write(&sheet, sink);
}
