/* multihead: figures and reports from attention maps (libmultihead-show). It selects heads and tokens,
 * reports how much weight the hidden tokens hold, and finds the strongest link of each head, also as a
 * sentence. The renderer (render.h) knows nothing of attention, and the code that computes maps knows
 * nothing of figures; this library connects them.
 *
 * Letters: L layers, H heads of a layer, T rows (queries), S columns (keys).
 *
 * Example, given const mha_maps *maps, const mha_sink *sink:
 *
 *   mha_show show;
 *   memset(&show, 0, sizeof show);
 *   mha_status status = mha_show_make(maps, NULL, &show);
 *   if (!status) status = mha_render_html(&show.page, &show.report, sink);
 *   mha_show_free(&show);
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_SHOW_H
#define MULTIHEAD_SHOW_H

#include <multihead/render.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The tokens of an axis. */
typedef struct mha_axis {
    int64_t count;
    const char *const *labels; /* [count] */
    const char *const *shown;  /* [count] labels for figures; NULL, or NULL elements: the label */
    const uint8_t *special;    /* [count] 1: a special token, not in the text; NULL: none */
    const int8_t *sequence;    /* [count] 1: a token of the second text; NULL: one text */
} mha_axis;

/* mha_maps.flags */
enum {
    MHA_MAPS_CAUSAL = 1 << 0,  /* a row sees no later column */
    MHA_MAPS_SAME = 1 << 1,    /* rows and columns are the same tokens */
    MHA_MAPS_CONTRAST = 1 << 2 /* weights in the first text minus those in the second */
};

typedef struct mha_maps {
    uint32_t struct_size;
    uint32_t flags;
    const char *name;    /* the title: the model or the file */
    const char *kind;    /* the architecture; NULL: no model, and cells may hold any values */
    const char *text[2]; /* [text_bytes] UTF-8; NULL: none */
    size_t text_bytes[2];
    int64_t layers, heads; /* L and H of the model or array */
    const uint8_t *on;     /* [L,H] heads to show; NULL: all */
    mha_axis rows, cols;   /* T, S */
    int64_t cell;          /* a cell is the maximum over cell x cell tokens; 0 or 1: one token */
    mha_axis tokens;       /* the tokens of the text, if cell > 1 */
    float *const *layer;   /* [L] each [H,T,S]; NULL for a layer without a shown head */
    float *const *twin;    /* [L] each [H,T,S] or NULL: ||alpha f(x)||; NULL: none */
    float *const *queries; /* [L] each [H,T,channels] or NULL; NULL: none */
    float *const *keys;    /* [L] each [H,S,channels] or NULL */
    int64_t channels;
    const double *score_scales; /* [L] scale of q . k before the softmax; 0: 1 / sqrt(channels) */
} mha_maps;

/* Text and measures to show with a head. */
typedef struct mha_show_role {
    const char *badge;           /* a short name of the role; NULL: none */
    const char *does, *rests;    /* paragraphs: what the head does, where it rests; NULL: none */
    const mha_measure *measures; /* [measure_count] */
    int64_t measure_count;
} mha_show_role;

/* mha_show_options.flags */
enum {
    MHA_SHOW_DARK = 1 << 0,
    MHA_SHOW_RENORMALISE = 1 << 1, /* if tokens are hidden, rescale each row to sum to 1 */
    MHA_SHOW_SCALE = 1 << 2, /* use scale; otherwise linear, or square root above 64 columns */
    MHA_SHOW_FIRST_PANEL =
        1 << 3,                  /* open the report on first_panel; otherwise the strongest link */
    MHA_SHOW_FIRST_CELL = 1 << 4 /* select the tokens first_row, first_col in that panel */
};

typedef struct mha_show_options {
    uint32_t struct_size;
    uint32_t flags;
    mha_cmap cmap; /* for a contrast, viridis is replaced by a diverging map */
    mha_scale scale;
    mha_values values;
    mha_range range;
    double lo, hi;
    const char *const *hide; /* [hide_count] lists of tokens to hide: "special,the,##ing" */
    int64_t hide_count;
    int64_t first_panel, first_row, first_col;
    const char *remark;         /* begins the footnote; NULL: none */
    const mha_show_role *roles; /* [L,H]; NULL: none */
} mha_show_options;

/* A figure and its report. */
typedef struct mha_show {
    mha_figure figure;
    mha_figure page; /* the figure for the report, which shows the whole text */
    mha_report report;
    const mha_link
        *links; /* [panels] the strongest link of each; for a contrast, the largest change */
    void *memory;
} mha_show;

/**
 * Make the figure of the selected heads, and its report. The caller may extend copies of both. options
 * may be NULL.
 *
 * Memory   the caller frees *show with mha_show_free(); until then it borrows maps and everything options
 *          point to. Allocated with malloc(). After an error there is nothing to free.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (struct_size; all tokens are hidden; first_panel);
 *          MHA_ERR_UNSUPPORTED (flags); MHA_ERR_NOMEM; those of mha_figure_links().
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_show_make(const mha_maps *maps,
                                               const mha_show_options *options, mha_show *show);

/** The block size (mha_maps.cell) for maps of so many heads and tokens: 1 if the full maps take at most
 * 256 MB, otherwise the smallest blocks that a report of 10 MB can hold. Memory none. Errors none. Threads any. Since 0.1 */
MHA_API int64_t mha_show_cell(int64_t heads, int64_t tokens);

/** Free a show and clear it; NULL and a zeroed struct are allowed. Memory frees all. Errors none. Threads any.
 * Since 0.1 */
MHA_API void mha_show_free(mha_show *show);

/** Write the texts of maps in one line, each cut to `most` characters. Returns false if there are none.
 * Memory writes at most size bytes of text, including the NUL. Errors none. Threads any. Since 0.1 */
MHA_API bool mha_show_texts(const mha_maps *maps, int most, char *text, size_t size);

/** Find the next name in a list of tokens to hide that matches no token of the maps, probably a typo;
 * *bytes is its length. Returns NULL if there is none. Memory points into hide. Errors none. Threads any. Since 0.1 */
MHA_API const char *mha_show_idle(const mha_maps *maps, const char *hide, size_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
