/* Byte-pair encoding and unigram models. A list of steps normalises a text and splits it into
 * words. In each word, BPE merges the adjacent pair with the lowest merge rank until no pair can be
 * merged; a unigram model chooses the pieces with the largest sum of scores (unigram.c).
 *
 *   byte-level     symbols are bytes, which the vocabulary writes as letters (GPT-2, Llama 3, Qwen)
 *   SentencePiece  symbols are characters; "\u2581" is a space, and "<0x0A>" a byte of a character
 *                  that the vocabulary does not have (Llama 2, Gemma, Mistral)
 *   unigram        the same symbols, with scores (XLM-R, T5, ALBERT) */
#ifndef MHAI_BPE_H
#define MHAI_BPE_H

#include "tokenizer/tokenizer_parts.h"

/* ---- A vocabulary from a source other than a folder ------------------------------------------ */

/* Token types, numbered as in GGUF. */
enum {
    MHAI_TOKEN_NORMAL = 1,
    MHAI_TOKEN_UNKNOWN = 2,
    MHAI_TOKEN_CONTROL = 3,
    MHAI_TOKEN_USER_DEFINED = 4,
    MHAI_TOKEN_UNUSED = 5,
    MHAI_TOKEN_BYTE = 6
};

typedef struct mhai_text {
    const char *text; /* not NUL-terminated */
    size_t size;
} mhai_text;

typedef struct mhai_vocabulary_desc mhai_vocabulary_desc;
struct mhai_vocabulary_desc {
    const char *where;       /* name of the source in messages, such as the path of a file */
    const char *model;       /* "gpt2" (byte-level), "llama" (SentencePiece), "t5" (unigram) or
                              * "bert" (WordPiece) */
    const char *splitter;    /* "gpt-2", "llama-bpe", "qwen2" ...; only for "gpt2" */
    const mhai_text *tokens; /* [count] */
    const int32_t *types;    /* [count] MHAI_TOKEN_NORMAL etc.; NULL: all are normal */
    const float *scores;     /* [count] "llama": merge tokens with higher scores first; "t5" */
    int64_t count;
    const mhai_text *merges; /* [merge_count] "gpt2": "a b", in order of priority */
    int64_t merge_count;
    int32_t bos_id, eos_id, unk_id, pad_id; /* -1: none */
    bool add_bos, add_eos;                  /* add them to every text */
    bool add_space_prefix;                  /* add it to every text; "llama" and "t5" */
    bool remove_extra_spaces;               /* "t5": at both ends of a text, and of several
                                             * spaces all but one */
    const void *charsmap;                   /* "t5": charsmap.h; NULL: none */
    size_t charsmap_size;
    int32_t cls_id, sep_id, mask_id; /* "bert"; the last may be -1: none */
};

/* Create a tokenizer. desc and its arrays are only read during the call. options may be NULL.
 * Errors: those of mha_tokenizer_load(), except for files. */
MHA_NODISCARD mha_status mhai_tokenizer_make(const mhai_vocabulary_desc *desc,
                                             const mha_tokenizer_options *options,
                                             mha_tokenizer **tokenizer);

/* Whether llama.cpp by default adds a first token for this splitter. */
bool mhai_splitter_adds_bos(const char *name);

/* ---- Internals ------------------------------------------------------------------------------- */

enum { MHAI_BPE_STEPS = 16, MHAI_SUFFIX_BYTES = 16 };

