/* Dividing a terminal's width.
 *
 * One panel: numbers in its cells if they fit, else cells two columns wide, else half blocks (two
 * rows of cells a line). Several panels: small maps side by side. What is wider than the terminal
 * is reduced by maximum. */
#include "terminal.h"

#include "number.h"
#include "sink.h"

#include <multihead/component.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DEFAULT_WIDTH = 80,
    LEAST_WIDTH = 20,
    MOST_LINES_OF_ROWS = 160, /* rows of cells drawn at most */
    OVERVIEW = 40 /* with three maps or more, wider ones are reduced to stand side by side */
};

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

void mhai_plan_label(const mhai_plan *plan, const char *const *labels, int64_t i, bool with_index,
                     int64_t columns, mhai_text *text)
{
    mhai_text label;
    const char *raw = labels ? labels[i] : NULL;
    mhai_text_visible(raw, i, plan->ascii ? MHAI_TEXT_ASCII : MHAI_TEXT_LABEL, &label);
    if (with_index && raw) {
        int used = snprintf(text->text, sizeof text->text, "%lld ", (long long)i);
        mhai_text_cut_columns(&label, columns - used, plan->ascii);
        snprintf(text->text + used, sizeof text->text - (size_t)used, "%.340s", label.text);
    } else {
        *text = label;
    }
    mhai_text_cut_columns(text, columns, plan->ascii);
}

/* The widest label as drawn, at most `limit`. */
static int64_t widest_label(const mhai_plan *plan, const char *const *labels, int64_t count,
                            int64_t step, bool with_index, int64_t limit)
{
    int64_t widest = 1;
    for (int64_t i = 0; i < count && widest < limit; i += step) {
        mhai_text text;
        mhai_plan_label(plan, labels, i, with_index, limit, &text);
        widest = most(widest, mha_text_columns(text.text));
    }
    return widest;
}

static bool has_wide(const mhai_plan *plan, int64_t step)
{
    for (int64_t i = 0; !plan->ascii && plan->figure.col_labels && i < plan->figure.cols;
         i += step) {
        const char *at = plan->figure.col_labels[i];
        for (uint32_t code; at && (code = mhai_text_next(&at)) != 0;)
            if (mhai_text_code_columns(code) > 1) return true;
    }
    return false;
}

static int64_t largest_group(const mha_figure *figure, int64_t *scratch)
{
    int64_t largest = 1;
    memset(scratch, 0, (size_t)figure->group_count * sizeof *scratch);
    for (int64_t i = 0; i < figure->panel_count; i++)
        largest = most(largest, ++scratch[mhai_figure_panel(figure, i).group]);
    return largest;
}

static int64_t value_columns(const mhai_plan *p)
{
    char low[MHAI_NUMBER_BYTES], high[MHAI_NUMBER_BYTES];
    mhai_number_cell(p->ranges.extent.least, p->value_greatest, low);
    mhai_number_cell(p->ranges.extent.greatest, p->value_greatest, high);
    return (int64_t)fmax((double)strlen(low), (double)strlen(high)) + 1;
}

/* Room for maps beside the row labels. */
static int64_t room(const mhai_plan *p)
{
    return p->width - p->label_width - 1;
}

static int64_t fit(const mhai_plan *p, int64_t map_width)
{
    return (room(p) + 1) / (map_width + 1);
}

/* The size of a cell: the largest form in which enough maps stand side by side. */
static void choose_form(mhai_plan *p, int64_t in_group)
{
    const mha_figure *f = &p->figure;
    int64_t enough = least(in_group, 3), with_values = value_columns(p);
    bool wanted = f->print_values == MHA_VALUES_ALWAYS ||
                  (f->print_values == MHA_VALUES_AUTO && f->panel_count == 1);
    int64_t most_cols = p->width; /* more cells than that never fit, and products stay small */
    int64_t cols = least(f->cols, most_cols);
    p->values =
        wanted && f->rows <= MOST_LINES_OF_ROWS && fit(p, cols * with_values + 2 * p->border) >= 1;
    p->half = false;
    if (p->values) {
        p->cell = with_values;
    } else if (f->rows <= MOST_LINES_OF_ROWS / 2 && fit(p, cols * 2 + 2 * p->border) >= enough) {
        p->cell = 2;
    } else {
        p->cell = 1;
        p->half = !p->plain && !p->ascii;
    }
}

static void choose_reduction(mhai_plan *p, int64_t in_group)
{
    const mha_figure *f = &p->figure;
    int64_t widest = most(1, (room(p) - 2 * p->border) / p->cell);
    if (in_group >= 3 && f->cols > OVERVIEW)
        widest = most(8, (room(p) + 1) / 3 - 1 - 2 * p->border);
    widest = least(widest, most(1, (room(p) - 2 * p->border) / p->cell));
    p->pool_cols = most(1, ceil_div(f->cols, widest));
    /* Squares stay squares, as far as a few rows allow it. */
    p->pool_rows = most(1, least(p->pool_cols, f->rows / 8));
    p->pool_rows = most(p->pool_rows, ceil_div(f->rows, MOST_LINES_OF_ROWS));
    p->rows = ceil_div(f->rows, p->pool_rows);
    p->cols = ceil_div(f->cols, p->pool_cols);
    p->map_width = p->cols * p->cell + 2 * p->border;
}

