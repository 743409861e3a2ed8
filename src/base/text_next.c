/* Decoding of untrusted UTF-8 (json.h). */
#include <multihead/json.h>

#include <string.h>

enum { REPLACEMENT = 0xFFFD };

/* Length of the sequence at s if its first two bytes are well-formed, otherwise 0. (Unicode 15,
 * table 3-7: no overlong forms, no surrogates, nothing above U+10FFFF.) */
static int sequence_length(const unsigned char *s)
{
    if (s[0] < 0x80) return 1;
    if (s[0] < 0xC2 || s[0] > 0xF4) return 0;
    const unsigned char low = s[0] == 0xE0 ? 0xA0 : s[0] == 0xF0 ? 0x90 : 0x80;
    const unsigned char high = s[0] == 0xED ? 0x9F : s[0] == 0xF4 ? 0x8F : 0xBF;
    if (s[1] < low || s[1] > high) return 0;
    return s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : 4;
}

bool mha_text_hidden(uint32_t code)
{
    return code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0x00AD || code == 0x061C ||
           code == 0x200B || code == 0x200E || code == 0x200F ||
           (code >= 0x2028 && code <= 0x202E) || (code >= 0x2060 && code <= 0x206F) ||
           code == 0xFEFF || (code >= 0xFFF9 && code <= 0xFFFB) || (code & 0xFFFE) == 0xFFFE ||
           (code >= 0xE0000 && code <= 0xE0FFF);
}

uint32_t mha_text_next(const char **text, const char *end, bool *hidden)
{
    unsigned char s[4] = {0}; /* room for the longest sequence, with zeros after the end */
    memcpy(s, *text, end - *text < 4 ? (size_t)(end - *text) : 4);
    int length = sequence_length(s);
    uint32_t code = length == 1   ? s[0]
                    : length == 2 ? s[0] & 0x1Fu
                    : length == 3 ? s[0] & 0xFu
                                  : s[0] & 7u;
    for (int i = 1; i < length; i++) {
        if ((s[i] & 0xC0) != 0x80)
            length = 0;
        else
            code = code << 6 | (s[i] & 0x3Fu);
    }
    if (!length) code = REPLACEMENT;
    *hidden = !length || mha_text_hidden(code);
    *text += length ? length : 1;
    return code;
}
