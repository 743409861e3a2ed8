/* A figure on a terminal, line by line. */
#include "terminal.h"

#include "number.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const masked_glyph = "/", *const bad_glyph = "!";
static const mhai_color black = {{0, 0, 0}}, white = {{255, 255, 255}};

/* A character for one of 256 steps. The middle of a signed map is blank. */
static char ramp_step(const mhai_plan *p, int index)
{
    return mhai_figure_signed(&p->grid.figure) ? "N=-~, .:+*#"[index * 11 / 256]
                                               : " .:-=+*#%@"[index * 10 / 256];
}

/* Text in an exact number of columns: truncated, or padded with spaces on its right (or left)
 * side. */
static void put_cell_text(mhai_pencil *pencil, const mhai_plan *p, const char *text,
                          int64_t columns, bool at_right, bool bold)
{
    mhai_text own;
    mhai_text_visible(text, 0, p->ascii ? MHAI_TEXT_ASCII_PROSE : MHAI_TEXT_PROSE, &own);
    mhai_text_cut_columns(&own, columns, p->ascii);
    int64_t fill = columns - mha_text_columns(own.text);
    if (at_right) mhai_pencil_spaces(pencil, fill);
    if (bold)
        mhai_pencil_bold(pencil, own.text);
    else
        mhai_pencil_text(pencil, own.text);
    if (!at_right) mhai_pencil_spaces(pencil, fill);
}

static void put_wrapped(mhai_pencil *pencil, const mhai_plan *p, const char *text, bool bold)
{
    enum { MOST = 12 };
    mhai_text lines[MOST];
    int count = mhai_text_wrap(text, (double)p->width,
                               p->ascii ? MHAI_TEXT_ASCII_COLUMNS : MHAI_TEXT_COLUMNS, lines, MOST);
    for (int i = 0; i < count; i++) {
        if (bold)
            mhai_pencil_bold(pencil, lines[i].text);
        else
            mhai_pencil_text(pencil, lines[i].text);
        mhai_pencil_line(pencil);
    }
}

static mhai_color palette_color(const mhai_plan *p, int index)
{
    mhai_color color;
    memcpy(color.rgb, p->grid.palette.rgb[index], sizeof color.rgb);
    return color;
}

static mhai_map map_of(const mhai_plan *p, int64_t panel, const mhai_cells *cells)
{
    return (mhai_map){.cells = cells,
                      .scale = mhai_ranges_at(&p->grid.ranges, panel),
                      .palette = &p->grid.palette,
                      .theme = &p->grid.theme,
                      .figure = &p->grid.figure};
}

/* ---- The head: titles, colour bar, axes ---- */

/* Write steps from .. from + count - 1 of a bar of `all` steps. */
static void put_bar_part(mhai_pencil *pencil, const mhai_plan *p, int64_t from, int64_t count,
                         int64_t all)
{
    if (p->plain) mhai_pencil_text(pencil, "[");
    for (int64_t i = from; i < from + count; i++) {
        int index = (int)(i * 255 / (all - 1));
        mhai_color color = palette_color(p, index);
        char glyph[2] = {p->plain ? ramp_step(p, index) : ' ', 0};
        mhai_pencil_paint(pencil, glyph, NULL, &color);
    }
    if (p->plain) mhai_pencil_text(pencil, "]");
}

/* The numbers of the bar: its ends and its middle. */
static void bar_texts(const mhai_plan *p, char text[3][MHAI_NUMBER_BYTES])
{
    const mhai_scale *scale = &p->grid.ranges.scales[0];
    static const char *const words[3] = {"least", "of each", "most"};
    for (int i = 0; i < 3; i++) {
        double value = mhai_scale_value(scale, i / 2.0);
        if (scale->kind == MHA_SCALE_RANK && i != 1)
            value = i ? scale->extent.hi : scale->extent.lo;
        mhai_number_short(value, 3, text[i]);
        if (p->grid.figure.range == MHA_RANGE_PANEL)
            snprintf(text[i], sizeof text[i], "%s", words[i]);
    }
}

