/* What the files of the study layer share. */
#ifndef MHAI_STUDY_H
#define MHAI_STUDY_H

#include <multihead/study.h>

/* What turns texts into tokens: a tokenizer or whole words; the other is NULL. */
typedef struct mhai_reader {
    const mha_tokenizer *pieces;
    const mha_vocabulary *words;
    mha_model_info info;
    bool wordpiece;
    int32_t begin, end; /* tokens of a text; -1: none */
} mhai_reader;

MHA_NODISCARD mha_status mhai_reader_make(const mha_model *model, mhai_reader *reader);

/* What an id stands for. */
typedef struct mhai_piece {
    const char *name;  /* "##ing", "[SEP]"; "?": no token */
    const char *bytes; /* [count] what it adds to a text: "ing" */
    size_t count;
    bool special,
        letters; /* letters: of WordPiece or a vocabulary, whose names are read as they are */
} mhai_piece;

mhai_piece mhai_piece_of(const mhai_reader *reader, int32_t id);

bool mhai_is_word(const mhai_reader *reader, int32_t id); /* mha_token_is_word() */

/* Arrays of count tokens and of so many bytes of labels, zero; labels 0: without any. */
MHA_NODISCARD mha_status mhai_tokens_make(int64_t count, size_t labels, mha_tokens *tokens,
                                          char **label);

#endif
