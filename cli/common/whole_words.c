/* See whole_words.h. */
#include "common/whole_words.h"

#include "common/args.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORD_BYTES = 256 };

static const char *nearest(const mha_vocabulary *v, const char *word)
{
    const int64_t count = mha_vocabulary_count(v);
    const char *near = NULL, **names = calloc((size_t)count + 1, sizeof *names);
    for (int64_t id = 0; names && id < count; id++) names[id] = mha_vocabulary_word(v, id);
    if (names) near = args_nearest(word, names, (size_t)count);
    free(names);
    return near;
}

/* The word at text, bytes long. */
static mha_status unknown(const mha_vocabulary *v, const char *folder, const char *text,
                          size_t bytes)
{
    char word[WORD_BYTES], lower[WORD_BYTES];
    snprintf(word, sizeof word, "%.*s", (int)(bytes < WORD_BYTES ? bytes : WORD_BYTES - 1), text);
    snprintf(lower, sizeof lower, "%s", word);
    for (char *c = lower; *c; c++)
        if (*c >= 'A' && *c <= 'Z') *c = (char)(*c - 'A' + 'a');
    const char *near = bytes > 1 ? nearest(v, lower) : NULL; /* of one all are near */
    return mha_fail(MHA_ERR_FORMAT,
                    "text: '%s' is not one of the model's %" PRId64
                    " words%s%s%s 'multihead heads %s --words' lists them",
                    word, mha_vocabulary_count(v), near ? "; did you mean '" : "", near ? near : "",
                    near ? "'?" : ";", folder);
}

/* Read a text of which a word is unknown once more, to find that word. */
static mha_status explain(const mha_vocabulary *v, const char *folder, const char *text,
                          size_t bytes)
{
    const size_t room = bytes + 2; /* a token has a byte, but the first, and the unknown word */
    int64_t count = 0, *places = calloc(2 * room, sizeof *places);
    int32_t *ids = calloc(room, sizeof *ids);
    mha_status status = mha_fail(MHA_ERR_NOMEM, "text: cannot allocate %zu numbers", 3 * room);
    if (places && ids)
        status = mha_vocabulary_locate_normalised(v, text, bytes, ids, places, places + room,
                                                  (int64_t)room, &count);
    if (status == MHA_ERR_FORMAT)
        status = unknown(v, folder, text + places[count],
                         (size_t)(places[room + (size_t)count] - places[count]));
    free(places), free(ids);
    return status;
}

mha_status whole_words_locate(const mha_vocabulary *vocabulary, const char *folder,
                              const char *text, size_t bytes, int32_t *ids, int64_t *begin,
                              int64_t *end, int64_t room, int64_t *count)
{
    const mha_status status =
        mha_vocabulary_locate_normalised(vocabulary, text, bytes, ids, begin, end, room, count);
    if (status != MHA_ERR_FORMAT || mha_vocabulary_splitting(vocabulary) != MHA_SPLIT_SPACE)
        return status;
    return explain(vocabulary, folder, text, bytes);
}

bool whole_words_reads(const mha_vocabulary *vocabulary, const char *text, size_t bytes)
{
    const int64_t room = (int64_t)bytes + 1;
    int64_t count;
    int32_t *ids = calloc((size_t)room, sizeof *ids);
    const bool reads = ids && mha_vocabulary_locate_normalised(vocabulary, text, bytes, ids, NULL,
                                                               NULL, room, &count) == MHA_OK;
    free(ids);
    return reads;
}
