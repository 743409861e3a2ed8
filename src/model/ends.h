/* The tokens that end a text, from all files that list any. Folders and GGUF
 * files follow the same rule. */
#ifndef MHAI_ENDS_H
#define MHAI_ENDS_H

#include <multihead/gguf.h>

typedef struct mhai_ends {
    int32_t *ids; /* [count], no duplicates; owned */
    int64_t count;
} mhai_ends;

/* Add a token. Ids outside 0 .. vocab_size - 1 are ignored. */
MHA_NODISCARD mha_status mhai_ends_add(mhai_ends *ends, int64_t id, int64_t vocab_size);

/* How the texts of a decoder with an encoder begin, and the tokens that they never contain. */
typedef struct mhai_begins {
    int32_t ids[2]; /* decoder_start_token_id, and forced_bos_token_id */
    int64_t count;
    mhai_ends suppressed; /* single tokens of bad_words_ids, and suppress_tokens */
    mhai_ends first;      /* begin_suppress_tokens: the first new token is none of them */
} mhai_begins;

/* Add the tokens listed in config.json and generation_config.json. The latter may be missing, and
 * otherwise decides how texts begin. begins NULL: not read. Errors: those of mhai_json_read(), and
 * MHA_ERR_MODEL (neither a number nor a list of numbers, or too many). */
MHA_NODISCARD mha_status mhai_ends_of_folder(const char *folder, int64_t vocab_size,
                                             mhai_ends *ends, mhai_begins *begins);

/* Add the tokens listed in the metadata, and those that llama.cpp recognises by their text. path is
 * used in messages. begins NULL: not read. */
MHA_NODISCARD mha_status mhai_ends_of_gguf(const mha_gguf *file, const char *path,
                                           int64_t vocab_size, mhai_ends *ends,
                                           mhai_begins *begins);

#endif
