/* Drawing a measured figure on a canvas. */
#include "layout.h"

#include "number.h"

#include <multihead/component.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    MARGIN = MHAI_LAYOUT_MARGIN,
    SMALL = MHAI_LAYOUT_SMALL,
    BAR = MHAI_LAYOUT_BAR,
    BAR_THICK = 12,
    GROUP_NAME = 13
};

/* Height of the middle of lower-case letters above the baseline, in em. */
static const double middle_of_text = 0.36;

static void write_text(const mhai_canvas *canvas, double x, double y, double size,
                       mhai_anchor anchor, mhai_color color, const char *text)
{
    mhai_pen pen = {.x = x, .y = y, .size = size, .anchor = anchor, .color = color};
    if (*text) canvas->text(canvas->user, &pen, text);
}

static void write_turned(const mhai_canvas *canvas, double x, double y, double size, double angle,
                         mhai_anchor anchor, mhai_color color, const char *text)
{
    mhai_pen pen = {.x = x, .y = y, .size = size, .angle = angle, .anchor = anchor, .color = color};
    if (*text) canvas->text(canvas->user, &pen, text);
}

static void write_bold(const mhai_canvas *canvas, double x, double y, double size, mhai_color color,
                       const char *text)
{
    mhai_pen pen = {.x = x, .y = y, .size = size, .color = color, .bold = true};
    if (*text) canvas->text(canvas->user, &pen, text);
}

static void draw_sides(const mhai_canvas *canvas, double x, double y, double width, double height,
                       double thick, mhai_color color)
{
    const double sides[4][4] = {{x, y, x + width, y},
                                {x, y + height, x + width, y + height},
                                {x, y, x, y + height},
                                {x + width, y, x + width, y + height}};
    for (int i = 0; i < 4; i++) canvas->line(canvas->user, sides[i], thick, color);
}

static void fill(const mhai_canvas *canvas, double x, double y, double width, double height,
                 mhai_color color)
{
    canvas->rect(canvas->user, &(mhai_box){x, y, width, height, .fill = color, .crisp = true});
}

static void draw_frame(const mhai_layout *l, const mhai_canvas *canvas, double x, double y,
                       double width, double height)
{
    draw_sides(canvas, x, y, width, height, 1, l->grid.theme.frame);
}

static void draw_titles(const mhai_layout *l, const mhai_canvas *canvas)
{
    double y = MARGIN + MHAI_LAYOUT_TITLE;
    for (int i = 0; i < l->title_lines; i++, y += MHAI_LAYOUT_TITLE_LINE)
        write_bold(canvas, MARGIN, y, MHAI_LAYOUT_TITLE, l->grid.theme.ink, l->title[i].text);
    y -= 2;
    for (int i = 0; i < l->subtitle_lines; i++, y += MHAI_LAYOUT_SUBTITLE_LINE)
        write_text(canvas, MARGIN, y, MHAI_LAYOUT_SUBTITLE, MHAI_START, l->grid.theme.muted,
                   l->subtitle[i].text);
}

static void draw_foot(const mhai_layout *l, const mhai_canvas *canvas)
{
    double y = l->foot_top + SMALL;
    for (int i = 0; i < l->foot_lines; i++, y += MHAI_LAYOUT_SMALL_LINE)
        write_text(canvas, MARGIN, y, SMALL, MHAI_START, l->grid.theme.ink, l->foot[i].text);
    for (int i = 0; i < l->remark_lines; i++, y += MHAI_LAYOUT_SMALL_LINE)
        write_text(canvas, MARGIN, y, SMALL, MHAI_START, l->grid.theme.muted, l->remarks[i].text);
}

/* The numbers under the colour bar. If every panel has its own range, the bar has only the numbers
 * that all panels share. */