/* Write numbers and bar on separate lines if they do not fit on one line. */
static void put_narrow_bar(mhai_pencil *pencil, const mhai_plan *p, char text[3][MHAI_NUMBER_BYTES])
{
    char line[5 * MHAI_NUMBER_BYTES];
    const mha_extent *e = &p->grid.ranges.extent;
    snprintf(line, sizeof line, "%s%s to %s%s", e->clipped_lo ? "<" : "", text[0], text[2],
             e->clipped_hi ? ">" : "");
    put_wrapped(pencil, p, line, false);
    put_bar_part(pencil, p, 0, p->width - 2, p->width - 2);
    mhai_pencil_line(pencil);
}

/* Write "0 [######] 0.5 [######] 1", with < and > if values are beyond the ends. */
static void put_bar(mhai_pencil *pencil, const mhai_plan *p)
{
    const mha_extent *e = &p->grid.ranges.extent;
    char text[3][MHAI_NUMBER_BYTES];
    bar_texts(p, text);
    int64_t taken = p->plain ? 10 : 6; /* spaces, arrows, brackets */
    for (int i = 0; i < 3; i++) taken += (int64_t)strlen(text[i]);
    int64_t half = p->width < taken + 32 ? (p->width - taken) / 2 : 16;
    if (half < 3) {
        put_narrow_bar(pencil, p, text);
        return;
    }
    mhai_pencil_text(pencil, e->clipped_lo ? "<" : "");
    mhai_pencil_text(pencil, text[0]);
    mhai_pencil_text(pencil, " ");
    put_bar_part(pencil, p, 0, half, 2 * half);
    mhai_pencil_text(pencil, " ");
    mhai_pencil_text(pencil, text[1]);
    mhai_pencil_text(pencil, " ");
    put_bar_part(pencil, p, half, half, 2 * half);
    mhai_pencil_text(pencil, " ");
    mhai_pencil_text(pencil, text[2]);
    mhai_pencil_text(pencil, e->clipped_hi ? ">" : "");
    mhai_pencil_line(pencil);
}

static void put_head(mhai_pencil *pencil, const mhai_plan *p)
{
    const mha_figure *f = &p->grid.figure;
    put_wrapped(pencil, p, f->title, true);
    put_wrapped(pencil, p, f->subtitle, false);
    put_bar(pencil, p);
    char axes[1024], scale[64] = "", value[200] = "";
    if (f->value_name && *f->value_name)
        snprintf(value, sizeof value, "colour: %.180s; ", f->value_name);
    if (f->scale != MHA_SCALE_LINEAR)
        snprintf(scale, sizeof scale, "; %s scale", mha_scale_name(f->scale));
    snprintf(axes, sizeof axes, "%srows: %.200s, columns: %.200s, %" PRId64 " x %" PRId64 "%s%s%s",
             value, f->row_axis ? f->row_axis : "row", f->col_axis ? f->col_axis : "column",
             f->rows, f->cols, scale,
             p->grid.ranges.any_masked
                 ? (p->plain || !p->half ? "; / is masked" : "; grey is masked")
                 : "",
             p->grid.ranges.extent.not_finite
                 ? (p->plain || !p->half ? "; ! is not finite" : "; pink is not finite")
                 : "");
    put_wrapped(pencil, p, axes, false);
}

/* ---- Maps ---- */

static void put_value_cell(mhai_pencil *pencil, const mhai_plan *p, const mhai_map *map,
                           int64_t row, int64_t col)
{
    char number[MHAI_NUMBER_BYTES], text[2 * MHAI_NUMBER_BYTES];
    mhai_number_cell((double)map->cells->value[row * map->cells->cols + col],
                     p->grid.value_greatest, number);
    snprintf(text, sizeof text, "%*s ", (int)p->cell - 1, number);
    mhai_color back = mhai_canvas_cell_color(map, row, col);
    mhai_pencil_paint(pencil, text, mhai_palette_luminance(back.rgb) > 0.179 ? &black : &white,
                      &back);
}

