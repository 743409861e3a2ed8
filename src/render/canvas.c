/* Shared by all back ends. */
#include "canvas.h"
#include "sink.h"

#include <multihead/component.h>

#include <string.h>

mhai_color mhai_color_of(uint32_t rgb)
{
    return (mhai_color){{(uint8_t)(rgb >> 16), (uint8_t)(rgb >> 8), (uint8_t)rgb}};
}

mhai_theme mhai_canvas_theme(const mha_figure *figure)
{
    static const uint32_t all[2][8] = {
        {0xFFFFFF, 0x1B1B1F, 0x5A5D66, 0x9C9FA6, 0xECECEE, 0xC9CACE, 0xFF00E0, 0xE5004C},
        {0x15171B, 0xECEDEF, 0xA8ACB4, 0x6A6E77, 0x2A2D33, 0x4A4E57, 0xFF00E0, 0xFF5C8D}};
    mhai_color c[8];
    for (int i = 0; i < 8; i++) c[i] = mhai_color_of(all[figure->dark][i]);
    if (figure->cmap == MHA_CMAP_GREYS) { /* a neutral grey would look like a value */
        c[4] = mhai_color_of(figure->dark ? 0x332A1A : 0xF6EBD3);
        c[5] = mhai_color_of(figure->dark ? 0x66532C : 0xDFC58D);
    }
    return (mhai_theme){c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7]};
}

mhai_color mhai_canvas_cell_color(const mhai_map *map, int64_t row, int64_t col)
{
    int64_t at = row * map->cells->cols + col;
    if (map->cells->kind[at] == MHAI_CELL_MASKED) return map->theme->mask_line;
    if (map->cells->kind[at] == MHAI_CELL_NOT_FINITE) return map->theme->bad;
    mhai_color c;
    int index = mhai_palette_index(map->scale, (double)map->cells->value[at]);
    memcpy(c.rgb, map->palette->rgb[index], sizeof c.rgb);
    return c;
}

void mhai_canvas_cross(const mhai_canvas *canvas, double x, double y, double width, double height,
                       mhai_color color)
{
    const double down[4] = {x, y, x + width, y + height}, up[4] = {x, y + height, x + width, y};
    canvas->line(canvas->user, down, 1.5, color);
    canvas->line(canvas->user, up, 1.5, color);
}

/* A pixel of the figure's backdrop under the colour of its cell. */
static void tint(const mhai_map *map, int64_t zoom, int64_t x, int64_t y, uint8_t to[3])
{
    const mha_figure *f = map->figure;
    const int64_t width = f->cols * f->backdrop_zoom, height = f->rows * f->backdrop_zoom;
    const int64_t from_x = x * width / (map->cells->cols * zoom),
                  from_y = y * height / (map->cells->rows * zoom);
    const mhai_color colour = mhai_canvas_cell_color(map, y / zoom, x / zoom);
    for (int c = 0; c < 3; c++)
        to[c] =
            (uint8_t)((45 * f->backdrop[(from_y * width + from_x) * 3 + c] + 55 * colour.rgb[c]) /
                      100);
}

uint8_t *mhai_canvas_paint(const mhai_map *map, int64_t *zoom)
{
    const mhai_cells *cells = map->cells;
    const int64_t longest = cells->rows > cells->cols ? cells->rows : cells->cols;
    int64_t z = longest > 600 ? 1 : longest > 400 ? 2 : longest > 300 ? 3 : 4;
    if (map->figure->backdrop && longest * z < 512) z = 512 / longest; /* finer than cells */
    const int64_t width = cells->cols * z, height = cells->rows * z;
    uint8_t *rgb = mhai_sink_alloc(width * height, 4);
    *zoom = z;
    for (int64_t y = 0; rgb && map->figure->backdrop && y < height; y++)
        for (int64_t x = 0; x < width; x++) tint(map, z, x, y, rgb + 3 * (y * width + x));
    for (int64_t y = 0; rgb && !map->figure->backdrop && y < height; y++) {
        uint8_t *row = rgb + y * width * 3;
        if (y % z)
            memcpy(row, row - width * 3, (size_t)width * 3);
        else
            for (int64_t x = 0; x < width; x++)
                memcpy(row + 3 * x, mhai_canvas_cell_color(map, y / z, x / z).rgb, 3);
    }
    return rgb;
}

mha_status mhai_sheet_write(const mhai_sheet *sheet, const mha_sink *sink)
{
    if (!sink || !sink->write) return mha_fail(MHA_ERR_NULL, "picture: sink is NULL");
    return sheet->picture == MHAI_SVG ? mhai_svg_sheet(sheet, sink) : mhai_paper_sheet(sheet, sink);
}
