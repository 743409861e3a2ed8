/* multihead: figures and reports from attention maps (libmultihead-show). It selects heads and tokens,
 * reports how much weight the hidden tokens hold, and finds the strongest link of each head, also as a
 * sentence. The renderer (render.h) does not depend on attention, and the code that computes maps
 * does not depend on figures; this library connects them.
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

#include <multihead/maps.h>
#include <multihead/render.h>
#include <multihead/render_picture.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Text and measures to show with a head. */
typedef struct mha_show_role {
    const char *badge;           /* a short name of the role; NULL: none */
    const char *does, *rests;    /* paragraphs: the head's function and its attention sink; NULL:
                                 none */
    const mha_measure *measures; /* [measure_count] */
    int64_t measure_count;
} mha_show_role;

/* The roles of all heads of a study. */
typedef struct mha_cards {
    int64_t layers, heads; /* L, H */
    mha_show_role *roles;  /* [L,H]; zeros for a head that a layer does not have */
    mha_room memory;       /* for mha_cards_free() */
} mha_cards;

enum {
    MHA_CARD_MEASURES = 9 /* of each head: the distribution of its weight, and scores on random
                                tokens */
};

/**
 * Make the cards of all heads from a study's results: the first role as a badge, a sentence for each role,
 * measures with their chance levels.
 *
 * Memory   the caller frees *cards with mha_cards_free().
 * Errors   MHA_ERR_NULL, MHA_ERR_NOMEM; there is then nothing to free.
 * Threads  any while no measurement is in progress.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_cards_make(const mha_study_found *found, mha_cards *cards);

/** Free and clear cards; NULL is allowed. Memory frees all. Errors none. Threads any. Since 0.1 */
MHA_API void mha_cards_free(mha_cards *cards);

/* mha_show_options.flags */
enum {
    MHA_SHOW_DARK = 1 << 0,
    MHA_SHOW_RENORMALISE = 1 << 1, /* if tokens are hidden, rescale each row to sum to 1 */
    MHA_SHOW_SCALE = 1 << 2, /* use scale; otherwise linear, or square root above 64 columns */
    MHA_SHOW_FIRST_PANEL =
        1 << 3,                   /* open the report on first_panel; otherwise the strongest link */
    MHA_SHOW_FIRST_CELL = 1 << 4, /* select the cell first_row, first_col in that panel */
    MHA_SHOW_MEAN = 1 << 5        /* of an image: query -1 is the mean of all patches */
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
    const char *remark;     /* begins the footnote; NULL: none */
    const mha_cards *cards; /* shown with heads, and as the report's table; NULL: none */
} mha_show_options;

/* A figure and its report. */
typedef struct mha_show {
    mha_figure figure;
    mha_figure page; /* the figure for the report, which shows the whole text */
    mha_report report;
    const mha_link
        *links; /* [panels] the strongest link of each; for a contrast, the largest change */
    mha_room memory;
} mha_show;

/**
 * Make the figure of the selected heads, and its report. The caller may extend copies of both. options
 * may be NULL.
 *
 * Memory   the caller frees *show with mha_show_free(); until then it borrows maps and all pointers in
 *          options. Allocated with malloc(). After an error there is nothing to free.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (struct_size; all tokens are hidden; first_panel);
 *          MHA_ERR_UNSUPPORTED (flags); MHA_ERR_NOMEM; those of mha_figure_links().
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_show_make(const mha_maps *maps,
                                               const mha_show_options *options, mha_show *show);

/**
 * Make the figure of a desk, and its report: the heads before and after W_O, and the term of each head.
 * source has name, texts and rows of the desk. Only the options for colours, scale and range apply. The
 * cmap viridis is replaced by a diverging map.
 *
 * Memory, Errors, Threads, Since  as mha_show_make(), and MHA_ERR_SHAPE (different numbers of rows and
 * tokens); show->links is NULL.
 */
MHA_API MHA_NODISCARD mha_status mha_show_desk(const mha_desk *desk, const mha_maps *source,
                                               const mha_show_options *options, mha_show *show);

/* Maps over an image. */
typedef struct mha_picture_show {
    mha_figure figure; /* the weights of one query on patches, over the image, for each head */
    /* All queries, with the measures of grid.h and, if all heads have maps, the rollout
     * (mha_rollout_step()) up to each layer. */
    mha_picture_page page;
    mha_room memory;
} mha_picture_show;

/**
 * Make the figure and the page of maps of an image (mha_tokens.picture).
 *
 *   query   a token; -1: CLS, or the mean of all patches if the model has none, or with MHA_SHOW_MEAN
 *
 * Of the options, only those for colours, scale, range and remark apply. options may be NULL.
 *
 * Memory   the caller frees *show with mha_picture_show_free(); until then it borrows maps and options.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (struct_size, query); MHA_ERR_UNSUPPORTED (flags; maps of a
 *          text or of blocks); MHA_ERR_NOMEM. There is then nothing to free.
 * Threads  one call per context.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_picture_show_make(mha_context *context, const mha_maps *maps,
                                                       const mha_show_options *options,
                                                       int64_t query, mha_picture_show *show);

/** Free and clear a show; NULL is allowed. Memory frees all. Errors none. Threads any. Since 0.1 */
MHA_API void mha_picture_show_free(mha_picture_show *show);

/** The block size (mha_maps.cell) for maps of this many heads and tokens: 1 if the full maps take at
 * most 256 MB, otherwise the smallest blocks that a report of 10 MB can hold. Memory none. Errors none.
 * Threads any. Since 0.1 */
MHA_API int64_t mha_show_cell(int64_t heads, int64_t tokens);

/** Free a show and clear it; NULL and a zeroed struct are allowed. Memory frees all. Errors none. Threads any.
 * Since 0.1 */
MHA_API void mha_show_free(mha_show *show);

/** Write the texts of maps in one line, each cut to `most` characters. Returns false if there are none.
 * Memory writes at most size bytes of text, including the NUL. Errors none. Threads any. Since 0.1 */
MHA_API bool mha_show_texts(const mha_maps *maps, int most, char *text, size_t size);

/** Find the next name in a list of tokens to hide that matches no token of the maps and is probably
 * a typo; *bytes is its length. Returns NULL if there is none. Memory points into hide. Errors
 * none. Threads any. Since 0.1 */
MHA_API const char *mha_show_idle(const mha_maps *maps, const char *hide, size_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
