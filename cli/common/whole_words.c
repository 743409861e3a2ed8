/* See whole_words.h. */
#include "common/whole_words.h"

#include "common/args.h"

#include <multihead/component.h>

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is looked up at most, so that a text of marks alone costs so much for each of them. */
enum { WORD_BYTES = 256, MOST_MARKS = 8 };

/* The text that is read, and where its tokens go. */
typedef struct reading {
    const mha_vocabulary *vocabulary;
    const char *folder, *text; /* folder NULL: failures need no message */
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

static bool is_mark(char c)
{
    return (unsigned char)c < 128 && ispunct((unsigned char)c);
}

/* ASCII letters alone: what 'multihead train' teaches has no others. */
static bool same_but_case(const char *word, const char *text, size_t bytes)
{
    size_t i = 0;
    for (; i < bytes && word[i]; i++) {
        const unsigned char a = (unsigned char)word[i], b = (unsigned char)text[i];
        if (a != b && (a >= 128 || b >= 128 || tolower(a) != tolower(b))) return false;
    }
    return i == bytes && !word[i];
}

static bool has_letters(const char *text, size_t bytes)
{
    size_t i = 0;
    while (i < bytes && (is_mark(text[i]) || isdigit((unsigned char)text[i]))) i++;
    return i < bytes;
}

/* The token of a word: written the same, else the same but for its case; -1: none. */
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

static const char *nearest(const mha_vocabulary *v, const char *word)
{
    const int64_t count = mha_vocabulary_count(v);
    const char *near = NULL, **names = calloc((size_t)count + 1, sizeof *names);
    for (int64_t id = 0; names && id < count; id++) names[id] = mha_vocabulary_word(v, id);
    if (names) near = args_nearest(word, names, (size_t)count);
    free(names);
    return near;
}

static mha_status unknown(const reading *r, const char *text, size_t bytes)
{
    char word[WORD_BYTES], lower[WORD_BYTES];
    if (!r->folder) return MHA_ERR_FORMAT;
    snprintf(word, sizeof word, "%.*s", (int)(bytes < WORD_BYTES ? bytes : WORD_BYTES - 1), text);
    snprintf(lower, sizeof lower, "%s", word);
    for (char *c = lower; *c; c++)
        if (*c >= 'A' && *c <= 'Z') *c = (char)tolower(*c);
    const char *near = bytes > 1 ? nearest(r->vocabulary, lower) : NULL; /* of one all are near */
    return mha_fail(MHA_ERR_FORMAT,
                    "text: '%s' is not one of the model's %" PRId64
                    " words%s%s%s 'multihead heads %s --words' lists them",
                    word, mha_vocabulary_count(r->vocabulary), near ? "; did you mean '" : "",
                    near ? near : "", near ? "'?" : ";", r->folder);
}

/* The word that begins text: as long as possible, with less and less of the marks that end it, then
 * without all of them; else the mark that begins it. *bytes becomes its length; -1: none. */
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

/* What stands between two spaces, bytes [from, to). */
static mha_status read_piece(reading *r, size_t from, size_t to)
{
    while (from < to) {
        size_t bytes = to - from;
        const int32_t id = first_word(r->vocabulary, r->text + from, &bytes);
        if (id < 0) return unknown(r, r->text + from, bytes);
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

mha_status whole_words_locate(const mha_vocabulary *vocabulary, const char *folder,
                              const char *text, size_t bytes, int32_t *ids, int64_t *begin,
                              int64_t *end, int64_t room, int64_t *count)
{
    reading r = {vocabulary, folder, text, ids, begin, end, room, 0};
    const mha_status status =
        mha_vocabulary_locate(vocabulary, text, bytes, ids, begin, end, room, count);
    if (status != MHA_ERR_FORMAT || mha_vocabulary_splitting(vocabulary) != MHA_SPLIT_SPACE)
        return status;
    MHA_TRY(read_pieces(&r, bytes));
    *count = r.count;
    return MHA_OK;
}

bool whole_words_reads(const mha_vocabulary *vocabulary, const char *text, size_t bytes)
{
    const int64_t room = (int64_t)bytes + 1;
    int64_t count;
    int32_t *ids = calloc((size_t)room, sizeof *ids);
    const bool reads = ids && whole_words_locate(vocabulary, NULL, text, bytes, ids, NULL, NULL,
                                                 room, &count) == MHA_OK;
    free(ids);
    return reads;
}