/* A step, which normalises or splits. All normalising steps come first. */
typedef struct mhai_step {
    enum {
        MHAI_STEP_FORM, /* a normal form of Unicode */
        MHAI_STEP_LOWERCASE,
        MHAI_STEP_STRIP_MARKS,  /* remove combining marks */
        MHAI_STEP_STRIP_SPACES, /* remove white space at the ends */
        MHAI_STEP_CHARSMAP,
        MHAI_STEP_PREPEND, /* add text before a word, unless the word begins with it or
                            * the scheme excludes it */
        MHAI_STEP_REPLACE, /* replace matches with text */
        MHAI_STEP_SPLIT    /* split at matches */
    } what;
    struct mhai_pattern *pattern; /* NULL: match text literally, or by class */
    /* Behind ByteLevel, bytes match by their letters: those of 0xB2, 0xB3, 0xB9 and 0xBC to 0xBE are
     * numeric too */
    enum { MHAI_NO_CLASS, MHAI_PUNCTUATION, MHAI_NUMERIC_BYTE, MHAI_THREE_DIGITS } class;
    char *literal, *text;
    size_t literal_size, text_size;
    enum {
        MHAI_ALWAYS,
        MHAI_UNLESS_THERE,
        MHAI_FIRST
    } prepend; /* FIRST: only at the beginning of the text */
    enum mhai_split {
        MHAI_ISOLATED,
        MHAI_REMOVED,
        MHAI_WITH_PREVIOUS,
        MHAI_WITH_NEXT,
        MHAI_CONTIGUOUS
    } split;
    bool invert; /* swap the roles of matches and the text between them */
    struct {
        bool compatible, compose; /* NFD has neither, NFKC both */
    } form;
    struct {
        bool left, right;
    } ends; /* of STRIP_SPACES */
    struct mhai_charsmap *charsmap;
    bool longest; /* CHARSMAP: as in SentencePiece; otherwise as in Hugging Face's tokenizers */
} mhai_step;

typedef struct mhai_pair {
    int32_t left, right, rank, merged;
} mhai_pair;

struct mhai_bpe {
    mha_allocator allocator;
    mhai_step steps[MHAI_BPE_STEPS];
    int32_t normal_count, step_count; /* number of normalising steps, and of all steps */
    bool byte_level, byte_fallback, fuse_unk, ignore_merges, has_unk;
    bool trim_offsets, trim_prefix; /* settings of ByteLevel's post-processor */
    bool marks_spaces;              /* spaces are written as U+2581 */
    bool expands;                   /* a step expands characters (mhai_bpe_add_step) */
    int32_t unk;                    /* -1: drop unknown characters */
    int32_t byte_ids[256];          /* tokens of single bytes; -1: none */
    int32_t last_ids[256];          /* the same for the last byte of a word (suffix) */
    const char *suffix;             /* "</w>" (CLIP); borrowed during loading; NULL: none */
    mhai_vector pairs;              /* of mhai_pair, sorted by left, then by right */
    int32_t *first;                 /* [first_count]: index of the first pair of each left token */
    size_t first_count;
    const char *unk_text; /* borrowed during loading */
    double *scores;       /* [score_count] of a unigram model, by id; NULL: BPE */
    size_t score_count;
    double unk_score; /* of a character without a piece of its own */
};

/* Byte-level vocabularies write each byte as a letter. The letter of a byte, and the byte
 * of a letter (-1: none). */
int32_t mhai_bpe_letter(int byte);
int mhai_bpe_byte(int32_t letter);

MHA_NODISCARD mha_status mhai_bpe_create(const mha_allocator *allocator, mhai_bpe **bpe);
void mhai_bpe_destroy(mhai_bpe *bpe);

/* Append a step, with copies of its texts. Errors: MHA_ERR_UNSUPPORTED (too many
 * steps), MHA_ERR_NOMEM. */
typedef struct mhai_step_desc {
    mhai_step like; /* the fields what, class, prepend, split and invert */
    const char *pattern, *literal, *text;
    const void *map; /* a charsmap of map_size bytes */
    size_t map_size;
    bool own; /* the pattern is built-in, and thus trusted */
} mhai_step_desc;

MHA_NODISCARD mha_status mhai_bpe_add_step(mhai_bpe *bpe, const char *where,
                                           const mhai_step_desc *desc);

/* GPT-2's pattern, and the steps of Digits, Metaspace and WhitespaceSplit. */
extern const char mhai_gpt2_pattern[];
MHA_NODISCARD mha_status mhai_bpe_add_split(mhai_bpe *bpe, const char *where, const char *pattern);
MHA_NODISCARD mha_status mhai_bpe_add_digits(mhai_bpe *bpe, const char *where, bool individual);
MHA_NODISCARD mha_status mhai_bpe_add_spaces(mhai_bpe *bpe, const char *where);
MHA_NODISCARD mha_status mhai_bpe_add_whitespace(mhai_bpe *bpe, const char *where);

