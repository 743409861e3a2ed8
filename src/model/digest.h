/* What ranks compare: digests of the files that a model is made of, as they are, so that nothing that is
 * read from them can be left out. */
#ifndef MHAI_MODEL_DIGEST_H
#define MHAI_MODEL_DIGEST_H

#include <multihead/base.h>

#include <stddef.h>

typedef struct mhai_digests {
    uint64_t configuration, weights, tokenizer;
} mhai_digests;

/* Add the bytes begin .. end of a regular file (end beyond it: to its end), on all threads of the context:
 * files that differ have different digests, but for a chance of 2^-64. Not collision-resistant.
 * Errors: MHA_ERR_FILE, MHA_ERR_NOMEM. */
MHA_NODISCARD mha_status mhai_digest_file(mha_context *context, const char *path, size_t begin,
                                          size_t end, uint64_t *digest);

/* Add those files of a folder that are there; the list ends with NULL. */
MHA_NODISCARD mha_status mhai_digest_folder(mha_context *context, const char *folder,
                                            const char *const *names, uint64_t *digest);

#endif
