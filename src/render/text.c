/* UTF-8, visible forms of labels, and widths. */
#define _POSIX_C_SOURCE 200809L /* strnlen */
#include "text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { REPLACEMENT = 0xFFFD, ELLIPSIS = 0x2026 };

uint32_t mhai_text_next(const char **text)
{
    bool hidden;
    return **text ? mha_text_next(text, *text + strnlen(*text, 4), &hidden) : 0;
}

int mhai_text_encode(uint32_t code, char bytes[4])
{
    int length = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (int i = length - 1; i > 0; i--, code >>= 6) bytes[i] = (char)(0x80 | (code & 0x3F));
    bytes[0] = (char)(lead[length] | code);
    return length;
}

typedef struct code_range {
    uint32_t first, last;
} code_range;

/* Sorted. Combining marks and joiners of the common scripts, as blocks. */
static const code_range zero_width[] = {
    {0x0001, 0x001F}, {0x007F, 0x009F},   {0x0300, 0x036F}, {0x0483, 0x0489}, {0x0591, 0x05BD},
    {0x0610, 0x061A}, {0x064B, 0x065F},   {0x06D6, 0x06DC}, {0x0900, 0x0902}, {0x093C, 0x093C},
    {0x0941, 0x0948}, {0x094D, 0x094D},   {0x0E31, 0x0E31}, {0x0E34, 0x0E3A}, {0x0E47, 0x0E4E},
    {0x1AB0, 0x1AFF}, {0x1DC0, 0x1DFF},   {0x200B, 0x200F}, {0x202A, 0x202E}, {0x2060, 0x206F},
    {0x20D0, 0x20FF}, {0x302A, 0x302D},   {0x3099, 0x309A}, {0xFE00, 0xFE0F}, {0xFE20, 0xFE2F},
    {0xFEFF, 0xFEFF}, {0xE0000, 0xE0FFF},
};

/* Sorted. East Asian Wide and Fullwidth, and emoji, as blocks. */
static const code_range wide[] = {
    {0x1100, 0x115F},   {0x231A, 0x231B},   {0x2329, 0x232A},   {0x23E9, 0x23EC},
    {0x23F0, 0x23F0},   {0x23F3, 0x23F3},   {0x25FD, 0x25FE},   {0x2614, 0x2615},
    {0x2648, 0x2653},   {0x267F, 0x267F},   {0x2693, 0x2693},   {0x26A1, 0x26A1},
    {0x26AA, 0x26AB},   {0x26BD, 0x26BE},   {0x26C4, 0x26C5},   {0x26CE, 0x26CE},
    {0x26D4, 0x26D4},   {0x26EA, 0x26EA},   {0x26F2, 0x26F3},   {0x26F5, 0x26F5},
    {0x26FA, 0x26FA},   {0x26FD, 0x26FD},   {0x2705, 0x2705},   {0x270A, 0x270B},
    {0x2728, 0x2728},   {0x274C, 0x274C},   {0x274E, 0x274E},   {0x2753, 0x2755},
    {0x2757, 0x2757},   {0x2795, 0x2797},   {0x27B0, 0x27B0},   {0x27BF, 0x27BF},
    {0x2B1B, 0x2B1C},   {0x2B50, 0x2B50},   {0x2B55, 0x2B55},   {0x2E80, 0x303E},
    {0x3041, 0xA4CF},   {0xA960, 0xA97F},   {0xAC00, 0xD7A3},   {0xF900, 0xFAFF},
    {0xFE10, 0xFE19},   {0xFE30, 0xFE6F},   {0xFF01, 0xFF60},   {0xFFE0, 0xFFE6},
    {0x16FE0, 0x18DFF}, {0x1AFF0, 0x1B2FF}, {0x1F004, 0x1F004}, {0x1F0CF, 0x1F0CF},
    {0x1F18E, 0x1F18E}, {0x1F191, 0x1F19A}, {0x1F1E6, 0x1F202}, {0x1F210, 0x1F23B},
    {0x1F240, 0x1F248}, {0x1F250, 0x1F251}, {0x1F260, 0x1F265}, {0x1F300, 0x1F64F},
    {0x1F680, 0x1F6FF}, {0x1F7E0, 0x1F7EB}, {0x1F7F0, 0x1F7F0}, {0x1F90C, 0x1F9FF},
    {0x1FA70, 0x1FAFF}, {0x20000, 0x3FFFD},
};

