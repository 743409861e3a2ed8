/* See lexicon.h. */
#include "io/lexicon.h"

#include <stdlib.h>
#include <string.h>

static int by_text(const void *a, const void *b)
{
    const mhai_lexicon_entry *left = a, *right = b;
    return strcmp(left->text, right->text); /* strcmp() compares unsigned bytes (C standard) */
}

int32_t mhai_lexicon_build(mhai_lexicon_entry *entries, int32_t count, mhai_lexicon *lexicon)
{
    if (count > 0) qsort(entries, (size_t)count, sizeof *entries, by_text);
    *lexicon = (mhai_lexicon){entries, count};
    for (int32_t i = 0; i + 1 < count; i++)
        if (entries[i].size == entries[i + 1].size && by_text(&entries[i], &entries[i + 1]) == 0)
            return i;
    return -1;
}

int32_t mhai_lexicon_find(const mhai_lexicon *lexicon, const char *text)
{
    int32_t low = 0, high = lexicon->count;
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        const int order = strcmp(lexicon->entries[middle].text, text);
        if (order == 0) return lexicon->entries[middle].id;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return -1;
}

/* The first of entries [low, high) whose byte `at` is at least `byte`. The
 * entries agree before it. */
static int32_t lower_bound(const mhai_lexicon_entry *entries, int32_t low, int32_t high, int32_t at,
                           int byte)
{
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        if ((unsigned char)entries[middle].text[at] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void mhai_lexicon_branch_make(const mhai_lexicon *lexicon, const char *prefix,
                              mhai_lexicon_branch *branch)
{
    const mhai_lexicon_entry *entries = lexicon->entries;
    int32_t low = 0, high = lexicon->count, at = 0;
    for (; prefix[at] != '\0'; at++) {
        const int byte = (unsigned char)prefix[at];
        low = lower_bound(entries, low, high, at, byte);
        high = lower_bound(entries, low, high, at, byte + 1);
    }
    branch->entries = entries;
    branch->prefix = at;
    branch->first[0] = low; /* byte 0 ends the prefix itself */
    for (int byte = 1; byte <= 256; byte++)
        branch->first[byte] = lower_bound(entries, branch->first[byte - 1], high, at, byte);
}

mhai_lexicon_walk mhai_lexicon_walk_make(const mhai_lexicon_branch *branch, const char *text,
                                         size_t size)
{
    mhai_lexicon_walk walk = {.branch = branch, .text = text, .size = size, .depth = 1};
    if (size == 0 || text[0] == '\0') return walk;
    walk.low = branch->first[(unsigned char)text[0]];
    walk.high = branch->first[(unsigned char)text[0] + 1];
    return walk;
}

int32_t mhai_lexicon_walk_next(mhai_lexicon_walk *walk, size_t *matched)
{
    const mhai_lexicon_entry *entries = walk->branch->entries;
    int32_t id = -1;
    while (walk->low < walk->high && id < 0) {
        const int32_t at = walk->branch->prefix + (int32_t)walk->depth;
        if (entries[walk->low].size == at) { /* the shortest entry is first */
            id = entries[walk->low++].id;
            *matched = walk->depth;
        }
        if (walk->depth == walk->size) {
            walk->high = walk->low;
            break;
        }
        const int byte = (unsigned char)walk->text[walk->depth++];
        walk->low = lower_bound(entries, walk->low, walk->high, at, byte);
        walk->high = lower_bound(entries, walk->low, walk->high, at, byte + 1);
    }
    return id;
}

int32_t mhai_lexicon_longest(const mhai_lexicon_branch *branch, const char *text, size_t size,
                             size_t *matched)
{
    mhai_lexicon_walk walk = mhai_lexicon_walk_make(branch, text, size);
    int32_t longest = -1, id;
    while ((id = mhai_lexicon_walk_next(&walk, matched)) >= 0) longest = id;
    return longest;
}
