/* The drawing interface. Each drawing is written once, for two back ends: SVG and cairo (PNG, PDF).
 *
 * Coordinates are in units of the drawing (an SVG user unit, pixel_ratio PNG pixels, 3/4 point of a
 * PDF), y downwards, angles in degrees clockwise. A back end stores its first error and ignores
 * later calls. */
#ifndef MHAI_RENDER_CANVAS_H
#define MHAI_RENDER_CANVAS_H

#include "figure.h"

typedef struct mhai_color {
    uint8_t rgb[3];
} mhai_color;

typedef enum mhai_anchor { MHAI_START, MHAI_MIDDLE, MHAI_END } mhai_anchor;

typedef struct mhai_pen {
    double x, y; /* the anchor on the baseline, the centre of rotation */
    double size; /* size of the font */
    double angle;
    mhai_anchor anchor;
    mhai_color color;
    bool bold, mono;
} mhai_pen;

enum { MHAI_MOST_DASHES = 4 };
typedef struct mhai_stroke {
    mhai_color color;
    double width;
    double dashes[MHAI_MOST_DASHES]; /* lengths of dash, gap, dash, gap; all 0: a solid line */
    bool round;                      /* round joins between the lines of a path */
} mhai_stroke;

/* The colours outside the colour map. */
typedef struct mhai_theme {
    mhai_color paper, ink, muted, frame;
    mhai_color mask_paper, mask_line; /* colours of the hatch; tiny cells use mask_line only */
    mhai_color bad;  /* values that are not finite: a cross, or a whole tiny cell */
    mhai_color mark; /* highlights; in no colour map */
} mhai_theme;

typedef struct mhai_map mhai_map;
typedef struct mhai_box {
    double x, y, width, height, radius;
    mhai_color fill;
    const mhai_color *edge;  /* NULL: none */
    bool crisp;              /* its edges are rounded to pixels */
    const mhai_theme *hatch; /* replaces fill: the hatch of masked cells */
    const mhai_map *map;     /* the rectangle is the cell row, col of this map; NULL: of none */
    int64_t row, col;
} mhai_box;

/* The cells of one panel. */
struct mhai_map {
    double x, y, cell_width, cell_height;
    const mhai_cells *cells;
    const mhai_scale *scale;
    const mhai_palette *palette;
    const mhai_theme *theme;
    const mha_figure *figure; /* source of the labels in tooltips */
    bool tiny;                /* cells are too small for a hatch or a cross */
    bool image;               /* too many cells for one shape per cell */
    bool tooltips;
};

typedef struct mhai_layout mhai_layout;

typedef struct mhai_canvas {
    void *user;
    void (*rect)(void *user, const mhai_box *box);
    void (*triangle)(void *user, const double xy[6], mhai_color color);
    void (*dot)(void *user, double x, double y, double radius, mhai_color color);
    void (*line)(void *user, const double xy[4], double width, mhai_color color);
    /* A line through count points, or, with curve, the four points of a Bezier curve. NaN is a gap. */
    void (*path)(void *user, const double *xy, int64_t count, bool curve,
                 const mhai_stroke *stroke);
    void (*text)(void *user, const mhai_pen *pen, const char *text);
    void (*image)(void *user, const mhai_map *map); /* one pixel per cell */
    /* A figure, scaled to fit into a place (x, y, width, height). */
    mha_status (*figure)(void *user, const mhai_layout *layout, const double place[4]);
    /* Rectangles relative to the origin x, y. */
    void (*group)(void *user, double x, double y, bool crisp);
    void (*end_group)(void *user);
} mhai_canvas;

typedef enum mhai_picture { MHAI_SVG, MHAI_PNG, MHAI_PDF } mhai_picture;

/* A drawing and the settings of its file. */
typedef struct mhai_sheet {
    mhai_picture picture;
    const char *title; /* title of the document */
    double width, height;
    double pixel_ratio;        /* pixel ratio of PNG; 0: automatic */
    const char *font_file;     /* font of PNG and PDF; NULL: as in mha_figure */
    const mhai_layout *layout; /* layout of a figure; NULL: no figure */
    mha_status (*draw)(const void *what, const mhai_canvas *canvas);
    const void *what;
} mhai_sheet;

mha_status mhai_sheet_write(const mhai_sheet *sheet, const mha_sink *sink);

/* The back ends. */
mha_status mhai_svg_sheet(const mhai_sheet *sheet, const mha_sink *sink);
mha_status mhai_paper_sheet(const mhai_sheet *sheet, const mha_sink *sink);

mhai_color mhai_color_of(uint32_t rgb); /* 0xRRGGBB */

/* The colour of a cell drawn as one flat colour. */
mhai_color mhai_canvas_cell_color(const mhai_map *map, int64_t row, int64_t col);

/* A cross from corner to corner. */
void mhai_canvas_cross(const mhai_canvas *canvas, double x, double y, double width, double height,
                       mhai_color color);

/* A panel's cells as pixels, *zoom x *zoom pixels per cell, 3 bytes per pixel and room for a
 * fourth; Returns NULL if out of memory. Some viewers always smooth images. Small images therefore
 * use several pixels per cell, so that only edges are smoothed. */
uint8_t *mhai_canvas_paint(const mhai_map *map, int64_t *zoom);

mhai_theme mhai_canvas_theme(const mha_figure *figure);

#endif
