/* multihead: pictures of matrices (libmultihead-render, needs cairo, FreeType and libpng).
 *
 * A figure is a list of panels (heat maps of one size) with labels on both axes and one colour bar.
 * The renderer does not interpret the numbers: maps may hold attention weights or any other values.
 *
 * Texts are UTF-8 and end with NUL; invalid bytes are drawn as U+FFFD, spaces in labels as a middle
 * dot, control characters as their visible symbols. The same figure always gives the same bytes.
 *
 * Example, given const float *weights, const char *const *tokens, int64_t n:
 *
 *   mha_panel panel;
 *   memset(&panel, 0, sizeof panel);
 *   panel.values = weights, panel.name = "L0H3"; // [n, n]
 *   mha_figure figure = MHA_INIT(mha_figure);
 *   figure.panel_size = sizeof panel, figure.panels = &panel, figure.panel_count = 1;
 *   figure.rows = figure.cols = n, figure.row_labels = figure.col_labels = tokens;
 *   mha_file *file = NULL;
 *   mha_status status = mha_file_create("maps.svg", &file);
 *   if (!status) status = mha_render_svg(&figure, mha_file_sink(file));
 *   status = mha_file_finish(file, status); // on failure, no file is left behind
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_RENDER_H
#define MULTIHEAD_RENDER_H

#include <multihead/base.h>
#include <multihead/json.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Colours --------------------------------------------------------------------------------- */

/* All colour maps: name, value, text, signed. All except the signed one are monotone in lightness:
 * dark is low and light is high, or the reverse on a light background. */
#define MHA_CMAP_LIST(X)                 \
    X(MHA_CMAP_VIRIDIS, 0, "viridis", 0) \
    X(MHA_CMAP_BLUES, 1, "blues", 0)     \
    X(MHA_CMAP_GREYS, 2, "greys", 0)     \
    X(MHA_CMAP_CIVIDIS, 3, "cividis", 0) \
    X(MHA_CMAP_MAGMA, 4, "magma", 0)     \
    X(MHA_CMAP_PLASMA, 5, "plasma", 0)   \
    X(MHA_CMAP_DIVERGING, 6, "diverging", 1)

typedef enum mha_cmap {
#define MHA_CMAP_ENUM(name, value, text, is_signed) name = value,
    MHA_CMAP_LIST(MHA_CMAP_ENUM)
#undef MHA_CMAP_ENUM
} mha_cmap;

/** "viridis", ...; "?" if unknown. Memory static. Errors none. Threads any. Since 0.1 */
MHA_API const char *mha_cmap_name(mha_cmap cmap);

/**
 * The colour at t, which is clipped to 0..1 (NaN gives 0): rgb[0..2] are sRGB bytes.
 * blues and greys run from white to dark; with dark they run from dark to light, so that low
 * values are always close to the background.
 *
 * Memory   none.   Errors  none; an unknown cmap is drawn as viridis.   Threads  any.   Since  0.1
 */
MHA_API void mha_cmap_color(mha_cmap cmap, bool dark, double t, uint8_t rgb[3]);

/* ---- Figures --------------------------------------------------------------------------------- */

/* The ends of the colour bar. The automatic ranges include 0 and every finite cell that
 * is not masked; for a signed map they are symmetric about 0. Cells are drawn in 256 steps of t. */
typedef enum mha_range {
    MHA_RANGE_SHARED = 0, /* one range over all panels of the figure */
    MHA_RANGE_PANEL = 1,  /* one per panel, with the maximum printed beside its name */
    MHA_RANGE_FIXED = 2   /* lo .. hi as given; values outside are clipped, shown by arrows */
} mha_range;

/* The scale of a colour bar: a value v in lo..hi becomes t = (f(v) - f(lo)) / (f(hi) - f(lo)) in
 * 0..1. */
#define MHA_SCALE_LIST(X)                                                           \
    X(MHA_SCALE_LINEAR, 0, "linear") /* f(v) = v */                                 \
    X(MHA_SCALE_SQRT, 1, "sqrt")     /* f(v) = sign(v) sqrt(|v|) */                 \
    X(MHA_SCALE_LOG, 2, "log")       /* f(v) = log(v); lo <= 0 becomes hi / 10^4 */ \
    X(MHA_SCALE_RANK, 3, "rank")     /* f(v) = mean rank of v among the cells of the range */