/* Write one cell of a row that has its own line. */
static void put_cell(mhai_pencil *pencil, const mhai_plan *p, const mhai_map *map, int64_t row,
                     int64_t col)
{
    int64_t at = row * map->cells->cols + col;
    uint8_t kind = map->cells->kind[at];
    if (kind == MHAI_CELL_VALUE && p->values) {
        put_value_cell(pencil, p, map, row, col);
        return;
    }
    const mhai_theme *theme = &p->grid.theme;
    mhai_color color = mhai_canvas_cell_color(map, row, col);
    const char *glyph = kind == MHAI_CELL_MASKED       ? masked_glyph
                        : kind == MHAI_CELL_NOT_FINITE ? bad_glyph
                                                       : " ";
    char step[2] = {0};
    if (p->plain && kind == MHAI_CELL_VALUE) {
        step[0] = ramp_step(p, mhai_palette_index(map->scale, (double)map->cells->value[at]));
        glyph = step;
    }
    const mhai_color *back = kind == MHAI_CELL_VALUE    ? &color
                             : kind == MHAI_CELL_MASKED ? &theme->mask_paper
                                                        : &theme->paper;
    /* A wide cell that is not finite has one mark. */
    bool single = kind == MHAI_CELL_NOT_FINITE;
    for (int64_t i = 0; i < p->cell; i++)
        mhai_pencil_paint(pencil, single && i != (p->cell - 1) / 2 ? " " : glyph,
                          kind == MHAI_CELL_VALUE ? NULL : &color, back);
}

/* Write two cells, one above the other, as one character. */
static void put_half_blocks(mhai_pencil *pencil, const mhai_map *map, int64_t row, int64_t col)
{
    mhai_color upper = mhai_canvas_cell_color(map, row, col);
    if (row + 1 < map->cells->rows) {
        mhai_color lower = mhai_canvas_cell_color(map, row + 1, col);
        mhai_pencil_paint(pencil, "\xE2\x96\x80", &upper, &lower);
    } else {
        mhai_pencil_paint(pencil, "\xE2\x96\x80", &upper, NULL);
    }
}

static void put_map_line(mhai_pencil *pencil, const mhai_plan *p, const mhai_map *map, int64_t row)
{
    if (p->border) mhai_pencil_text(pencil, "|");
    for (int64_t col = 0; col < p->cols; col++) {
        if (p->half)
            put_half_blocks(pencil, map, row, col);
        else
            put_cell(pencil, p, map, row, col);
    }
    if (p->border) mhai_pencil_text(pencil, "|");
}

/* The panels of one grid row: first .. last - 1 of a list in the order of columns. */
typedef struct grid_row {
    const mhai_plan *plan;
    int64_t count;
    const int64_t *panels;
} grid_row;

static void put_maps(mhai_pencil *pencil, const grid_row *g)
{
    const mhai_plan *p = g->plan;
    for (int64_t row = 0; row < p->rows; row += p->half ? 2 : 1) {
        mhai_text label;
        mhai_plan_label(p, p->grid.figure.row_labels, row * p->pool_rows, p->indexed,
                        p->label_width, &label);
        mhai_pencil_spaces(pencil, p->label_width - mha_text_columns(label.text));
        mhai_pencil_text(pencil, label.text);
        for (int64_t i = 0; i < g->count; i++) {
            mhai_map map = map_of(p, g->panels[i], &p->cells[i]);
            mhai_pencil_spaces(pencil, 1);
            put_map_line(pencil, p, &map, row);
        }
        mhai_pencil_line(pencil);
    }
}

/* Write the names above the maps, followed by the upper end if ranges differ. */
static void put_names(mhai_pencil *pencil, const grid_row *g)
{
    const mhai_plan *p = g->plan;
    mhai_pencil_spaces(pencil, p->label_width);
    for (int64_t i = 0; i < g->count; i++) {
        mha_panel panel = mhai_figure_panel(&p->grid.figure, g->panels[i]);
        mhai_text name, line;
        char most[MHAI_NUMBER_BYTES];
        mhai_text_visible(panel.name, g->panels[i], MHAI_TEXT_PROSE, &name);
        mhai_number_short(mhai_ranges_at(&p->grid.ranges, g->panels[i])->extent.hi, 2, most);
        bool own = p->grid.figure.range == MHA_RANGE_PANEL;
        snprintf(line.text, sizeof line.text, "%.300s%s%s", name.text, own ? " ..." : "",
                 own ? most : "");
        mhai_pencil_spaces(pencil, 1);
        /* A single map may be narrower than its name. */
        put_cell_text(pencil, p, line.text,
                      g->count == 1 ? p->width - p->label_width - 1 : p->map_width, false, true);
    }
    mhai_pencil_line(pencil);
}

