/* Text for people and files, the same in every host. */
#ifndef MHAI_BASE_FORMAT_H
#define MHAI_BASE_FORMAT_H

#include <multihead/component.h>

#include <stdarg.h>
#include <stddef.h>

/* vsnprintf() as it is in the locale "C": a host that has called setlocale() does
 * not put its decimal comma into our numbers. errno and the host's locale stay as they are. */
int mhai_format_list(char *text, size_t size, const char *format, va_list arguments)
    MHA_PRINTF(3, 0);

/* As snprintf(). */
#define mhai_format mha_format

#endif