typedef enum mha_scale {
#define MHA_SCALE_ENUM(name, value, text) name = value,
    MHA_SCALE_LIST(MHA_SCALE_ENUM)
#undef MHA_SCALE_ENUM
} mha_scale;

/** "linear", ...; "?" if unknown. Memory static. Errors none. Threads any. Since 0.1 */
MHA_API const char *mha_scale_name(mha_scale scale);

typedef enum mha_values {
    MHA_VALUES_AUTO = 0, /* numbers in the cells of small figures */
    MHA_VALUES_ALWAYS = 1,
    MHA_VALUES_NEVER = 2
} mha_values;

/* One measured number of a map: reports draw it as a bar from 0 to `most`, with a tick at chance.
 * This struct does not grow. */
typedef struct mha_measure {
    const char *name; /* "on the previous token" */
    double value;     /* not finite: not measured, shown as a dash */
    double chance;    /* the chance level; 0 or not finite: none */
    double most;      /* where the bar ends; 0 or not finite: 1 */
    int64_t count;    /* number of rows, sentences, ... measured; 0: none */
    const char *note; /* what count counts, "rows", or a unit, "bits"; or NULL */
} mha_measure;

/* One heat map: values[r * row_stride + c] for r < rows, c < cols of the figure. The fields after
 * mask_stride, except mark, are for reports (HTML) only. */
typedef struct mha_panel {
    const float *values; /* NULL only if rows or cols is 0 */
    int64_t row_stride;  /* in elements; 0: cols */
    const char *name;    /* "L0H3"; NULL: its index */
    const char *note;    /* one line under the name, or NULL */
    const char *detail;  /* for reports (HTML): sentences, \n between paragraphs; or NULL */
    int64_t group;       /* 0 .. group_count-1; 0 if the figure has no groups */
    /* [rows, cols], row stride mask_stride (0: cols): nonzero for a cell without a value, which is
     * hatched, not drawn as 0. NULL: none. */
    const uint8_t *masked;
    int64_t mask_stride;
    const char *badge;           /* a short label of its kind: "previous token"; NULL: none */
    const mha_measure *measures; /* [measure_count], at most 64: shown on its card */
    int64_t measure_count;
    /* [rows, cols] of a second quantity of the same cells (a norm, a term of a sum), with the same
     * mask, drawn beside the large map with its own range; row stride twin_stride (0: cols).
     * twin_name of the report names it. NULL: none. */
    const float *twin;
    int64_t twin_stride;
    /* The vectors of the neuron view: `channels` numbers for each row and column, [rows, channels]
     * and [cols, channels] without gaps. For a weight softmax(scale q . k) these are q and k. Both
     * NULL: none. */
    const float *queries, *keys;
    int64_t channels;
    /* For pictures (SVG, PNG): [2] the row and column of a cell to mark. It is framed, and its
     * labels and the edges of its row are emphasised. NULL: none. */
    const int64_t *mark;
    double score_scale; /* the neuron view shows score_scale q . k; 0: 1 / sqrt(channels) */
} mha_panel;

typedef struct mha_figure {
    uint32_t struct_size; /* sizeof(mha_figure) */
    uint32_t panel_size;  /* sizeof(mha_panel): the distance between two panels in memory */
    const char *title, *subtitle;
    const char *footnote;            /* e.g. what was hidden; NULL: none */
    const char *row_axis, *col_axis; /* axis titles; NULL: "row", "column" */
    int64_t rows, cols;              /* of every panel; with 0, "empty" is drawn */
    const char *const *row_labels;   /* [rows] or NULL; a NULL entry is labelled by its index */
    const char *const *col_labels;   /* [cols] or NULL */
    const mha_panel *panels;         /* [panel_count], in any order of groups */
    int64_t panel_count;
    const char *const *group_names; /* [group_count] or NULL: one grid row (or more) per group */
    int64_t group_count;            /* 0: one group, without a name */
    int64_t columns;                /* panels per grid row; 0: chosen automatically */
    mha_cmap cmap;
    mha_range range;
    double lo, hi; /* for MHA_RANGE_FIXED, lo < hi and finite */
    mha_scale scale;
    bool dark; /* dark background; light otherwise */
    mha_values print_values;
    double pixel_ratio;    /* PNG pixels per unit of the drawing, 1 .. 8; 0: 2, or 1 if huge */
    const char *font_file; /* PNG, PDF: a font file; NULL: $MHA_FONT, then DejaVu Sans and others */
    const char *value_name; /* the quantity in the cells, written at the colour bar: "weight"; NULL:
                               none */
    /* [rows zoom, cols zoom, 3] an image under the cells of every panel, which then are tints of 55 %
     * (SVG, PNG, PDF); NULL: none */
    const uint8_t *backdrop;
    int64_t backdrop_zoom;
} mha_figure;

