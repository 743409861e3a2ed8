/* Errors about texts for models of whole words: with the nearest word, and where all are listed. */
#ifndef CLI_WHOLE_WORDS_H
#define CLI_WHOLE_WORDS_H

#include "common/exits.h"

#include <multihead/checkpoint.h>

/* mha_vocabulary_locate_normalised(), whose error of an unknown word names the nearest one and the
 * command that lists them all. begin and end may be NULL. folder is the model's, for the message. */
mha_status whole_words_locate(const mha_vocabulary *vocabulary, const char *folder,
                              const char *text, size_t bytes, int32_t *ids, int64_t *begin,
                              int64_t *end, int64_t room, int64_t *count);

/* Whether all words of a text are known. */
bool whole_words_reads(const mha_vocabulary *vocabulary, const char *text, size_t bytes);

#endif
