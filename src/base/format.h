/* Formatting that does not depend on the host's locale. */
#ifndef MHAI_BASE_FORMAT_H
#define MHAI_BASE_FORMAT_H

#include <multihead/component.h>

#include <stdarg.h>
#include <stddef.h>

/* vsnprintf() in the "C" locale. Preserves errno and the host's locale. */
int mhai_format_list(char *text, size_t size, const char *format, va_list arguments)
    MHA_PRINTF(3, 0);

/* snprintf() in the "C" locale. */
#define mhai_format mha_format

#endif
