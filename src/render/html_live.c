/* The report's page with another source of maps: a server, which sends them on request, or the
 * library and a model inside the page. */
#include "html.h"

#include <multihead/component.h>
#include <multihead/render_live.h>

#include <stdint.h>
#include <stdlib.h>
#ifdef MHAI_HAVE_ZLIB
#include <zlib.h>
#endif

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

/* Write four bytes as five digits of base 85, which is a sixteenth smaller than base64. Digits
 * begin at '#'; 'x' replaces '<', which could end the element. An incomplete group omits its last
 * digits. */
static void write_base85(const void *bytes, size_t size, mhai_writer *writer)
{
    enum { PART = 4096 };
    const unsigned char *from = bytes;
    char text[PART / 4 * 5];
    mhai_sink_text(writer, ">");
    for (size_t at = 0; at < size;) {
        size_t used = 0;
        for (size_t part = 0; part < PART && at < size; part += 4, at += 4) {
            uint32_t n = 0;
            for (size_t k = 0; k < 4; k++) n = n << 8 | (at + k < size ? from[at + k] : 0);
            for (size_t k = 5; k-- > 0; n /= 85) {
                const char digit = (char)('#' + n % 85);
                text[used + k] = digit == '<' ? 'x' : digit;
            }
            used += size - at < 4 ? size - at + 1 : 5;
        }
        mhai_sink_bytes(writer, text, used);
    }
    mhai_sink_text(writer, "</script>\n");
}

static void write_attribute(const char *name, const char *value, mhai_writer *writer)
{
    if (!value) return;
    mhai_sink_print(writer, " data-%s=\"", name);
    mhai_sink_escaped(writer, value);
    mhai_sink_text(writer, "\"");
}

#ifdef MHAI_HAVE_ZLIB
/* Compress in the format of gzip, if that makes the bytes fewer; NULL otherwise, and if memory is
 * short. Large weights are not compressed: it takes long and saves 7 %. */
static unsigned char *compressed(const void *bytes, size_t size, size_t *fewer)
{
    enum { MOST = 64 << 20, GZIP = 16 + MAX_WBITS };
    z_stream z = {0};
    if (size == 0 || size > MOST) return NULL;
    unsigned char *to = malloc(size);
    if (to &&
        deflateInit2(&z, Z_BEST_COMPRESSION, Z_DEFLATED, GZIP, 9, Z_DEFAULT_STRATEGY) == Z_OK) {
        z.next_in = (void *)(uintptr_t)bytes;
        z.avail_in = (uInt)size;
        z.next_out = to;
        z.avail_out = (uInt)size;
        const bool fits = deflate(&z, Z_FINISH) == Z_STREAM_END;
        *fewer = size - z.avail_out;
        deflateEnd(&z);
        if (fits) return to;
    }
    free(to);
    return NULL;
}
#else
static unsigned char *compressed(const void *bytes, size_t size, size_t *fewer)
{
    (void)bytes, (void)size, (void)fewer;
    return NULL;
}
#endif

void mhai_html_write_explorer(const mha_explorer *explorer, mhai_writer *writer)
{
    mhai_sink_text(writer, "<script type=\"text/plain\" id=\"explorer-worker\">\n");
    mhai_sink_bytes(writer, mhai_html_worker.bytes, mhai_html_worker.size);
    mhai_sink_text(writer, "</script>\n<script type=\"text/plain\" id=\"explorer-module\"");
    write_attribute("path", explorer->path, writer);
    write_attribute("name", explorer->name, writer);
    write_attribute("text", explorer->text, writer);
    write_base85(explorer->module, explorer->module_bytes, writer);
    for (int64_t i = 0; i < explorer->file_count; i++) {
        const mha_explorer_file *file = &explorer->files[i];
        mhai_sink_text(writer, "<script type=\"text/plain\" class=\"explorer-file\"");
        write_attribute("name", file->name, writer);
        size_t size = file->size;
        unsigned char *gzip = compressed(file->bytes, file->size, &size);
        if (gzip) mhai_sink_text(writer, " data-gzip");
        write_base85(gzip ? gzip : file->bytes, size, writer);
        free(gzip);
    }
}

mha_status mha_render_explorer(const mha_figure *figure, const mha_report *report,
                               const mha_explorer *explorer, const mha_sink *sink)
{
    mha_explorer own = {0};
    mhai_html_page page = {.live = true, .explorer = &own};
    MHA_TRY(check_sink("mha_render_explorer", sink));
    if (!explorer) return mha_fail(MHA_ERR_NULL, "mha_render_explorer: explorer is NULL");
    MHA_TRY(mha_struct_read("mha_explorer", &own, sizeof own, sizeof own, explorer,
                            explorer->struct_size));
    if (!own.module || !own.path || !own.name || (!own.files && own.file_count > 0))
        return mha_fail(MHA_ERR_NULL,
                        "mha_render_explorer: module, path, name and files are required");
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
        mhai_html_write_script(&mhai_html_server_script, &writer);
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
