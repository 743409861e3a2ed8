/* Ranges, scales, the 256 colours, and reducing maps that are too large to draw. */
#include "figure.h"
#include "sink.h"

#include <multihead/component.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The ratio of the ends of a log scale whose lower end is not above 0. */
static const double log_decades = 1e4;

typedef struct survey {
    double least, greatest;
    int64_t finite, not_finite;
    bool masked;
} survey;

static void look_at(const mha_figure *figure, const mha_panel *panel, survey *s)
{
    for (int64_t r = 0; r < figure->rows; r++) {
        const float *row = panel->values + r * panel->row_stride;
        const uint8_t *mask = panel->masked ? panel->masked + r * panel->mask_stride : NULL;
        for (int64_t c = 0; c < figure->cols; c++) {
            if (mask && mask[c]) {
                s->masked = true;
            } else if (!isfinite(row[c])) {
                s->not_finite++;
            } else {
                if (!s->finite || (double)row[c] < s->least) s->least = (double)row[c];
                if (!s->finite || (double)row[c] > s->greatest) s->greatest = (double)row[c];
                s->finite++;
            }
        }
    }
}

static mha_extent extent_of(const mha_figure *figure, const survey *s)
{
    mha_extent e = {.least = s->least, .greatest = s->greatest, .not_finite = s->not_finite};
    if (figure->range == MHA_RANGE_FIXED) {
        e.lo = figure->lo;
        e.hi = figure->hi;
    } else {
        e.lo = fmin(s->least, 0);
        e.hi = fmax(s->greatest, 0);
        if (e.lo == e.hi) e.hi = 1;
        if (mhai_figure_signed(figure)) {
            e.hi = fmax(-e.lo, e.hi);
            e.lo = -e.hi;
        }
    }
    if (figure->scale == MHA_SCALE_LOG && e.lo <= 0) e.lo = e.hi / log_decades;
    e.clipped_lo = s->finite && s->least < e.lo;
    e.clipped_hi = s->finite && s->greatest > e.hi;
    return e;
}

static double bend(mha_scale kind, double v)
{
    switch (kind) {
    case MHA_SCALE_SQRT: return v < 0 ? -sqrt(-v) : sqrt(v);
    case MHA_SCALE_LOG: return log(v);
    case MHA_SCALE_LINEAR:
    case MHA_SCALE_RANK: break;
    }
    return v;
}

