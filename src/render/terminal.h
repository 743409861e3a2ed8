/* A figure as characters: its plan, and drawing. */
#ifndef MHAI_RENDER_TERMINAL_H
#define MHAI_RENDER_TERMINAL_H

#include "layout.h"
#include "pencil.h"

/* The plan, made before the first character is written. */
typedef struct mhai_plan {
    mhai_grid grid;
    int64_t width;       /* width of the terminal */
    bool plain, ascii;   /* no colour; no character outside ASCII */
    bool half;           /* two rows of cells per line */
    bool values;         /* numbers in the cells */
    bool indexed;        /* row labels begin with their index */
    bool numbered;       /* columns are labelled by index, with a key at the end */
    bool sideways;       /* column labels fit side by side */
    int64_t cell;        /* columns of the terminal that a cell takes */
    int64_t border;      /* 1 if maps are between bars (no colour) */
    int64_t label_width; /* width of the row labels */
    int64_t pool_rows, pool_cols, rows, cols; /* reduction; cells drawn */
    int64_t map_width;                        /* with its border */
    int64_t label_lines;                      /* height of the column labels */
    mhai_cells *cells;                        /* [columns]: the maps of one grid row */
} mhai_plan;

/* The plan must be freed even after a failure. */
mha_status mhai_plan_make(const mha_figure *figure, const mha_terminal *terminal, mhai_plan *plan);
void mhai_plan_free(mhai_plan *plan);

/* The label of a row or column as printed, truncated to a number of columns. */
void mhai_plan_label(const mhai_plan *plan, const char *const *labels, int64_t i, bool with_index,
                     int64_t columns, mhai_text *text);

#endif