static void put_notes(mhai_pencil *pencil, const grid_row *g)
{
    const mhai_plan *p = g->plan;
    mhai_pencil_spaces(pencil, p->label_width);
    for (int64_t i = 0; i < g->count; i++) {
        mha_panel panel = mhai_figure_panel(&p->grid.figure, g->panels[i]);
        mhai_pencil_spaces(pencil, 1);
        put_cell_text(pencil, p, panel.note ? panel.note : "",
                      g->count == 1 ? p->width - p->label_width - 1 : p->map_width, false, false);
    }
    mhai_pencil_line(pencil);
}

/* Write character `line` of a label that is written downwards. A wide character takes both
 * columns. */
static void put_letter(mhai_pencil *pencil, const mhai_plan *p, const char *label, int64_t line)
{
    char letter[5] = " ";
    int64_t columns = 1;
    for (int64_t i = 0; *label; i++) {
        const char *start = label;
        uint32_t code = mhai_text_next(&label);
        if (mhai_text_code_columns(code) == 0)
            i--; /* marks are omitted here */
        else if (i == line) {
            memcpy(letter, start, (size_t)(label - start));
            letter[label - start] = 0;
            columns = mhai_text_code_columns(code);
            break;
        }
    }
    int64_t before = (p->cell - columns) / 2;
    mhai_pencil_spaces(pencil, before);
    mhai_pencil_text(pencil, letter);
    mhai_pencil_spaces(pencil, p->cell - columns - before);
}

static void put_col_label(mhai_pencil *pencil, const mhai_plan *p, int64_t col, int64_t line)
{
    mhai_text label;
    int64_t at = col * p->pool_cols;
    if (p->numbered)
        snprintf(label.text, sizeof label.text, "%*" PRId64, (int)p->label_lines, at);
    else
        mhai_plan_label(p, p->grid.figure.col_labels, at, false,
                        p->sideways ? p->cell - 1 : p->label_lines, &label);
    if (p->sideways)
        put_cell_text(pencil, p, label.text, p->cell, true, false);
    else
        put_letter(pencil, p, label.text, line);
}

static void put_col_labels(mhai_pencil *pencil, const grid_row *g)
{
    const mhai_plan *p = g->plan;
    for (int64_t line = 0; line < p->label_lines; line++) {
        mhai_pencil_spaces(pencil, p->label_width);
        for (int64_t i = 0; i < g->count; i++) {
            mhai_pencil_spaces(pencil, 1 + p->border);
            for (int64_t col = 0; col < p->cols; col++) put_col_label(pencil, p, col, line);
            if (i + 1 < g->count) mhai_pencil_spaces(pencil, p->border);
        }
        mhai_pencil_line(pencil);
    }
}

static void put_grid_row(mhai_pencil *pencil, const grid_row *g)
{
    const mhai_plan *p = g->plan;
    for (int64_t i = 0; i < g->count; i++) {
        mha_panel panel = mhai_figure_panel(&p->grid.figure, g->panels[i]);
        mhai_cells_fill(&p->grid.figure, &panel, p->pool_rows, p->pool_cols, &p->cells[i]);
    }
    mhai_pencil_line(pencil);
    if (p->grid.named) put_names(pencil, g);
    if (p->grid.notes) put_notes(pencil, g);
    put_maps(pencil, g);
    put_col_labels(pencil, g);
}

static void put_group_name(mhai_pencil *pencil, const mhai_plan *p, int64_t row)
{
    const mha_figure *f = &p->grid.figure;
    if (!f->group_names || (row && p->grid.row_groups[row] == p->grid.row_groups[row - 1])) return;
    mhai_text name;
    mhai_text_visible(f->group_names[p->grid.row_groups[row]], p->grid.row_groups[row],
                      MHAI_TEXT_PROSE, &name);
    mhai_pencil_line(pencil);
    put_wrapped(pencil, p, name.text, true);
}

