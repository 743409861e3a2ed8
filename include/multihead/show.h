/* multihead: maps of a model as figures and reports (libmultihead-show): which heads, which tokens, what is
 * hidden and what that hides, what each head says most, in words too. What draws a figure knows nothing of
 * attention (render.h); what makes maps knows nothing of pictures. This is between them.
 *
 *   mha_show show;
 *   mha_status status = mha_show_make(&maps, NULL, &show);
 *   if (!status) status = mha_render_html(&show.page, &show.report, &sink);
 *   mha_show_free(&show);
 *
 * Letters: L layers, H heads of a layer, T rows (queries), S columns (keys).
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
    const char *const
        *shown; /* [count] what pictures write instead; NULL, as each may be: the label */
    const uint8_t *special; /* [count] 1: a token that the text does not have; NULL: none */
    const int8_t *sequence; /* [count] 1: of the second text; NULL: none */
} mha_axis;

/* mha_maps.flags */
enum {
    MHA_MAPS_CAUSAL = 1 << 0,  /* a row cannot see the columns behind it */
    MHA_MAPS_SAME = 1 << 1,    /* rows and columns are the same tokens */
    MHA_MAPS_CONTRAST = 1 << 2 /* weights in the first text less those in the second */
};

typedef struct mha_maps {
    uint32_t struct_size;
    uint32_t flags;
    const char *name;    /* of the model or the file: the title */
    const char *kind;    /* of the model; NULL where there is none: cells are any values */
    const char *text[2]; /* [text_bytes] UTF-8; NULL: none */
    size_t text_bytes[2];
    int64_t layers, heads; /* L, H of the source */
    const uint8_t *on;     /* [L,H] heads to show; NULL: all */
    mha_axis rows, cols;   /* T, S */
    int64_t cell;          /* a cell is the largest weight of cell x cell tokens; 0, 1: one token */
    mha_axis tokens;       /* those of the text, where cell > 1 */
    float *const *layer;   /* [L] each [H,T,S]; NULL where no head is on */
    float *const *twin;    /* [L] each [H,T,S] or NULL: ||alpha f(x)||; NULL: none */
    float *const *queries; /* [L] each [H,T,channels] or NULL; NULL: none */
    float *const *keys;    /* [L] each [H,S,channels] or NULL */
    int64_t channels;
    const double *score_scales; /* [L] of q . k before softmax; 0: 1 / sqrt(channels) */
} mha_maps;

/* What is known of a head. */
typedef struct mha_show_role {
    const char *badge, *does,
        *rests;                  /* a name; paragraphs: what it does, where it rests. NULL: none */
    const mha_measure *measures; /* [measure_count] */
    int64_t measure_count;
} mha_show_role;

/* mha_show_options.flags */
enum {
    MHA_SHOW_DARK = 1 << 0,
    MHA_SHOW_RENORMALISE = 1 << 1, /* where tokens are hidden, rows sum to 1 again */
    MHA_SHOW_SCALE = 1 << 2, /* scale as given; else linear, of more than 64 columns the root */
    MHA_SHOW_FIRST_PANEL = 1 << 3, /* a report opens on first_panel; else on the strongest link */
    MHA_SHOW_FIRST_CELL = 1 << 4   /* and there on the tokens first_row, first_col */
};

typedef struct mha_show_options {
    uint32_t struct_size;
    uint32_t flags;
    mha_cmap cmap; /* viridis of a contrast is diverging */
    mha_scale scale;
    mha_values values;
    mha_range range;
    double lo, hi;
    const char *const *hide; /* [hide_count] lists "special,the,##ing" of tokens to leave out */
    int64_t hide_count;
    int64_t first_panel, first_row, first_col;
    const char *remark;         /* for the footnote; NULL: none */
    const mha_show_role *roles; /* [L,H]; NULL: none */
} mha_show_options;

/* A figure and its report. */
typedef struct mha_show {
    mha_figure figure;
    mha_figure page; /* of a report, which has the text itself, and more of it */
    mha_report report;
    const mha_link *links; /* [panels] what each says most; of a contrast the largest change */
    void *memory;
} mha_show;

/**
 * Make the figure of the heads that are on, and what a report says beside it; the caller may add to
 * copies of both. options may be NULL.
 *
 * Memory   borrows maps and what options point to until mha_show_free(), which the caller calls; from the
 *          C library. Nothing to free after an error.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (struct_size, all tokens are hidden, first_panel);
 *          MHA_ERR_UNSUPPORTED (flags); MHA_ERR_NOMEM; those of mha_figure_links().
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_show_make(const mha_maps *maps,
                                               const mha_show_options *options, mha_show *show);

/** Tokens of a block in each direction, for maps of so many heads: 1 where maps can be kept whole, beyond
 * 256 MB as many as a report of 10 MB holds. Memory none. Errors none. Threads any. Since 0.1 */
MHA_API int64_t mha_show_cell(int64_t heads, int64_t tokens);

/** Free what was made and clear it; all zero and NULL are fine. Memory frees. Errors none. Threads any.
 * Since 0.1 */
MHA_API void mha_show_free(mha_show *show);

/** The texts of maps in one line, of each at most `most` characters; false if there are none. Memory
 * writes size bytes of text at most, with a NUL. Errors none. Threads any. Since 0.1 */
MHA_API bool mha_show_texts(const mha_maps *maps, int most, char *text, size_t size);

/** The next name in a list of tokens to hide that no token of the maps has, of so many bytes: most likely
 * it is misspelt; NULL: there is none. Memory points into hide. Errors none. Threads any. Since 0.1 */
MHA_API const char *mha_show_idle(const mha_maps *maps, const char *hide, size_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
