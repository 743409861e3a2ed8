/* The texts of vocabulary pieces. */
#include "text.h"

#include <string.h>

/* The byte that a letter represents in GPT-2's vocabularies. Printable characters of Latin-1
 * represent themselves; the other bytes follow U+0100 in order. -1: no such letter. */
static int byte_of(uint32_t letter)
{
    uint32_t next = 0x100;
    for (uint32_t byte = 0; byte < 0x100; byte++) {
        const bool itself = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
        if (letter == (itself ? byte : next)) return (int)byte;
        next += !itself;
    }
    return -1;
}

/* Words of other vocabularies may also contain such letters, so only pieces that decode to a text
 * are converted. White space other than spaces is a separate piece. */
static bool is_text(const char *text, size_t bytes)
{
    const char *at = text;
    bool other = false, space = false;
    while (at < text + bytes) {
        bool hidden;
        const uint32_t code = mha_text_next(&at, text + bytes, &hidden);
        const bool white = code == '\t' || code == '\n' || code == '\r';
        if ((hidden && !white) || code == 0) return false;
        space = space || white;
        other = other || !(white || code == ' ');
    }
    return !(space && other);
}

/* Decode the letters of a piece to bytes. Returns 0 if they are not such letters, or only ASCII,
 * which represents itself. */
static size_t decode(const char *piece, char *out, size_t room)
{
    size_t count = 0;
    bool other = false;
    uint32_t letter;
    const char *at = piece;
    while ((letter = mhai_text_next(&at)) != 0) {
        const int byte = byte_of(letter);
        if (byte < 0 || count == room) return 0;
        out[count++] = (char)byte;
        other = other || letter >= 0x80;
    }
    return other && is_text(out, count) ? count : 0;
}

static const char *skip(const char *text, const char *mark)
{
    const size_t length = strlen(mark);
    return strncmp(text, mark, length) ? text : text + length;
}

int64_t mha_text_piece(const char *piece, char *text, size_t size)
{
    static const char end[] = "</w>", mark[] = "\xE2\x96\x81";
    char bytes[256];
    if (!piece) piece = "";
    size_t count = decode(piece, bytes, sizeof bytes);
    const char *from = count ? bytes : piece;
    if (!count) {
        const char *after = skip(piece, mark);
        from = *after ? after : piece;
        count = strlen(from);
        const size_t tail = sizeof end - 1;
        if (count > tail && !memcmp(from + count - tail, end, tail)) count -= tail;
    } else if (count > 1 && *from == ' ') {
        from++;
        count--;
    }
    if (size > 0) {
        const size_t kept = count < size ? count : size - 1;
        memmove(text, from, kept); /* text and piece may be the same memory */
        text[kept] = '\0';
    }
    return (int64_t)count;
}