static void draw_ticks(const mhai_layout *l, const mhai_canvas *canvas, double x, double y,
                       double width)
{
    const mhai_scale *scale = &l->grid.ranges.scales[0];
    char text[3][MHAI_NUMBER_BYTES];
    for (int i = 0; i < 3; i++) mhai_number_short(mhai_scale_value(scale, i / 2.0), 3, text[i]);
    if (l->grid.figure.range == MHA_RANGE_PANEL) {
        snprintf(text[0], sizeof text[0], "least");
        snprintf(text[1], sizeof text[1], "own range of each map");
        snprintf(text[2], sizeof text[2], "most");
    } else if (scale->kind == MHA_SCALE_RANK) {
        mhai_number_short(scale->extent.lo, 3, text[0]);
        mhai_number_short(scale->extent.hi, 3, text[2]);
    }
    for (int i = 0; i < 3; i++) {
        double at = x + width * i / 2;
        const double tick[4] = {at, y, at, y + 4};
        canvas->line(canvas->user, tick, 1, l->grid.theme.frame);
        write_text(canvas, at, y + 15, SMALL, MHAI_MIDDLE, l->grid.theme.ink, text[i]);
    }
}

static void draw_bar(const mhai_layout *l, const mhai_canvas *canvas, double x, double y,
                     double width, double height)
{
    enum { STEPS = 128 };
    for (int i = 0; i < STEPS; i++) {
        mhai_color color;
        memcpy(color.rgb, l->grid.palette.rgb[i * 255 / (STEPS - 1)], sizeof color.rgb);
        fill(canvas, x + width * i / STEPS, y, width / STEPS, height, color);
    }
    draw_frame(l, canvas, x, y, width, height);
    mhai_color low, high;
    memcpy(low.rgb, l->grid.palette.rgb[0], sizeof low.rgb);
    memcpy(high.rgb, l->grid.palette.rgb[255], sizeof high.rgb);
    const double left[6] = {x - 3, y, x - 3, y + height, x - 12, y + height / 2};
    const double right[6] = {x + width + 3, y, x + width + 3, y + height, x + width + 12,
                             y + height / 2};
    if (l->grid.ranges.extent.clipped_lo) canvas->triangle(canvas->user, left, low);
    if (l->grid.ranges.extent.clipped_hi) canvas->triangle(canvas->user, right, high);
}

/* Draw a swatch with its label. Returns the position of the next swatch. */
static double draw_key(const mhai_layout *l, const mhai_canvas *canvas, double x, double y,
                       bool masked, const char *word)
{
    const mhai_theme *theme = &l->grid.theme;
    if (masked && !l->tiny)
        canvas->rect(canvas->user, &(mhai_box){x, y, 14, 12, .hatch = theme});
    else
        fill(canvas, x, y, 14, 12, masked ? theme->mask_line : l->tiny ? theme->bad : theme->paper);
    if (!masked && !l->tiny) mhai_canvas_cross(canvas, x + 3, y + 2, 8, 8, theme->bad);
    draw_frame(l, canvas, x, y, 14, 12);
    write_text(canvas, x + MHAI_LAYOUT_SWATCH, y + 10, SMALL, MHAI_START, theme->ink, word);
    return x + MHAI_LAYOUT_SWATCH + mhai_text_em(word) * SMALL + MHAI_LAYOUT_SWATCH_GAP;
}

static void draw_legend(const mhai_layout *l, const mhai_canvas *canvas)
{
    const mha_figure *f = &l->grid.figure;
    double x = MARGIN, y = l->legend_top + 2;
    if (*l->value_name.text) {
        write_text(canvas, x, y + 10, SMALL, MHAI_START, l->grid.theme.ink, l->value_name.text);
        x += mhai_text_em(l->value_name.text) * SMALL + 12;
    }
    x += MHAI_LAYOUT_BAR_LEFT;
    draw_bar(l, canvas, x, y, BAR, BAR_THICK);
    draw_ticks(l, canvas, x, y + BAR_THICK, BAR);
    x += BAR + MHAI_LAYOUT_BAR_RIGHT;
    if (f->scale != MHA_SCALE_LINEAR) {
        char word[32];
        snprintf(word, sizeof word, "%s scale", mha_scale_name(f->scale));
        write_text(canvas, x, y + BAR_THICK + 15, SMALL, MHAI_START, l->grid.theme.muted, word);
    }
    if (l->grid.ranges.any_masked) x = draw_key(l, canvas, x, y, true, mhai_layout_masked);
    if (l->grid.ranges.extent.not_finite) draw_key(l, canvas, x, y, false, mhai_layout_bad);
}

