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

int32_t mhai_lexicon_longest(const mhai_lexicon_branch *branch, const char *text, size_t size,
                             size_t *matched)
{
    const mhai_lexicon_entry *entries = branch->entries;
    int32_t id = -1;
    if (size == 0 || text[0] == '\0') return id;
    int32_t low = branch->first[(unsigned char)text[0]];
    int32_t high = branch->first[(unsigned char)text[0] + 1];
    for (size_t depth = 1; low < high; depth++) {
        const int32_t at = branch->prefix + (int32_t)depth;
        if (entries[low].size == at) { /* the shortest entry is first */
            id = entries[low].id;
            *matched = depth;
            low++;
        }
        if (depth == size) break;
        const int byte = (unsigned char)text[depth];
        low = lower_bound(entries, low, high, at, byte);
        high = lower_bound(entries, low, high, at, byte + 1);
    }
    return id;
}