/* The ends of a colour bar, and whether any value lies beyond them. */
typedef struct mha_extent {
    double lo, hi;          /* lo < hi always */
    double least, greatest; /* of the finite cells that are not masked; 0, 0 if there are none */
    bool clipped_lo, clipped_hi;
    int64_t not_finite; /* cells that are NaN or infinite and not masked */
} mha_extent;

/**
 * The range of a panel: the shared one for MHA_RANGE_SHARED. panel -1 selects the whole figure.
 *
 * Memory   none.   Errors  as mha_render_svg(), and MHA_ERR_ARGUMENT (no such panel).
 * Threads  any.    Since   0.1
 */
MHA_API MHA_NODISCARD mha_status mha_figure_extent(const mha_figure *figure, int64_t panel,
                                                   mha_extent *extent);

/* ---- Writers --------------------------------------------------------------------------------- */

/**
 * Draw a figure as SVG 1.1, without scripts, font files or network access. Panels of more than
 * 10,000 cells, or figures of more than 200,000, hold one embedded image per panel instead of
 * rectangles. Maps that do not fit (1024 cells per side for one map, 128 in a grid of nine or more
 * columns) are reduced by the maximum of blocks, or for a signed map by the largest magnitude, with
 * a note under the figure. Cells of figures of at most 5,000 cells have tooltips.
 *
 * Memory   everything is borrowed for the call.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (sizes not set, a group, an enum, lo >= hi, a log scale
 *          over negative values, a count of measures, a mark outside the panel), MHA_ERR_SHAPE (negative sizes, strides
 *          shorter than a row), MHA_ERR_SIZE (more than 2^31 cells or 2^16 panels), MHA_ERR_NOMEM,
 *          or the status that the sink returned.
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_render_svg(const mha_figure *figure, const mha_sink *sink);

/**
 * The same picture as PNG, 8-bit RGB. Characters that the font lacks are drawn as its missing-glyph
 * box. There is no shaping (Arabic, Indic) and no fallback font.
 *
 * Memory   as mha_render_svg(); 4 bytes per pixel during the call.
 * Errors   as mha_render_svg(); MHA_ERR_FILE (no font found or readable; the detail names the
 *          package to install); MHA_ERR_SIZE (more than 2^26 pixels, or more than 32767 on a side:
 *          draw fewer panels).
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_render_png(const mha_figure *figure, const mha_sink *sink);

/**
 * The same picture as a one-page PDF, 3/4 point per unit. Text is selectable, in an embedded subset of
 * the font; cells are vector shapes if they are in SVG. The file holds no date: with the same
 * versions of cairo and FreeType, the same figure gives the same bytes.
 *
 * Memory   as mha_render_svg(); about 1 KB per shape during the call. cairo caches the most
 *          recently used fonts, at most about 15 MB.
 * Errors   as mha_render_png(), with MHA_ERR_SIZE for a side above 14400 points, the limit of PDF
 *          readers.
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_render_pdf(const mha_figure *figure, const mha_sink *sink);

/* ---- Diagrams: boxes, arrows, texts, grids and figures on cards ------------------------------ */

/* Colours by purpose; each has a soft tone for areas, a strong one for lines and a dark one for
 * text, on light and on dark backgrounds. */
typedef enum mha_ink {
    MHA_INK_TEXT = 0,
    MHA_INK_MUTED = 1,
    MHA_INK_GREY = 2,
    MHA_INK_BLUE = 3,
    MHA_INK_ORANGE = 4,
    MHA_INK_GREEN = 5,
    MHA_INK_PURPLE = 6,
    MHA_INK_ROSE = 7
} mha_ink;

typedef enum mha_mark_kind {
    MHA_MARK_BOX = 0,   /* a rounded rectangle with text and, below it, detail; \n breaks lines */
    MHA_MARK_LINE = 1,  /* from x, y to x + width, y + height */
    MHA_MARK_TEXT = 2,  /* text from the baseline x, y on, broken at width unless that is 0 */
    MHA_MARK_CELLS = 3, /* a grid of rows x cols colours that fills the rectangle */
    MHA_MARK_FIGURE = 4 /* a figure, as large as fits into the rectangle */
} mha_mark_kind;