static mha_status put_grid(mhai_pencil *pencil, const mhai_plan *p)
{
    const mha_figure *f = &p->grid.figure;
    if (!f->panel_count || !f->rows || !f->cols) {
        mhai_pencil_text(pencil, f->panel_count ? "empty" : "no maps");
        mhai_pencil_line(pencil);
        return MHA_OK;
    }
    /* The panels in the order of the grid. */
    int64_t *panels = mhai_sink_alloc(p->grid.rows * p->grid.columns, sizeof *panels);
    int64_t *counts = mhai_sink_alloc(p->grid.rows, sizeof *counts);
    for (int64_t i = 0; panels && counts && i < f->panel_count; i++) {
        const mhai_place *place = &p->grid.places[i];
        panels[place->grid_row * p->grid.columns + place->grid_col] = i;
        counts[place->grid_row]++;
    }
    for (int64_t row = 0; panels && counts && row < p->grid.rows; row++) {
        grid_row g = {p, counts[row], panels + row * p->grid.columns};
        put_group_name(pencil, p, row);
        put_grid_row(pencil, &g);
    }
    bool drawn = panels && counts;
    free(panels);
    free(counts);
    return drawn ? MHA_OK : mha_fail(MHA_ERR_NOMEM, "terminal: out of memory");
}

/* ---- The foot: the key of numbered columns, footnote, remarks ---- */

static void put_key(mhai_pencil *pencil, const mhai_plan *p)
{
    enum { MOST_ENTRIES = 64 };
    if (!p->numbered || p->cols > MOST_ENTRIES) return;
    int64_t used = 8;
    mhai_pencil_line(pencil);
    mhai_pencil_text(pencil, "columns:");
    for (int64_t col = 0; col < p->cols; col++) {
        mhai_text entry;
        mhai_plan_label(p, p->grid.figure.col_labels, col * p->pool_cols, true, p->width - 10,
                        &entry);
        int64_t columns = mha_text_columns(entry.text);
        if (used + 2 + columns > p->width) {
            mhai_pencil_line(pencil);
            used = 0;
        }
        mhai_pencil_spaces(pencil, used ? 2 : 1);
        mhai_pencil_text(pencil, entry.text);
        used += columns + (used ? 2 : 1);
    }
    mhai_pencil_line(pencil);
}

static void put_foot(mhai_pencil *pencil, const mhai_plan *p)
{
    bool letters = p->plain || !p->half;
    int64_t row_step = (p->half ? 2 : 1) * p->pool_rows;
    mhai_remarks_about about = {p->pool_rows,
                                p->pool_cols,
                                row_step,
                                p->pool_cols,
                                "block",
                                letters ? "!" : "pink",
                                p->grid.figure.print_values == MHA_VALUES_ALWAYS && !p->values};
    mhai_remarks remarks;
    mhai_remarks_make(&p->grid.figure, &p->grid.ranges, &about, &remarks);
    put_key(pencil, p);
    put_wrapped(pencil, p, p->grid.figure.footnote, false);
    put_wrapped(pencil, p, remarks.text, false);
}

mha_status mha_render_terminal(const mha_figure *figure, const mha_terminal *terminal,
                               const mha_sink *sink)
{
    if (!sink || !sink->write) return mha_fail(MHA_ERR_NULL, "mha_render_terminal: sink is NULL");
    mhai_plan plan;
    mhai_pencil pencil;
    mha_status status;
    MHA_TRY_GOTO(mhai_plan_make(figure, terminal, &plan), done);
    mhai_pencil_open(&pencil, sink, terminal ? terminal->color : MHA_TERMINAL_PLAIN);
    put_head(&pencil, &plan);
    MHA_TRY_GOTO(put_grid(&pencil, &plan), done);
    put_foot(&pencil, &plan);
    status = mhai_sink_flush(&pencil.writer);
done:
    mhai_plan_free(&plan);
    return status;
}
