/* See utf8.h. */
#include "io/utf8.h"

#include <utf8proc.h>

size_t mhai_utf8_check(const char *text, size_t size)
{
    size_t at = 0;
    while (at < size) {
        if ((unsigned char)text[at] < 0x80) {
            at++;
            continue;
        }
        const size_t rest = size - at < MHAI_UTF8_MAX ? size - at : MHAI_UTF8_MAX;
        utf8proc_int32_t c = 0;
        const utf8proc_ssize_t length =
            utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)rest, &c);
        if (length <= 0) break;
        at += (size_t)length;
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
