/* multihead: a page that draws maps over an image: for a patch or another token, what each map gives to
 * every patch, over the picture. A reader points at a patch to see where it attends.
 *
 * Strings are UTF-8, end with a NUL and are escaped. All memory is borrowed for the call.
 *
 * Example, given mha_picture_page page, const uint8_t *pixels, const mha_picture_map *maps, int64_t count:
 *
 *   page.rows = page.cols = 14, page.first = 1, page.patch = 16, page.pixels = pixels;
 *   page.map_size = sizeof *maps, page.maps = maps, page.map_count = count;
 *   mha_buffer html;
 *   memset(&html, 0, sizeof html);
 *   mha_sink sink = mha_buffer_sink(&html);
 *   mha_status status = mha_render_picture_page(&page, &sink);
 *   mha_buffer_free(&html);
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_RENDER_PICTURE_H
#define MULTIHEAD_RENDER_PICTURE_H

#include <multihead/render.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A map of T x T tokens, T = first + rows cols. */
typedef struct mha_picture_map {
    const char *name;            /* "L0H3" */
    int64_t group;               /* of maps that are shown side by side */
    const float *values;         /* [T,T] of at least 0: rows are queries */
    const mha_measure *measures; /* [measure_count], at most 64 */
    int64_t measure_count;
} mha_picture_map;

typedef struct mha_picture_page {
    uint32_t struct_size;
    uint32_t map_size; /* sizeof(mha_picture_map) */
    const char *title, *subtitle;
    int64_t rows, cols;          /* patches */
    int64_t first;               /* tokens before the patches */
    const char *const *labels;   /* [first] their names */
    int64_t patch;               /* pixels of a patch's edge */
    const uint8_t *pixels;       /* [rows patch, cols patch, 3] */
    const mha_picture_map *maps; /* [map_count] */
    int64_t map_count;
    const char *const *groups; /* [group_count] names */
    int64_t group_count;
    /* [beside_count] further maps, shown beside those of every group, such as rollouts; a group number
     * shows the map with that group alone */
    const mha_picture_map *beside;
    int64_t beside_count;
    const char *producer; /* at the foot; NULL: none */
} mha_picture_page;

/**
 * Write the page as one HTML file without network access. Values have 8 bits: 255 sqrt(v / most of the map).
 *
 * Memory   scratch of a map's cells.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (sizes not set, no patch, a group, a negative count);
 *          MHA_ERR_SIZE (more than 2^26 cells in all, or 2^26 pixels: choose fewer maps); MHA_ERR_NOMEM;
 *          the status that the sink returned.
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_render_picture_page(const mha_picture_page *page,
                                                         const mha_sink *sink);

#ifdef __cplusplus
}
#endif
#endif
