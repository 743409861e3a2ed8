/* See json_out.h. */
#include "common/json_out.h"

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

void json_put(json_out *json, const char *bytes, size_t count)
{
    if (json->status == MHA_OK && count > 0)
        json->status = json->sink->write(json->sink->user, bytes, count);
}

void json_print(json_out *json, const char *format, ...)
{
    char piece[128];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(piece, sizeof piece, format, arguments);
    va_end(arguments);
    json_put(json, piece, length < (int)sizeof piece ? (size_t)length : sizeof piece - 1);
}

void json_text_bytes(json_out *json, const char *text, size_t bytes)
{
    if (!text) {
        json_print(json, "null");
        return;
    }
    json_print(json, "\"");
    for (const char *end = text + bytes; text < end;) {
        const char *from = text;
        bool hidden;
        const uint32_t code = mha_text_next(&text, end, &hidden);
        const ptrdiff_t length = text - from;
        if (code == 0xFFFD && length == 1)
            json_print(json, "\xEF\xBF\xBD");
        else if (hidden && code > 0xFFFF)
            json_print(json, "\\u%04x\\u%04x", (unsigned)(0xD7C0 + (code >> 10)),
                       (unsigned)(0xDC00 | (code & 0x3FF)));
        else if (hidden)
            json_print(json, "\\u%04x", (unsigned)code);
        else if (code == '"' || code == '\\')
            json_print(json, "\\%c", (int)code);
        else
            json_put(json, from, (size_t)length);
    }
    json_print(json, "\"");
}

void json_text(json_out *json, const char *text)
{
    json_text_bytes(json, text, text ? strlen(text) : 0);
}

void json_number(json_out *json, double value, const char *before)
{
    if (isfinite(value))
        json_print(json, "%s%.9g", before, value);
    else
        json_print(json, "%snull", before);
}
