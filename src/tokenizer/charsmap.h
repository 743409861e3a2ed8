/* The normalisation of SentencePiece: a map from texts to replacements, as "precompiled_charsmap" of
 * tokenizer.json holds it in base64.
 *
 *   u32 size of the trie in bytes | units of a double-array trie (darts-clone), u32 | replacements,
 *   each with a NUL
 *
 * All numbers are little-endian. */
#ifndef MHAI_CHARSMAP_H
#define MHAI_CHARSMAP_H

#include "io/vector.h"

typedef struct mhai_charsmap mhai_charsmap;

/* Create a map from its bytes. where names the source in messages. Errors: MHA_ERR_FORMAT (sizes, an
 * entry outside the map), MHA_ERR_UTF8, MHA_ERR_NOMEM. */
MHA_NODISCARD mha_status mhai_charsmap_make(const mha_allocator *allocator, const char *where,
                                            const void *bytes, size_t size, mhai_charsmap **map);
void mhai_charsmap_free(mhai_charsmap *map);

/* The NUL-terminated replacement of the shortest key with which text begins; NULL: none. */
const char *mhai_charsmap_find(const mhai_charsmap *map, const char *text, size_t size);

/* That of the longest key of whole characters, with its number of bytes. */
const char *mhai_charsmap_longest(const mhai_charsmap *map, const char *text, size_t size,
                                  size_t *matched);

/* The end of the grapheme cluster that begins at byte at of a valid text. */
size_t mhai_grapheme_end(const char *text, size_t size, size_t at);

#endif
