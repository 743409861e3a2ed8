/* Dividing a terminal's width.
 *
 * A single panel has numbers in its cells if they fit, else cells two columns wide, else half
 * blocks (two rows of cells per line). Several panels are small maps side by side. Wider maps are
 * reduced by maximum. */
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
    OVERVIEW = 40 /* of three or more maps, wider ones are reduced to fit side by side */
};

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
        widest = mhai_most(widest, mha_text_columns(text.text));
    }
    return widest;
}

static bool has_wide(const mhai_plan *plan, int64_t step)
{
    for (int64_t i = 0; !plan->ascii && plan->grid.figure.col_labels && i < plan->grid.figure.cols;
         i += step) {
        const char *at = plan->grid.figure.col_labels[i];
        for (uint32_t code; at && (code = mhai_text_next(&at)) != 0;)
            if (mhai_text_code_columns(code) > 1) return true;
    }
    return false;
}

static int64_t value_columns(const mhai_plan *p)
{
    char text[2][MHAI_NUMBER_BYTES];
    mhai_grid_values(&p->grid, text);
    return mhai_most((int64_t)strlen(text[0]), (int64_t)strlen(text[1])) + 1;
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

/* Choose the size of a cell: the largest form in which enough maps fit side by side. */
static void choose_form(mhai_plan *p)
{
    const mha_figure *f = &p->grid.figure;
    int64_t enough = mhai_least(p->grid.in_group, 3), with_values = value_columns(p);
    bool wanted = f->print_values == MHA_VALUES_ALWAYS ||
                  (f->print_values == MHA_VALUES_AUTO && f->panel_count == 1);
    int64_t most_cols = p->width; /* more cells never fit; this bounds products */
    int64_t cols = mhai_least(f->cols, most_cols);
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

static void choose_reduction(mhai_plan *p)
{
    const mha_figure *f = &p->grid.figure;
    int64_t widest = mhai_most(1, (room(p) - 2 * p->border) / p->cell);
    if (p->grid.in_group >= 3 && f->cols > OVERVIEW)
        widest = mhai_most(8, (room(p) + 1) / 3 - 1 - 2 * p->border);
    widest = mhai_least(widest, mhai_most(1, (room(p) - 2 * p->border) / p->cell));
    p->pool_cols = mhai_most(1, mhai_ceil_div(f->cols, widest));
    /* Square maps remain square if a few rows suffice. */
    p->pool_rows = mhai_most(1, mhai_least(p->pool_cols, f->rows / 8));
    p->pool_rows = mhai_most(p->pool_rows, mhai_ceil_div(f->rows, MOST_LINES_OF_ROWS));
    p->rows = mhai_ceil_div(f->rows, p->pool_rows);
    p->cols = mhai_ceil_div(f->cols, p->pool_cols);
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
    const mha_figure *f = &p->grid.figure;
    int64_t limit = p->width >= 60 ? 12 : 8;
    int64_t last = mhai_most(0, (p->cols - 1) * p->pool_cols);
    int64_t widest = widest_label(p, f->col_labels, f->cols, p->pool_cols, false, limit);
    p->sideways = p->cell > 2 && widest <= p->cell - 1;
    p->numbered = !p->sideways && f->col_labels &&
                  (p->grid.rows > 2 || (p->cell == 1 && has_wide(p, p->pool_cols)));
    p->label_lines = p->sideways ? 1 : p->numbered ? digits_of(last) : widest;
}

static mha_status plan_grid(mhai_plan *p)
{
    const mha_figure *f = &p->grid.figure;
    /* Labels that are far apart, or numbered columns, get an index. */
    p->indexed = f->panel_count > 1 || f->cols > 2 * p->width || f->rows > 2 * p->width;
    p->label_width = widest_label(p, f->row_labels, f->rows, 1, p->indexed,
                                  mhai_most(4, mhai_least(14, p->width / 5)));
    choose_form(p);
    choose_reduction(p);
    int64_t columns = mhai_most(1, mhai_least(fit(p, p->map_width), p->grid.in_group));
    if (f->columns) columns = mhai_most(1, mhai_least(columns, f->columns));
    columns = mhai_ceil_div(p->grid.in_group, mhai_ceil_div(p->grid.in_group, columns));
    MHA_TRY(mhai_grid_place(&p->grid, columns));
    choose_col_labels(p);
    p->cells = mhai_sink_alloc(p->grid.columns, sizeof *p->cells);
    if (!p->cells) return mha_fail(MHA_ERR_NOMEM, "terminal: out of memory");
    for (int64_t i = 0; i < p->grid.columns; i++)
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
    MHA_TRY(mhai_grid_open(figure, &p->grid));
    MHA_TRY(adopt_options(terminal, p));
    return plan_grid(p);
}

void mhai_plan_free(mhai_plan *p)
{
    for (int64_t i = 0; p->cells && i < p->grid.columns; i++) mhai_cells_free(&p->cells[i]);
    free(p->cells);
    mhai_grid_free(&p->grid);
}
