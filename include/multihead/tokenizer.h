/* multihead: tokenizers: text to token ids.
 *
 * A tokenizer is loaded from a Hugging Face folder and produces the ids of Hugging Face's tokenizer
 * for that folder. docs/tokenizer.md has the rules and the comparisons.
 *
 *   WordPiece       clean the text, separate CJK characters, strip accents, lower-case, split at
 *                   white space and punctuation, then split every word into the longest pieces in
 *                   the vocabulary
 *   byte-level BPE  split by a pattern, then merge bytes in the learned order
 *   SentencePiece-style BPE  write spaces as U+2581, then merge characters likewise
 *   unigram         write spaces as U+2581, then choose the pieces with the largest sum of scores
 *
 *     "Unaffable!"  ->  [CLS] una ##ffa ##ble ! [SEP]
 *
 * Text is UTF-8 with its length in bytes, so it may hold zero bytes; all offsets are in bytes.
 *
 * Example, given const char *text:
 *
 *   mha_tokenizer *tokenizer = NULL;
 *   mha_encoding encoding = MHA_INIT(mha_encoding);
 *   mha_status status = mha_tokenizer_load("all-MiniLM-L6-v2", NULL, &tokenizer);
 *   if (!status)
 *       status = mha_tokenizer_encode(tokenizer, NULL, text, strlen(text), NULL, 0, &encoding);
 *   for (int64_t i = 0; !status && i < encoding.count; i++)
 *       printf("%s ", mha_tokenizer_token(tokenizer, encoding.ids[i]));
 *   mha_encoding_free(&encoding);
 *   mha_tokenizer_destroy(tokenizer);
 *
 * Stability: stable from 1.0 (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_TOKENIZER_H
#define MULTIHEAD_TOKENIZER_H

#include <multihead/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------------
 * Loading
 * --------------------------------------------------------------------------------------------- */

/* A loaded tokenizer. It never changes after loading, so any number of threads may use one. */
typedef struct mha_tokenizer mha_tokenizer;

typedef struct mha_tokenizer_options {
    uint32_t struct_size;
    uint32_t reserved;       /* 0 */
    mha_allocator allocator; /* alloc NULL: the C library's. All threads that encode use it. */
} mha_tokenizer_options;

/**
 * Load the tokenizer of a model folder.
 *
 * tokenizer.json suffices. Without it, vocab.txt holds the vocabulary (one token per line; the line
 * number is the id), and the optional tokenizer_config.json the settings. Files that are present
 * must agree. options may be NULL.
 *
 * Memory   the caller owns *tokenizer; about 90 bytes per token and 16 per merge. Nothing of the
 *          folder stays open.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (options); MHA_ERR_FILE (neither vocab.txt nor
 *          tokenizer.json, or unreadable); MHA_ERR_FORMAT (malformed JSON; an empty vocabulary, a
 *          token that is duplicate or has a zero byte); MHA_ERR_UTF8; MHA_ERR_MODEL (files that
 *          contradict each other, no [UNK], ids that are not 0 .. n - 1); MHA_ERR_UNSUPPORTED
 *          (another kind of tokenizer, or an unsupported setting, named in the detail);
 *          MHA_ERR_SIZE; MHA_ERR_NOMEM.
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_tokenizer_load(const char *folder,
                                                    const mha_tokenizer_options *options,
                                                    mha_tokenizer **tokenizer);

/** Destroy a tokenizer; NULL: a no-op. Memory frees all of it; encodings stay valid. Errors none.
 * Threads no other thread may be using it. Since 0.1 */
MHA_API void mha_tokenizer_destroy(mha_tokenizer *tokenizer);

/* How a tokenizer splits a text. */
typedef enum mha_tokenizer_kind {
    MHA_TOKENIZER_WORDPIECE = 0,         /* the longest pieces of words: "un", "##aff", "##able" */
    MHA_TOKENIZER_BYTE_BPE = 1,          /* merges of bytes, written as letters: "\u0120the" */
    MHA_TOKENIZER_SENTENCEPIECE_BPE = 2, /* merges of characters: "\u2581the", "<0x0A>" */
    MHA_TOKENIZER_UNIGRAM = 3            /* the pieces with the largest sum of scores */
} mha_tokenizer_kind;

