/* What ranks compare: digests of the files that a model is made of, as they are, so that nothing that is
 * read from them can be left out. */
#ifndef MHAI_MODEL_DIGEST_H
#define MHAI_MODEL_DIGEST_H

#include <multihead/base.h>

typedef struct mhai_digests {
    uint64_t configuration, weights, tokenizer;
} mhai_digests;

/* Add the files of a model folder of one part, or of a GGUF file, whose header is its configuration. tokens:
 * the tokenizer too. On all threads of the context. Models that differ have different digests, but for a
 * chance of 2^-64. Not collision-resistant. Errors: those of reading. */
MHA_NODISCARD mha_status mhai_digest_model(mha_context *context, const char *path, bool tokens,
                                           mhai_digests *digests);

#endif