/* Append the pairs derived from scores. */
MHA_NODISCARD mha_status mhai_bpe_score_pairs(mha_tokenizer *t, const mhai_vocabulary_desc *desc);

/* ---- Texts with their source positions ------------------------------------------------------- */

/* Bytes with their positions in the source. Without columns, byte i is
 * byte base + i of the source. */
typedef struct mhai_stretch {
    const char *text;
    size_t size;
    const int64_t *begin, *end; /* [size] range of the character that contains the byte */
    int64_t base;
} mhai_stretch;

/* The source range, in whole characters, of the nonempty bytes [from, to). */
void mhai_stretch_place(const mhai_stretch *stretch, size_t from, size_t to, int64_t *begin,
                        int64_t *end);

/* A stretch under construction. */
typedef struct mhai_draft {
    mhai_vector bytes, begin, end;
} mhai_draft;

mhai_draft mhai_draft_make(const mha_allocator *allocator);
void mhai_draft_free(mhai_draft *draft);
mhai_stretch mhai_draft_stretch(const mhai_draft *draft);

/* Append bytes that share one source position, or a copy of bytes [from, to) of a stretch. */
MHA_NODISCARD mha_status mhai_draft_add(mhai_draft *draft, const char *text, size_t size,
                                        int64_t begin, int64_t end);
MHA_NODISCARD mha_status mhai_draft_copy(mhai_draft *draft, const mhai_stretch *stretch,
                                         size_t from, size_t to);

/* Writes a rewritten text, character by character, with the positions of Hugging Face's tokenizers.
 * A character has a change: 0 if it replaces one of the text, 1 if it is inserted, -n if it replaces
 * one and the n that follow are removed. */
typedef struct mhai_aligner {
    const mhai_stretch *text;
    mhai_draft *draft;
    size_t at;          /* next character of the text that has no position in the draft yet */
    int64_t begin, end; /* last position that was assigned */
} mhai_aligner;

MHA_NODISCARD mha_status mhai_aligner_put(mhai_aligner *aligner, int32_t c, int64_t change);

/* Whether a text is known to be in a normal form; convert a stretch to the form of a step. */
bool mhai_form_is_plain(const mhai_step *step, const char *text, size_t size);
MHA_NODISCARD mha_status mhai_form(const mha_allocator *allocator, const mhai_step *step,
                                   const mhai_stretch *stretch, mhai_draft *draft);

/* Apply a step that rewrites characters: FORM to CHARSMAP. */
MHA_NODISCARD mha_status mhai_rewrite_characters(const mha_allocator *allocator,
                                                 const mhai_step *step, const mhai_stretch *stretch,
                                                 mhai_draft *draft);

/* ---- Unigram models -------------------------------------------------------------------------- */

typedef struct mhai_piece {
    size_t from, to; /* bytes of the word */
    int32_t id;
} mhai_piece;

/* Append the pieces of a word, which must not be empty, to `pieces`. `nodes` is memory. */
MHA_NODISCARD mha_status mhai_unigram_pieces(const mha_tokenizer *t, const char *word, size_t size,
                                             mhai_vector *nodes, mhai_vector *pieces);
mhai_vector mhai_unigram_nodes(const mha_allocator *allocator);

/* Read model.vocab, [["piece", score], ...], into l->tokens and the scores. */
MHA_NODISCARD mha_status mhai_unigram_vocabulary(mhai_loader *l);

/* Copy the scores of a vocabulary in memory. Tokens that are not pieces of texts have -INFINITY. */
MHA_NODISCARD mha_status mhai_unigram_scores(mhai_bpe *bpe, const mhai_vocabulary_desc *desc);

/* Check the pieces of a finished vocabulary, and set the score of unknown characters. */
MHA_NODISCARD mha_status mhai_unigram_build(const mhai_loader *l);

#endif