static int64_t digits_of(int64_t n)
{
    int64_t digits = 1;
    while (n >= 10) n /= 10, digits++;
    return digits;
}

static void choose_col_labels(mhai_plan *p)
{
    const mha_figure *f = &p->figure;
    int64_t limit = p->width >= 60 ? 12 : 8;
    int64_t last = most(0, (p->cols - 1) * p->pool_cols);
    int64_t widest = widest_label(p, f->col_labels, f->cols, p->pool_cols, false, limit);
    p->sideways = p->cell > 2 && widest <= p->cell - 1;
    p->numbered = !p->sideways && f->col_labels &&
                  (p->grid_rows > 2 || (p->cell == 1 && has_wide(p, p->pool_cols)));
    p->label_lines = p->sideways ? 1 : p->numbered ? digits_of(last) : widest;
}

static mha_status plan_grid(mhai_plan *p)
{
    const mha_figure *f = &p->figure;
    p->places = mhai_sink_alloc(f->panel_count, sizeof *p->places);
    p->row_groups = mhai_sink_alloc(f->panel_count + f->group_count, sizeof *p->row_groups);
    if (!p->places || !p->row_groups) return mha_fail(MHA_ERR_NOMEM, "terminal: out of memory");
    int64_t in_group = largest_group(f, p->row_groups);
    /* Labels far apart, or columns that are numbered, need to say which one they are. */
    p->indexed = f->panel_count > 1 || f->cols > 2 * p->width || f->rows > 2 * p->width;
    p->label_width =
        widest_label(p, f->row_labels, f->rows, 1, p->indexed, most(4, least(14, p->width / 5)));
    choose_form(p, in_group);
    choose_reduction(p, in_group);
    p->columns = most(1, least(fit(p, p->map_width), in_group));
    if (f->columns) p->columns = most(1, least(p->columns, f->columns));
    p->columns = ceil_div(in_group, ceil_div(in_group, p->columns));
    MHA_TRY(mhai_layout_grid(f, p->columns, p->places, p->row_groups, &p->grid_rows));
    choose_col_labels(p);
    p->cells = mhai_sink_alloc(p->columns, sizeof *p->cells);
    if (!p->cells) return mha_fail(MHA_ERR_NOMEM, "terminal: out of memory");
    for (int64_t i = 0; i < p->columns; i++)
        MHA_TRY(mhai_cells_alloc(p->rows, p->cols, &p->cells[i]));
    return MHA_OK;
}

static mha_status adopt_options(const mha_terminal *terminal, mhai_plan *p)
{
    mha_terminal own;
    MHA_TRY(mha_struct_read("mha_terminal", &own, sizeof own, sizeof(uint32_t), terminal,
                            terminal ? terminal->struct_size : 0));
    if (own.columns != 0 && own.columns < LEAST_WIDTH)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "terminal: %d columns are too few, at least %d are needed",
                        (int)own.columns, (int)LEAST_WIDTH);
    if ((int)own.color < 0 || own.color > MHA_TERMINAL_TRUECOLOR)
        return mha_fail(MHA_ERR_ARGUMENT, "terminal: unknown colour mode %d", (int)own.color);
    p->width = own.columns ? own.columns : DEFAULT_WIDTH;
    p->plain = own.color == MHA_TERMINAL_PLAIN;
    p->ascii = own.ascii;
    p->border = p->plain;
    return MHA_OK;
}

mha_status mhai_plan_make(const mha_figure *figure, const mha_terminal *terminal, mhai_plan *p)
{
    memset(p, 0, sizeof *p);
    MHA_TRY(mhai_figure_check(figure, &p->figure));
    MHA_TRY(adopt_options(terminal, p));
    MHA_TRY(mhai_ranges_make(&p->figure, &p->ranges));
    const mha_extent *e = &p->ranges.extent;
    p->value_greatest = fmax(fabs(e->least), fabs(e->greatest));
    mhai_palette_make(&p->figure, &p->palette);
    p->theme = mhai_canvas_theme(&p->figure);
    p->named = p->figure.panel_count > 1 || p->figure.range == MHA_RANGE_PANEL;
    for (int64_t i = 0; i < p->figure.panel_count; i++) {
        mha_panel panel = mhai_figure_panel(&p->figure, i);
        p->named = p->named || panel.name;
        p->noted = p->noted || (panel.note && *panel.note);
    }
    return plan_grid(p);
}

void mhai_plan_free(mhai_plan *p)
{
    mhai_ranges_free(&p->ranges);
    free(p->places);
    free(p->row_groups);
    for (int64_t i = 0; p->cells && i < p->columns; i++) mhai_cells_free(&p->cells[i]);
    free(p->cells);
}
