/* See json.h. */
#include "base/format.h"

#include <multihead/component.h>
#include <multihead/json.h>

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Bytes, and separators before a value ---------------------------------------------------- */

static void put(mha_json *json, const char *bytes, size_t count)
{
    if (!json->status && count > 0)
        json->status = json->sink->write(json->sink->user, bytes, count);
}

static void put_string(mha_json *json, const char *text)
{
    put(json, text, strlen(text));
}

static void put_line(mha_json *json, int indent)
{
    static const char spaces[] = "                                                                ";
    put(json, "\n", 1);
    for (int left = indent, part; left > 0; left -= part) {
        part = left < (int)sizeof spaces - 1 ? left : (int)sizeof spaces - 1;
        put(json, spaces, (size_t)part);
    }
}

static void put_escaped(mha_json *json, const char *text, const char *end)
{
    const char *run = text; /* start of the bytes that are written unchanged */
    put(json, "\"", 1);
    while (text < end) {
        const char *from = text;
        bool hidden;
        char escape[16] = "\xEF\xBF\xBD";
        const uint32_t code = mha_text_next(&text, end, &hidden);
        if (!hidden && code != '"' && code != '\\' &&
            !(json->compact && (code == '<' || code == '>' || code == '&')))
            continue;
        if (code > 0xFFFF)
            mhai_format(escape, sizeof escape, "\\u%04x\\u%04x", (unsigned)(0xD7C0 + (code >> 10)),
                        (unsigned)(0xDC00 | (code & 0x3FF)));
        else if (!json->compact && (code == '"' || code == '\\'))
            mhai_format(escape, sizeof escape, "\\%c", (int)code);
        else if (code != 0xFFFD)
            mhai_format(escape, sizeof escape, "\\u%04x", (unsigned)code);
        put(json, run, (size_t)(from - run));
        put_string(json, escape);
        run = text;
    }
    put(json, run, (size_t)(end - run));
    put(json, "\"", 1);
}

/* Values of json->open[depth]. At depth 0, DONE is set once the outermost value has begun. In an
 * object or array, OBJECT or ARRAY is set, and FILLED once it has a value. json->line and
 * json->lines[depth] are the indentation plus 1; 0: no line breaks. */
enum { DONE = 1, OBJECT = 2, ARRAY = 4, FILLED = 8 };

static bool refuse(mha_json *json, const char *name, const char *why)
{
    if (!json->status)
        json->status = mha_fail(MHA_ERR_ARGUMENT, "json: %s%s%s", name ? name : "a value",
                                name ? ": " : " ", why);
    return false;
}

/* Write the separators before a value. Returns false if no value is allowed here. */
static bool begin(mha_json *json, const char *name)
{
    uint8_t *open = &json->open[json->depth];
    if (json->status) return false;
    if (*open & DONE) return refuse(json, name, "follows the root value");
    if ((*open & OBJECT) && !name) return refuse(json, name, "of an object needs a name");
    if (!(*open & OBJECT) && name) return refuse(json, name, "only members of objects have names");
    const int line = json->line ? json->line : json->lines[json->depth];
    if (*open & FILLED) put(json, ",", 1);
    if (json->compact)
        put(json, "\n", *open & FILLED && name && json->depth == 1 ? 1 : 0);
    else if (line)
        put_line(json, line - 1);
    else
        put(json, " ", *open & FILLED ? 1 : 0);
    json->line = 0;
    *open |= json->depth ? FILLED : DONE;
    if (name) {
        put_escaped(json, name, name + strlen(name));
        put(json, ": ", json->compact ? 1 : 2);
    }
    return true;
}

static void nest(mha_json *json, const char *name, uint8_t kind)
{
    const bool item = json->compact && !name && json->open[json->depth] & FILLED;
    if (json->depth == MHA_JSON_DEPTH) {
        refuse(json, name, "is nested too deeply");
        return;
    }
    if (!begin(json, name)) return;
    if (item && kind == OBJECT) put(json, "\n", 1);
    put(json, kind == OBJECT ? "{" : "[", 1);
    json->open[++json->depth] = kind;
    json->lines[json->depth] = 0;
}

