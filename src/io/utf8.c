/* See utf8.h. */
#include "io/utf8.h"

#include <multihead/io.h>

#include <stdbool.h>
#include <utf8proc.h>

/* The length (at least 1) of the first character, or of its valid prefix. *whole is the length of a
 * character with this first byte; 0 if the byte is invalid. */
static size_t begin_of_character(const unsigned char *s, size_t count, size_t *whole)
{
    *whole = s[0] < 0x80 ? 1 : s[0] < 0xC2 ? 0 : s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : 4;
    if (s[0] > 0xF4) *whole = 0;
    /* The range of the second byte excludes overlong forms, surrogates and values above 10FFFF. */
    unsigned char low = s[0] == 0xE0 ? 0xA0 : s[0] == 0xF0 ? 0x90 : 0x80;
    unsigned char high = s[0] == 0xED ? 0x9F : s[0] == 0xF4 ? 0x8F : 0xBF;
    size_t length = 1;
    for (; length < *whole && length < count; length++) {
        if (s[length] < low || s[length] > high) break;
        low = 0x80, high = 0xBF;
    }
    return length;
}

size_t mha_utf8_span(const char *bytes, size_t count, size_t *broken)
{
    size_t at = 0, none;
    if (!broken) broken = &none;
    *broken = 0;
    while (at < count) {
        size_t whole;
        const size_t length =
            begin_of_character((const unsigned char *)bytes + at, count - at, &whole);
        if (length != whole) {
            const bool may_follow = whole > 0 && length == count - at;
            *broken = may_follow ? 0 : length;
            break;
        }
        at += length;
    }
    return at;
}

int32_t mhai_utf8_next(const char *text, size_t *at)
{
    const unsigned char *s = (const unsigned char *)text + *at;
    if (s[0] < 0x80) {
        *at += 1;
        return s[0];
    }
    if (s[0] < 0xE0) {
        *at += 2;
        return (s[0] & 0x1F) << 6 | (s[1] & 0x3F);
    }
    if (s[0] < 0xF0) {
        *at += 3;
        return (s[0] & 0x0F) << 12 | (s[1] & 0x3F) << 6 | (s[2] & 0x3F);
    }
    *at += 4;
    return (s[0] & 0x07) << 18 | (s[1] & 0x3F) << 12 | (s[2] & 0x3F) << 6 | (s[3] & 0x3F);
}

int mhai_utf8_put(int32_t c, char bytes[MHAI_UTF8_MAX])
{
    return (int)utf8proc_encode_char(c, (utf8proc_uint8_t *)bytes);
}
