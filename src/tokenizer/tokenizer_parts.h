/* The tokenizer from inside. The way of a text:
 *
 *   bytes -> special tokens written in it | segments between them            tokenizer_encode.c
 *         -> characters, normalised one by one                               tokenizer_normalize.c
 *         -> words                                                           tokenizer_words.c
 *         -> pieces                                                          tokenizer_encode.c
 *
 * Nothing but the tokens found is stored: each step hands its results to the next as they come, so
 * memory does not depend on the length of segments or words. */
#ifndef MHAI_TOKENIZER_PARTS_H
#define MHAI_TOKENIZER_PARTS_H

#include "tokenizer/lexicon.h"
#include "tokenizer/vector.h"

#include <multihead/tokenizer.h>

enum {
    MHAI_WORD_CHARS = 100, /* the longest word that is looked up; longer ones are [UNK] */
    MHAI_ADDED_BYTES = 256 /* the longest added token: bounds the work at each byte of a text */
};

/* What the normaliser does. */
typedef struct mhai_rules {
    bool clean, cjk, strip, lower;
} mhai_rules;

/* The tokens with a name. */
enum { MHAI_UNK, MHAI_SEP, MHAI_PAD, MHAI_CLS, MHAI_MASK, MHAI_NAMED };

struct mha_tokenizer {
    mha_allocator allocator;
    mhai_rules rules;
    int32_t named[MHAI_NAMED]; /* ids, -1: none */
    int64_t max_length;
    int32_t model_count; /* tokens that words are cut into: ids 0 .. model_count - 1 */
    int32_t count;       /* and tokens that are only found as a whole in the text */
    char *texts;         /* all tokens, each with a zero byte */
    size_t texts_size;
    const char **tokens;                      /* [count] into texts */
    mhai_lexicon_entry *entries;              /* [count] of the first two lexicons */
    mhai_lexicon vocabulary, extra;           /* ids below model_count, and the others */
    mhai_lexicon_branch first_pieces, pieces; /* at the beginning of a word, and after "##" */
    mhai_lexicon_entry *added_entries;        /* [added_count] of the next two */
    size_t added_count;
    mhai_lexicon raw, normal; /* added tokens: in the text as it is, and in the */
    mhai_lexicon_branch raw_tokens, normal_tokens; /* normalised text, their own texts normalised */
    mhai_vector normal_texts;                      /* the texts of normal */
};

/* ---- Normalising ----------------------------------------------------------------------------- */

/* A character after normalisation and the bytes of the text that it comes from. */
typedef struct mhai_char {
    int32_t c;
    int64_t begin, end;
} mhai_char;

typedef mha_status (*mhai_char_sink)(void *user, const mhai_char *ch);

/* A character that waits for its place among other combining characters. */
typedef struct mhai_waiting {
    mhai_char ch;
    uint8_t combining;
    bool continues; /* not the first of a decomposition */
} mhai_waiting;

typedef struct mhai_normalizer {
    mhai_rules rules;
    mhai_char_sink sink;
    void *user;
    mhai_vector waiting, sorted; /* of mhai_waiting */
} mhai_normalizer;

mhai_normalizer mhai_tokenizer_normalize_make(const mha_tokenizer *tokenizer, mhai_char_sink sink,
                                              void *user);
void mhai_tokenizer_normalize_free(mhai_normalizer *normalizer);

/* Normalise bytes [from, to) of a valid text; every character goes to the sink. Errors:
 * MHA_ERR_NOMEM, and what the sink gives. */
MHA_NODISCARD mha_status mhai_tokenizer_normalize(mhai_normalizer *normalizer, const char *text,
                                                  size_t from, size_t to);

/* ---- Words ----------------------------------------------------------------------------------- */

typedef struct mhai_word {
    size_t size;         /* of bytes */
    int64_t chars;       /* all of the word, while bytes holds MHAI_WORD_CHARS of them at most */
    int64_t from, to;    /* in the normalised text */
    int64_t first, last; /* its bytes in the text given: [first, last) */
    char bytes[MHAI_WORD_CHARS * 4];
    /* For each byte, where the character that it belongs to begins and ends in the text given. */
    int64_t begin[MHAI_WORD_CHARS * 4], end[MHAI_WORD_CHARS * 4];
} mhai_word;

typedef mha_status (*mhai_word_sink)(void *user, const mhai_word *word);

typedef struct mhai_splitter {
    mhai_word_sink sink;
    void *user;
    int64_t at;     /* bytes of normalised text so far */
    mhai_word word; /* without characters: between words */
} mhai_splitter;

/* Take a splitter from its sink and user to the beginning of a text. */
void mhai_tokenizer_words_begin(mhai_splitter *splitter, mhai_word_sink sink, void *user);

/* The next normalised character. Words that it completes go to the sink. */
MHA_NODISCARD mha_status mhai_tokenizer_words_take(mhai_splitter *splitter, const mhai_char *ch);

/* The last word, if there is one. The splitter can go on with another segment. */
MHA_NODISCARD mha_status mhai_tokenizer_words_finish(mhai_splitter *splitter);

/* Fail with the offset of the first byte of a text that is not UTF-8. name is what messages call
 * the text. */
MHA_NODISCARD mha_status mhai_tokenizer_check_text(const char *name, const char *text, size_t size);

/* ---- Loading --------------------------------------------------------------------------------- */

#endif
