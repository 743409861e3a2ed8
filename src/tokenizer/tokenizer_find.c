/* Finding added tokens in a text, with the white space that they include, and
 * the text between them. */
#include "tokenizer/tokenizer_parts.h"

#include "tokenizer/pattern.h"
#include "tokenizer/unicode_bert.h"

#include <multihead/component.h>

#include <utf8proc.h>

/* The character that ends before byte at. at must not be 0. */
static int32_t before(const char *text, size_t at, size_t *begin)
{
    do at--;
    while (at > 0 && ((unsigned char)text[at] & 0xC0) == 0x80);
    *begin = at;
    return mhai_utf8_next(text, &at);
}

/* The class \w of Rust's regular expressions (Unicode 16). */
static bool is_word(int32_t c)
{
    c = mhai_pattern_stand_in(c);
    if ((c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
        (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189))
        return true; /* letters in circles and squares: symbols, but alphabetic */
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: return c == 0x200C || c == 0x200D;
    }
}

static bool stands_alone(const char *text, size_t size, size_t from, size_t to)
{
    size_t begin;
    return !(from > 0 && is_word(before(text, from, &begin))) &&
           !(to < size && is_word(mhai_utf8_next(text, &to)));
}

/* Extend a token to the left over white space, but not before `least`,
 * where a previous token ends. */
static size_t strip_left(const char *text, size_t from, size_t least)
{
    size_t begin;
    while (from > least && mhai_unicode_is_space(before(text, from, &begin))) from = begin;
    return from;
}

static size_t strip_right(const char *text, size_t size, size_t to)
{
    for (size_t next = to; next < size && mhai_unicode_is_space(mhai_utf8_next(text, &next));)
        to = next;
    return to;
}

mha_status mhai_tokenizer_find(const mha_tokenizer *tokenizer, const mhai_lexicon_branch *set,
                               const char *text, size_t size, const mhai_finder *finder)
{
    size_t done = 0, matched = 0;
    for (size_t at = 0; at < size;) {
        const int32_t id = mhai_lexicon_longest(set, text + at, size - at, &matched);
        if (id < 0) {
            at++;
            continue;
        }
        const uint8_t flags = tokenizer->flags[id];
        size_t from = at, to = at + matched;
        at = to;
        if ((flags & MHAI_SINGLE_WORD) && !stands_alone(text, size, from, to)) continue;
        /* A token that begins with white space follows even one that includes this white space. */
        if (flags & MHAI_LSTRIP)
            from = from < done ? (done < to ? done : to) : strip_left(text, from, done);
        if (flags & MHAI_RSTRIP) to = strip_right(text, size, to);
        if (from > done) MHA_TRY(finder->gap(finder->user, done, from));
        MHA_TRY(finder->token(finder->user, id, from, to));
        done = to;
    }
    return done < size ? finder->gap(finder->user, done, size) : MHA_OK;
}