/* mha_mark.flags */
enum {
    MHA_MARK_ARROW = 1 << 0,  /* a line with a head at its end */
    MHA_MARK_ACROSS = 1 << 1, /* a curved line that leaves and arrives horizontally */
    MHA_MARK_DOWN = 1 << 2,   /* a curved line that leaves and arrives vertically */
    MHA_MARK_DASHED = 1 << 3,
    MHA_MARK_BOLD = 1 << 4,
    MHA_MARK_MONO = 1 << 5,   /* a fixed-width font */
    MHA_MARK_MIDDLE = 1 << 6, /* x is the middle of the text */
    MHA_MARK_END = 1 << 7,    /* x is the end of the text; not with MHA_MARK_MIDDLE */
    MHA_MARK_FULL = 1 << 8,   /* a box filled with its strong tone */
    MHA_MARK_BARE = 1 << 9    /* of a figure only the cells of its first map, as one image */
};

/* A byte of a grid: 0 for no cell, else an ink, drawn soft with MHA_CELL_SOFT. */
enum { MHA_CELL_SOFT = 128 };

typedef struct mha_mark {
    mha_mark_kind kind;
    mha_ink ink;
    uint32_t flags;
    double x, y, width, height; /* in units of the drawing, from the panel's top left corner */
    double size;                /* of the text; 0: 13 */
    const char *text, *detail;
    int64_t rows, cols;
    const uint8_t *cells; /* [rows, cols] */
    const mha_figure *figure;
} mha_mark;

/* A card: title and caption above a drawing of width x height. */
typedef struct mha_diagram_panel {
    const char *title, *caption; /* NULL: none */
    double width, height;
    const mha_mark *marks; /* [mark_count], drawn in this order */
    int64_t mark_count;
} mha_diagram_panel;

typedef struct mha_diagram {
    uint32_t struct_size;            /* sizeof(mha_diagram) */
    uint32_t panel_size;             /* sizeof(mha_diagram_panel) */
    uint32_t mark_size;              /* sizeof(mha_mark) */
    bool dark;                       /* dark background; figures follow */
    double width;                    /* 0: 1200; grows to hold the widest panel */
    const char *title, *subtitle;    /* NULL: none */
    const char *footnote;            /* likewise */
    const mha_diagram_panel *panels; /* [panel_count], in rows from left to right */
    int64_t panel_count;
    bool pdf; /* write PDF, as mha_render_pdf() does; otherwise SVG */
} mha_diagram;

/**
 * Draw a diagram as SVG 1.1, without scripts, font files or network access, or as PDF. Texts too wide for
 * their box shrink, then are truncated. The same diagram always gives the same bytes.
 *
 * Memory   everything is borrowed for the call.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (sizes not set, an unknown kind or ink, a number that is
 *          not finite or beyond 10^6, a text with both MHA_MARK_MIDDLE and MHA_MARK_END);
 *          MHA_ERR_SHAPE (negative counts); MHA_ERR_SIZE (more than 2^10 panels, 2^16 marks or a
 *          grid of 2^20 cells); as mha_render_svg() for figures; MHA_ERR_UNSUPPORTED (fields of a
 *          newer version); or the status that the sink returned.
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_render_diagram(const mha_diagram *diagram,
                                                    const mha_sink *sink);

/* A line of a report's header: "model", "all-MiniLM-L6-v2". */
typedef struct mha_fact {
    const char *name, *value;
} mha_fact;

/* A line of a chart; points that are not finite, or beyond 10^100, are gaps. This struct does not
 * grow. */
typedef struct mha_series {
    const char *name;
    const double *x, *y; /* [count], x ascending */
    int64_t count;
    bool baseline; /* the reference of the others: drawn dashed and grey */
} mha_series;

/* A line chart, such as the loss during training, or quality against heads kept. */
typedef struct mha_curve {
    const char *title, *caption, *x_axis, *y_axis; /* NULL: none */
    const mha_series *series;                      /* [series_count] */
    int64_t series_count;
    bool timeline; /* x is the same as mha_frame.at: a line follows the playback */
} mha_curve;

