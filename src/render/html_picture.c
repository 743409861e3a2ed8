/* The content for readers without scripts: the figure as inline SVG if that is small, otherwise one
 * small image per panel, and in both cases a table of the panels. */
#include "html.h"
#include "layout.h"
#include "number.h"
#include "png.h"
#include "text.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_SHAPES = 6000, /* limit of all shapes; above it, maps are images, which are smaller */
    MOST_SIDE = 64,     /* pixels along a side of a panel's image in the table */
    LEAST_SIDE = 8
};

/* The picture may take a tenth of the file. In base64 a pixel takes up to 4 bytes; a shape takes
 * about 70 bytes, and the element of a label about 130. */
static bool svg_fits(const mhai_html_page *page)
{
    const mha_figure *f = &page->figure;
    double labels = (double)f->panel_count * fmin((double)f->cols, 200);
    double cells = (double)f->panel_count * (double)f->rows * (double)f->cols;
    const double each = cells > MOST_SHAPES ? 4 : 70;
    return f->rows + f->cols <= 2000 &&
           each * cells + 130 * labels <= (double)page->report.most_bytes / 10;
}

static int64_t image_side(const mhai_html_page *page)
{
    const mha_figure *f = &page->figure;
    if (!f->rows || !f->cols || !f->panel_count) return 0;
    double room = (double)page->report.most_bytes / 10 / (double)f->panel_count;
    double side = fmin(floor(sqrt(room / 4)), MOST_SIDE);
    return side < LEAST_SIDE ? 0 : (int64_t)side;
}

static mha_status draw_svg(const mhai_html_page *page, mhai_writer *w)
{
    const mha_figure *f = &page->figure;
    bool as_images = f->rows * f->cols * f->panel_count > MOST_SHAPES;
    mha_buffer svg = {0};
    mha_sink sink = mha_buffer_sink(&svg);
    mhai_layout layout;
    mha_status status = mhai_layout_make(f, &layout);
    if (!status) {
        layout.tooltips = false;
        layout.image = layout.image || as_images;
        layout.tiny = layout.tiny || layout.image;
        layout.values = layout.values && !layout.image;
        status = mhai_svg_inside(&layout, &sink);
    }
    if (!status) {
        mhai_sink_text(w, "<figure>");
        mhai_sink_bytes(w, svg.data, svg.size);
        mhai_sink_text(w, "</figure>\n");
    }
    mhai_layout_free(&layout);
    mha_buffer_free(&svg);
    return status ? status : w->status;
}

/* The data shared by the images of all panels. */
typedef struct album {
    const mha_figure *figure;
    mhai_ranges ranges;
    mhai_palette palette;
    mhai_theme theme;
    mhai_cells cells;
    int64_t pool;
    uint8_t *rgb;
} album;

static mha_status album_open(const mha_figure *figure, int64_t side, album *a)
{
    mha_figure drawn = *figure;
    if (drawn.scale == MHA_SCALE_RANK) drawn.scale = MHA_SCALE_SQRT; /* thumbnails need no ranks */
    int64_t longest = figure->rows > figure->cols ? figure->rows : figure->cols;
    a->figure = figure;
    a->pool = (longest + side - 1) / side;
    MHA_TRY(mhai_ranges_make(&drawn, &a->ranges));
    mhai_palette_make(figure, &a->palette);
    a->theme = mhai_canvas_theme(figure);
    int64_t rows = (figure->rows + a->pool - 1) / a->pool;
    int64_t cols = (figure->cols + a->pool - 1) / a->pool;
    MHA_TRY(mhai_cells_alloc(rows, cols, &a->cells));
    a->rgb = mhai_sink_alloc(rows * cols, 3);
    return a->rgb ? MHA_OK : mha_fail(MHA_ERR_NOMEM, "report: no memory for an image");
}

static void album_close(album *a)
{
    mhai_ranges_free(&a->ranges);
    mhai_cells_free(&a->cells);
    free(a->rgb);
}

static mha_status write_image(album *a, int64_t i, mhai_writer *w)
{
    mha_panel panel = mhai_figure_panel(a->figure, i);
    mhai_cells_fill(a->figure, &panel, a->pool, a->pool, &a->cells);
    const mhai_map map = {.cells = &a->cells,
                          .scale = mhai_ranges_at(&a->ranges, i),
                          .palette = &a->palette,
                          .theme = &a->theme};
    for (int64_t k = 0; k < a->cells.rows * a->cells.cols; k++)
        memcpy(a->rgb + 3 * k,
               mhai_canvas_cell_color(&map, k / a->cells.cols, k % a->cells.cols).rgb, 3);
    mha_buffer png = {0};
    mha_sink sink = mha_buffer_sink(&png);
    mha_status status = mhai_png_write(a->rgb, a->cells.cols, a->cells.rows, &sink);
    if (!status) {
        mhai_sink_text(w, "<td><img alt=\"\" src=\"data:image/png;base64,");
        mhai_sink_base64(w, png.data, png.size);
        mhai_sink_text(w, "\"></td>");
    }
    mha_buffer_free(&png);
    return status;
}