static mhai_pen label_pen(const mhai_layout *l, const mhai_axis *axis, bool marked)
{
    return (mhai_pen){.size = axis->font,
                      .anchor = MHAI_END,
                      .color = marked ? l->grid.theme.mark : l->grid.theme.ink,
                      .bold = marked};
}

static void draw_row_labels(const mhai_layout *l, const mhai_canvas *canvas, double y,
                            const int64_t *mark)
{
    const mhai_axis *axis = &l->row;
    for (int64_t i = 0; i < axis->count; i += axis->step) {
        mhai_text label;
        mhai_layout_label(axis, i, &label);
        double at = y + ((double)(i / axis->pool) + 0.5) * axis->cell;
        mhai_pen pen = label_pen(l, axis, mark && i == mark[0]);
        pen.x = l->left - MHAI_LAYOUT_LABEL_GAP;
        pen.y = at + middle_of_text * axis->font;
        if (*label.text) canvas->text(canvas->user, &pen, label.text);
    }
    write_turned(canvas, l->left - axis->depth - 7, y + l->map_height / 2, SMALL, -90, MHAI_MIDDLE,
                 l->grid.theme.muted, axis->title.text);
}

static void draw_col_labels(const mhai_layout *l, const mhai_canvas *canvas, double x, double y,
                            const int64_t *mark)
{
    const mhai_axis *axis = &l->col;
    double size = axis->font, lift = middle_of_text * size;
    for (int64_t i = 0; i < axis->count; i += axis->step) {
        mhai_text label;
        mhai_layout_label(axis, i, &label);
        double at = x + ((double)(i / axis->pool) + 0.5) * axis->cell;
        mhai_pen pen = label_pen(l, axis, mark && i == mark[1]);
        pen.x = axis->angle == 0 ? at : at + lift;
        pen.y = axis->angle == 0 ? y + size + 3 : y + (axis->angle == -90 ? 4 : 7);
        pen.angle = axis->angle;
        if (axis->angle == 0) pen.anchor = MHAI_MIDDLE;
        if (*label.text) canvas->text(canvas->user, &pen, label.text);
    }
}

/* "0 to 0.93", for panels with their own ranges. */
static void own_range_text(const mhai_layout *l, int64_t i, char text[2 * MHAI_NUMBER_BYTES + 8])
{
    const mha_extent *e = &mhai_ranges_at(&l->grid.ranges, i)->extent;
    char lo[MHAI_NUMBER_BYTES], hi[MHAI_NUMBER_BYTES];
    mhai_number_short(e->lo, 2, lo);
    mhai_number_short(e->hi, 2, hi);
    snprintf(text, 2 * MHAI_NUMBER_BYTES + 8, "%s to %s", lo, hi);
}

/* Draw the name and the note of a panel directly above its map, which begins at y. Both may be
 * wider than the map if it is the only one in its row. */