/* The description of a tokenizer. An id is -1 if the vocabulary has no such token or no file names
 * it. */
typedef struct mha_tokenizer_info {
    uint32_t struct_size; /* in: sizeof(mha_tokenizer_info) */
    int32_t cls_id;
    int32_t sep_id;
    int32_t pad_id;
    int32_t unk_id; /* never -1 for WordPiece */
    int32_t mask_id;
    int64_t vocab_size; /* ids are 0 .. vocab_size - 1 */
    int64_t max_length; /* model_max_length, including special tokens; 0: not stated */
    uint8_t clean_text; /* the settings of BERT's normaliser, 0 or 1; 0 for other kinds */
    uint8_t handle_chinese_chars;
    uint8_t strip_accents;
    uint8_t lowercase;
    mha_tokenizer_kind kind;
    int32_t bos_id; /* the beginning-of-text and end-of-text token; whether encoding adds them */
    int32_t eos_id; /* depends on the template */
} mha_tokenizer_info;

/**
 * Describe a tokenizer.
 *
 * Memory   fills *info, up to info->struct_size bytes.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (struct_size).   Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_tokenizer_describe(const mha_tokenizer *tokenizer,
                                                        mha_tokenizer_info *info);

/** The text of a token, e.g. "##ing"; NULL if id is not in the vocabulary. Memory lives as long as
 * tokenizer. Errors none. Threads any. Since 0.1 */
MHA_API const char *mha_tokenizer_token(const mha_tokenizer *tokenizer, int32_t id);

/**
 * The bytes that a token adds to a text that is written token by token. A
 * byte-level "\u0120the" gives " the", as does a SentencePiece "\u2581the", whose "<0x0A>" gives a
 * line end; a WordPiece "##ing" gives "ing". A token may be part of a character: bytes need not be
 * UTF-8.
 *
 *   special   may be NULL; 1 for tokens that are not text, such as "[SEP]" or "<|endoftext|>",
 *             whose bytes are their own names; else 0
 *
 * Separators are not included: a WordPiece "ing" begins a new word, and the first word of
 * a SentencePiece text begins with a space that the text may not have had.
 *
 * Memory   *bytes [*count] lives as long as tokenizer; no zero byte follows.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (id is not in the vocabulary).   Threads  any.
 * Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_tokenizer_token_bytes(const mha_tokenizer *tokenizer,
                                                           int32_t id, const char **bytes,
                                                           size_t *count, int *special);

/** The id of a token; -1 if the vocabulary does not have it. Memory none. Errors none.
 * Threads any. Since 0.1 */
MHA_API int32_t mha_tokenizer_id(const mha_tokenizer *tokenizer, const char *token);

/* ------------------------------------------------------------------------------------------------
 * Encoding
 * --------------------------------------------------------------------------------------------- */

/* Treatment of more than max_length tokens. */
typedef enum mha_truncation {
    MHA_TRUNCATE_NEVER = 0,         /* an error, MHA_ERR_SIZE, that names the count */
    MHA_TRUNCATE_LONGEST_FIRST = 1, /* truncate the longer text to the length of the other, then
                                       both equally */
    MHA_TRUNCATE_ONLY_FIRST = 2,
    MHA_TRUNCATE_ONLY_SECOND = 3
} mha_truncation;

/* mha_encode_options.flags */
enum {
    MHA_ENCODE_NO_SPECIAL = 1 << 0, /* add no special tokens, such as [CLS] and [SEP] */
    MHA_ENCODE_STOP = 1 << 1        /* stop at the first token beyond max_length and count only that
                                       one as dropped; always so without truncation */
};

typedef struct mha_encode_options {
    uint32_t struct_size;
    uint32_t flags;
    int64_t max_length; /* maximum number of tokens, including special ones; 0: no limit */
    mha_truncation truncation;
    int32_t reserved; /* 0 */
} mha_encode_options;

