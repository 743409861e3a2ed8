/* UTF-8. */
#ifndef MHAI_UTF8_H
#define MHAI_UTF8_H

#include <stddef.h>
#include <stdint.h>

enum { MHAI_UTF8_MAX = 4 }; /* bytes of one character */

/* Return the character that begins at *at in valid text, and advance *at past it. */
int32_t mhai_utf8_next(const char *text, size_t *at);

/* Write a character as UTF-8; returns the number of bytes, 1 to 4. */
int mhai_utf8_put(int32_t c, char bytes[MHAI_UTF8_MAX]);

#endif