static void draw_head(const mhai_layout *l, const mhai_canvas *canvas, int64_t i, double x,
                      double y)
{
    mha_panel panel = mhai_figure_panel(&l->grid.figure, i);
    bool noted = panel.note && *panel.note;
    bool alone = l->grid.columns == 1, own = l->grid.figure.range == MHA_RANGE_PANEL;
    double room = alone ? l->width - x - MARGIN : l->map_width, name_width = 0;
    double name_y = noted ? y - 19 : y - 6, em = 1.05 * MHAI_LAYOUT_NAME;
    char range[2 * MHAI_NUMBER_BYTES + 8] = "";
    if (own) own_range_text(l, i, range);
    double taken = own ? mhai_text_em(range) * MHAI_LAYOUT_NOTE + 10 : 0;
    if (panel.name || l->grid.figure.panel_count > 1) {
        mhai_text name;
        mhai_text_visible(panel.name, i, MHAI_TEXT_PROSE, &name);
        mhai_text_cut_em(&name, fmax(room - taken, 30) / em);
        write_bold(canvas, x, name_y, MHAI_LAYOUT_NAME, l->grid.theme.ink, name.text);
        name_width = mhai_text_em(name.text) * em + 10;
    }
    write_text(canvas, alone ? x + name_width : x + room, name_y, MHAI_LAYOUT_NOTE,
               alone ? MHAI_START : MHAI_END, l->grid.theme.muted, range);
    if (noted) {
        mhai_text note;
        mhai_text_visible(panel.note, i, MHAI_TEXT_PROSE, &note);
        mhai_text_cut_em(&note, room / MHAI_LAYOUT_NOTE);
        write_text(canvas, x, y - 6, MHAI_LAYOUT_NOTE, MHAI_START, l->grid.theme.muted, note.text);
    }
}

/* A number that identifies the appearance of a cell. */
static int look_of(const mhai_map *map, int64_t at)
{
    uint8_t kind = map->cells->kind[at];
    return kind == MHAI_CELL_VALUE ? mhai_palette_index(map->scale, (double)map->cells->value[at])
                                   : 255 + kind;
}

static int64_t run_of(const mhai_map *map, int64_t row, int64_t col)
{
    const int64_t first = row * map->cells->cols;
    int64_t end = col + 1;
    while (end < map->cells->cols && look_of(map, first + end) == look_of(map, first + col)) end++;
    return end;
}

/* Draw one rectangle per run of cells with the same appearance, or per cell if cells have
 * tooltips. */
static void draw_map(const mhai_canvas *canvas, const mhai_map *map)
{
    const mhai_cells *cells = map->cells;
    const double w = map->cell_width, h = map->cell_height;
    if (map->image) {
        canvas->image(canvas->user, map);
        return;
    }
    canvas->group(canvas->user, map->x, map->y, true);
    for (int64_t row = 0; row < cells->rows; row++)
        for (int64_t col = 0, end; col < cells->cols; col = end) {
            const uint8_t kind = map->tiny ? MHAI_CELL_VALUE : cells->kind[row * cells->cols + col];
            end = map->tooltips ? col + 1 : run_of(map, row, col);
            mhai_box box = {(double)col * w,
                            (double)row * h,
                            (double)(end - col) * w,
                            h,
                            .hatch = kind == MHAI_CELL_MASKED ? map->theme : NULL,
                            .map = map,
                            .row = row,
                            .col = col};
            box.fill = kind == MHAI_CELL_NOT_FINITE ? map->theme->paper
                                                    : mhai_canvas_cell_color(map, row, col);
            canvas->rect(canvas->user, &box);
        }
    for (int64_t i = 0; !map->tiny && i < cells->rows * cells->cols; i++)
        if (cells->kind[i] == MHAI_CELL_NOT_FINITE)
            mhai_canvas_cross(canvas, ((double)(i % cells->cols) + 0.25) * w,
                              ((double)(i / cells->cols) + 0.25) * h, w / 2, h / 2,
                              map->theme->bad);
    canvas->end_group(canvas->user);
}

