/* Tolerant matching of typed texts for word vocabularies: ignores case,
 * and separates punctuation. */
#include "io/file.h"

#include <multihead/checkpoint.h>
#include <multihead/component.h>
#include <multihead/io.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* MOST_MARKS bounds the number of lookups per mark in a text of many marks. */
enum { WORD_BYTES = 256, MOST_MARKS = 8 };

/* Input text and output tokens. */
typedef struct reading {
    const mha_vocabulary *vocabulary;
    const char *text;
    int32_t *ids;
    int64_t *begin, *end; /* NULL: not requested */
    int64_t room, count;
} reading;

static mha_status put(reading *r, int32_t id, int64_t begin, int64_t end)
{
    if (r->count >= r->room)
        return mha_fail(MHA_ERR_SIZE, "text: it has more than %" PRId64 " tokens", r->room);
    if (r->begin) r->begin[r->count] = begin;
    if (r->end) r->end[r->count] = end;
    r->ids[r->count++] = id;
    return MHA_OK;
}

/* Independent of the locale. ASCII is enough for the words that 'multihead train' teaches. */
static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static bool is_mark(char c)
{
    return c > ' ' && c < 127 && !is_digit(c) && !(lower(c) >= 'a' && lower(c) <= 'z');
}

static bool same_but_case(const char *word, const char *text, size_t bytes)
{
    size_t i = 0;
    while (i < bytes && word[i] && lower(word[i]) == lower(text[i])) i++;
    return i == bytes && !word[i];
}

static bool has_letters(const char *text, size_t bytes)
{
    size_t i = 0;
    while (i < bytes && (is_mark(text[i]) || is_digit(text[i]))) i++;
    return i < bytes;
}

/* The token of a word: an exact match, otherwise one that ignores case; -1: none. */
static int32_t look_up(const mha_vocabulary *v, const char *text, size_t bytes)
{
    int32_t ids[2];
    int64_t count;
    if (mha_vocabulary_encode(v, text, bytes, ids, 2, &count) == MHA_OK && count > 0)
        return ids[count - 1];
    if (!has_letters(text, bytes)) return -1;
    for (int64_t id = 0; id < mha_vocabulary_count(v); id++)
        if (same_but_case(mha_vocabulary_word(v, id), text, bytes)) return (int32_t)id;
    return -1;
}

/* Find the longest known word at the beginning of text. Trailing marks are dropped one at a time.
 * If that fails, try the first mark. *bytes is set to the length; -1: none. */
static int32_t first_word(const mha_vocabulary *v, const char *text, size_t *bytes)
{
    const size_t most = *bytes;
    size_t bare = most < WORD_BYTES ? most : WORD_BYTES;
    int32_t id = -1;
    while (bare > 1 && is_mark(text[bare - 1])) bare--;
    *bytes = most < bare + MOST_MARKS ? most : bare + MOST_MARKS;
    for (; *bytes > bare; --*bytes)
        if ((id = look_up(v, text, *bytes)) >= 0) return id;
    if ((id = look_up(v, text, bare)) >= 0 || !is_mark(*text)) return id;
    *bytes = 1;
    if ((id = look_up(v, text, 1)) < 0) *bytes = most;
    return id;
}

/* The most similar word of the vocabulary, ignoring case. None for a single letter, which is
 * similar to every word. */
static const char *nearest(const mha_vocabulary *v, const char *word)
{
    const int64_t count = mha_vocabulary_count(v);
    const char *near = NULL, **names = calloc((size_t)count + 1, sizeof *names);
    char small[WORD_BYTES] = "";
    for (size_t i = 0; word[i]; i++) small[i] = lower(word[i]);
    for (int64_t id = 0; names && id < count; id++) names[id] = mha_vocabulary_word(v, id);
    if (names && word[0] && word[1]) near = mha_nearest_name(small, names, (size_t)count);
    free(names);
    return near;
}

/* Report an unknown word. Its position replaces that of the next token. */
static mha_status unknown(const reading *r, size_t from, size_t bytes)
{
    char word[WORD_BYTES] = "";
    memcpy(word, r->text + from, bytes < WORD_BYTES ? bytes : WORD_BYTES - 1);
    if (r->begin && r->count < r->room) r->begin[r->count] = (int64_t)from;
    if (r->end && r->count < r->room) r->end[r->count] = (int64_t)(from + bytes);
    const char *near = nearest(r->vocabulary, word);
    return mha_fail(MHA_ERR_FORMAT, "text: '%s' is not one of the model's %" PRId64 " words%s%s%s",
                    mhai_show_name(word).text, mha_vocabulary_count(r->vocabulary),
                    near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

/* Encode bytes [from, to), which contain no space. */
static mha_status read_piece(reading *r, size_t from, size_t to)
{
    while (from < to) {
        size_t bytes = to - from;
        const int32_t id = first_word(r->vocabulary, r->text + from, &bytes);
        if (id < 0) return unknown(r, from, bytes);
        MHA_TRY(put(r, id, (int64_t)from, (int64_t)(from + bytes)));
        from += bytes;
    }
    return MHA_OK;
}

static mha_status read_pieces(reading *r, size_t bytes)
{
    const int32_t first = mha_vocabulary_begin(r->vocabulary);
    if (first >= 0) MHA_TRY(put(r, first, -1, -1));
    for (size_t at = 0, from;;) {
        MHA_TRY(mha_split_next(MHA_SPLIT_SPACE, r->text, bytes, &at, &from));
        if (from == bytes) return MHA_OK;
        MHA_TRY(read_piece(r, from, at));
    }
}

mha_status mha_vocabulary_locate_normalised(const mha_vocabulary *vocabulary, const char *text,
                                            size_t bytes, int32_t *ids, int64_t *begin,
                                            int64_t *end, int64_t room, int64_t *count)
{
    const mha_status status =
        mha_vocabulary_locate(vocabulary, text, bytes, ids, begin, end, room, count);
    if (status != MHA_ERR_FORMAT || mha_vocabulary_splitting(vocabulary) != MHA_SPLIT_SPACE)
        return status;
    reading r = {vocabulary, text, ids, begin, end, room, 0};
    const mha_status found = read_pieces(&r, bytes);
    if (found == MHA_OK || found == MHA_ERR_FORMAT) *count = r.count;
    return found;
}
