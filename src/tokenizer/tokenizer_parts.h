/* Internals of the tokenizer. The stages of encoding:
 *
 *   bytes -> added tokens written in it | segments between them              tokenizer_find.c
 *         -> tokens of the segments, by the kind of tokenizer              a row of mhai_kinds
 *         -> truncated, with the special tokens of a template                tokenizer_encode.c
 *
 * A kind is a row in tokenizer_kinds.c, with its own source file. It reads its settings, builds its
 * tables from the vocabulary, encodes a text, and decodes a token to bytes. */
#ifndef MHAI_TOKENIZER_PARTS_H
#define MHAI_TOKENIZER_PARTS_H

#include "io/lexicon.h"
#include "io/vector.h"

#include <multihead/tokenizer.h>

enum {
    MHAI_WORD_CHARS = 100, /* longest word that is looked up; longer words become [UNK] */
    MHAI_ADDED_BYTES = 256 /* longest added token, which bounds the work per byte of text */
};

/* Steps of BERT's normaliser. */
typedef struct mhai_rules {
    bool clean, cjk, strip, lower;
} mhai_rules;

/* The named tokens. */
enum { MHAI_UNK, MHAI_SEP, MHAI_PAD, MHAI_CLS, MHAI_MASK, MHAI_BOS, MHAI_EOS, MHAI_NAMED };

/* Properties of a token. The last three define how it is matched in a text. */
enum {
    MHAI_IS_SPECIAL = 1,
    MHAI_IS_ADDED = 2,
    MHAI_LSTRIP = 4, /* includes the white space before it */
    MHAI_RSTRIP = 8,
    MHAI_SINGLE_WORD = 16 /* not adjacent to a letter */
};

/* A template: the order of special tokens and texts. */
enum { MHAI_TEXT_A = -1, MHAI_TEXT_B = -2, MHAI_TEMPLATE_PARTS = 32 };

typedef struct mhai_template {
    struct {
        int32_t id; /* MHAI_TEXT_A, MHAI_TEXT_B or the id of a special token */
        int32_t type;
    } parts[MHAI_TEMPLATE_PARTS];
    int32_t count;
} mhai_template;

/* bpe_vocabulary.c: append a part, for which there must be room. */
void mhai_template_add(mhai_template *to, int32_t id, int32_t type);

typedef struct mhai_kind mhai_kind;
typedef struct mhai_bpe mhai_bpe;

struct mha_tokenizer {
    mha_allocator allocator;
    const mhai_kind *kind;
    int32_t named[MHAI_NAMED]; /* ids; -1: none */
    int64_t max_length;
    int32_t model_count; /* tokens with ids below this are used by the encoder */
    int32_t count;       /* all tokens; the others are only matched as a whole */
    char *texts;         /* texts of all tokens, NUL-terminated */
    size_t texts_size;
    const char **tokens;               /* [count] pointers into texts */
    uint8_t *flags;                    /* [count] MHAI_IS_SPECIAL etc. */
    char *spoken;                      /* [texts_size] bytes of the tokens */
    size_t *spoken_end;                /* [count] ends in spoken; each token begins
                                        * where the previous one ends */
    mhai_lexicon_entry *entries;       /* [count] memory of the first two lexicons */
    mhai_lexicon vocabulary, extra;    /* ids below model_count, and the others */
    mhai_lexicon_branch first_pieces;  /* the whole vocabulary */
    mhai_lexicon_entry *added_entries; /* [added_count] memory of the next two */
    size_t added_count;
    mhai_lexicon raw, normal; /* added tokens, matched in the original or the normalised text */
    mhai_lexicon_branch raw_tokens, normal_tokens; /* their branches; texts in `normal` are
                                                    * themselves normalised */
    mhai_vector normal_texts;                      /* texts of the tokens in normal */
    mhai_template templates[2];                    /* for a single text, and for a pair */
    /* WordPiece */
    mhai_rules rules;
    mhai_lexicon_branch pieces; /* pieces after "##" */
    /* BPE */
    mhai_bpe *bpe;
};

/* ---- Kinds ----------------------------------------------------------------------------------- */

typedef struct mhai_found_token {
    int64_t begin, end;
    int32_t id;
} mhai_found_token;

/* The tokens of a text. Only the first `most` are kept. */
typedef struct mhai_tokens {
    mhai_vector found; /* of mhai_found_token */
    size_t most;       /* number to keep */
    int64_t dropped;   /* number of tokens dropped */
    bool stop;         /* stop at the first dropped token */
} mhai_tokens;

/* Called after each word to drop and count tokens beyond the maximum. MHA_ERR_CALLBACK: the
 * maximum is reached, so stop. */
MHA_NODISCARD mha_status mhai_tokens_cut(mhai_tokens *tokens);

typedef struct mhai_found_word {
    int64_t from, to, begin, end; /* range in the normalised text, and in the original */
} mhai_found_word;

typedef struct mhai_loader mhai_loader; /* tokenizer_load.h */

