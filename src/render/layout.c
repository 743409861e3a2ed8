/* Measuring a figure.
 *
 *   title, subtitle
 *   legend: the colour bar, the meaning of hatches and crosses
 *   grid rows: [group name | row axis title | row labels | maps ... ] with column labels below
 *   column axis title, footnote, remarks
 *
 * Sizes are in units of the drawing. Sizes of cells are integers, so that cells align with
 * pixels. */
#include "layout.h"

#include "number.h"
#include "sink.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Limits of SVG: up to these numbers of cells each cell is a shape, beyond them a map is an
 * image. */
static const int64_t most_shapes = 10000, most_shapes_in_all = 200000;
static const int64_t most_tooltips = 5000; /* each takes about 80 bytes */
/* Numbers are printed only up to this number of cells, and in maps of at most this length. */
static const int64_t most_values = 1200, longest_with_values = 20;

enum {
    MARGIN = MHAI_LAYOUT_MARGIN,
    LEAST_WIDTH = 440,  /* a colour bar with its words fits */
    LABEL_PITCH = 9,    /* minimum distance of legible labels */
    LONGEST_MAP = 1160, /* most units along one side of a map */
    MOST_CELL = 40,
    LABEL_GAP = MHAI_LAYOUT_LABEL_GAP,
    LEGEND = 44
};

const char mhai_layout_masked[] = "masked", mhai_layout_bad[] = "not finite";

mha_status mhai_grid_open(const mha_figure *figure, mhai_grid *g)
{
    memset(g, 0, sizeof *g);
    MHA_TRY(mhai_figure_check(figure, &g->figure));
    const mha_figure *f = &g->figure;
    MHA_TRY(mhai_ranges_make(f, &g->ranges));
    g->value_greatest = fmax(fabs(g->ranges.extent.least), fabs(g->ranges.extent.greatest));
    mhai_palette_make(f, &g->palette);
    g->theme = mhai_canvas_theme(f);
    g->places = mhai_sink_alloc(f->panel_count, sizeof *g->places);
    g->row_groups = mhai_sink_alloc(f->panel_count + f->group_count, sizeof *g->row_groups);
    if (!g->places || !g->row_groups) return mha_fail(MHA_ERR_NOMEM, "figure: out of memory");
    g->named = f->panel_count > 1 || f->range == MHA_RANGE_PANEL;
    g->in_group = 1;
    for (int64_t i = 0; i < f->panel_count; i++) { /* row_groups counts the panels of each group */
        const mha_panel panel = mhai_figure_panel(f, i);
        g->named = g->named || panel.name;
        g->notes = g->notes || (panel.note && *panel.note);
        g->in_group = mhai_most(g->in_group, ++g->row_groups[panel.group]);
    }
    return MHA_OK;
}

mha_status mhai_grid_place(mhai_grid *g, int64_t columns)
{
    const mha_figure *f = &g->figure;
    int64_t *count = mhai_sink_alloc(2 * f->group_count, sizeof *count);
    if (!count) return mha_fail(MHA_ERR_NOMEM, "figure: out of memory");
    int64_t *first_row = count + f->group_count;
    for (int64_t i = 0; i < f->panel_count; i++) count[mhai_figure_panel(f, i).group]++;
    g->columns = columns;
    g->rows = 0;
    for (int64_t k = 0; k < f->group_count; k++) {
        first_row[k] = g->rows;
        for (int64_t left = count[k]; left > 0; left -= columns) g->row_groups[g->rows++] = k;
        count[k] = 0;
    }
    for (int64_t i = 0; i < f->panel_count; i++) {
        int64_t k = mhai_figure_panel(f, i).group, n = count[k]++;
        g->places[i] = (mhai_place){first_row[k] + n / columns, n % columns};
    }
    free(count);
    return MHA_OK;
}

void mhai_grid_free(mhai_grid *g)
{
    mhai_ranges_free(&g->ranges);
    free(g->places);
    free(g->row_groups);
}

