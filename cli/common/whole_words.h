/* Texts for models of whole words, as people type them: the words of 'multihead train' are small
 * letters between spaces, and a sentence begins with a capital and ends with an attached point. */
#ifndef CLI_WHOLE_WORDS_H
#define CLI_WHOLE_WORDS_H

#include "common/exits.h"

#include <multihead/checkpoint.h>

/* mha_vocabulary_locate(), but a word between spaces that the vocabulary does not have is looked for
 * without its case, and with its leading and trailing ASCII punctuation marks as words of their own:
 * "The" is the, "tired." is tired and . where these are words. Vocabularies with a token for unknown
 * words, of characters, or that split at punctuation themselves are read as they are. begin and end
 * may be NULL. MHA_ERR_FORMAT: a word is unknown; folder is the model's, for the message. */
mha_status whole_words_locate(const mha_vocabulary *vocabulary, const char *folder,
                              const char *text, size_t bytes, int32_t *ids, int64_t *begin,
                              int64_t *end, int64_t room, int64_t *count);

/* Whether all words of a text are known. */
bool whole_words_reads(const mha_vocabulary *vocabulary, const char *text, size_t bytes);

#endif
