/* Internals of the tokenizer. The stages of encoding:
 *
 *   bytes -> added tokens written in it | segments between them              tokenizer_find.c
 *         -> tokens of the segments, by the kind of tokenizer              a row of mhai_kinds
 *         -> truncated, with the special tokens of a template                tokenizer_encode.c
 *
 * A kind is a file and a row (tokenizer_kinds.c): it reads its settings, builds its tables from the
 * vocabulary, encodes a text, and decodes a token to bytes. */
#ifndef MHAI_TOKENIZER_PARTS_H
#define MHAI_TOKENIZER_PARTS_H

#include "io/lexicon.h"
#include "io/vector.h"

#include <multihead/tokenizer.h>

enum {
    MHAI_WORD_CHARS = 100, /* the longest word that is looked up; longer ones become [UNK] */
    MHAI_ADDED_BYTES = 256 /* the longest added token: bounds the work at each byte of a text */
};

/* The steps of BERT's normaliser. */
typedef struct mhai_rules {
    bool clean, cjk, strip, lower;
} mhai_rules;

/* The named tokens. */
enum { MHAI_UNK, MHAI_SEP, MHAI_PAD, MHAI_CLS, MHAI_MASK, MHAI_BOS, MHAI_EOS, MHAI_NAMED };

/* Properties of a token; the last three define how it is matched in a text. */
enum {
    MHAI_IS_SPECIAL = 1,
    MHAI_IS_ADDED = 2,
    MHAI_LSTRIP = 4, /* includes the white space before it */
    MHAI_RSTRIP = 8,
    MHAI_SINGLE_WORD = 16 /* not beside a letter */
};

/* A template: special tokens and the texts in their order. */
enum { MHAI_TEXT_A = -1, MHAI_TEXT_B = -2, MHAI_TEMPLATE_PARTS = 32 };

typedef struct mhai_template {
    struct {
        int32_t id; /* MHAI_TEXT_A, MHAI_TEXT_B or the id of a special token */
        int32_t type;
    } parts[MHAI_TEMPLATE_PARTS];
    int32_t count;
} mhai_template;

/* Append a part; the caller ensures that there is room. bpe_vocabulary.c */
void mhai_template_add(mhai_template *to, int32_t id, int32_t type);

typedef struct mhai_kind mhai_kind;
typedef struct mhai_bpe mhai_bpe;

struct mha_tokenizer {
    mha_allocator allocator;
    const mhai_kind *kind;
    int32_t named[MHAI_NAMED]; /* ids, -1: none */
    int64_t max_length;
    int32_t model_count; /* tokens of the encoder: ids 0 .. model_count - 1 */
    int32_t count;       /* and tokens that are only matched as a whole */
    char *texts;         /* all tokens, each NUL-terminated */
    size_t texts_size;
    const char **tokens;              /* [count] into texts */
    uint8_t *flags;                   /* [count] MHAI_IS_SPECIAL and so on */
    char *spoken;                     /* [texts_size] the bytes of the tokens */
    size_t *spoken_end;               /* [count] into spoken; each begins where the last one ends */
    mhai_lexicon_entry *entries;      /* [count] of the first two lexicons */
    mhai_lexicon vocabulary, extra;   /* ids below model_count, and the others */
    mhai_lexicon_branch first_pieces; /* all of the vocabulary */
    mhai_lexicon_entry *added_entries; /* [added_count] of the next two */
    size_t added_count;
    mhai_lexicon raw, normal; /* added tokens: matched in the original text, and in the */
    mhai_lexicon_branch raw_tokens, normal_tokens; /* normalised text, their own texts normalised */
    mhai_vector normal_texts;                      /* the texts of normal */
    mhai_template templates[2];                    /* of a text, and of a text and its pair */
    /* WordPiece */
    mhai_rules rules;
    mhai_lexicon_branch pieces; /* after "##" */
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
    int64_t dropped;   /* others */
    bool stop;         /* at the first one of them */
} mhai_tokens;