/* The number of sorted values below v, or not above it. */
static int64_t count_below(const mhai_scale *scale, double v, bool or_equal)
{
    int64_t low = 0, high = scale->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        double at = (double)scale->sorted[middle];
        if (at < v || (or_equal && at == v))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static double position_of(const mhai_scale *scale, double value)
{
    const mha_extent *e = &scale->extent;
    double v = value <= e->lo ? e->lo : value >= e->hi ? e->hi : value;
    if (scale->kind != MHA_SCALE_RANK)
        return (bend(scale->kind, v) - scale->f_lo) / (scale->f_hi - scale->f_lo);
    if (scale->count < 2) return 0.5;
    /* The mean rank of equal values, counted from 0. */
    double rank =
        0.5 * ((double)count_below(scale, v, false) + (double)count_below(scale, v, true) - 1);
    return fmin(fmax(rank / (double)(scale->count - 1), 0), 1);
}

double mhai_scale_value(const mhai_scale *scale, double t)
{
    if (scale->kind == MHA_SCALE_RANK)
        return scale->count ? (double)scale->sorted[(int64_t)(t * (double)(scale->count - 1))] : 0;
    double f = scale->f_lo + t * (scale->f_hi - scale->f_lo);
    if (scale->kind == MHA_SCALE_SQRT) return f < 0 ? -f * f : f * f;
    return scale->kind == MHA_SCALE_LOG ? exp(f) : f;
}

static int order(const void *a, const void *b)
{
    float x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

/* Sort the values of panels first .. last - 1, which ranks need. */
static mha_status sort_values(const mha_figure *figure, int64_t first, int64_t last, int64_t finite,
                              mhai_scale *scale)
{
    scale->sorted = mhai_sink_alloc(finite, sizeof(float));
    if (!scale->sorted) return mha_fail(MHA_ERR_NOMEM, "figure: no memory to rank its values");
    for (int64_t i = first; i < last; i++) {
        mha_panel panel = mhai_figure_panel(figure, i);
        for (int64_t r = 0; r < figure->rows; r++)
            for (int64_t c = 0; c < figure->cols; c++) {
                float v = panel.values[r * panel.row_stride + c];
                bool masked = panel.masked && panel.masked[r * panel.mask_stride + c];
                if (!masked && isfinite(v)) scale->sorted[scale->count++] = v;
            }
    }
    qsort(scale->sorted, (size_t)scale->count, sizeof(float), order);
    return MHA_OK;
}

static mha_status make_scale(const mha_figure *figure, int64_t first, int64_t last, const survey *s,
                             mhai_scale *scale)
{
    if (figure->scale == MHA_SCALE_LOG && s->finite && s->least < 0)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "figure: a log scale cannot show negative values, use sqrt");
    scale->kind = figure->scale;
    scale->extent = extent_of(figure, s);
    scale->f_lo = bend(scale->kind, scale->extent.lo);
    scale->f_hi = bend(scale->kind, scale->extent.hi);
    return figure->scale == MHA_SCALE_RANK ? sort_values(figure, first, last, s->finite, scale)
                                           : MHA_OK;
}

mha_status mhai_ranges_make(const mha_figure *figure, mhai_ranges *ranges)
{
    *ranges = (mhai_ranges){0};
    bool single = figure->range == MHA_RANGE_PANEL && figure->panel_count > 0;
    int64_t count = single ? figure->panel_count : 1;
    ranges->scales = mhai_sink_alloc(count, sizeof *ranges->scales);
    if (!ranges->scales) return mha_fail(MHA_ERR_NOMEM, "figure: out of memory");
    ranges->count = count;
    survey all = {0};
    for (int64_t i = 0; i < figure->panel_count; i++) {
        mha_panel panel = mhai_figure_panel(figure, i);
        survey one = {0};
        look_at(figure, &panel, &all);
        if (single) {
            look_at(figure, &panel, &one);
            MHA_TRY(make_scale(figure, i, i + 1, &one, &ranges->scales[i]));
        }
    }
    if (!single) MHA_TRY(make_scale(figure, 0, figure->panel_count, &all, &ranges->scales[0]));
    ranges->extent = single ? extent_of(figure, &all) : ranges->scales[0].extent;
    ranges->any_masked = all.masked;
    return MHA_OK;
}

void mhai_ranges_free(mhai_ranges *ranges)
{
    for (int64_t i = 0; ranges->scales && i < ranges->count; i++) free(ranges->scales[i].sorted);
    free(ranges->scales);
    *ranges = (mhai_ranges){0};
}

const mhai_scale *mhai_ranges_at(const mhai_ranges *ranges, int64_t panel)
{
    return &ranges->scales[ranges->count > 1 ? panel : 0];
}

mha_status mhai_cells_alloc(int64_t rows, int64_t cols, mhai_cells *cells)
{
    *cells = (mhai_cells){.rows = rows, .cols = cols};
    cells->value = mhai_sink_alloc(rows * cols, sizeof *cells->value);
    cells->kind = mhai_sink_alloc(rows * cols, sizeof *cells->kind);
    if (cells->value && cells->kind) return MHA_OK;
    mhai_cells_free(cells);
    return mha_fail(MHA_ERR_NOMEM, "figure: no memory for the cells of a panel");
}

void mhai_cells_free(mhai_cells *cells)
{
    free(cells->value);
    free(cells->kind);
    *cells = (mhai_cells){0};
}

/* Add one cell to its block. A new block is masked; kinds are ordered masked < value < not
 * finite. */
static void pool(float value, bool masked, bool by_size, float *held, uint8_t *kind)
{
    if (masked || *kind == MHAI_CELL_NOT_FINITE) return;
    if (!isfinite(value)) {
        *kind = MHAI_CELL_NOT_FINITE;
    } else if (*kind == MHAI_CELL_MASKED ||
               (by_size ? fabsf(value) > fabsf(*held) : value > *held)) {
        *kind = MHAI_CELL_VALUE;
        *held = value;
    }
}

void mhai_cells_fill(const mha_figure *figure, const mha_panel *panel, int64_t pool_rows,
                     int64_t pool_cols, mhai_cells *cells)
{
    bool by_size = mhai_figure_signed(figure);
    memset(cells->kind, MHAI_CELL_MASKED, (size_t)(cells->rows * cells->cols));
    for (int64_t r = 0; r < figure->rows; r++) {
        const float *row = panel->values + r * panel->row_stride;
        const uint8_t *mask = panel->masked ? panel->masked + r * panel->mask_stride : NULL;
        int64_t base = r / pool_rows * cells->cols;
        for (int64_t c = 0; c < figure->cols; c++) {
            int64_t at = base + c / pool_cols;
            pool(row[c], mask && mask[c], by_size, &cells->value[at], &cells->kind[at]);
        }
    }
}

void mhai_palette_make(const mha_figure *figure, mhai_palette *palette)
{
    for (int i = 0; i < 256; i++)
        mha_cmap_color(figure->cmap, figure->dark, i / 255.0, palette->rgb[i]);
}

int mhai_palette_index(const mhai_scale *scale, double value)
{
    return (int)lround(255 * position_of(scale, value));
}

double mhai_palette_luminance(const uint8_t rgb[3])
{
    static const double weight[3] = {0.2126, 0.7152, 0.0722};
    double sum = 0;
    for (int i = 0; i < 3; i++) {
        double s = rgb[i] / 255.0;
        sum += weight[i] * (s <= 0.04045 ? s / 12.92 : pow((s + 0.055) / 1.055, 2.4));
    }
    return sum;
}
