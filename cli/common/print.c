/* See print.h. */
#include "common/print.h"

#include <multihead/render.h>

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

/* ---- untrusted text -------------------------------------------------------------------------- */

void cli_show(const char **text, const char *end, char shown[CLI_SHOWN_BYTES])
{
    const char *from = *text;
    bool hidden;
    uint32_t code = mha_text_next(text, end, &hidden);
    const size_t length = (size_t)(*text - from);
    if (!hidden) {
        memcpy(shown, from, length);
        shown[length] = '\0';
    } else if (length == 1) /* ASCII, or a byte that is not part of a character */
        snprintf(shown, CLI_SHOWN_BYTES, "\\x%02x", (unsigned)(unsigned char)*from);
    else
        snprintf(shown, CLI_SHOWN_BYTES, code < 0x10000 ? "\\u%04" PRIx32 : "\\U%08" PRIx32, code);
}

static int64_t columns_of(const char *text, size_t bytes)
{
    const char *end = text + bytes;
    char shown[CLI_SHOWN_BYTES];
    int64_t columns = 0;
    while (text < end) {
        cli_show(&text, end, shown);
        columns += mha_text_columns(shown);
    }
    return columns;
}

/* Buffered output. stderr is unbuffered, and a line must be one write. */
typedef struct page {
    FILE *file;
    size_t used;
    char bytes[1024];
} page;

static bool silent;

void cli_print_silence(bool is_silent)
{
    silent = is_silent;
}

/* Flush stdout first, so that output is in order where stdout and stderr are one file. */
static void flush_page(page *out)
{
    if (out->file == stderr) fflush(stdout);
    if (!silent || out->file != stderr) fwrite(out->bytes, 1, out->used, out->file);
    out->used = 0;
}

static void put_bytes(page *out, const char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (out->used == sizeof out->bytes) flush_page(out);
        out->bytes[out->used++] = bytes[i];
    }
}

static void put_text(page *out, const char *text, size_t bytes)
{
    const char *end = text + bytes;
    char shown[CLI_SHOWN_BYTES];
    while (text < end) {
        cli_show(&text, end, shown);
        put_bytes(out, shown, strlen(shown));
    }
}

/* ---- Formats --------------------------------------------------------------------------------- */

/* One conversion of a format: "%-*.3ld". */
typedef struct directive {
    bool left, plus, zero;
    int width, precision; /* precision -1: none */
    enum { PLAIN_INT, LONG_INT, LONG_LONG, SIZE_INT, GREATEST_INT } length;
    char kind;
} directive;

static int take_number(const char **format, va_list *arguments)
{
    int number = 0;
    if (**format == '*') {
        ++*format;
        return va_arg(*arguments, int);
    }
    while (**format >= '0' && **format <= '9') number = 10 * number + (*(*format)++ - '0');
    return number;
}

/* Parse a conversion: format points after the %, then after the conversion. */
static directive take_directive(const char **format, va_list *arguments)
{
    directive d = {.precision = -1};
    for (; **format && strchr("-+0", **format); ++*format) {
        if (**format == '-') d.left = true;
        if (**format == '+') d.plus = true;
        if (**format == '0') d.zero = true;
    }
    d.width = take_number(format, arguments);
    if (d.width < 0) {
        d.left = true;
        d.width = -d.width;
    }
    if (**format == '.') {
        ++*format;
        d.precision = take_number(format, arguments);
    }
    for (; **format && strchr("lzj", **format); ++*format)
        d.length = **format == 'z'        ? SIZE_INT
                   : **format == 'j'      ? GREATEST_INT
                   : d.length == LONG_INT ? LONG_LONG
                                          : LONG_INT;
    d.kind = **format ? *(*format)++ : '%';
    return d;
}

static intmax_t take_signed(const directive *d, va_list *arguments)
{
    switch (d->length) {
    case LONG_INT: return va_arg(*arguments, long);
    case LONG_LONG: return va_arg(*arguments, long long);
    case SIZE_INT: return va_arg(*arguments, ptrdiff_t);
    case GREATEST_INT: return va_arg(*arguments, intmax_t);
    default: return va_arg(*arguments, int);
    }
}

static uintmax_t take_unsigned(const directive *d, va_list *arguments)
{
    switch (d->length) {
    case LONG_INT: return va_arg(*arguments, unsigned long);
    case LONG_LONG: return va_arg(*arguments, unsigned long long);
    case SIZE_INT: return va_arg(*arguments, size_t);
    case GREATEST_INT: return va_arg(*arguments, uintmax_t);
    default: return va_arg(*arguments, unsigned);
    }
}

enum { NUMBER_BYTES = 400 }; /* the greatest double has 309 digits before the point */

static void write_number(const directive *d, va_list *arguments, char text[NUMBER_BYTES])
{
    const int precision = d->precision > 60 ? 60 : d->precision; /* -1 is none */
    char *at = text;
    if (d->plus) *at++ = '+';
    const size_t size = NUMBER_BYTES - 1;
    switch (d->kind) {
    case 'e': snprintf(at, size, "%.*e", precision, va_arg(*arguments, double)); break;
    case 'f': snprintf(at, size, "%.*f", precision, va_arg(*arguments, double)); break;
    case 'g': snprintf(at, size, "%.*g", precision, va_arg(*arguments, double)); break;
    case 'u': snprintf(at, size, "%ju", take_unsigned(d, arguments)); break;
    case 'x': snprintf(at, size, "%jx", take_unsigned(d, arguments)); break;
    default: snprintf(at, size, "%jd", take_signed(d, arguments)); break;
    }
    if (d->plus && *at == '-') memmove(text, at, strlen(at) + 1);
}

