/* What the parts of loading a tokenizer share. */
#ifndef MHAI_TOKENIZER_LOAD_H
#define MHAI_TOKENIZER_LOAD_H

#include "tokenizer/tokenizer_folder.h"

/* An added token: one that is found in the text as a whole, before the text is cut into words. */
typedef struct mhai_added {
    const char *text;         /* borrowed from the folder */
    int32_t id;               /* -1: not given */
    bool normal;              /* found in the normalised text, its own text normalised */
    uint8_t flags;            /* MHAI_IS_SPECIAL and so on */
    bool in_json, in_decoder; /* which of the two lists have it */
    const char *path;         /* of the file that named it first */
} mhai_added;

/* A merge of two tokens, as texts that need not end with a zero byte. */
typedef struct mhai_merge {
    const char *left, *right; /* borrowed */
    int32_t left_size, right_size;
} mhai_merge;

struct mhai_loader {
    mhai_folder folder;
    mha_allocator allocator;
    mhai_vector tokens;   /* of const char *: by id, borrowed from the folder */
    mhai_vector added;    /* of mhai_added */
    json_t *added_places; /* {text: index in added} */
    int32_t model_count;
    const char *vocabulary_path;               /* what messages call the place of the vocabulary */
    mhai_vector merges;                        /* of mhai_merge, best first; BPE only */
    const struct mhai_vocabulary_desc *scores; /* instead of them; NULL: none */
    mha_tokenizer *tokenizer;
};

/* The settings of WordPiece, and its template once the vocabulary is there. */
MHA_NODISCARD mha_status mhai_wordpiece_read(mhai_loader *loader);
MHA_NODISCARD mha_status mhai_wordpiece_template(mhai_loader *loader);

/* The settings of BPE, and templates of nothing but the texts. */
MHA_NODISCARD mha_status mhai_bpe_read(mhai_loader *loader);
void mhai_bpe_plain_templates(mha_tokenizer *tokenizer);

/* Make a tokenizer of a loader whose tokens, added tokens and settings are filled. */
MHA_NODISCARD mha_status mhai_tokenizer_finish(mhai_loader *loader);

/* Begin a loader, which must be ended even if this fails. Errors: the options', MHA_ERR_NOMEM. */
MHA_NODISCARD mha_status mhai_loader_begin(const mha_tokenizer_options *options,
                                           mhai_loader *loader);

/* Free a loader. *tokenizer takes what it made if status is MHA_OK; gives status. */
MHA_NODISCARD mha_status mhai_loader_end(mhai_loader *loader, mha_status status,
                                         mha_tokenizer **tokenizer);

/* Fill tokens and model_count from tokenizer.json or vocab.txt. */
MHA_NODISCARD mha_status mhai_tokenizer_vocab_read(mhai_loader *loader);

/* If both of these are there: they must hold the same tokens, with or without the added ones, which
 * are in tokens by now. */
MHA_NODISCARD mha_status mhai_tokenizer_vocab_compare(mhai_loader *loader);

/* Fill added from all files that tell of added tokens, and append to tokens those whose ids follow
 * the vocabulary's. */
MHA_NODISCARD mha_status mhai_tokenizer_added_read(mhai_loader *loader);

#endif
