/* One HTML file: the template with its {{places}} filled in. */
#include "html.h"

#include "text.h"

#include <multihead/component.h>

#include <string.h>

enum { MOST_BYTES = 10000000 };

static mha_status check_report(const mha_report *report, const mha_figure *figure, mha_report *own)
{
    *own = (mha_report){0};
    if (report && report->struct_size < sizeof(uint32_t))
        return mha_fail(MHA_ERR_ARGUMENT, "report: struct_size is not set");
    if (report)
        MHA_TRY(mhai_figure_adopt("mha_report", own, sizeof *own, report, report->struct_size));
    if (own->fact_count < 0 || own->special_count < 0 || own->most_bytes < 0)
        return mha_fail(MHA_ERR_ARGUMENT, "report: a count or most_bytes is negative");
    if (own->fact_count && !own->facts) return mha_fail(MHA_ERR_NULL, "report: facts is NULL");
    if (own->special_count && !own->special)
        return mha_fail(MHA_ERR_NULL, "report: special is NULL");
    if (own->first_panel < 0 ||
        own->first_panel >= (figure->panel_count > 0 ? figure->panel_count : 1))
        return mha_fail(MHA_ERR_ARGUMENT, "report: first_panel is %lld, the figure has %lld",
                        (long long)own->first_panel, (long long)figure->panel_count);
    if (!own->most_bytes) own->most_bytes = MOST_BYTES;
    return MHA_OK;
}

/* The extents of the single panels, whatever range the figure asks for. */
static mha_status survey_panels(mhai_html_page *page)
{
    mha_figure each = page->figure;
    each.range = MHA_RANGE_PANEL;
    if (each.scale == MHA_SCALE_RANK) each.scale = MHA_SCALE_LINEAR; /* no need to sort */
    MHA_TRY(mhai_ranges_make(&each, &page->panels));
    page->negative = page->panels.extent.least < 0;
    return MHA_OK;
}

static void element(mhai_writer *writer, const char *open, const char *text, const char *close)
{
    if (!text || !*text) return;
    mhai_sink_text(writer, open);
    mhai_sink_escaped(writer, text);
    mhai_sink_text(writer, close);
}

static void write_title(const mhai_html_page *page, mhai_writer *writer)
{
    const char *title = page->figure.title;
    mhai_sink_escaped(writer, title && *title ? title : "Heat maps");
}

static void write_head(const mhai_html_page *page, mhai_writer *writer)
{
    const mha_report *report = &page->report;
    mhai_sink_text(writer, "<h1><bdi>");
    write_title(page, writer);
    mhai_sink_text(writer, "</bdi></h1>\n");
    element(writer, "<p class=\"text\" dir=\"auto\">", report->text, "</p>\n");
    element(writer, "<p class=\"subtitle\" dir=\"auto\">", page->figure.subtitle, "</p>\n");
    if (!report->fact_count) return;
    mhai_sink_text(writer, "<dl class=\"facts\">\n");
    for (int64_t i = 0; i < report->fact_count; i++) {
        const mha_fact *fact = &report->facts[i];
        mhai_sink_text(writer, "<div><dt>");
        mhai_sink_escaped(writer, fact->name ? fact->name : "");
        mhai_sink_text(writer, "</dt><dd><bdi>");
        mhai_sink_escaped(writer, fact->value ? fact->value : "");
        mhai_sink_text(writer, "</bdi></dd></div>\n");
    }
    mhai_sink_text(writer, "</dl>\n");
}

static void write_foot(const mhai_html_page *page, mhai_writer *writer)
{
    element(writer, "<p class=\"footnote\" dir=\"auto\">", page->figure.footnote, "</p>\n");
    element(writer, "<p class=\"producer\">", page->report.producer, "</p>\n");
}

/* The theme that the reader's system does not choose. */
static void write_theme(const mhai_html_page *page, mhai_writer *writer)
{
    if (page->figure.dark) mhai_sink_text(writer, " data-theme=\"dark\"");
}

static void write_asset(const mhai_html_asset *asset, mhai_writer *writer)
{
    mhai_sink_bytes(writer, asset->bytes, asset->size);
}

static mha_status fill(const mhai_html_page *page, const char *name, size_t length, bool maps,
                       mhai_writer *writer)
{
    static const struct {
        const char *name;
        void (*write)(const mhai_html_page *page, mhai_writer *writer);
    } places[] = {
        {"theme", write_theme}, {"title", write_title}, {"head", write_head}, {"foot", write_foot}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (strlen(places[i].name) == length && !memcmp(places[i].name, name, length))
            places[i].write(page, writer);
    if (length == 5 && !memcmp(name, "style", 5)) write_asset(&mhai_html_style, writer);
    if (length == 6 && !memcmp(name, "script", 6)) write_asset(&mhai_html_script, writer);
    if (length == 7 && !memcmp(name, "picture", 7) && page->picture.size)
        mhai_sink_bytes(writer, page->picture.data, page->picture.size);
    if (length == 4 && !memcmp(name, "data", 4)) return mhai_html_write_data(page, maps, writer);
    return MHA_OK;
}

static mha_status write_page(const mhai_html_page *page, bool maps, const mha_sink *sink)
{
    mhai_writer writer;
    mhai_sink_open(&writer, sink);
    const char *at = (const char *)mhai_html_template.bytes;
    const char *end = at + mhai_html_template.size;
    while (at < end && !writer.status) {
        const char *mark = at;
        while (mark < end && !(mark[0] == '{' && mark + 1 < end && mark[1] == '{')) mark++;
        mhai_sink_bytes(&writer, at, (size_t)(mark - at));
        if (mark == end) break;
        const char *name = mark + 2, *close = name;
        while (close < end && *close != '}') close++;
        MHA_TRY(fill(page, name, (size_t)(close - name), maps, &writer));
        at = close + 2;
    }
    return mhai_sink_flush(&writer);
}

static mha_status count_write(void *user, const void *bytes, size_t count)
{
    (void)bytes;
    *(int64_t *)user += (int64_t)count;
    return MHA_OK;
}

/* What the page takes without its maps is measured by writing it; the rest of most_bytes is theirs.
 */
static mha_status choose_coding(mhai_html_page *page)
{
    int64_t size = 0;
    page->coding = mhai_html_choose_coding(&page->figure, INT64_MAX);
    const mha_sink counter = {count_write, &size};
    MHA_TRY(write_page(page, false, &counter));
    page->coding = mhai_html_choose_coding(&page->figure, page->report.most_bytes - size);
    return MHA_OK;
}

mha_status mha_render_html(const mha_figure *figure, const mha_report *report, const mha_sink *sink)
{
    if (!sink || !sink->write) return mha_fail(MHA_ERR_NULL, "mha_render_html: sink is NULL");
    mhai_html_page page = {0};
    mha_status status;
    MHA_TRY(mhai_figure_check(figure, &page.figure));
    MHA_TRY(check_report(report, figure, &page.report));
    MHA_TRY_GOTO(survey_panels(&page), done);
    MHA_TRY_GOTO(mhai_html_make_picture(&page), done);
    MHA_TRY_GOTO(choose_coding(&page), done);
    status = write_page(&page, true, sink);
done:
    mhai_ranges_free(&page.panels);
    mha_buffer_free(&page.picture);
    return status;
}
