/* The layout of a figure, computed once from the figure without any font file, so that SVG and PNG
 * show the same picture. */
#ifndef MHAI_RENDER_LAYOUT_H
#define MHAI_RENDER_LAYOUT_H

#include "canvas.h"
#include "number.h"
#include "text.h"

enum { MHAI_LAYOUT_TITLE_LINES = 3, MHAI_LAYOUT_NOTE_LINES = 8 };

/* Sizes of faces and line heights, in units of the drawing. */
enum {
    MHAI_LAYOUT_MARGIN = 16,
    MHAI_LAYOUT_LABEL_GAP = 5, /* between a map and its labels */
    MHAI_LAYOUT_TITLE = 16,
    MHAI_LAYOUT_TITLE_LINE = 22,
    MHAI_LAYOUT_SUBTITLE = 12,
    MHAI_LAYOUT_SUBTITLE_LINE = 16,
    MHAI_LAYOUT_SMALL = 11, /* axis titles, legend, footnotes */
    MHAI_LAYOUT_SMALL_LINE = 15,
    MHAI_LAYOUT_NAME = 12, /* text size of a panel's name */
    MHAI_LAYOUT_NOTE = 10,
    MHAI_LAYOUT_BAR = 200,     /* length of the colour bar */
    MHAI_LAYOUT_BAR_LEFT = 14, /* room before it: an arrow, or half of the first number */
    MHAI_LAYOUT_BAR_RIGHT = 30,
    MHAI_LAYOUT_SWATCH = 20, /* including the space before its word */
    MHAI_LAYOUT_SWATCH_GAP = 16
};

/* The words beside the swatches of the legend. */
extern const char mhai_layout_masked[], mhai_layout_bad[];

/* The labels of one axis. */
typedef struct mhai_axis {
    int64_t count;          /* rows or cols of the figure */
    const char *const *raw; /* or NULL */
    int64_t pool, drawn;    /* cells reduced to one; cells drawn */
    double cell;            /* size of a drawn cell */
    int64_t step;           /* every step-th label is drawn */
    double font, most_em;   /* size; labels are truncated to most_em */
    double widest;          /* width of the widest label as drawn */
    double angle;           /* 0, -60 or -90 */
    double depth;           /* space of the labels beside the map */
    mhai_text title;
} mhai_axis;

typedef struct mhai_place {
    int64_t grid_row, grid_col;
} mhai_place;

/* The plan shared by pictures and terminals: panels in a grid, group by group. */
typedef struct mhai_grid {
    mha_figure figure; /* checked */
    mhai_ranges ranges;
    mhai_palette palette;
    mhai_theme theme;
    double value_greatest; /* determines the digits of all values */
    bool named, notes;     /* whether panels have a line for a name, and for a note */
    int64_t in_group;      /* panels of the largest group, at least 1 */
    int64_t columns, rows;
    mhai_place *places;  /* [panel_count] */
    int64_t *row_groups; /* [rows] */
} mhai_grid;

/* Compute everything except columns, rows, places and row_groups, which mhai_grid_place() computes.
 * The grid must be freed even after a failure. */
mha_status mhai_grid_open(const mha_figure *figure, mhai_grid *grid);
mha_status mhai_grid_place(mhai_grid *grid, int64_t columns);
void mhai_grid_free(mhai_grid *grid);

/* The least and the greatest value, as printed in cells. */
void mhai_grid_values(const mhai_grid *grid, char text[2][MHAI_NUMBER_BYTES]);

static inline int64_t mhai_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t mhai_most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t mhai_ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

struct mhai_layout {
    mhai_grid grid;
    mhai_axis row, col;
    double width, height, left, map_width, map_height, step_x, step_y, grid_top, legend_top,
        foot_top;
    double head; /* room above a map for its name and note */
    bool values, image, tiny, tooltips, named_groups;
    double value_font;
    mhai_text title[MHAI_LAYOUT_TITLE_LINES], subtitle[MHAI_LAYOUT_TITLE_LINES];
    mhai_text value_name; /* truncated */
    mhai_text foot[MHAI_LAYOUT_NOTE_LINES], remarks[MHAI_LAYOUT_NOTE_LINES];
    int title_lines, subtitle_lines, foot_lines, remark_lines;
};

/* The layout must be freed even after a failure. */
mha_status mhai_layout_make(const mha_figure *figure, mhai_layout *layout);
void mhai_layout_free(mhai_layout *layout);

/* The text of label i of an axis, in visible form and truncated. */
void mhai_layout_label(const mhai_axis *axis, int64_t i, mhai_text *label);

/* Draw a figure. Memory is needed for the cells of one panel. */
mha_status mhai_draw(const mhai_layout *layout, const mhai_canvas *canvas);

/* Draw only the cells of the first panel, as one image that fills place (x, y, width, height). */
mha_status mhai_draw_cells(const mhai_layout *layout, const mhai_canvas *canvas,
                           const double place[4]);

const char *mhai_layout_title(const mhai_layout *layout);
mhai_sheet mhai_layout_sheet(const mhai_layout *layout, mhai_picture picture);

/* Write SVG for use within an HTML page. */
mha_status mhai_svg_inside(const mhai_layout *layout, const mha_sink *sink);

/* Notes on how the numbers were drawn, as one line of prose: reduction, omitted labels, clipped and
 * non-finite values. The text may be empty. */
typedef struct mhai_remarks {
    char text[1024];
} mhai_remarks;
typedef struct mhai_remarks_about {
    int64_t pool_rows, pool_cols, row_step, col_step;
    const char *unit; /* "px" or "block" */
    const char *bad;  /* the appearance of a cell that is not finite */
    bool no_values;   /* values were requested but do not fit */
} mhai_remarks_about;
void mhai_remarks_make(const mha_figure *figure, const mhai_ranges *ranges,
                       const mhai_remarks_about *about, mhai_remarks *remarks);

#endif
