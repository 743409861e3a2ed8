/* See whole_words.h. */
#include "common/whole_words.h"

#include "common/args.h"

#include <multihead/component.h>

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORD_BYTES = 256 }; /* a longer word is looked up as it is */

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

/* The token of a word: written the same, else the same but for its case; -1: none. */
static int32_t look_up(const mha_vocabulary *v, const char *text, size_t bytes)
{
    int32_t ids[2];
    int64_t count;
    if (mha_vocabulary_encode(v, text, bytes, ids, 2, &count) == MHA_OK && count > 0)
        return ids[count - 1];
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

/* What stands between two spaces, bytes [from, to): the longest words that begin it, marks before
 * and behind them one by one. */
static mha_status read_piece(reading *r, size_t from, size_t to)
{
    while (from < to) {
        size_t last = to;
        int32_t id = look_up(r->vocabulary, r->text + from, last - from);
        while (id < 0 && last - from > 1 && is_mark(r->text[last - 1]))
            id = look_up(r->vocabulary, r->text + from, --last - from);
        if (id < 0 && last > from + 1 && is_mark(r->text[from])) {
            id = look_up(r->vocabulary, r->text + from, 1);
            last = id < 0 ? to : from + 1;
        }
        if (id < 0) return unknown(r, r->text + from, last - from);
        MHA_TRY(put(r, id, (int64_t)from, (int64_t)last));
        from = last;
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