void mhai_grid_values(const mhai_grid *g, char text[2][MHAI_NUMBER_BYTES])
{
    mhai_number_cell(g->ranges.extent.least, g->value_greatest, text[0]);
    mhai_number_cell(g->ranges.extent.greatest, g->value_greatest, text[1]);
}

/* Width of the widest value as printed, in em. */
static double value_em(const mhai_layout *l)
{
    char text[2][MHAI_NUMBER_BYTES];
    mhai_grid_values(&l->grid, text);
    return fmax(mhai_text_em(text[0]), mhai_text_em(text[1]));
}

static void choose_values(mhai_layout *l)
{
    const mha_figure *f = &l->grid.figure;
    l->value_font = 10;
    int64_t cells = f->rows * f->cols;
    bool small = f->rows <= longest_with_values && f->cols <= longest_with_values &&
                 cells * f->panel_count <= most_values;
    l->image = f->backdrop || cells > most_shapes || cells * f->panel_count > most_shapes_in_all;
    l->values = f->print_values == MHA_VALUES_ALWAYS
                    ? !l->image
                    : f->print_values == MHA_VALUES_AUTO && small && !l->image;
    l->tooltips = cells * f->panel_count <= most_tooltips;
}

/* The side of a map in a grid of this many columns. */
static double map_side(int64_t columns)
{
    return columns <= 1 ? 720 : columns == 2 ? 480 : columns <= 4 ? 270 : columns <= 8 ? 190 : 128;
}

/* The default number of maps side by side: few enough for legible labels. */
static int64_t choose_columns(const mhai_layout *l)
{
    const mha_figure *f = &l->grid.figure;
    const int64_t in_group = l->grid.in_group;
    if (f->columns) return mhai_most(1, mhai_least(f->columns, in_group));
    if (f->group_count > 1) return mhai_most(1, mhai_least(in_group, 16));
    double cell = l->values ? value_em(l) * l->value_font + 7
                            : fmax(LABEL_PITCH, 270.0 / (double)mhai_most(f->cols, 1));
    double side = fmin(cell * (double)f->cols, 290) + 18;
    int64_t fit = mhai_most(1, mhai_least(in_group, (int64_t)(1320 / side)));
    return mhai_most(
        1, mhai_ceil_div(in_group,
                         mhai_most(1, mhai_ceil_div(in_group, fit)))); /* rows of equal length */
}

/* The size of a cell along one side of n cells, and the number of cells that are reduced to one. */
static void choose_cell(mhai_axis *axis, double side, double smallest)
{
    int64_t n = axis->count;
    double limit = side >= 480 ? LONGEST_MAP : 1.35 * side;
    double cell = n ? floor(side / (double)n) : MOST_CELL;
    if (cell < LABEL_PITCH && (double)n * LABEL_PITCH <= limit) cell = LABEL_PITCH;
    if (cell < 1) cell = (double)n <= limit ? 1 : 0;
    axis->pool = cell < 1 ? mhai_ceil_div(n, (int64_t)(side >= 480 ? 1024 : side)) : 1;
    axis->cell = fmax(fmin(fmax(cell, 1), MOST_CELL), smallest);
    axis->drawn = mhai_ceil_div(n, axis->pool);
}

/* Cells are square unless the map would then be a thin strip. */
static void choose_cells(mhai_layout *l)
{
    double side = map_side(l->grid.columns);
    double smallest = l->values ? ceil(value_em(l) * l->value_font + 7) : 1;
    choose_cell(&l->row, side, smallest);
    choose_cell(&l->col, side, smallest);
    double cell = fmin(l->row.cell, l->col.cell);
    l->row.cell = fmax(cell, fmin(l->row.cell, 12));
    l->col.cell = fmax(cell, fmin(l->col.cell, 12));
    if (l->row.pool > 1 || l->col.pool > 1) l->tooltips = false;
    l->tiny = l->image || l->row.cell < 4 || l->col.cell < 4;
    l->map_height = (double)l->row.drawn * l->row.cell;
    l->map_width = (double)l->col.drawn * l->col.cell;
    if (l->grid.figure.rows == 0 || l->grid.figure.cols == 0) l->map_height = l->map_width = 72;
}