static void write_cell(mhai_writer *w, const char *text)
{
    mhai_sink_text(w, "<td><bdi>");
    mhai_sink_escaped(w, text ? text : "");
    mhai_sink_text(w, "</bdi></td>");
}

static void write_number(double value, mhai_writer *w)
{
    char text[MHAI_NUMBER_BYTES] = "\xE2\x80\x93"; /* a dash */
    if (isfinite(value)) mhai_number_short(value, 4, text);
    mhai_sink_text(w, text);
}

/* Write a card: its sentences, then one line per measure. */
static void write_evidence(const mha_panel *panel, mhai_writer *w)
{
    mhai_sink_text(w, "<td class=\"evidence\"><bdi>");
    mhai_sink_escaped(w, panel->detail ? panel->detail : "");
    mhai_sink_text(w, "</bdi>");
    for (int64_t i = 0; i < panel->measure_count; i++) {
        const mha_measure *measure = &panel->measures[i];
        mhai_sink_text(w, "\n");
        mhai_sink_escaped(w, measure->name ? measure->name : "");
        mhai_sink_text(w, " ");
        write_number(measure->value, w);
        if (!isfinite(measure->chance) || measure->chance == 0) continue;
        mhai_sink_text(w, " (chance ");
        write_number(measure->chance, w);
        mhai_sink_text(w, ")");
    }
    mhai_sink_text(w, "</td>");
}

static void write_row(const mhai_html_page *page, int64_t i, mhai_writer *w)
{
    mha_panel panel = mhai_figure_panel(&page->figure, i);
    const mha_extent *extent = &mhai_ranges_at(&page->panels, i)->extent;
    mhai_text name;
    char least[MHAI_NUMBER_BYTES], greatest[MHAI_NUMBER_BYTES];
    mhai_text_visible(panel.name, i, MHAI_TEXT_PROSE, &name);
    mhai_number_short(extent->least, 4, least);
    mhai_number_short(extent->greatest, 4, greatest);
    write_cell(w, name.text);
    write_cell(w, panel.badge);
    write_cell(w, panel.note);
    write_evidence(&panel, w);
    mhai_sink_print(w, "<td>%s</td><td>%s</td>", least, greatest);
    for (int64_t k = 0; k < page->report.column_count; k++) {
        mhai_sink_text(w, "<td>");
        write_number(page->report.columns[k].values[i], w);
        mhai_sink_text(w, "</td>");
    }
    mhai_sink_text(w, "</tr>\n");
}

static void write_heads(const mhai_html_page *page, bool images, mhai_writer *w)
{
    mhai_sink_print(w,
                    "<table class=\"panels\"><thead><tr>%s<th>map</th><th></th><th></th><th></th>"
                    "<th>least</th><th>greatest</th>",
                    images ? "<th></th>" : "");
    for (int64_t k = 0; k < page->report.column_count; k++) {
        mhai_sink_text(w, "<th>");
        mhai_sink_escaped(w, page->report.columns[k].name ? page->report.columns[k].name : "");
        mhai_sink_text(w, "</th>");
    }
    mhai_sink_text(w, "</tr></thead>\n<tbody>\n");
}

static mha_status write_table(const mhai_html_page *page, album *images, mhai_writer *w)
{
    write_heads(page, images != NULL, w);
    for (int64_t i = 0; i < page->figure.panel_count; i++) {
        mhai_sink_text(w, "<tr>");
        if (images) MHA_TRY(write_image(images, i, w));
        write_row(page, i, w);
    }
    mhai_sink_text(w, "</tbody></table>\n");
    return w->status;
}

mha_status mhai_html_make_picture(mhai_html_page *page)
{
    mha_sink sink = mha_buffer_sink(&page->picture);
    mhai_writer writer;
    mhai_sink_open(&writer, &sink);
    bool drawing = svg_fits(page);
    int64_t side = drawing ? 0 : image_side(page);
    album shared = {0};
    mha_status status = MHA_OK;
    if (page->report.cell_tokens > 1)
        mhai_sink_print(&writer,
                        "<p class=\"hint\">Each cell is the maximum of %" PRId64 " x %" PRId64
                        " tokens.</p>\n",
                        page->report.cell_tokens, page->report.cell_tokens);
    if (drawing) MHA_TRY_GOTO(draw_svg(page, &writer), done);
    if (side) MHA_TRY_GOTO(album_open(&page->figure, side, &shared), done);
    MHA_TRY_GOTO(write_table(page, side ? &shared : NULL, &writer), done);
    status = mhai_sink_flush(&writer);
done:
    album_close(&shared);
    return status;
}
