/* The HTML report. The page itself is plain HTML, CSS and JavaScript in src/render/page, embedded
 * by cmake/embed.cmake; the C side fills in the head, the data, and a picture for readers without
 * scripts. */
#ifndef MHAI_RENDER_HTML_H
#define MHAI_RENDER_HTML_H

#include "figure.h"
#include "sink.h"

typedef struct mhai_html_asset {
    const unsigned char *bytes;
    size_t size;
} mhai_html_asset;

extern const mhai_html_asset mhai_html_template, mhai_html_style, mhai_html_script;

/* How values are written: all cells or blocks of pool x pool, in 32 (exact), 16 or 8 bits. */
typedef struct mhai_html_coding {
    int64_t pool, rows, cols; /* rows and cols of blocks */
    int bits;
} mhai_html_coding;

typedef struct mhai_html_page {
    mha_figure figure;  /* checked */
    mha_report report;  /* checked */
    mhai_ranges panels; /* extents of every panel by itself */
    bool negative;      /* some value is below 0 */
    mhai_html_coding coding;
    mha_buffer picture; /* what readers without scripts see, as HTML */
} mhai_html_page;

/* The finest coding whose base64 is at most `most` bytes; the coarsest if there is none. */
mhai_html_coding mhai_html_choose_coding(const mha_figure *figure, int64_t most);

/* The JSON that the scripts read. Without maps the panels' values are left out, to measure. */
mha_status mhai_html_write_data(const mhai_html_page *page, bool maps, mhai_writer *writer);

/* Fill page->picture. */
mha_status mhai_html_make_picture(mhai_html_page *page);

#endif
