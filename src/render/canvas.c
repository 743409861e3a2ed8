/* Colours that every back end shares. */
#include "canvas.h"

#include <string.h>

static mhai_color color(uint32_t rgb)
{
    return (mhai_color){{(uint8_t)(rgb >> 16), (uint8_t)(rgb >> 8), (uint8_t)rgb}};
}

mhai_theme mhai_canvas_theme(const mha_figure *figure)
{
    mhai_theme light = {color(0xFFFFFF), color(0x1B1B1F), color(0x5A5D66), color(0x9C9FA6),
                        color(0xECECEE), color(0xC9CACE), color(0xFF00E0), color(0xE5004C)};
    mhai_theme dark = {color(0x15171B), color(0xECEDEF), color(0xA8ACB4), color(0x6A6E77),
                       color(0x2A2D33), color(0x4A4E57), color(0xFF00E0), color(0xFF5C8D)};
    mhai_theme theme = figure->dark ? dark : light;
    if (figure->cmap == MHA_CMAP_GREYS) { /* a neutral grey would be one of its values */
        theme.mask_paper = color(figure->dark ? 0x332A1A : 0xF6EBD3);
        theme.mask_line = color(figure->dark ? 0x66532C : 0xDFC58D);
    }
    return theme;
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