/* A chart as a picture. */
typedef struct mha_chart {
    uint32_t struct_size;   /* sizeof(mha_chart) */
    uint32_t curve_size;    /* sizeof(mha_curve) */
    const mha_curve *curve; /* its timeline is ignored */
    double width;           /* of the whole; 0: 640 */
    double height;          /* of the plot; legend, title and caption add to it; 0: 280 */
    bool dark;
    bool x_falls; /* x decreases from left to right, like the number of remaining heads */
    bool pdf;     /* write PDF, as mha_render_pdf() does; otherwise SVG */
} mha_chart;

/**
 * Draw a line chart as SVG 1.1, without scripts, font files or network access, or as PDF. It has axes
 * with ticks at round numbers, lines distinguished by colour and dashes, a legend, title and caption. A
 * series without a name is not in the legend and has the style of the previous one. The y axis begins
 * at 0 if some values are close to 0. The same chart always gives the same bytes.
 *
 * Memory   everything is borrowed for the call.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (curve_size is not set, a width outside 160 .. 10^4 or a
 *          height outside 80 .. 10^4); MHA_ERR_SIZE (more than 64 series or 10^5 points);
 *          MHA_ERR_UNSUPPORTED (fields of a newer version); or the status that the sink returned.
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_render_chart(const mha_chart *chart, const mha_sink *sink);

/* All maps at one moment of training. This struct does not grow. */
typedef struct mha_frame {
    const char *label; /* "step 100" */
    double at;         /* 100; ascending */
    /* [panel_count] of [rows, cols] without gaps, masked as the panels are; NULL: as the figure */
    const float *const *maps;
} mha_frame;

/* A column of the table of scores: one number per panel. This struct does not grow. */
typedef struct mha_column {
    const char *name, *about; /* about: what it means, a sentence; NULL: none */
    const double *values;     /* [panel_count]; not finite: a dash, sorted last */
    bool ascending;           /* the first click on its header puts the smallest first */
} mha_column;

/* The views of a report; a reader switches between those that it contains.
 *
 *   map      one map large, the others small beside it
 *   lines    rows and columns as two columns of tokens with a line for each cell, its opacity the
 *            value; several maps of a group at once, in colours
 *   model    every map of the figure as a small drawing of lines
 *   neurons  for one row, against every column: q, k, their product channel by channel, its sum, and
 *            the cell. Panels with queries and keys only */
typedef enum mha_view {
    MHA_VIEW_MAP = 0,
    MHA_VIEW_LINES = 1,
    MHA_VIEW_MODEL = 2,
    MHA_VIEW_NEURONS = 3
} mha_view;

/* The options that each row chose from a list: the experts of a token in a layer. This struct does not
 * grow. */
typedef struct mha_choice {
    const char *name;       /* of the list: "layer 3" */
    int64_t count, used;    /* options, and how many each row chose: 1 .. count */
    const int32_t *numbers; /* [rows,used] numbers of options, 0 .. count - 1 */
    const float *weights;   /* [rows,used] */
} mha_choice;

