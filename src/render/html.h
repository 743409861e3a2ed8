/* The HTML report. The page is plain HTML, CSS and JavaScript from src/render/page, embedded by
 * cmake/embed.cmake. The C code fills in the head, the data, and a picture for readers without
 * scripts. */
#ifndef MHAI_RENDER_HTML_H
#define MHAI_RENDER_HTML_H

#include "figure.h"
#include "sink.h"

#include <multihead/render_live.h>

typedef struct mhai_html_asset {
    const unsigned char *bytes;
    size_t size;
} mhai_html_asset;

extern const mhai_html_asset mhai_html_template, mhai_html_style, mhai_html_strings,
    mhai_html_translations, mhai_html_script, mhai_html_heads_template, mhai_html_heads_style,
    mhai_html_heads_script, mhai_html_live, mhai_html_live_style, mhai_html_live_script,
    mhai_html_server, mhai_html_server_script, mhai_html_explorer, mhai_html_explorer_script,
    mhai_html_worker, mhai_html_picture_template, mhai_html_picture_style, mhai_html_picture_script;

/* Write a template; fill() writes each {{NAME}}. */
typedef mha_status mhai_html_fill_fn(const void *of, const char *name, size_t length,
                                     mhai_writer *writer);
mha_status mhai_html_fill(const mhai_html_asset *template, mhai_html_fill_fn *fill, const void *of,
                          const mha_sink *sink);

/* How values are written: all cells or blocks of pool x pool, in 32 (exact), 16 or 8 bits. Every
 * frame_step-th frame and the last frame are written, always in 8 bits. */
typedef struct mhai_html_coding {
    int64_t pool, rows, cols; /* rows and cols of blocks */
    int bits;
    int64_t frame_step;
    int neuron_bits; /* bits of queries and keys */
} mhai_html_coding;

typedef struct mhai_html_page {
    mha_figure figure;  /* checked */
    mha_report report;  /* checked */
    mhai_ranges panels; /* extent of each panel */
    bool negative;      /* whether a value of a map, a twin or a frame is negative */
    mha_link *links;    /* links of the panels */
    mhai_html_coding coding;
    mha_buffer picture;           /* the content for readers without scripts, in HTML */
    bool live;                    /* a page that requests its maps: html_live.c */
    const mha_explorer *explorer; /* the backend inside the page; NULL: a server */
    int64_t map_tokens; /* tokens per cell of a large map in live data; 0: as in the figure */
} mhai_html_page;

/* html_check.c: check a caller's report except the values of its frames, and copy it. *own has all
 * fields of this version. */
mha_status mhai_html_check(const mha_report *report, const mha_figure *figure, mha_report *own);

/* link.c: mha_figure_links() of a checked figure and report. */
mha_status mhai_html_links(const mha_figure *figure, const mha_report *report, mha_link *links,
                           int64_t *strongest);

/* Curve i of a checked report, with all fields of this version. */
mha_curve mhai_html_curve(const mha_report *report, int64_t i);

/* html_map.c: panel i with the values of its twin, or of a frame. The values are NULL if there are
 * none. */
mha_panel mhai_html_twin(const mha_figure *figure, int64_t i);
mha_panel mhai_html_frame(const mhai_html_page *page, int64_t frame, int64_t i);

/* The extent of a single map. */
mha_status mhai_html_survey(const mha_figure *figure, const mha_panel *panel, mha_extent *extent);

/* The finest coding whose base64 has at most `most` bytes, or the coarsest coding if none is that
 * small. */
mhai_html_coding mhai_html_choose_coding(const mhai_html_page *page, int64_t most);

/* The next frame to write after `frame`: frame_step further, or the last frame; frame_count after
 * the last frame. */
int64_t mhai_html_next_frame(const mhai_html_page *page, int64_t frame);

/* Writes maps as "data":"base64". The memory for one map is reused. */
typedef struct mhai_html_coder {
    mhai_cells cells;
    uint8_t *bytes;
} mhai_html_coder;

mha_status mhai_html_coder_open(const mhai_html_page *page, mhai_html_coder *coder);
void mhai_html_coder_write(mhai_html_coder *coder, const mhai_html_page *page,
                           const mha_panel *panel, const mha_extent *extent, int bits,
                           mha_json *json);
void mhai_html_coder_close(mhai_html_coder *coder);

/* Write the JSON that the scripts read. With maps false the values of panels are omitted, to
 * measure the size. */
mha_status mhai_html_write_data(const mhai_html_page *page, bool maps, mhai_writer *writer);

/* html_neurons.c: choose the finest coding of queries and keys that fits in a quarter of
 * most_bytes; write both as base64, as members of the open panel. */
mha_status mhai_html_neuron_bits(const mhai_html_page *page, int *bits, int64_t *size);
mha_status mhai_html_write_neurons(const mhai_html_page *page, const mha_panel *panel, bool values,
                                   mha_json *json);

/* html_evidence.c: write the contents of the report other than maps, as further members of the
 * JSON. */
void mhai_html_write_measures(const mha_panel *panel, mha_json *json);
void mhai_html_write_curves(const mha_report *report, mha_json *json);
void mhai_html_write_columns(const mhai_html_page *page, mha_json *json);

/* html.c: check and measure a figure and its report, and choose the coding of its maps; then write
 * the page. */
mha_status mhai_html_open(const mha_figure *figure, const mha_report *report, mhai_html_page *page);
mha_status mhai_html_write_page(const mhai_html_page *page, bool maps, const mha_sink *sink);
void mhai_html_close(mhai_html_page *page);

/* Write the script between the tags: that of a report, or that of a live page with its backend. */
void mhai_html_write_script(const mhai_html_asset *carrier, mhai_writer *writer);

/* html_live.c: write the backend of a page without a server. */
void mhai_html_write_explorer(const mha_explorer *explorer, mhai_writer *writer);

/* Fill page->picture. */
mha_status mhai_html_make_picture(mhai_html_page *page);

#endif
