/* What the parts of loading a tokenizer share. */
#ifndef MHAI_TOKENIZER_LOAD_H
#define MHAI_TOKENIZER_LOAD_H

#include "tokenizer/tokenizer_folder.h"

/* An added token: one that is found in the text as a whole, before the text is cut into words. */
typedef struct mhai_added {
    const char *text;         /* borrowed from the folder */
    int32_t id;               /* -1: not given */
    bool normal;              /* found in the normalised text, its own text normalised */
    bool in_json, in_decoder; /* which of the two lists have it */
    const char *path;         /* of the file that named it first */
} mhai_added;

typedef struct mhai_loader {
    mhai_folder folder;
    mha_allocator allocator;
    mhai_vector tokens;   /* of const char *: by id, borrowed from the folder */
    mhai_vector added;    /* of mhai_added */
    json_t *added_places; /* {text: index in added} */
    int32_t model_count;
    mha_tokenizer *tokenizer;
} mhai_loader;

/* Fill tokens and model_count from tokenizer.json or vocab.txt. */
MHA_NODISCARD mha_status mhai_tokenizer_vocab_read(mhai_loader *loader);

/* If both of these are there: they must hold the same tokens, with or without the added ones, which
 * are in tokens by now. */
MHA_NODISCARD mha_status mhai_tokenizer_vocab_compare(mhai_loader *loader);

/* Fill added from all files that tell of added tokens, and append to tokens those whose ids follow
 * the vocabulary's. */
MHA_NODISCARD mha_status mhai_tokenizer_added_read(mhai_loader *loader);

#endif