/* Contents of a report besides its figure. */
typedef struct mha_report {
    uint32_t struct_size;
    const char *text;      /* the input as readable text; NULL: none */
    const mha_fact *facts; /* [fact_count] */
    int64_t fact_count;
    const char *producer; /* "multihead 0.1.0", at the foot; NULL: none */
    bool same_labels;     /* rows and columns are the same tokens: one strip of tokens */
    int64_t most_bytes;   /* maximum size of the file, see below; 0: 10,000,000 */
    /* [special_count] labels that one click hides in rows and columns: "[CLS]"; NULL: none. A
     * reader can also hide any other label. The page states the hidden share. */
    const char *const *special;
    int64_t special_count;
    /* The map shown large at first; -1: the map of the strongest link (mha_figure_links()). */
    int64_t first_panel;
    uint32_t curve_size;     /* sizeof(mha_curve), needed with curves */
    const mha_curve *curves; /* [curve_count], at most 64, with at most 10^5 points in all */
    int64_t curve_count;
    const mha_column *columns; /* [column_count], at most 64: a table of names, badges and these */
    int64_t column_count;
    const mha_frame *frames; /* [frame_count], in order: a player above the maps; NULL: none */
    int64_t frame_count;
    const char *twin_name;  /* "norm-based"; NULL: "twin" */
    const char *twin_value; /* the quantity in its cells, as value_name of the figure; NULL:
                               "value" */
    /* A figure whose cells are already the maxima of cell_tokens x cell_tokens tokens: tokens
     * has all labels of both axes, and rows = cols = token_count / cell_tokens, rounded up. Without
     * tokens the labels of the figure are those of its blocks. 0 or 1: a cell is one token. */
    int64_t cell_tokens;
    const char *const *tokens; /* [token_count] or NULL */
    int64_t token_count;
    const char *guide; /* one or two sentences above the small maps on how to read them; NULL:
                          none */
    /* The cell selected at first; if false, the link of first_panel (mha_figure_links()). */
    bool first_cell;
    int64_t first_row, first_col;
    mha_view view;  /* the view shown at first */
    bool only_view; /* hide the other views and their controls until a click shows them */
    const int64_t
        *line_panels; /* [line_panel_count] panels of first_panel's group whose lines are drawn at
                         first; NULL: first_panel */
    int64_t line_panel_count;
    /* Labels from this index on are a second text (rows or columns; 0: one text): lines can be
     * limited to those within or between the two. */
    int64_t second_row, second_col;
    const mha_choice
        *choices; /* [choice_count] shown with the selected row; at most 10^6 numbers in
                                  all. Only if a cell is one token */
    int64_t choice_count;
    const char *choice_title; /* "Experts"; NULL: "Choices" */
    /* [track_rows,cols] a picture under the columns of the large map, from the top, 0 (dark) to 255: the
     * spectrogram of columns that are times. At most 1024 rows; NULL: none */
    const uint8_t *track;
    int64_t track_rows;
    const char *track_name; /* "log-mel spectrogram"; NULL: none */
} mha_report;

/* The most distinctive cell of a map. This struct does not grow. */
typedef struct mha_link {
    int64_t row, col; /* -1: all cells of the map are masked or not finite */
    double value;
    double mean;  /* mean size of this cell over all maps of the figure */
    double score; /* size ln(size / mean), its term of the divergence from the mean; 0 if size <
                     mean */
    bool content; /* between two different content words more than two tokens apart */
} mha_link;

/**
 * The most distinctive link of each map of a figure, which reports and cards show first.
 *
 *   report     gives the special labels, and whether rows and columns are the same tokens; or NULL
 *   links      [panel_count] out
 *   strongest  out: the map whose link has the greatest score; 0 if there is no map
 *
 * The link of a map is the cell with the greatest score, then the greatest size, in the first class
 * that has one: two different content words more than two tokens apart; two words; two tokens that
 * are not special; any cell. A later class except the last is preferred if its link is four times
 * as large. English articles, prepositions, conjunctions, auxiliaries and negations are not content
 * words; pronouns and all words of other languages are. With same_labels, the diagonal and the
 * first column of a causal map are in the last class only. `strongest` prefers maps with `content`.
 *
 * Memory   rows * cols doubles for the call.
 * Errors   as mha_render_html(), and MHA_ERR_NOMEM.
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_figure_links(const mha_figure *figure,
                                                  const mha_report *report, mha_link *links,
                                                  int64_t *strongest);

/**
 * Write one HTML file with an interactive figure. It uses no network and no other file, and is
 * readable without scripts.
 *
 *   report  NULL: the figure alone
 *
 * Values are exact if the file then stays within most_bytes; otherwise they have 16 or 8 bits, and
 * if needed are also reduced by the maximum of blocks. The page states the precision. Twins are
 * treated like maps. Frames take at most half of most_bytes, in 8 bits; if they do not fit, every
 * n-th frame and the last are kept, at least 8, and the page reports it. Queries and keys are exact
 * if they take at most a quarter of most_bytes; otherwise they have 16 or 8 bits, as the page
 * states. If even those take more, the call fails with MHA_ERR_SIZE: draw fewer panels.
 *
 * The fragment of the page's address holds the state of the view (#view=lines&head=L3H7&cell=10,2),
 * unless only_view is set: a reader can share or keep it. Invalid parts are ignored. Page and texts
 * are about 220 KB and are always written, however small most_bytes is.
 *
 * Memory   as mha_render_svg().
 * Errors   as mha_render_svg(), and for report: MHA_ERR_ARGUMENT (struct_size or curve_size not
 *          set, a negative count, no such first_panel, cell, panel of lines, second text or view, a
 *          panel's score_scale that is not finite, MHA_VIEW_NEURONS where first_panel has no queries),
 *          MHA_ERR_NULL (a list with a count but no pointer), MHA_ERR_SIZE (more curves, columns or
 *          points than stated above, more than 10^4 frames, 2^16 channels), MHA_ERR_SHAPE
 *          (token_count does not fit the figure), MHA_ERR_UNSUPPORTED (fields of a newer version).
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_render_html(const mha_figure *figure, const mha_report *report,
                                                 const mha_sink *sink);

/* A page of an inset. */
typedef struct mha_inset_page {
    const char *name; /* on its tab; NULL: its number */
    const mha_figure *figure;
    const mha_report *report; /* NULL: the figure alone */
} mha_inset_page;

