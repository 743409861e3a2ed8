/* A set of texts with ids that answers "which is the longest of them that this text begins with?".
 *
 * The texts are sorted by their bytes, so all that share a beginning stand side by side. A search
 * takes the stretch of those that begin with the first byte and narrows it byte by byte. Unlike a
 * hash table this needs no limit on how texts may collide, and a file cannot make it slow: a search
 * costs at most (bytes looked at) * log2(texts). */
#ifndef MHAI_LEXICON_H
#define MHAI_LEXICON_H

#include "io/vector.h"

typedef struct mhai_lexicon_entry {
    const char *text; /* zero-terminated, borrowed */
    int32_t size;
    int32_t id;
} mhai_lexicon_entry;

typedef struct mhai_lexicon {
    mhai_lexicon_entry *entries; /* [count], sorted */
    int32_t count;
} mhai_lexicon;

/* Sort entries, which stay the caller's, and make a lexicon of them. Gives an index i such that
 * entries i and i + 1 have the same text; -1 if all differ, as they must. */
int32_t mhai_lexicon_build(mhai_lexicon_entry *entries, int32_t count, mhai_lexicon *lexicon);

/* The id of a text; -1 if it is not there. */
int32_t mhai_lexicon_find(const mhai_lexicon *lexicon, const char *text);

/* The entries that begin with a common prefix, by the byte that follows it. */
typedef struct mhai_lexicon_branch {
    const mhai_lexicon_entry *entries;
    int32_t prefix;     /* its bytes */
    int32_t first[257]; /* entries first[b] .. first[b + 1] - 1 have byte b behind the prefix */
} mhai_lexicon_branch;

void mhai_lexicon_branch_make(const mhai_lexicon *lexicon, const char *prefix,
                              mhai_lexicon_branch *branch);

/* The id of the longest entry that is the prefix and then, for at least one byte, what text begins
 * with; -1 if there is none. *matched is the number of bytes of text. */
int32_t mhai_lexicon_longest(const mhai_lexicon_branch *branch, const char *text, size_t size,
                             size_t *matched);

#endif
