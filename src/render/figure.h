/* A checked figure; ranges and scales; cells reduced to a drawable number. */
#ifndef MHAI_RENDER_FIGURE_H
#define MHAI_RENDER_FIGURE_H

#include <multihead/render.h>

/* Check a caller's figure completely and copy it. *own has all fields of this version. Label lists
 * may still be NULL, group_count is at least 1. */
mha_status mhai_figure_check(const mha_figure *figure, mha_figure *own);

/* Panel i of a checked figure, with all strides filled in. */
mha_panel mhai_figure_panel(const mha_figure *figure, int64_t i);

/* Whether the colour map is signed. */
bool mhai_figure_signed(const mha_figure *figure);

/* The conversion of values to t in 0..1 and back. sorted: the values of the range, for ranks
 * only. */
typedef struct mhai_scale {
    mha_scale kind;
    mha_extent extent;
    double f_lo, f_hi;
    float *sorted;
    int64_t count;
} mhai_scale;

double mhai_scale_value(const mhai_scale *scale, double t);

/* The scales of a figure: a shared scale, or one scale per panel. */
typedef struct mhai_ranges {
    mhai_scale *scales;
    int64_t count;
    mha_extent extent; /* range of the figure; if shared, of the only scale */
    bool any_masked;
} mhai_ranges;

/* figure must be checked. Free also after a failure. */
mha_status mhai_ranges_make(const mha_figure *figure, mhai_ranges *ranges);
void mhai_ranges_free(mhai_ranges *ranges);
const mhai_scale *mhai_ranges_at(const mhai_ranges *ranges, int64_t panel);

typedef enum mhai_cell {
    MHAI_CELL_VALUE = 0,
    MHAI_CELL_MASKED = 1,
    MHAI_CELL_NOT_FINITE = 2
} mhai_cell;

/* A panel's cells, with blocks of pool_rows x pool_cols reduced to one cell: the maximum, or for a
 * signed map the value of largest magnitude. A block is masked if all its cells are masked, and not
 * finite if any of its cells is not finite, so that neither property disappears. */
typedef struct mhai_cells {
    int64_t rows, cols;
    float *value;
    uint8_t *kind;
} mhai_cells;

mha_status mhai_cells_alloc(int64_t rows, int64_t cols, mhai_cells *cells);
void mhai_cells_fill(const mha_figure *figure, const mha_panel *panel, int64_t pool_rows,
                     int64_t pool_cols, mhai_cells *cells);
void mhai_cells_free(mhai_cells *cells);

/* 256 colours, and the colour of a value. */
typedef struct mhai_palette {
    uint8_t rgb[256][3];
} mhai_palette;

void mhai_palette_make(const mha_figure *figure, mhai_palette *palette);
int mhai_palette_index(const mhai_scale *scale, double value);

/* Relative luminance (WCAG 2) of an sRGB colour: text on it is black above 0.179, white below,
 * which gives a contrast of at least 4.58 for every colour. */
double mhai_palette_luminance(const uint8_t rgb[3]);

#endif