static void draw_values(const mhai_layout *l, const mhai_canvas *canvas, const mhai_map *map)
{
    for (int64_t r = 0; r < map->cells->rows; r++)
        for (int64_t c = 0; c < map->cells->cols; c++) {
            int64_t at = r * map->cells->cols + c;
            if (map->cells->kind[at] != MHAI_CELL_VALUE) continue;
            char text[MHAI_NUMBER_BYTES];
            mhai_number_cell((double)map->cells->value[at], l->grid.value_greatest, text);
            mhai_color cell = mhai_canvas_cell_color(map, r, c);
            mhai_color black = {{0, 0, 0}}, white = {{255, 255, 255}};
            bool light = mhai_palette_luminance(cell.rgb) > 0.179;
            write_text(canvas, map->x + ((double)c + 0.5) * map->cell_width,
                       map->y + ((double)r + 0.5) * map->cell_height +
                           middle_of_text * l->value_font,
                       l->value_font, MHAI_MIDDLE, light ? black : white, text);
        }
}

/* Draw the edges of the marked row, and of the marked cell. */
static void draw_mark(const mhai_layout *l, const mhai_canvas *canvas, const int64_t mark[2],
                      double x, double y)
{
    const double top = y + (double)(mark[0] / l->row.pool) * l->row.cell,
                 left = x + (double)(mark[1] / l->col.pool) * l->col.cell;
    draw_sides(canvas, x, top, l->map_width, l->row.cell, 1, l->grid.theme.mark);
    draw_sides(canvas, left, top, l->col.cell, l->row.cell, 2.5, l->grid.theme.mark);
}

static void draw_panel(const mhai_layout *l, const mhai_canvas *canvas, int64_t i,
                       mhai_cells *cells)
{
    double x = l->left + (double)l->grid.places[i].grid_col * l->step_x;
    double y = l->grid_top + (double)l->grid.places[i].grid_row * l->step_y;
    y += l->head;
    draw_head(l, canvas, i, x, y);
    if (cells->rows == 0 || cells->cols == 0) {
        draw_frame(l, canvas, x, y, l->map_width, l->map_height);
        write_text(canvas, x + l->map_width / 2, y + l->map_height / 2 + 4, SMALL, MHAI_MIDDLE,
                   l->grid.theme.muted, "empty");
        return;
    }
    mha_panel panel = mhai_figure_panel(&l->grid.figure, i);
    mhai_cells_fill(&l->grid.figure, &panel, l->row.pool, l->col.pool, cells);
    mhai_map map = {x,
                    y,
                    l->col.cell,
                    l->row.cell,
                    cells,
                    mhai_ranges_at(&l->grid.ranges, i),
                    &l->grid.palette,
                    &l->grid.theme,
                    &l->grid.figure,
                    l->tiny,
                    l->image,
                    l->tooltips};
    draw_map(canvas, &map);
    draw_frame(l, canvas, x, y, l->map_width, l->map_height);
    if (panel.mark) draw_mark(l, canvas, panel.mark, x, y);
    if (l->values) draw_values(l, canvas, &map);
    draw_col_labels(l, canvas, x, y + l->map_height, panel.mark);
    if (l->grid.places[i].grid_col == 0) draw_row_labels(l, canvas, y, panel.mark);
}

/* Draw the name of a group next to the middle of its grid rows. */
static void draw_groups(const mhai_layout *l, const mhai_canvas *canvas)
{
    for (int64_t first = 0, next; l->named_groups && first < l->grid.rows; first = next) {
        for (next = first;
             next < l->grid.rows && l->grid.row_groups[next] == l->grid.row_groups[first];)
            next++;
        double room = (double)(next - first) * l->step_y - 10;
        double middle =
            l->grid_top + (double)first * l->step_y + (room - l->col.depth + l->head) / 2;
        mhai_text name;
        mhai_text_visible(l->grid.figure.group_names[l->grid.row_groups[first]],
                          l->grid.row_groups[first], MHAI_TEXT_PROSE, &name);
        mhai_text_cut_em(&name, room / (1.05 * GROUP_NAME));
        mhai_pen pen = {.x = MARGIN + GROUP_NAME,
                        .y = middle,
                        .size = GROUP_NAME,
                        .angle = -90,
                        .anchor = MHAI_MIDDLE,
                        .color = l->grid.theme.ink,
                        .bold = true};
        if (*name.text) canvas->text(canvas->user, &pen, name.text);
    }
}

