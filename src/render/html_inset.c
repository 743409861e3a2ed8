/* Reports inside another page. A single report is an iframe that holds its document. Several
 * reports are tabs of a document with an iframe for each, so a page is escaped once for every frame
 * around it. */
#include "html.h"

#include "text.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
    MOST_PAGES = 16,
    MOST_PIXELS = 100000,
    MOST_HEIGHT = 760, /* the size of a window */
    TABS_HEIGHT = 44
};

/* ---- Heights --------------------------------------------------------------------------------- */

static mha_inset_page page_of(const mha_inset *inset, int64_t i)
{
    mha_inset_page page = {0};
    const size_t size = inset->page_size < sizeof page ? inset->page_size : sizeof page;
    memcpy(&page, (const char *)inset->pages + (size_t)i * inset->page_size, size);
    return page;
}

static mha_status measure_page(const mha_inset_page *page, int64_t *height)
{
    enum { CONTROLS = 290, LINE = 14, ROW = 20, MAP = 640 };
    mha_figure figure;
    mha_report report;
    MHA_TRY(mhai_figure_check(page->figure, &figure));
    MHA_TRY(mhai_html_check(page->report, &figure, &report));
    const int64_t longest = figure.rows > figure.cols ? figure.rows : figure.cols;
    *height = MOST_HEIGHT;
    if (!report.only_view || longest > MOST_HEIGHT) return MHA_OK;
    const int64_t own = report.view == MHA_VIEW_LINES     ? CONTROLS + LINE * longest
                        : report.view == MHA_VIEW_NEURONS ? CONTROLS + ROW * longest
                                                          : MAP;
    *height = own > MOST_HEIGHT ? MOST_HEIGHT : own;
    return MHA_OK;
}

static mha_status measure(const mha_inset *inset, int64_t *height)
{
    *height = 0;
    for (int64_t i = 0; i < inset->page_count; i++) {
        const mha_inset_page page = page_of(inset, i);
        int64_t own;
        MHA_TRY(measure_page(&page, &own));
        *height = own > *height ? own : *height;
    }
    if (inset->page_count > 1) *height += TABS_HEIGHT;
    if (inset->height) *height = inset->height;
    return MHA_OK;
}

/* ---- Writing --------------------------------------------------------------------------------- */

/* A sink whose bytes are written into an attribute of another sink's text. */
typedef struct quoted {
    const mha_sink *to;
} quoted;

static mha_status quote(void *user, const void *bytes, size_t count)
{
    const mha_sink *to = ((const quoted *)user)->to;
    const char *text = bytes;
    size_t from = 0;
    for (size_t i = 0; i < count; i++) {
        if (text[i] != '"' && text[i] != '&') continue;
        const bool is_quote = text[i] == '"';
        if (i > from) MHA_TRY(to->write(to->user, text + from, i - from));
        MHA_TRY(to->write(to->user, is_quote ? "&quot;" : "&amp;", is_quote ? 6 : 5));
        from = i + 1;
    }
    return count > from ? to->write(to->user, text + from, count - from) : MHA_OK;
}

typedef mha_status write_fn(const mha_inset *inset, int64_t i, const mha_sink *sink);

/* Write a frame, whose document write_inside() writes. */
static mha_status write_frame(const mha_inset *inset, int64_t i, const char *style,
                              write_fn *write_inside, const mha_sink *sink)
{
    mhai_writer writer;
    quoted user = {sink};
    const mha_sink inside = {quote, &user};
    mhai_sink_open(&writer, sink);
    mhai_sink_print(&writer,
                    "<iframe title=\"Attention\" sandbox=\"allow-scripts allow-downloads\" "
                    "style=\"%s\" srcdoc=\"",
                    style);
    MHA_TRY(mhai_sink_flush(&writer));
    MHA_TRY(write_inside(inset, i, &inside));
    return sink->write(sink->user, "\"></iframe>\n", 12);
}

static mha_status write_page(const mha_inset *inset, int64_t i, const mha_sink *sink)
{
    const mha_inset_page page = page_of(inset, i);
    return mha_render_html(page.figure, page.report, sink);
}

/* Radio buttons, followed by the frames: the n-th frame is visible while the n-th button is
 * checked. */