void mhai_layout_label(const mhai_axis *axis, int64_t i, mhai_text *label)
{
    const char *raw = axis->raw ? axis->raw[i] : NULL;
    mhai_text_visible(raw, i, MHAI_TEXT_LABEL, label);
    if (raw && axis->step >= 4) { /* labels are far apart: add their numbers */
        mhai_text numbered;
        snprintf(numbered.text, sizeof numbered.text, "%" PRId64 " %.300s", i, label->text);
        *label = numbered;
        mhai_text_visible(numbered.text, i, MHAI_TEXT_PROSE,
                          label); /* a truncated sequence is repaired */
    }
    mhai_text_cut_em(label, axis->most_em);
}

/* The next round step: 1 2 3 4 5 10 20 50 100 ... */
static int64_t good_step(int64_t step)
{
    if (step <= 5) return mhai_most(1, step);
    int64_t good = 10;
    for (int i = 1; good < step; i++) good = i % 3 == 2 ? good / 2 * 5 : good * 2;
    return good;
}

static void measure_labels(mhai_axis *axis, double most_width)
{
    double token = axis->cell / (double)axis->pool; /* distance of two labels if all were drawn */
    axis->step = good_step((int64_t)ceil(LABEL_PITCH / token - 1e-9));
    axis->font = fmin(fmax(token * (double)axis->step - 1, 8), 11);
    axis->most_em = most_width / axis->font;
    axis->widest = 0;
    for (int64_t i = 0; i < axis->count; i += axis->step) {
        mhai_text label;
        mhai_layout_label(axis, i, &label);
        axis->widest = fmax(axis->widest, mhai_text_em(label.text) * axis->font);
    }
}

static void measure_axes(mhai_layout *l)
{
    double most_width = l->grid.columns <= 4 ? 112 : 84;
    measure_labels(&l->row, most_width);
    measure_labels(&l->col, most_width);
    l->row.depth = l->row.widest + LABEL_GAP;
    mhai_axis *col = &l->col;
    double pitch = col->cell / (double)col->pool * (double)col->step;
    bool room_at_left = col->widest * 0.5 <= l->row.depth + 30;
    col->angle = col->widest <= pitch - 6 ? 0 : pitch >= 20 && room_at_left ? -60 : -90;
    double radians = -col->angle * acos(-1) / 180;
    col->depth = col->widest * sin(radians) + col->font * cos(radians) + LABEL_GAP;
}

static void axis_title(mhai_axis *axis, const char *title, const char *fallback, double room)
{
    mhai_text_visible(title ? title : fallback, 0, MHAI_TEXT_PROSE, &axis->title);
    mhai_text_cut_em(&axis->title, fmax(room, 40) / MHAI_LAYOUT_SMALL);
}

/* The width of the colour bar with all its words. */
static double legend_width(mhai_layout *l)
{
    double width = MHAI_LAYOUT_BAR_LEFT + MHAI_LAYOUT_BAR + MHAI_LAYOUT_BAR_RIGHT;
    const double swatch = MHAI_LAYOUT_SWATCH + MHAI_LAYOUT_SWATCH_GAP;
    if (l->grid.figure.value_name)
        mhai_text_visible(l->grid.figure.value_name, 0, MHAI_TEXT_PROSE, &l->value_name);
    mhai_text_cut_em(&l->value_name, 12);
    if (*l->value_name.text) width += mhai_text_em(l->value_name.text) * MHAI_LAYOUT_SMALL + 12;
    double keys = 0;
    if (l->grid.ranges.any_masked)
        keys += swatch + mhai_text_em(mhai_layout_masked) * MHAI_LAYOUT_SMALL;
    if (l->grid.ranges.extent.not_finite)
        keys += swatch + mhai_text_em(mhai_layout_bad) * MHAI_LAYOUT_SMALL;
    bool scaled = l->grid.figure.scale != MHA_SCALE_LINEAR; /* the scale's name is below the keys */
    return width + fmax(keys, scaled ? MHAI_LAYOUT_SMALL * mhai_text_em("linear scale") : 0);
}

