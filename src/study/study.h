/* Shared by the files of the study layer. */
#ifndef MHAI_STUDY_H
#define MHAI_STUDY_H

#include <multihead/component.h>
#include <multihead/study.h>

/* The tokenizer of a model: pieces or whole words; the other is NULL. */
typedef struct mhai_reader {
    const mha_tokenizer *pieces;
    const mha_vocabulary *words;
    mha_model_info info;
    bool wordpiece;
    int32_t begin, end;    /* the tokens around a text; -1: none */
    const int32_t *starts; /* [start_count] mha_model_start_tokens() */
    int64_t start_count;
    const int32_t *ends; /* [end_count] mha_model_end_tokens() */
    int64_t end_count;
} mhai_reader;

MHA_NODISCARD mha_status mhai_reader_make(const mha_model *model, mhai_reader *reader);

/* The token of an id. */
typedef struct mhai_piece {
    const char *name;  /* "##ing", "[SEP]"; "?" if there is no such token */
    const char *bytes; /* [count] the text that it adds: "ing" */
    size_t count;
    bool special, letters; /* letters: WordPiece or whole words, whose names need no decoding */
} mhai_piece;

mhai_piece mhai_piece_of(const mhai_reader *reader, int32_t id);

/* As documented at mha_random_tokens_plan(). */
bool mhai_is_word(const mhai_reader *reader, int32_t id);

/* Allocate zeroed arrays for count tokens and `labels` bytes of labels; 0: no labels. */
MHA_NODISCARD mha_status mhai_tokens_make(int64_t count, size_t labels, mha_tokens *tokens,
                                          char **label);

/* The batch of one text that a call reads. */
typedef struct mhai_sequence {
    mha_tensor ids, types, features;
    mha_transformer_input input;
} mhai_sequence;

void mhai_sequence_make(const mha_tokens *tokens, const mha_transformer_desc *d, mhai_sequence *s);

/* towers.c: run an encoder of texts; *memory [1,S,E] in room */
MHA_NODISCARD mha_status mhai_encode(mha_context *context, const mha_transformer *encoder,
                                     const mha_tokens *source, mha_room *room, mha_tensor *memory);
/* Reject an encoder of audio; `caller` begins the error. */
MHA_NODISCARD mha_status mhai_encoder_reads_texts(const mha_model *encoder, const char *caller);

#endif
