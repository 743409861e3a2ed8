/* Buffered writing to a sink. */
#include "sink.h"

#include "number.h"
#include "text.h"

#include <multihead/component.h>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *mhai_sink_alloc(int64_t count, size_t size)
{
    if (count < 0 || (uint64_t)count > SIZE_MAX / 2 / size) return NULL;
    return calloc(count ? (size_t)count : 1, size);
}

void mhai_sink_open(mhai_writer *writer, const mha_sink *sink)
{
    writer->sink = sink;
    writer->status = MHA_OK;
    writer->used = 0;
}

mha_status mhai_sink_flush(mhai_writer *writer)
{
    if (!writer->status && writer->used)
        writer->status = writer->sink->write(writer->sink->user, writer->block, writer->used);
    writer->used = 0;
    return writer->status;
}

void mhai_sink_bytes(mhai_writer *writer, const void *bytes, size_t count)
{
    const char *from = bytes;
    while (count && !writer->status) {
        size_t room = sizeof writer->block - writer->used, part = count < room ? count : room;
        memcpy(writer->block + writer->used, from, part);
        writer->used += part;
        from += part;
        count -= part;
        if (writer->used == sizeof writer->block) mhai_sink_flush(writer);
    }
}

static mha_status write_on(void *user, const void *bytes, size_t count)
{
    mhai_writer *writer = user;
    mhai_sink_bytes(writer, bytes, count);
    return writer->status;
}

mha_sink mhai_sink_of(mhai_writer *writer)
{
    return (mha_sink){write_on, writer};
}

void mhai_sink_text(mhai_writer *writer, const char *text)
{
    mhai_sink_bytes(writer, text, strlen(text));
}

void mhai_sink_print(mhai_writer *writer, const char *format, ...)
{
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (length > 0)
        mhai_sink_bytes(writer, line,
                        (size_t)length < sizeof line ? (size_t)length : sizeof line - 1);
}

void mhai_sink_real(mhai_writer *writer, double value)
{
    char text[MHAI_NUMBER_BYTES];
    mhai_number_fixed(value, 2, text);
    size_t end = strlen(text);
    while (end && text[end - 1] == '0') end--;
    if (end && text[end - 1] == '.') end--;
    mhai_sink_bytes(writer, text, end);
}

static const char *entity(uint32_t code)
{
    switch (code) {
    case '&': return "&amp;";
    case '<': return "&lt;";
    case '>': return "&gt;";
    case '"': return "&quot;";
    case '\'': return "&#39;";
    default: return NULL;
    }
}

/* XML 1.0, production 2: some characters cannot be written at all, not even as references. It
 * discourages U+007F .. U+009F, which a terminal that displays the file would interpret. */
static bool xml_forbids(uint32_t code)
{
    return (code < 0x20 && code != '\t' && code != '\n' && code != '\r') ||
           (code >= 0x7F && code < 0xA0) || code == 0xFFFE || code == 0xFFFF;
}

void mhai_sink_escaped(mhai_writer *writer, const char *text)
{
    uint32_t code;
    while ((code = mhai_text_next(&text)) != 0) {
        const char *name = entity(code);
        char bytes[4];
        if (name)
            mhai_sink_text(writer, name);
        else
            mhai_sink_bytes(writer, bytes,
                            (size_t)mhai_text_encode(xml_forbids(code) ? 0xFFFD : code, bytes));
    }
}

void mhai_sink_element(mhai_writer *writer, const char *open, const char *text, const char *close)
{
    if (!text || !*text) return;
    mhai_sink_text(writer, open);
    mhai_sink_escaped(writer, text);
    mhai_sink_text(writer, close);
}

void mhai_sink_base64(mhai_writer *writer, const void *bytes, size_t count)
{
    const mha_sink sink = mhai_sink_of(writer);
    if (!writer->status) writer->status = mha_base64(bytes, count, &sink);
}