/* Reports inside another page, such as the output of a notebook's cell. */
typedef struct mha_inset {
    uint32_t struct_size;
    uint32_t page_size;          /* sizeof(mha_inset_page) */
    const mha_inset_page *pages; /* [page_count], at most 16; if two or more, each has a tab */
    int64_t page_count;
    int64_t width,
        height;      /* in CSS pixels, at most 10^5; 0: the full width, and a height that fits the
                        contents, at most 760 */
    bool whole_file; /* an HTML file around it */
} mha_inset;

/**
 * One <iframe> element that holds all of its contents (srcdoc), each page as mha_render_html()
 * writes it. It uses no network and no other file, and its styles and scripts do not affect the
 * surrounding page. Its sandbox allows only running scripts and saving files. Maps of different
 * sizes, such as those of an encoder, of its decoder and of cross-attention, are pages with a tab
 * each.
 *
 *   mha_report report = {..., .view = MHA_VIEW_LINES, .only_view = true};
 *   mha_inset_page page = {.figure = &figure, .report = &report};
 *   mha_inset inset = {sizeof inset, sizeof page, &page, 1};
 *   mha_status status = mha_render_inset(&inset, mha_file_sink(file));
 *
 * Memory   as mha_render_svg().
 * Errors   as mha_render_html(); MHA_ERR_NULL (pages, a figure); MHA_ERR_ARGUMENT (struct_size or
 *          page_size not set, no page, a negative width or height); MHA_ERR_SIZE (too many pages, or
 *          pixels); MHA_ERR_UNSUPPORTED (fields of a newer version).
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_render_inset(const mha_inset *inset, const mha_sink *sink);

typedef enum mha_terminal_color {
    MHA_TERMINAL_PLAIN = 0, /* no escape sequences; characters are the shades */
    MHA_TERMINAL_256 = 1,
    MHA_TERMINAL_TRUECOLOR = 2
} mha_terminal_color;

typedef struct mha_terminal {
    uint32_t struct_size;
    int32_t columns; /* width of the terminal, 20 or more; 0: 80 */
    mha_terminal_color color;
    bool ascii; /* nothing outside ASCII: other characters of labels become '?' */
} mha_terminal;

/**
 * Draw a figure with characters. Small panels are side by side, others one below the other; maps
 * that do not fit are reduced by the maximum of blocks, with a note. No line is wider than columns.
 *
 *   terminal  NULL: 80 columns, no colour
 *
 * Memory   as mha_render_svg().
 * Errors   as mha_render_svg(); MHA_ERR_ARGUMENT (fewer than 20 columns, an unknown colour mode).
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_render_terminal(const mha_figure *figure,
                                                     const mha_terminal *terminal,
                                                     const mha_sink *sink);

/**
 * Columns that a UTF-8 text occupies on a terminal: 0 for combining marks and control characters, 2
 * for wide (CJK, emoji), else 1; invalid bytes count as U+FFFD. Independent of the locale.
 *
 * Memory   none.   Errors  none; NULL is 0.   Threads  any.   Since  0.1
 */
MHA_API int64_t mha_text_columns(const char *text);

/**
 * The text of a piece of a tokenizer's vocabulary, as labels show it: the letters that GPT-2 and
 * its successors use for bytes become those bytes ("\xC4\xA0the" is "the", as are "_the" with the
 * mark U+2581 and "the</w>"); one leading space is dropped. Other pieces are copied. Writes at most
 * size bytes with the NUL, as snprintf() does; returns the bytes of the whole text without it,
 * which never exceed those of the piece. text may be piece.
 *
 * Memory   none.   Errors  none; NULL is "".   Threads  any.   Since  0.1
 */
MHA_API int64_t mha_text_piece(const char *piece, char *text, size_t size);

#ifdef __cplusplus
}
#endif
#endif
