/* Declarations shared by the files that load a tokenizer. */
#ifndef MHAI_TOKENIZER_LOAD_H
#define MHAI_TOKENIZER_LOAD_H

#include "tokenizer/tokenizer_folder.h"

/* An added token. It is matched as a whole before the text is split into words. */
typedef struct mhai_added {
    const char *text;         /* borrowed from the folder */
    int32_t id;               /* -1: not given */
    bool normal;              /* both its text and the searched text are normalised */
    uint8_t flags;            /* MHAI_IS_SPECIAL etc. */
    bool in_json, in_decoder; /* whether these two lists define it */
    const char *path;         /* the first file that named it */
} mhai_added;

/* A merge of two tokens. Their texts need not be NUL-terminated. */
typedef struct mhai_merge {
    const char *left, *right; /* borrowed */
    int32_t left_size, right_size;
} mhai_merge;

struct mhai_loader {
    mhai_folder folder;
    mha_allocator allocator;
    mhai_vector tokens;   /* of const char *, indexed by id, borrowed from the folder */
    mhai_vector added;    /* of mhai_added */
    json_t *added_places; /* {text: index in added} */
    int32_t model_count;
    const char *vocabulary_path;               /* name of the vocabulary in messages */
    mhai_vector merges;                        /* of mhai_merge, in order of priority; BPE only */
    const struct mhai_vocabulary_desc *scores; /* instead of merges; NULL: none */
    mha_tokenizer *tokenizer;
};

/* WordPiece from a vocabulary in memory, whose words begin with U+2581 and whose other pieces are
 * without "##": set its rules and its special tokens. text: of a token, with "##" instead; it has
 * room for 3 more bytes. */
MHA_NODISCARD mha_status mhai_wordpiece_set(mhai_loader *loader,
                                            const struct mhai_vocabulary_desc *desc);
size_t mhai_wordpiece_text(const struct mhai_vocabulary_desc *desc, int64_t id, char *text);

/* Read the settings of WordPiece; read its template once the vocabulary exists. */
MHA_NODISCARD mha_status mhai_wordpiece_read(mhai_loader *loader);
MHA_NODISCARD mha_status mhai_wordpiece_template(mhai_loader *loader);

/* Read the settings of BPE; set templates without special tokens. */
MHA_NODISCARD mha_status mhai_bpe_read(mhai_loader *loader);
MHA_NODISCARD mha_status mhai_unigram_read(mhai_loader *loader);

/* Create the tokenizer from a loader that has tokens, added tokens and settings. */
MHA_NODISCARD mha_status mhai_tokenizer_finish(mhai_loader *loader);

/* Initialise a loader. It must be freed even after an error. Errors: those of the
 * options, MHA_ERR_NOMEM. */
MHA_NODISCARD mha_status mhai_loader_begin(const mha_tokenizer_options *options,
                                           mhai_loader *loader);

/* Free a loader. If status is MHA_OK, set *tokenizer to the result. Returns status. */
MHA_NODISCARD mha_status mhai_loader_end(mhai_loader *loader, mha_status status,
                                         mha_tokenizer **tokenizer);

/* Set tokens and model_count from tokenizer.json or vocab.txt. */
MHA_NODISCARD mha_status mhai_tokenizer_vocab_read(mhai_loader *loader);

/* If both files exist, check that they have the same tokens, with or without added tokens. `tokens`
 * already includes the added tokens. */
MHA_NODISCARD mha_status mhai_tokenizer_vocab_compare(mhai_loader *loader);

/* Collect the added tokens of all files. Append those whose ids follow the vocabulary to tokens. */
MHA_NODISCARD mha_status mhai_tokenizer_added_read(mhai_loader *loader);

#endif