struct mhai_kind {
    mha_tokenizer_kind kind;
    /* Called when the vocabulary exists. */
    mha_status (*build)(mhai_loader *loader);
    /* Append the normalised text of an added token. */
    mha_status (*normalize)(const mha_tokenizer *t, const char *text, mhai_vector *normalized);
    /* Append the tokens of a valid text. Stops when mhai_tokens_cut() fails. */
    mha_status (*encode)(const mha_tokenizer *t, const char *text, size_t size,
                         mhai_tokens *tokens);
    /* Append the normalised text, and its words as mhai_found_word. */
    mha_status (*words)(const mha_tokenizer *t, const char *text, size_t size,
                        mhai_vector *normalized, mhai_vector *words);
    /* Write the bytes of a vocabulary token, at most as many as its text
     * has. Returns their number. */
    size_t (*speak)(const mha_tokenizer *t, const char *token, char *bytes);
};

extern const mhai_kind mhai_kind_wordpiece, mhai_kind_byte_bpe, mhai_kind_sentencepiece_bpe,
    mhai_kind_unigram;

/* Read the settings of a folder, and choose its kind. */
MHA_NODISCARD mha_status mhai_tokenizer_kind_read(mhai_loader *loader);

/* ---- Added tokens in a text ------------------------------------------------------------------ */

typedef struct mhai_finder {
    void *user;
    /* A token, with the white space that it includes. */
    mha_status (*token)(void *user, int32_t id, size_t from, size_t to);
    /* The text between two tokens; never empty. */
    mha_status (*gap)(void *user, size_t from, size_t to);
} mhai_finder;

/* Find the tokens of a set in a valid text, leftmost first, then longest. Errors:
 * those of the two callbacks. */
MHA_NODISCARD mha_status mhai_tokenizer_find(const mha_tokenizer *tokenizer,
                                             const mhai_lexicon_branch *set, const char *text,
                                             size_t size, const mhai_finder *finder);

/* ---- BERT's normaliser ----------------------------------------------------------------------- */

/* A character after normalisation, and its bytes in the original text. */
typedef struct mhai_char {
    int32_t c;
    int64_t begin, end;
} mhai_char;

typedef mha_status (*mhai_char_sink)(void *user, const mhai_char *ch);

/* A combining character that is waiting to be sorted. */
typedef struct mhai_waiting {
    mhai_char ch;
    uint8_t combining;
    bool continues; /* not the first character of its decomposition */
} mhai_waiting;

typedef struct mhai_normalizer {
    mhai_rules rules;
    mhai_char_sink sink;
    void *user;
    mhai_vector waiting, sorted; /* of mhai_waiting */
} mhai_normalizer;

/* Stably sort waiting characters by combining class. Errors: MHA_ERR_NOMEM. */
MHA_NODISCARD mha_status mhai_tokenizer_sort_marks(const mhai_vector *waiting, mhai_vector *sorted);

mhai_normalizer mhai_tokenizer_normalize_make(const mha_tokenizer *tokenizer, mhai_char_sink sink,
                                              void *user);
void mhai_tokenizer_normalize_free(mhai_normalizer *normalizer);

/* Normalise bytes [from, to) of a valid text, and pass every character to the sink. Errors:
 * MHA_ERR_NOMEM, and those of the sink. */
MHA_NODISCARD mha_status mhai_tokenizer_normalize(mhai_normalizer *normalizer, const char *text,
                                                  size_t from, size_t to);

/* ---- BERT's words ---------------------------------------------------------------------------- */

typedef struct mhai_word {
    size_t size;         /* number of bytes */
    int64_t chars;       /* number of characters of the whole word; `bytes` holds at most
                          * MHAI_WORD_CHARS of them */
    int64_t from, to;    /* range in the normalised text */
    int64_t first, last; /* range [first, last) in the original text */
    char bytes[MHAI_WORD_CHARS * 4];
    /* For each byte, the range of its character in the original text. */
    int64_t begin[MHAI_WORD_CHARS * 4], end[MHAI_WORD_CHARS * 4];
} mhai_word;

typedef mha_status (*mhai_word_sink)(void *user, const mhai_word *word);

typedef struct mhai_splitter {
    mhai_word_sink sink;
    void *user;
    int64_t at;     /* number of normalised bytes so far */
    mhai_word word; /* no characters when between words */
} mhai_splitter;

/* Reset a splitter to the beginning of a text, and set sink and user. */
void mhai_tokenizer_words_begin(mhai_splitter *splitter, mhai_word_sink sink, void *user);

/* Process the next normalised character. Complete words are passed to the sink. */
MHA_NODISCARD mha_status mhai_tokenizer_words_take(mhai_splitter *splitter, const mhai_char *ch);

/* Finish the last word, if any. The splitter can then continue with another segment. */
MHA_NODISCARD mha_status mhai_tokenizer_words_finish(mhai_splitter *splitter);

/* Fail if a text is not UTF-8, with the offset of the first invalid byte.
 * name is used in messages. */
MHA_NODISCARD mha_status mhai_tokenizer_check_text(const char *name, const char *text, size_t size);

#endif