/* After a word: count, and drop tokens beyond the maximum. MHA_ERR_CALLBACK: stop, the maximum is
 * reached. */
MHA_NODISCARD mha_status mhai_tokens_cut(mhai_tokens *tokens);

typedef struct mhai_found_word {
    int64_t from, to, begin, end; /* in the normalised text, and in the original */
} mhai_found_word;

typedef struct mhai_loader mhai_loader; /* tokenizer_load.h */

struct mhai_kind {
    mha_tokenizer_kind kind;
    /* Called once the vocabulary exists. */
    mha_status (*build)(mhai_loader *loader);
    /* Append the normalised text of an added token. */
    mha_status (*normalize)(const mha_tokenizer *t, const char *text, mhai_vector *normalized);
    /* Append the tokens of a valid text, until mhai_tokens_cut() ends it. */
    mha_status (*encode)(const mha_tokenizer *t, const char *text, size_t size,
                         mhai_tokens *tokens);
    /* Append the normalised text, and its words as mhai_found_word. */
    mha_status (*words)(const mha_tokenizer *t, const char *text, size_t size,
                        mhai_vector *normalized, mhai_vector *words);
    /* Write the bytes of a token of the vocabulary, at most as many as its text; returns their
     * number. */
    size_t (*speak)(const mha_tokenizer *t, const char *token, char *bytes);
};

extern const mhai_kind mhai_kind_wordpiece, mhai_kind_byte_bpe, mhai_kind_sentencepiece_bpe;

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

/* Find the tokens of a set in a valid text, leftmost and longest first. Errors: those of the two
 * functions. */
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

/* A combining character that waits to be sorted. */
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

/* Sort the waiting characters by combining class, stably. Errors: MHA_ERR_NOMEM. */
MHA_NODISCARD mha_status mhai_tokenizer_sort_marks(const mhai_vector *waiting, mhai_vector *sorted);

mhai_normalizer mhai_tokenizer_normalize_make(const mha_tokenizer *tokenizer, mhai_char_sink sink,
                                              void *user);
void mhai_tokenizer_normalize_free(mhai_normalizer *normalizer);

/* Normalise bytes [from, to) of a valid text; passes every character to the sink. Errors:
 * MHA_ERR_NOMEM, and those of the sink. */
MHA_NODISCARD mha_status mhai_tokenizer_normalize(mhai_normalizer *normalizer, const char *text,
                                                  size_t from, size_t to);

/* ---- BERT's words ---------------------------------------------------------------------------- */

typedef struct mhai_word {
    size_t size;         /* of bytes */
    int64_t chars;       /* the whole word, while bytes holds at most MHAI_WORD_CHARS of them */
    int64_t from, to;    /* in the normalised text */
    int64_t first, last; /* its bytes in the original text: [first, last) */
    char bytes[MHAI_WORD_CHARS * 4];
    /* For each byte, the range in the original text of its character. */
    int64_t begin[MHAI_WORD_CHARS * 4], end[MHAI_WORD_CHARS * 4];
} mhai_word;

typedef mha_status (*mhai_word_sink)(void *user, const mhai_word *word);

typedef struct mhai_splitter {
    mhai_word_sink sink;
    void *user;
    int64_t at;     /* bytes of normalised text so far */
    mhai_word word; /* no characters: between words */
} mhai_splitter;

/* Reset a splitter, except sink and user, to the beginning of a text. */
void mhai_tokenizer_words_begin(mhai_splitter *splitter, mhai_word_sink sink, void *user);

/* Process the next normalised character. Completed words are passed to the sink. */
MHA_NODISCARD mha_status mhai_tokenizer_words_take(mhai_splitter *splitter, const mhai_char *ch);

/* Finish the last word, if there is one. The splitter can continue with another segment. */
MHA_NODISCARD mha_status mhai_tokenizer_words_finish(mhai_splitter *splitter);

/* Fail with the offset of the first byte of a text that is not UTF-8. Messages use name. */
MHA_NODISCARD mha_status mhai_tokenizer_check_text(const char *name, const char *text, size_t size);

#endif
