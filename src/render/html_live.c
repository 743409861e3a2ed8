/* The report's page with another source of maps: a server, which sends them when it is asked. */
#include "html.h"

#include <multihead/component.h>
#include <multihead/render_live.h>

static mha_status check_sink(const char *function, const mha_sink *sink)
{
    if (sink && sink->write) return MHA_OK;
    return mha_fail(MHA_ERR_NULL, "%s: sink is NULL", function);
}

mha_status mha_render_live_page(const mha_figure *figure, const mha_report *report,
                                const mha_sink *sink)
{
    mhai_html_page page = {.live = true};
    MHA_TRY(check_sink("mha_render_live_page", sink));
    mha_status status = mhai_html_open(figure, report, &page);
    if (status == MHA_OK) status = mhai_html_write_page(&page, true, sink);
    mhai_html_close(&page);
    return status;
}

mha_status mha_render_live_file(mha_live_file file, const mha_sink *sink)
{
    mhai_writer writer;
    MHA_TRY(check_sink("mha_render_live_file", sink));
    mhai_sink_open(&writer, sink);
    if (file == MHA_LIVE_STYLE) {
        mhai_sink_bytes(&writer, mhai_html_style.bytes, mhai_html_style.size);
        mhai_sink_bytes(&writer, mhai_html_live_style.bytes, mhai_html_live_style.size);
    } else if (file == MHA_LIVE_SCRIPT) {
        mhai_html_write_script(true, &writer);
    } else {
        return mha_fail(MHA_ERR_ARGUMENT, "mha_render_live_file: there is no file %d", (int)file);
    }
    return mhai_sink_flush(&writer);
}

mha_status mha_render_live_maps(const mha_figure *figure, const mha_report *report,
                                int64_t map_tokens, const mha_sink *sink)
{
    mhai_html_page page = {.live = true, .map_tokens = map_tokens};
    mhai_writer writer;
    MHA_TRY(check_sink("mha_render_live_maps", sink));
    if (map_tokens < 1)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_render_live_maps: map_tokens is %lld, expected 1 or "
                        "more",
                        (long long)map_tokens);
    mha_status status = mhai_html_open(figure, report, &page);
    mhai_sink_open(&writer, sink);
    if (status == MHA_OK) status = mhai_html_write_data(&page, true, &writer);
    if (status == MHA_OK) status = mhai_sink_flush(&writer);
    mhai_html_close(&page);
    return status;
}
