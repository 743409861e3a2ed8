/* JSON for the report's page. */
#include "html_json.h"

#include "number.h"
#include "text.h"

#include <inttypes.h>
#include <math.h>

void mhai_html_json_text(mhai_writer *w, const char *text)
{
    if (!text) {
        mhai_sink_text(w, "null");
        return;
    }
    uint32_t code;
    mhai_sink_text(w, "\"");
    while ((code = mhai_text_next(&text)) != 0) {
        char bytes[4];
        if (code >= 0x10000 && mha_text_hidden(code))
            mhai_sink_print(w, "\\u%04x\\u%04x", (unsigned)(0xD7C0 + (code >> 10)),
                            (unsigned)(0xDC00 | (code & 0x3FF)));
        else if (code == '"' || code == '\\' || code == '<' || code == '>' || code == '&' ||
                 mha_text_hidden(code))
            mhai_sink_print(w, "\\u%04x", (unsigned)code);
        else
            mhai_sink_bytes(w, bytes, (size_t)mhai_text_encode(code, bytes));
    }
    mhai_sink_text(w, "\"");
}

void mhai_html_json_real(mhai_writer *w, double value)
{
    char text[MHAI_NUMBER_BYTES] = "null";
    if (isfinite(value)) mhai_number_short(value, 9, text);
    mhai_sink_text(w, text);
}

void mhai_html_json_member(mhai_writer *w, const char *name, const char *text)
{
    mhai_sink_print(w, ",\n\"%s\":", name);
    mhai_html_json_text(w, text);
}

void mhai_html_json_member_integer(mhai_writer *w, const char *name, int64_t value)
{
    mhai_sink_print(w, ",\n\"%s\":%" PRId64, name, value);
}

void mhai_html_json_member_real(mhai_writer *w, const char *name, double value)
{
    mhai_sink_print(w, ",\"%s\":", name);
    mhai_html_json_real(w, value);
}

void mhai_html_json_member_texts(mhai_writer *w, const char *name, const char *const *texts,
                                 int64_t count)
{
    mhai_sink_print(w, ",\n\"%s\":", name);
    if (!texts) mhai_sink_text(w, "null");
    for (int64_t i = 0; texts && i < count; i++) {
        mhai_sink_text(w, i ? "," : "[");
        mhai_html_json_text(w, texts[i]);
    }
    if (texts) mhai_sink_text(w, count ? "]" : "[]");
}

void mhai_html_json_member_reals(mhai_writer *w, const char *name, const double *values,
                                 int64_t count)
{
    mhai_sink_print(w, ",\n\"%s\":[", name);
    for (int64_t i = 0; i < count; i++) {
        if (i) mhai_sink_text(w, ",");
        mhai_html_json_real(w, values[i]);
    }
    mhai_sink_text(w, "]");
}
