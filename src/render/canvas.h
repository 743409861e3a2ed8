/* What a picture is drawn on. A layout draws once; SVG text and PNG pixels are two back ends.
 *
 * Coordinates are in units of the drawing (an SVG user unit, pixel_ratio PNG pixels), y downwards,
 * angles in degrees clockwise. A back end keeps its first error and draws nothing after it. */
#ifndef MHAI_RENDER_CANVAS_H
#define MHAI_RENDER_CANVAS_H

#include "figure.h"

typedef struct mhai_color {
    uint8_t rgb[3];
} mhai_color;

typedef enum mhai_anchor { MHAI_START, MHAI_MIDDLE, MHAI_END } mhai_anchor;

typedef struct mhai_pen {
    double x, y; /* of the anchor on the baseline, about which the text turns */
    double size; /* of the face */
    double angle;
    mhai_anchor anchor;
    mhai_color color;
    bool bold;
} mhai_pen;

/* The colours that are not of the map. */
typedef struct mhai_theme {
    mhai_color paper, ink, muted, frame;
    mhai_color mask_paper, mask_line; /* a hatch of the two; mask_line alone where cells are tiny */
    mhai_color bad;                   /* not finite: a cross, or the whole of a tiny cell */
    mhai_color mark;                  /* what is pointed at: in no colour map */
} mhai_theme;

/* The cells of one panel. */
typedef struct mhai_map {
    double x, y, cell_width, cell_height;
    const mhai_cells *cells;
    const mhai_scale *scale;
    const mhai_palette *palette;
    const mhai_theme *theme;
    const mha_figure *figure; /* its labels, for tooltips */
    bool tiny;                /* cells too small for a hatch or a cross */
    bool image;               /* too many cells for one shape each */
    bool tooltips;
} mhai_map;

typedef struct mhai_canvas {
    void *user;
    void (*rect)(void *user, double x, double y, double width, double height, mhai_color color);
    void (*hatch)(void *user, double x, double y, double width, double height,
                  const mhai_theme *theme);
    void (*triangle)(void *user, const double xy[6], mhai_color color);
    void (*line)(void *user, const double xy[4], double width, mhai_color color);
    void (*text)(void *user, const mhai_pen *pen, const char *text);
    void (*map)(void *user, const mhai_map *map);
} mhai_canvas;

/* The colour of a cell that is drawn flat. */
mhai_color mhai_canvas_cell_color(const mhai_map *map, int64_t row, int64_t col);

mhai_theme mhai_canvas_theme(const mha_figure *figure);

#endif