static void measure_grid(mhai_layout *l)
{
    const mha_figure *f = &l->grid.figure;
    l->head = (l->grid.named ? 18 : 0) + (l->grid.notes ? 13 : 0);
    l->named_groups = f->group_names && f->panel_count;
    l->left = MARGIN + (l->named_groups ? 22 : 0) + 18 + l->row.depth;
    l->step_x = l->map_width + (l->grid.columns <= 4 ? 18 : 12);
    l->step_y = l->head + l->map_height + l->col.depth + 10;
    double grid_width = (double)l->grid.columns * l->step_x;
    l->width = fmax(l->left + grid_width, legend_width(l) + MARGIN) + MARGIN;
    l->width = ceil(fmax(l->width, LEAST_WIDTH));
    axis_title(&l->row, f->row_axis, "row", l->map_height + l->head);
    axis_title(&l->col, f->col_axis, "column", l->width - l->left - MARGIN);
}

/* Measure the texts above and below the grid, which are wrapped to its width. */
static void measure_texts(mhai_layout *l)
{
    const mha_figure *f = &l->grid.figure;
    double room = l->width - 2 * MARGIN;
    mhai_remarks remarks;
    mhai_remarks_about about = {l->row.pool,
                                l->col.pool,
                                l->row.step,
                                l->col.step,
                                "px",
                                l->tiny ? "pink" : "\xC3\x97",
                                f->print_values == MHA_VALUES_ALWAYS && !l->values};
    mhai_remarks_make(f, &l->grid.ranges, &about, &remarks);
    enum { TITLES = MHAI_LAYOUT_TITLE_LINES, NOTES = MHAI_LAYOUT_NOTE_LINES };
    l->title_lines =
        mhai_text_wrap(f->title, room / (1.08 * MHAI_LAYOUT_TITLE), MHAI_TEXT_EM, l->title, TITLES);
    l->subtitle_lines =
        mhai_text_wrap(f->subtitle, room / MHAI_LAYOUT_SUBTITLE, MHAI_TEXT_EM, l->subtitle, TITLES);
    l->foot_lines =
        mhai_text_wrap(f->footnote, room / MHAI_LAYOUT_SMALL, MHAI_TEXT_EM, l->foot, NOTES);
    l->remark_lines =
        mhai_text_wrap(remarks.text, room / MHAI_LAYOUT_SMALL, MHAI_TEXT_EM, l->remarks, NOTES);
    l->legend_top = MARGIN + MHAI_LAYOUT_TITLE_LINE * l->title_lines +
                    MHAI_LAYOUT_SUBTITLE_LINE * l->subtitle_lines;
    if (l->title_lines + l->subtitle_lines) l->legend_top += 10;
    l->grid_top = l->legend_top + LEGEND;
    l->foot_top = l->grid_top + (double)mhai_most(l->grid.rows, 1) * l->step_y + 14;
    l->height =
        ceil(l->foot_top + MHAI_LAYOUT_SMALL_LINE * (l->foot_lines + l->remark_lines) + MARGIN);
}

mha_status mhai_layout_make(const mha_figure *figure, mhai_layout *l)
{
    memset(l, 0, sizeof *l);
    MHA_TRY(mhai_grid_open(figure, &l->grid));
    const mha_figure *f = &l->grid.figure;
    l->row = (mhai_axis){.count = f->rows, .raw = f->row_labels};
    l->col = (mhai_axis){.count = f->cols, .raw = f->col_labels};
    choose_values(l);
    MHA_TRY(mhai_grid_place(&l->grid, choose_columns(l)));
    choose_cells(l);
    measure_axes(l);
    measure_grid(l);
    measure_texts(l);
    return MHA_OK;
}

void mhai_layout_free(mhai_layout *layout)
{
    mhai_grid_free(&layout->grid);
}
