/* multihead: the live page (libmultihead-render): a reader types a text, and the page requests its
 * maps from a server such as `multihead serve`, or from a worker. It is drawn like the page of
 * mha_render_html().
 *
 * A server provides three files in one folder, which refer to no other address:
 *
 *   index          mha_render_live_page()
 *   page.css       mha_render_live_file(MHA_LIVE_STYLE)
 *   page.js        mha_render_live_file(MHA_LIVE_SCRIPT)
 *
 * and answers the requests of the script, listed in docs/serve.md.
 *
 * Example, given const mha_sink *sink:
 *
 *   mha_figure figure = MHA_INIT(mha_figure);
 *   mha_report report = MHA_INIT(mha_report);
 *   figure.panel_size = sizeof(mha_panel), figure.title = "all-MiniLM-L6-v2";
 *   mha_status status = mha_render_live_page(&figure, &report, sink);
 *   if (!status) status = mha_render_live_file(MHA_LIVE_SCRIPT, sink);
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_RENDER_LIVE_H
#define MULTIHEAD_RENDER_LIVE_H

#include <multihead/render.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mha_live_file {
    MHA_LIVE_STYLE = 0, /* page.css, text/css */
    MHA_LIVE_SCRIPT = 1 /* page.js, text/javascript */
} mha_live_file;

/**
 * The page itself, with the facts and producer of the report and the title, colour map and theme of
 * the figure, whose panels are not used. It has no inline styles or scripts, so a
 * Content-Security-Policy may forbid both.
 *
 * Memory   as mha_render_svg().   Errors  as mha_render_html().   Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_render_live_page(const mha_figure *figure,
                                                      const mha_report *report,
                                                      const mha_sink *sink);

/**
 * A file of the page; its bytes never vary.
 *
 * Memory   as mha_render_svg().
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (no such file), or the status that the sink returned.
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_render_live_file(mha_live_file file, const mha_sink *sink);

/* A file of the model of an explorer. */
typedef struct mha_explorer_file {
    const char *name; /* "model/config.json", the name that the library in the page opens */
    const void *bytes;
    size_t size;
} mha_explorer_file;

/* The backend of a page without a server: the library compiled to WebAssembly, and a model. */
typedef struct mha_explorer {
    uint32_t struct_size;
    uint32_t reserved;  /* 0 */
    const void *module; /* [module_bytes] explorer.wasm, compressed by gzip: script/page */
    size_t module_bytes;
    const char *path; /* the model's: the name of its file, or of the folder of config.json */
    const char *name; /* the model's name */
    const mha_explorer_file *files; /* [file_count] */
    int64_t file_count;
    const char *text; /* shown first; NULL: an example */
} mha_explorer;

/**
 * A live page in one file, with library and model inside: it needs no server, and its
 * Content-Security-Policy forbids every request. Its reader may open another model.
 *
 * Memory   as mha_render_svg(); files are written in base64.
 * Errors   as mha_render_html(); MHA_ERR_NULL.   Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_render_explorer(const mha_figure *figure,
                                                     const mha_report *report,
                                                     const mha_explorer *explorer,
                                                     const mha_sink *sink);

/**
 * The data of a text for the page, as JSON: the data of a report without colour maps, with the
 * small maps of the overview. The cells of small maps may cover more tokens (cell_tokens of the
 * report) than those of a large map, which the page requests one at a time.
 *
 *   map_tokens  tokens per cell of a large map; at least 1, not necessarily a divisor of
 *               cell_tokens
 *
 * Memory   as mha_render_svg().
 * Errors   as mha_render_html(); MHA_ERR_ARGUMENT (map_tokens).   Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_render_live_maps(const mha_figure *figure,
                                                      const mha_report *report, int64_t map_tokens,
                                                      const mha_sink *sink);

#ifdef __cplusplus
}
#endif
#endif
