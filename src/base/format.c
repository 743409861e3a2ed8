/* See format.h. */
#define _POSIX_C_SOURCE 200809L /* newlocale, uselocale */
#include "format.h"

#include <locale.h>
#include <stdio.h>

int mhai_format_list(char *text, size_t size, const char *format, va_list arguments)
{
    /* Cannot fail, because the locale object for "C" is a constant in the C library. uselocale()
     * only affects this thread. */
    const locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    const locale_t before = plain ? uselocale(plain) : (locale_t)0;
    const int length = vsnprintf(text, size, format, arguments);
    if (plain) {
        uselocale(before);
        freelocale(plain);
    }
    return length;
}

int mha_format(char *text, size_t size, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const int length = mhai_format_list(text, size, format, arguments);
    va_end(arguments);
    return length;
}
