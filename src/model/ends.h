/* The tokens that end a text, of all that name some: one rule for folders and GGUF files. */
#ifndef MHAI_ENDS_H
#define MHAI_ENDS_H

#include <multihead/gguf.h>

typedef struct mhai_ends {
    int32_t *ids; /* [count] each once; to be freed */
    int64_t count;
} mhai_ends;

/* Add a token of 0 .. vocab_size - 1; other numbers name none. */
MHA_NODISCARD mha_status mhai_ends_add(mhai_ends *ends, int64_t id, int64_t vocab_size);

/* Those of config.json and generation_config.json. Errors: MHA_ERR_MODEL (neither a number nor a list
 * of numbers, or too many), those of mhai_json_read() but a missing generation_config.json. */
MHA_NODISCARD mha_status mhai_ends_of_folder(const char *folder, int64_t vocab_size,
                                             mhai_ends *ends);

/* Those of its metadata, and of its tokens those that llama.cpp knows by their text. */
MHA_NODISCARD mha_status mhai_ends_of_gguf(const mha_gguf *file, int64_t vocab_size,
                                           mhai_ends *ends);

#endif