mha_status mhai_draw(const mhai_layout *l, const mhai_canvas *canvas)
{
    mhai_cells cells;
    MHA_TRY(mhai_cells_alloc(l->row.drawn, l->col.drawn, &cells));
    fill(canvas, 0, 0, l->width, l->height, l->grid.theme.paper);
    draw_titles(l, canvas);
    draw_legend(l, canvas);
    draw_groups(l, canvas);
    for (int64_t i = 0; i < l->grid.figure.panel_count; i++) draw_panel(l, canvas, i, &cells);
    double middle =
        l->left + ((double)l->grid.columns * l->step_x - (l->step_x - l->map_width)) / 2;
    if (l->grid.figure.panel_count)
        write_text(canvas, middle, l->foot_top - 8, SMALL, MHAI_MIDDLE, l->grid.theme.muted,
                   l->col.title.text);
    else
        write_text(canvas, MARGIN, l->grid_top + 12, MHAI_LAYOUT_SUBTITLE, MHAI_START,
                   l->grid.theme.muted, "no maps");
    draw_foot(l, canvas);
    mhai_cells_free(&cells);
    return MHA_OK;
}

mha_status mhai_draw_cells(const mhai_layout *l, const mhai_canvas *canvas, const double place[4])
{
    if (!l->grid.figure.panel_count || !l->grid.figure.rows || !l->grid.figure.cols) return MHA_OK;
    mhai_cells cells;
    MHA_TRY(mhai_cells_alloc(l->row.drawn, l->col.drawn, &cells));
    mha_panel panel = mhai_figure_panel(&l->grid.figure, 0);
    mhai_cells_fill(&l->grid.figure, &panel, l->row.pool, l->col.pool, &cells);
    const mhai_map map = {.x = place[0],
                          .y = place[1],
                          .cell_width = place[2] / (double)cells.cols,
                          .cell_height = place[3] / (double)cells.rows,
                          .cells = &cells,
                          .scale = mhai_ranges_at(&l->grid.ranges, 0),
                          .palette = &l->grid.palette,
                          .theme = &l->grid.theme,
                          .figure = &l->grid.figure,
                          .tiny = true,
                          .image = true};
    canvas->image(canvas->user, &map);
    mhai_cells_free(&cells);
    return MHA_OK;
}

const char *mhai_layout_title(const mhai_layout *l)
{
    return l->grid.figure.title && *l->grid.figure.title ? l->grid.figure.title : "Heat map";
}

static mha_status draw_sheet(const void *layout, const mhai_canvas *canvas)
{
    return mhai_draw(layout, canvas);
}

mhai_sheet mhai_layout_sheet(const mhai_layout *l, mhai_picture picture)
{
    return (mhai_sheet){.picture = picture,
                        .title = mhai_layout_title(l),
                        .width = l->width,
                        .height = l->height,
                        .pixel_ratio = l->grid.figure.pixel_ratio,
                        .font_file = l->grid.figure.font_file,
                        .layout = l,
                        .draw = draw_sheet,
                        .what = l};
}

static mha_status write_figure(const mha_figure *figure, mhai_picture picture, const mha_sink *sink)
{
    mhai_layout layout;
    mha_status status = mhai_layout_make(figure, &layout);
    const mhai_sheet sheet = mhai_layout_sheet(&layout, picture);
    if (!status) status = mhai_sheet_write(&sheet, sink);
    mhai_layout_free(&layout);
    return status;
}

mha_status mha_render_svg(const mha_figure *figure, const mha_sink *sink)
{
    return write_figure(figure, MHAI_SVG, sink);
}

mha_status mha_render_png(const mha_figure *figure, const mha_sink *sink)
{
    return write_figure(figure, MHAI_PNG, sink);
}

mha_status mha_render_pdf(const mha_figure *figure, const mha_sink *sink)
{
    return write_figure(figure, MHAI_PDF, sink);
}
