/* A set of texts with ids that finds the longest one with which a text begins.
 *
 * Texts are sorted by bytes, so texts with a common prefix are adjacent. A search narrows the range
 * of matching entries byte by byte, in at most (bytes compared) * log2(texts) steps. Unlike a hash
 * table, it has no collisions that a malicious file could provoke. */
#ifndef MHAI_LEXICON_H
#define MHAI_LEXICON_H

#include "io/vector.h"

typedef struct mhai_lexicon_entry {
    const char *text; /* NUL-terminated, borrowed */
    int32_t size;
    int32_t id;
} mhai_lexicon_entry;

typedef struct mhai_lexicon {
    mhai_lexicon_entry *entries; /* [count], sorted */
    int32_t count;
} mhai_lexicon;

/* Sort entries, which the caller owns, into a lexicon. Returns -1 if all texts differ, as required,
 * or i if entries i and i + 1 have the same text. */
int32_t mhai_lexicon_build(mhai_lexicon_entry *entries, int32_t count, mhai_lexicon *lexicon);

/* The id of a text; -1: none. */
int32_t mhai_lexicon_find(const mhai_lexicon *lexicon, const char *text);

/* Entries with a common prefix, indexed by their next byte. */
typedef struct mhai_lexicon_branch {
    const mhai_lexicon_entry *entries;
    int32_t prefix;     /* length of the prefix in bytes */
    int32_t first[257]; /* entries first[b] .. first[b + 1] - 1 have byte b after the prefix */
} mhai_lexicon_branch;

void mhai_lexicon_branch_make(const mhai_lexicon *lexicon, const char *prefix,
                              mhai_lexicon_branch *branch);

/* The entries with which a text begins, from the shortest to the longest. */
typedef struct mhai_lexicon_walk {
    const mhai_lexicon_branch *branch;
    const char *text;
    size_t size, depth;
    int32_t low, high;
} mhai_lexicon_walk;

mhai_lexicon_walk mhai_lexicon_walk_make(const mhai_lexicon_branch *branch, const char *text,
                                         size_t size);

/* The id of the next entry that consists of the prefix and the first *matched bytes of text; -1:
 * none. */
int32_t mhai_lexicon_walk_next(mhai_lexicon_walk *walk, size_t *matched);

/* The id of the longest entry that consists of the prefix and one or more bytes from the beginning
 * of text; -1: none. *matched is the number of these bytes. */
int32_t mhai_lexicon_longest(const mhai_lexicon_branch *branch, const char *text, size_t size,
                             size_t *matched);

#endif
