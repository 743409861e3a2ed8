/* See json_out.h. */
#include "json_out.h"
#include "maps.h"

#include <math.h>
#include <stdarg.h>
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
    for (size_t at = 0; at < bytes;) {
        size_t valid = maps_valid_utf8(text + at, bytes - at), from = at, end = at + valid;
        for (; at < end; at++) {
            unsigned char c = (unsigned char)text[at];
            if (c >= 0x20 && c != '"' && c != '\\') continue;
            json_put(json, text + from, at - from);
            from = at + 1;
            if (c < 0x20)
                json_print(json, "\\u%04x", c);
            else
                json_print(json, "\\%c", c);
        }
        json_put(json, text + from, at - from);
        if (at < bytes) {
            json_print(json, "\xEF\xBF\xBD");
            at++;
        }
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