void mha_json_object(mha_json *json, const char *name)
{
    nest(json, name, OBJECT);
}

void mha_json_array(mha_json *json, const char *name)
{
    nest(json, name, ARRAY);
}

void mha_json_end(mha_json *json)
{
    if (json->depth == 0) {
        refuse(json, NULL, "is ended but was not begun");
        return;
    }
    const int lines = json->lines[json->depth];
    const int line = json->line ? json->line : lines > 2 ? lines - 2 : lines ? 1 : 0;
    if (line && !json->compact) put_line(json, line - 1);
    put(json, json->open[json->depth] & OBJECT ? "}" : "]", 1);
    json->line = 0;
    if (--json->depth == 0) put(json, "\n", 1);
}

mha_status mha_json_finish(mha_json *json)
{
    if (json->depth > 0) refuse(json, NULL, "is not ended");
    return json->status;
}

static uint8_t spaces_of(int indent)
{
    return (uint8_t)(indent < 0 ? 0 : indent > 250 ? 251 : indent + 1);
}

void mha_json_line(mha_json *json, int indent)
{
    json->line = spaces_of(indent);
}

void mha_json_lines(mha_json *json, int indent)
{
    json->lines[json->depth] = spaces_of(indent);
}

/* ---- Values ---------------------------------------------------------------------------------- */

static void put_word(mha_json *json, const char *name, const char *word)
{
    if (begin(json, name)) put_string(json, word);
}

void mha_json_bytes(mha_json *json, const char *name, const char *text, size_t bytes)
{
    if (!text)
        put_word(json, name, "null");
    else if (begin(json, name))
        put_escaped(json, text, text + bytes);
}

void mha_json_text(mha_json *json, const char *name, const char *text)
{
    mha_json_bytes(json, name, text, text ? strlen(text) : 0);
}

void mha_json_format(mha_json *json, const char *name, const char *format, ...)
{
    char few[200], *text = few;
    va_list arguments;
    va_start(arguments, format);
    const int length = mhai_format_list(few, sizeof few, format, arguments);
    va_end(arguments);
    if (length >= (int)sizeof few && (text = malloc((size_t)length + 1)) != NULL) {
        va_start(arguments, format);
        mhai_format_list(text, (size_t)length + 1, format, arguments);
        va_end(arguments);
    }
    if (text)
        mha_json_text(json, name, text);
    else if (!json->status)
        json->status = mha_fail(MHA_ERR_NOMEM, "json: cannot allocate %d bytes", length + 1);
    if (text != few) free(text);
}

void mha_json_integer(mha_json *json, const char *name, int64_t value)
{
    char text[24];
    mhai_format(text, sizeof text, "%" PRId64, value);
    put_word(json, name, text);
}

void mha_json_number(mha_json *json, const char *name, double value)
{
    char text[32] = "null";
    if (isfinite(value)) mhai_format(text, sizeof text, "%.9g", value);
    put_word(json, name, text);
}

void mha_json_decimals(mha_json *json, const char *name, double value, int decimals)
{
    char text[340] = "null"; /* DBL_MAX has 309 digits before the point */
    if (isfinite(value))
        mhai_format(text, sizeof text, "%.*f", decimals < 20 ? decimals : 20, value);
    put_word(json, name, text);
}

void mha_json_bool(mha_json *json, const char *name, bool value)
{
    put_word(json, name, value ? "true" : "false");
}

void mha_json_null(mha_json *json, const char *name)
{
    put_word(json, name, "null");
}

void mha_json_value(mha_json *json, const char *name)
{
    begin(json, name);
}

mha_status mha_base64(const void *bytes, size_t count, const mha_sink *sink)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *from = bytes;
    char out[1024];
    size_t used = 0;
    for (size_t i = 0; i < count; i += 3) {
        const size_t have = count - i < 3 ? count - i : 3;
        uint32_t word = (uint32_t)from[i] << 16;
        if (have > 1) word |= (uint32_t)from[i + 1] << 8;
        if (have > 2) word |= from[i + 2];
        for (size_t k = 0; k < 4; k++)
            out[used++] = k <= have ? digits[word >> (18 - 6 * k) & 63] : '=';
        if (used < sizeof out && have == 3 && count - i > 3) continue;
        MHA_TRY(sink->write(sink->user, out, used));
        used = 0;
    }
    return MHA_OK;
}