static const char tabs_style[] =
    "<!DOCTYPE html><html lang=\"en\"><meta charset=\"utf-8\">"
    "<meta name=\"color-scheme\" content=\"light dark\"><title>Attention</title><style>"
    "body{margin:0;height:100vh;display:flex;flex-wrap:wrap;align-content:flex-start;"
    "font:13px/1.5 system-ui,sans-serif}"
    "label{padding:8px 14px;height:28px;line-height:28px;cursor:pointer;color:GrayText}"
    "input{position:absolute;opacity:0}"
    "input:checked+label{color:CanvasText;font-weight:600;box-shadow:inset 0 -2px CanvasText}"
    "input:focus-visible+label{outline:2px solid Highlight;outline-offset:-3px}"
    "div{order:1;flex:0 0 100%;height:calc(100vh - 44px);display:none}"
    "iframe{width:100%;height:100%;border:0;display:block}";

static mha_status write_tabs(const mha_inset *inset, int64_t unused, const mha_sink *sink)
{
    mhai_writer writer;
    (void)unused;
    mhai_sink_open(&writer, sink);
    mhai_sink_text(&writer, tabs_style);
    for (int64_t i = 0; i < inset->page_count; i++)
        mhai_sink_print(&writer, "#t%" PRId64 ":checked~#p%" PRId64 "{display:block}", i, i);
    mhai_sink_text(&writer, "</style><body>\n");
    for (int64_t i = 0; i < inset->page_count; i++) {
        const mha_inset_page page = page_of(inset, i);
        mhai_text name;
        mhai_text_visible(page.name, i, MHAI_TEXT_PROSE, &name);
        mhai_sink_print(&writer,
                        "<input type=\"radio\" name=\"tab\" id=\"t%" PRId64
                        "\"%s><label for=\"t%" PRId64 "\">",
                        i, i ? "" : " checked", i);
        mhai_sink_escaped(&writer, name.text);
        mhai_sink_text(&writer, "</label>\n");
    }
    MHA_TRY(mhai_sink_flush(&writer));
    for (int64_t i = 0; i < inset->page_count; i++) {
        mhai_sink_print(&writer, "<div id=\"p%" PRId64 "\">", i);
        MHA_TRY(mhai_sink_flush(&writer));
        MHA_TRY(write_frame(inset, i, "", write_page, sink));
        mhai_sink_text(&writer, "</div>");
        MHA_TRY(mhai_sink_flush(&writer));
    }
    return MHA_OK;
}

/* ---- The call -------------------------------------------------------------------------------- */

static mha_status check(const mha_inset *inset, mha_inset *own)
{
    MHA_TRY(mha_struct_read("mha_inset", own, sizeof *own, offsetof(mha_inset, width), inset,
                            inset->struct_size));
    if (!own->page_size) return mha_fail(MHA_ERR_ARGUMENT, "inset: page_size is not set");
    if (own->page_count < 1) return mha_fail(MHA_ERR_ARGUMENT, "inset: it has no page");
    if (own->page_count > MOST_PAGES)
        return mha_fail(MHA_ERR_SIZE, "inset: %" PRId64 " pages, at most %d", own->page_count,
                        MOST_PAGES);
    if (!own->pages) return mha_fail(MHA_ERR_NULL, "inset: pages is NULL");
    if (own->width < 0 || own->height < 0)
        return mha_fail(MHA_ERR_ARGUMENT, "inset: width or height is negative");
    if (own->width > MOST_PIXELS || own->height > MOST_PIXELS)
        return mha_fail(MHA_ERR_SIZE, "inset: more than %d pixels", MOST_PIXELS);
    return MHA_OK;
}

mha_status mha_render_inset(const mha_inset *inset, const mha_sink *sink)
{
    mha_inset own;
    int64_t height;
    char width[32] = "100%", style[128];
    if (!inset) return mha_fail(MHA_ERR_NULL, "mha_render_inset: inset is NULL");
    if (!sink || !sink->write) return mha_fail(MHA_ERR_NULL, "mha_render_inset: sink is NULL");
    MHA_TRY(check(inset, &own));
    MHA_TRY(measure(&own, &height));
    if (own.width) snprintf(width, sizeof width, "%" PRId64 "px", own.width);
    /* A separate file is shown in a window, and takes the height of the window. */
    const bool window = own.whole_file && !own.height;
    snprintf(style, sizeof style, "border:0;width:%s;height:%" PRId64 "%s;display:block", width,
             window ? INT64_C(100) : height, window ? "vh" : "px");
    if (own.whole_file) {
        static const char head[] = "<!DOCTYPE html>\n<meta charset=\"utf-8\">\n"
                                   "<meta name=\"viewport\" content=\"width=device-width\">\n"
                                   "<title>Attention</title>\n"
                                   "<style>body{margin:0}</style>\n";
        MHA_TRY(sink->write(sink->user, head, sizeof head - 1));
    }
    return write_frame(&own, 0, style, own.page_count > 1 ? write_tabs : write_page, sink);
}