/* The tokens of one text or of a pair of texts. */
typedef struct mha_encoding {
    uint32_t struct_size;       /* in: sizeof(mha_encoding) */
    uint32_t reserved;          /* 0 */
    int64_t count;              /* of tokens, special ones included */
    const int32_t *ids;         /* [count] */
    const int32_t *type_ids;    /* [count] segments: 0 for [CLS] A [SEP], 1 for B [SEP] */
    const int64_t *begin, *end; /* [count] bytes of its text that a token stands for, as
                                   [begin, end), whole characters; -1, -1 for the special tokens
                                   that were added */
    const int8_t *sequence;     /* [count] 0: text, 1: pair, -1: a special token that was added */
    const uint8_t *special;     /* [count] 1 where sequence is -1. "[SEP]" written in a text becomes
                                   the same id but is not special. */
    int64_t dropped[2];         /* tokens truncated from the end of text and pair; with
                                   MHA_ENCODE_STOP only those read */
    void *memory;               /* of all the arrays, for mha_encoding_free() */
} mha_encoding;

/**
 * Encode a text, or a text and its pair, with the special tokens of the model's template: for BERT
 * [CLS] text [SEP], [CLS] text [SEP] pair [SEP]; for Llama <s> text, <s> text <s> pair.
 *
 *   text [text_bytes], pair [pair_bytes]   UTF-8; text may be NULL if text_bytes is 0; pair NULL
 *                                          is no pair, unlike an empty pair
 *
 * An empty text is valid and gives the special tokens. Special tokens in the text, such as
 * "[MASK]", are recognised. options may be NULL.
 *
 * Memory   texts are borrowed for the call. The caller frees the arrays with mha_encoding_free().
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (struct_size, flags, max_length below 0 or below the
 *          number of special tokens); MHA_ERR_UTF8 (the detail has the byte offset); MHA_ERR_SIZE
 *          (more than max_length tokens and no truncation, or the text that may be truncated is too
 *          short; for this text a pattern of the folder exceeds its limit of steps, or a normalizer
 *          its limit of bytes: docs/tokenizer.md); MHA_ERR_NOMEM. *encoding is then untouched.
 * Threads  any.   Cost  linear in the bytes; BPE n log n in the longest word.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_tokenizer_encode(const mha_tokenizer *tokenizer,
                                                      const mha_encode_options *options,
                                                      const char *text, size_t text_bytes,
                                                      const char *pair, size_t pair_bytes,
                                                      mha_encoding *encoding);

/** Free an encoding's arrays and clear it, except for struct_size. NULL and an encoding of zeros
 * are allowed. The tokenizer may already be destroyed, but not its allocator. Memory frees the
 * arrays. Errors none. Threads any. Since 0.1 */
MHA_API void mha_encoding_free(mha_encoding *encoding);

/* The words of a text: the units to look up in the vocabulary. */
typedef struct mha_words {
    uint32_t struct_size; /* in: sizeof(mha_words) */
    uint32_t reserved;    /* 0 */
    const char *text;     /* [text_bytes] the normalised text; a zero byte follows */
    int64_t text_bytes;
    int64_t count;              /* of words */
    const int64_t *from, *to;   /* [count] bytes [from, to) of the normalised text */
    const int64_t *begin, *end; /* [count] their bytes in the original text */
    void *memory;               /* of all the arrays, for mha_words_free() */
} mha_words;

/**
 * Normalise a text and split it into words, without the vocabulary. This first half of encoding
 * shows why a text has its tokens. Special tokens in the text are not recognised here.
 *
 * Memory   text is borrowed for the call. The caller frees the arrays with mha_words_free().
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (struct_size), MHA_ERR_UTF8, MHA_ERR_SIZE, MHA_ERR_NOMEM.
 *          *words is then untouched.
 * Threads  any.   Cost  linear in the bytes.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_tokenizer_words(const mha_tokenizer *tokenizer,
                                                     const char *text, size_t text_bytes,
                                                     mha_words *words);

/** Free the arrays of mha_tokenizer_words(), as mha_encoding_free() does. Memory frees them. Errors
 * none. Threads any. Since 0.1 */
MHA_API void mha_words_free(mha_words *words);

#ifdef __cplusplus
}
#endif
#endif