/* Bytes of a %s: up to its end or its precision, never splitting a character. */
static size_t text_bytes(const char *text, int precision)
{
    if (precision < 0) return strlen(text);
    const char *end = memchr(text, 0, (size_t)precision);
    if (end) return (size_t)(end - text);
    size_t bytes = (size_t)precision, begin = bytes;
    while (begin > 0 && bytes - begin < 3 && ((unsigned char)text[begin - 1] & 0xC0) == 0x80)
        begin--;
    const unsigned char lead = begin > 0 ? (unsigned char)text[begin - 1] : 0;
    const size_t length = lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    return lead >= 0xC0 && begin - 1 + length > bytes ? begin - 1 : bytes;
}

static int put_directive(page *out, const directive *d, va_list *arguments)
{
    char number[NUMBER_BYTES];
    const char *text = number;
    size_t bytes;
    if (d->kind == 's') {
        text = va_arg(*arguments, const char *);
        if (!text) text = "(null)";
        bytes = text_bytes(text, d->precision);
    } else if (d->kind == 'c') {
        number[0] = (char)va_arg(*arguments, int);
        bytes = 1;
    } else {
        write_number(d, arguments, number);
        bytes = strlen(number);
    }
    const int columns = (int)columns_of(text, bytes), idle = d->width - columns;
    const bool noughts = d->zero && !d->left && text == number && *text != '-' && *text != '+';
    for (int i = 0; i < idle && !d->left; i++) put_bytes(out, noughts ? "0" : " ", 1);
    put_text(out, text, bytes);
    for (int i = 0; i < idle && d->left; i++) put_bytes(out, " ", 1);
    return idle > 0 ? d->width : columns;
}

/* The program's own text has one column per character. */
static int columns_of_format(const char *text, size_t bytes)
{
    int columns = 0;
    for (size_t i = 0; i < bytes; i++)
        columns += (unsigned char)text[i] >= 0x20 && ((unsigned char)text[i] & 0xC0) != 0x80;
    return columns;
}

static int put_list(page *out, const char *format, va_list arguments)
{
    int columns = 0;
    va_list list; /* va_list is an array on some machines, where the address of a parameter has
                     another type */
    va_copy(list, arguments);
    while (*format) {
        const size_t plain = strcspn(format, "%");
        put_bytes(out, format, plain);
        columns += columns_of_format(format, plain);
        format += plain;
        if (!*format) break;
        format++;
        const directive d = take_directive(&format, &list);
        if (d.kind != '%') {
            columns += put_directive(out, &d, &list);
        } else {
            put_bytes(out, "%", 1);
            columns++;
        }
    }
    va_end(list);
    return columns;
}

int cli_print_list(FILE *file, const char *format, va_list arguments)
{
    page out = {.file = file};
    const int columns = put_list(&out, format, arguments);
    flush_page(&out);
    return columns;
}

void cli_print_line(FILE *file, const char *command, const char *kind, const char *format,
                    va_list arguments)
{
    page out = {.file = file};
    if (kind) {
        put_bytes(&out, "multihead: ", strlen("multihead: "));
        if (command) {
            put_text(&out, command, strlen(command));
            put_bytes(&out, ": ", 2);
        }
        put_bytes(&out, kind, strlen(kind));
    }
    put_list(&out, format, arguments);
    put_bytes(&out, "\n", 1);
    flush_page(&out);
}

int cli_print_to(FILE *file, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const int columns = cli_print_list(file, format, arguments);
    va_end(arguments);
    return columns;
}

int cli_print(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const int columns = cli_print_list(stdout, format, arguments);
    va_end(arguments);
    return columns;
}

/* ---- Long texts ------------------------------------------------------------------------------ */

void cli_print_wrapped(const char *label, const char *text, int64_t width)
{
    const int indent = cli_print("%s", label);
    int64_t column = indent;
    while (*text) {
        const size_t bytes = strcspn(text, " ");
        const int64_t columns = columns_of(text, bytes);
        if (column > indent && column + 1 + columns > width) {
            cli_print("\n%*s", indent, "");
            column = indent;
        } else if (column > indent) {
            column += cli_print(" ");
        }
        column += cli_print("%.*s", (int)bytes, text);
        text += bytes;
        text += strspn(text, " ");
    }
    cli_print("\n");
}

void cli_print_cut(const char *text, int64_t columns, bool ascii)
{
    const char *end = text + strlen(text);
    const bool whole = columns_of(text, strlen(text)) <= columns;
    int64_t used = 0;
    while (text < end) {
        char shown[CLI_SHOWN_BYTES];
        cli_show(&text, end, shown);
        used += mha_text_columns(shown);
        if (!whole && used + 1 > columns) break;
        cli_print("%s", shown);
    }
    if (!whole && columns > 0) cli_print("%s", ascii ? "~" : "\xE2\x80\xA6");
}
