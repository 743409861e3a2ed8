/* One HTML file: the template with its {{places}} filled in. */
#include "html.h"

#include "text.h"

#include <multihead/component.h>

#include <stdlib.h>
#include <string.h>

static mha_status look_at(mhai_html_page *page, const mha_panel *panel)
{
    mha_extent extent;
    if (!panel->values || page->negative) return MHA_OK;
    MHA_TRY(mhai_html_survey(&page->figure, panel, &extent));
    page->negative = extent.least < 0;
    return MHA_OK;
}

static mha_status survey_others(mhai_html_page *page)
{
    for (int64_t i = 0; i < page->figure.panel_count; i++) {
        mha_panel twin = mhai_html_twin(&page->figure, i);
        MHA_TRY(look_at(page, &twin));
        for (int64_t k = 0; k < page->report.frame_count; k++) {
            mha_panel frame = mhai_html_frame(page, k, i);
            MHA_TRY(look_at(page, &frame));
        }
    }
    return MHA_OK;
}

/* Find the extent of each panel, for any range that the figure requests. */
static mha_status survey_panels(mhai_html_page *page)
{
    mha_figure each = page->figure;
    each.range = MHA_RANGE_PANEL;
    /* no ranks: sorting is unnecessary */
    if (each.scale == MHA_SCALE_RANK) each.scale = MHA_SCALE_LINEAR;
    MHA_TRY(mhai_ranges_make(&each, &page->panels));
    page->negative = page->panels.extent.least < 0;
    return survey_others(page);
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
    mhai_sink_element(writer, "<p class=\"text\" dir=\"auto\">", report->text, "</p>\n");
    mhai_sink_element(writer, "<p class=\"subtitle\" dir=\"auto\">", page->figure.subtitle,
                      "</p>\n");
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
    mhai_sink_element(writer, "<p class=\"footnote\" dir=\"auto\">", page->figure.footnote,
                      "</p>\n");
    mhai_sink_element(writer, "<p class=\"producer\">", page->report.producer, "</p>\n");
}

/* The theme if the reader's system does not choose one. */
static void write_theme(const mhai_html_page *page, mhai_writer *writer)
{
    if (page->figure.dark) mhai_sink_text(writer, " data-theme=\"dark\"");
    if (page->report.only_view) mhai_sink_text(writer, " class=\"only\"");
}

static void write_asset(const mhai_html_asset *asset, mhai_writer *writer)
{
    mhai_sink_bytes(writer, asset->bytes, asset->size);
}

/* Separates the parts of a live page's style and script, so that explorer.js can find those of a
 * report. */
static const char divider[] = "/*|*/\n";

void mhai_html_write_script(const mhai_html_asset *carrier, mhai_writer *writer)
{
    mhai_sink_text(writer, "\"use strict\";\n(() => {\n");
    write_asset(&mhai_html_strings, writer);
    if (carrier) {
        mhai_sink_text(writer, divider);
        write_asset(&mhai_html_translations, writer);
        mhai_sink_text(writer, divider);
    }
    write_asset(&mhai_html_script, writer);
    if (carrier) {
        mhai_sink_text(writer, divider);
        write_asset(&mhai_html_live_script, writer);
        write_asset(carrier, writer);
    }
    mhai_sink_text(writer, "})();\n");
}

/* An explorer may not fetch anything. Its data is in the page, and typed texts do not leave it. */
static const char policy[] =
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src "
    "'unsafe-inline' 'wasm-unsafe-eval'; worker-src blob:; style-src 'unsafe-inline'; img-src "
    "data: blob:; base-uri 'none'; form-action 'none'\">\n";

/* Style and script of a page with a server are separate files, because its server allows no inline
 * code. */
static void write_style(const mhai_html_page *page, mhai_writer *writer)
{
    if (page->live && !page->explorer) {
        mhai_sink_text(writer, "<link rel=\"stylesheet\" href=\"page.css\">\n");
        return;
    }
    if (page->explorer) mhai_sink_text(writer, policy);
    mhai_sink_text(writer, "<style>\n");
    write_asset(&mhai_html_style, writer);
    if (page->live) mhai_sink_text(writer, divider);
    if (page->live) write_asset(&mhai_html_live_style, writer);
    mhai_sink_text(writer, "</style>\n");
}

static void write_script(const mhai_html_page *page, mhai_writer *writer)
{
    if (page->live && !page->explorer) {
        mhai_sink_text(writer, "<script src=\"page.js\"></script>\n");
        return;
    }
    if (page->explorer) mhai_html_write_explorer(page->explorer, writer);
    mhai_sink_text(writer, "<script>\n");
    mhai_html_write_script(page->live ? &mhai_html_explorer_script : NULL, writer);
    mhai_sink_text(writer, "</script>\n");
}