static bool within(uint32_t code, const code_range *ranges, size_t count)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (code > ranges[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && code >= ranges[low].first;
}

int mhai_text_code_columns(uint32_t code)
{
    if (code >= 0x20 && code < 0x7F) return 1;
    if (!code || within(code, zero_width, sizeof zero_width / sizeof *zero_width)) return 0;
    return within(code, wide, sizeof wide / sizeof *wide) ? 2 : 1;
}

int64_t mha_text_columns(const char *text)
{
    int64_t columns = 0;
    uint32_t code;
    while (text && (code = mhai_text_next(&text)) != 0) columns += mhai_text_code_columns(code);
    return columns;
}

/* The visible form of a code point, as UTF-8. */
static void visible_code(uint32_t code, bool prose, bool ascii, char out[16])
{
    if (prose && (code == '\n' || code == '\t' || code == '\r')) code = ' ';
    if (mha_text_hidden(code) && code > 0x20 && (code < 0x7F || code >= 0xA0)) {
        snprintf(out, 16, "<U+%04" PRIX32 ">", code);
        return;
    }
    if (ascii && (code < 0x20 || code > 0x7E)) {
        snprintf(out, 16, "%s", code == '\n' ? "\\n" : code == '\t' ? "\\t" : "?");
        return;
    }
    if (code == ' ' && !prose)
        code = ascii ? '_' : 0xB7;
    else if (code == '\n')
        code = 0x23CE;
    else if (code < 0x20)
        code += 0x2400;
    else if (code == 0x7F)
        code = 0x2421;
    else if (code == 0xA0 && !prose)
        code = 0x2423;
    else if (code >= 0x80 && code < 0xA0)
        code = REPLACEMENT;
    out[mhai_text_encode(code, out)] = 0;
}

void mhai_text_visible(const char *raw, int64_t index, mhai_text_style style, mhai_text *visible)
{
    if (!raw) {
        snprintf(visible->text, sizeof visible->text, "%" PRId64, index);
        return;
    }
    size_t used = 0;
    uint32_t code;
    while ((code = mhai_text_next(&raw)) != 0) {
        char piece[16];
        visible_code(code, style >= MHAI_TEXT_PROSE,
                     style == MHAI_TEXT_ASCII || style == MHAI_TEXT_ASCII_PROSE, piece);
        size_t length = strlen(piece);
        if (used + length + 4 > sizeof visible->text) { /* keep room for an ellipsis */
            length = style == MHAI_TEXT_ASCII || style == MHAI_TEXT_ASCII_PROSE
                         ? 1
                         : (size_t)mhai_text_encode(ELLIPSIS, piece);
            if (length == 1) piece[0] = '~';
            memcpy(visible->text + used, piece, length);
            used += length;
            break;
        }
        memcpy(visible->text + used, piece, length);
        used += length;
    }
    visible->text[used] = 0;
}

/* Advance widths of the printable ASCII characters in hundredths of an em. */
static const unsigned char ascii_widths[95] = {
    32, 41, 46, 84, 64, 95, 78, 28, 39,  39, 50, 84, 32, 36, 32, 34, 64, 64, 64, 64, 64, 64, 64, 64,
    64, 64, 34, 34, 84, 84, 84, 53, 100, 69, 69, 70, 77, 64, 58, 78, 76, 30, 30, 66, 56, 87, 75, 79,
    61, 79, 70, 64, 61, 74, 69, 99, 69,  61, 69, 39, 34, 39, 84, 50, 50, 62, 64, 55, 64, 62, 36, 64,
    64, 28, 28, 58, 28, 98, 64, 62, 64,  64, 42, 53, 40, 64, 60, 82, 60, 60, 53, 64, 34, 64, 84,
};

static double code_em(uint32_t code)
{
    if (code >= 0x20 && code < 0x7F) return ascii_widths[code - 0x20] / 100.0;
    if (code == 0xB7) return 0.32;
    int columns = mhai_text_code_columns(code);
    if (code >= 0x2100) return columns == 0 ? 0 : 1; /* symbols and wide scripts */
    return columns == 0 ? 0 : 0.68;
}

double mhai_text_em(const char *text)
{
    double em = 0;
    uint32_t code;
    while ((code = mhai_text_next(&text)) != 0) em += code_em(code);
    return em;
}

/* Truncate where the total `width` of the code points exceeds limit. The ellipsis takes 1. */
static void cut(mhai_text *text, double limit, double (*width)(uint32_t), const char *ellipsis)
{
    double total = 0;
    const char *next = text->text, *end = next;
    uint32_t code;
    while ((code = mhai_text_next(&next)) != 0) {
        total += width(code);
        if (total <= limit - 1) end = next;
        if (total > limit) {
            size_t keep = (size_t)(end - text->text);
            snprintf(text->text + keep, sizeof text->text - keep, "%s", limit < 1 ? "" : ellipsis);
            return;
        }
    }
}

static double columns_of(uint32_t code)
{
    return mhai_text_code_columns(code);
}

void mhai_text_cut_columns(mhai_text *text, int64_t columns, bool ascii)
{
    cut(text, (double)columns, columns_of, ascii ? "~" : "\xE2\x80\xA6");
}

void mhai_text_cut_em(mhai_text *text, double em)
{
    cut(text, em, code_em, "\xE2\x80\xA6");
}

/* Width of a short piece of UTF-8. */
static double measure(const char *piece, mhai_text_unit unit)
{
    return unit == MHAI_TEXT_EM ? mhai_text_em(piece) : (double)mha_text_columns(piece);
}

/* Take one line from *raw and advance *raw past it. A line breaks after the last space that fits,
 * or anywhere if there is no space. */
static void wrap_line(const char **raw, double limit, mhai_text_unit unit, mhai_text *line)
{
    const char *next = *raw, *after_space = NULL;
    size_t used = 0, used_at_space = 0;
    double width = 0;
    while (*next) {
        const char *before = next;
        char piece[16];
        visible_code(mhai_text_next(&next), true, unit == MHAI_TEXT_ASCII_COLUMNS, piece);
        double advance = measure(piece, unit);
        size_t length = strlen(piece);
        if (used && ((width + advance > limit && piece[0] != ' ') ||
                     used + length + 4 > sizeof line->text)) {
            used = after_space ? used_at_space : used;
            next = after_space ? after_space : before;
            break;
        }
        memcpy(line->text + used, piece, length);
        used += length;
        width += advance;
        if (piece[0] == ' ') {
            after_space = next;
            used_at_space = used;
        }
    }
    while (used && line->text[used - 1] == ' ') used--;
    line->text[used] = 0;
    *raw = next;
}

int mhai_text_wrap(const char *raw, double limit, mhai_text_unit unit, mhai_text *lines, int most)
{
    int count = 0;
    while (raw && *raw && count < most) wrap_line(&raw, limit, unit, &lines[count++]);
    if (count && *raw) {
        mhai_text *last = &lines[count - 1];
        snprintf(last->text + strlen(last->text), 5, "%s",
                 unit == MHAI_TEXT_ASCII_COLUMNS ? " ~~" : " \xE2\x80\xA6");
        if (unit == MHAI_TEXT_EM)
            mhai_text_cut_em(last, limit);
        else
            mhai_text_cut_columns(last, (int64_t)limit, unit == MHAI_TEXT_ASCII_COLUMNS);
    }
    return count;
}