void mha_json_base64(mha_json *json, const char *name, const void *bytes, size_t count)
{
    if (!begin(json, name)) return;
    put(json, "\"", 1);
    if (!json->status) json->status = mha_base64(bytes, count, json->sink);
    put(json, "\"", 1);
}

/* ---- Arrays and structs ---------------------------------------------------------------------- */

static void put_float(mha_json *json, const char *name, float value)
{
    mha_json_number(json, name, (double)value);
}

#define PUT_ARRAY(function, type, put_value)                                                   \
    void function(mha_json *json, const char *name, type values, int64_t count)                \
    {                                                                                          \
        mha_json_array(json, name);                                                            \
        for (int64_t i = 0; i < count && !json->status; i++) put_value(json, NULL, values[i]); \
        mha_json_end(json);                                                                    \
    }
static PUT_ARRAY(put_texts, const char *const *, mha_json_text)
    PUT_ARRAY(mha_json_integers, const int64_t *, mha_json_integer)
        PUT_ARRAY(mha_json_numbers, const double *, mha_json_number)
            PUT_ARRAY(mha_json_floats, const float *, put_float)
#undef PUT_ARRAY

                void mha_json_texts(mha_json *json, const char *name, const char *const *values,
                                    int64_t count)
{
    if (values)
        put_texts(json, name, values, count);
    else
        mha_json_null(json, name);
}

static void put_field(mha_json *json, const mha_json_field *field, const void *at)
{
    const char *name = field->name;
    switch (field->type) {
    case MHA_JSON_TEXT: mha_json_text(json, name, *(const char *const *)at); break;
    case MHA_JSON_CHARS: mha_json_text(json, name, at); break;
    case MHA_JSON_COUNT:
    case MHA_JSON_GIVEN:
        if (*(const int64_t *)at >= 0)
            mha_json_integer(json, name, *(const int64_t *)at);
        else if (field->type == MHA_JSON_COUNT)
            mha_json_null(json, name);
        break;
    case MHA_JSON_INTEGER: mha_json_integer(json, name, *(const int64_t *)at); break;
    case MHA_JSON_INT: mha_json_integer(json, name, *(const int *)at); break;
    case MHA_JSON_NUMBER: mha_json_number(json, name, *(const double *)at); break;
    case MHA_JSON_KNOWN:
        mha_json_number(json, name, *(const double *)at > 0 ? *(const double *)at : NAN);
        break;
    case MHA_JSON_FLOAT: mha_json_number(json, name, (double)*(const float *)at); break;
    case MHA_JSON_WHOLE: mha_json_decimals(json, name, *(const double *)at, 0); break;
    case MHA_JSON_BOOL: mha_json_bool(json, name, *(const bool *)at); break;
    case MHA_JSON_OBJECT: mha_json_object(json, name); break;
    case MHA_JSON_END: mha_json_end(json); break;
    case MHA_JSON_LINE: mha_json_line(json, (int)field->offset); break;
    default: refuse(json, name, "a field of an unknown type");
    }
}

void mha_json_fields(mha_json *json, const mha_json_field *fields, const void *data)
{
    for (; fields->type != MHA_JSON_LAST && !json->status; fields++) {
        const bool between = fields->type >= MHA_JSON_OBJECT;
        put_field(json, fields, (const char *)data + (between ? 0 : fields->offset));
    }
}

void mha_json_struct(mha_json *json, const char *name, const mha_json_field *fields,
                     const void *data)
{
    mha_json_object(json, name);
    mha_json_fields(json, fields, data);
    mha_json_end(json);
}

void mha_json_structs(mha_json *json, const char *name, const mha_json_field *fields,
                      const void *data, size_t size, int64_t count)
{
    mha_json_array(json, name);
    for (int64_t i = 0; i < count && !json->status; i++)
        mha_json_struct(json, NULL, fields, (const char *)data + (size_t)i * size);
    mha_json_end(json);
}