static void write_live(const mhai_html_page *page, mhai_writer *writer)
{
    if (!page->live) return;
    if (page->explorer) write_asset(&mhai_html_explorer, writer);
    write_asset(&mhai_html_live, writer);
    if (!page->explorer) write_asset(&mhai_html_server, writer);
}

typedef struct html_job {
    const mhai_html_page *page;
    bool maps;
} html_job;

static mha_status fill(const void *of, const char *name, size_t length, mhai_writer *writer)
{
    const html_job *job = of;
    const mhai_html_page *page = job->page;
    static const struct {
        const char *name;
        void (*write)(const mhai_html_page *page, mhai_writer *writer);
    } places[] = {{"theme", write_theme}, {"title", write_title}, {"head", write_head},
                  {"foot", write_foot},   {"style", write_style}, {"script", write_script},
                  {"live", write_live}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (strlen(places[i].name) == length && !memcmp(places[i].name, name, length))
            places[i].write(page, writer);
    if (length == 7 && !memcmp(name, "picture", 7) && page->picture.size)
        mhai_sink_bytes(writer, page->picture.data, page->picture.size);
    if (length == 4 && !memcmp(name, "data", 4))
        return mhai_html_write_data(page, job->maps, writer);
    return MHA_OK;
}

mha_status mhai_html_fill(const mhai_html_asset *template, mhai_html_fill_fn *fill_place,
                          const void *of, const mha_sink *sink)
{
    mhai_writer writer;
    mhai_sink_open(&writer, sink);
    const char *at = (const char *)template->bytes, *end = at + template->size;
    while (at < end && !writer.status) {
        const char *mark = at;
        while (mark < end && !(mark[0] == '{' && mark + 1 < end && mark[1] == '{')) mark++;
        mhai_sink_bytes(&writer, at, (size_t)(mark - at));
        if (mark == end) break;
        const char *name = mark + 2, *close = name;
        while (close < end && *close != '}') close++;
        MHA_TRY(fill_place(of, name, (size_t)(close - name), &writer));
        at = close + 2;
    }
    return mhai_sink_flush(&writer);
}

mha_status mhai_html_write_page(const mhai_html_page *page, bool maps, const mha_sink *sink)
{
    return mhai_html_fill(&mhai_html_template, fill, &(html_job){page, maps}, sink);
}

static mha_status count_write(void *user, const void *bytes, size_t count)
{
    (void)bytes;
    *(int64_t *)user += (int64_t)count;
    return MHA_OK;
}

/* Measure the size of the page without maps by writing it; maps get the rest of most_bytes.
 */
static mha_status choose_coding(mhai_html_page *page)
{
    int64_t size = 0, neurons = 0;
    MHA_TRY(mhai_html_neuron_bits(page, &page->coding.neuron_bits, &neurons));
    page->coding = mhai_html_choose_coding(page, INT64_MAX);
    /* the fewest frames; their size is counted */
    page->coding.frame_step = page->report.frame_count;
    const mha_sink counter = {count_write, &size};
    MHA_TRY(mhai_html_write_page(page, false, &counter));
    page->coding = mhai_html_choose_coding(page, page->report.most_bytes - size - neurons);
    return MHA_OK;
}

static mha_status find_links(mhai_html_page *page)
{
    int64_t strongest;
    page->links = calloc((size_t)page->figure.panel_count + 1, sizeof *page->links);
    if (!page->links) return mha_fail(MHA_ERR_NOMEM, "out of memory");
    MHA_TRY(mhai_html_links(&page->figure, &page->report, page->links, &strongest));
    if (page->report.first_panel < 0) page->report.first_panel = strongest;
    return MHA_OK;
}

mha_status mhai_html_open(const mha_figure *figure, const mha_report *report, mhai_html_page *page)
{
    MHA_TRY(mhai_figure_check(figure, &page->figure));
    MHA_TRY(mhai_html_check(report, &page->figure, &page->report));
    MHA_TRY(survey_panels(page));
    MHA_TRY(find_links(page));
    if (!page->live) MHA_TRY(mhai_html_make_picture(page));
    return choose_coding(page);
}

void mhai_html_close(mhai_html_page *page)
{
    mhai_ranges_free(&page->panels);
    mha_buffer_free(&page->picture);
    free(page->links);
}

mha_status mha_render_html(const mha_figure *figure, const mha_report *report, const mha_sink *sink)
{
    if (!sink || !sink->write) return mha_fail(MHA_ERR_NULL, "mha_render_html: sink is NULL");
    mhai_html_page page = {0};
    mha_status status = mhai_html_open(figure, report, &page);
    if (status == MHA_OK) status = mhai_html_write_page(&page, true, sink);
    mhai_html_close(&page);
    return status;
}
