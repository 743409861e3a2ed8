/* The tokens that end a text, collected from all files that name any. The rule is the same for
 * folders and GGUF files. */
#ifndef MHAI_ENDS_H
#define MHAI_ENDS_H

#include <multihead/gguf.h>

typedef struct mhai_ends {
    int32_t *ids; /* [count] without duplicates; owned */
    int64_t count;
} mhai_ends;

/* Add a token of 0 .. vocab_size - 1; ignore other numbers. */
MHA_NODISCARD mha_status mhai_ends_add(mhai_ends *ends, int64_t id, int64_t vocab_size);

/* Add the tokens of config.json and generation_config.json. Errors: MHA_ERR_MODEL (neither a number
 * nor a list of numbers, or too many), those of mhai_json_read() except for a missing
 * generation_config.json. */
MHA_NODISCARD mha_status mhai_ends_of_folder(const char *folder, int64_t vocab_size,
                                             mhai_ends *ends);

/* Add the tokens that the metadata names, and those that llama.cpp recognises by their text. */
MHA_NODISCARD mha_status mhai_ends_of_gguf(const mha_gguf *file, int64_t vocab_size,
                                           mhai_ends *ends);

#endif
