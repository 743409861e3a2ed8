/* Byte-pair encoding: a text is normalised and split into words by a list of steps, and in every
 * word the pair of neighbours that was merged first in training is merged, again and again.
 *
 *   byte-level     symbols are bytes, which the vocabulary writes as letters (GPT-2, Llama 3, Qwen)
 *   SentencePiece  symbols are characters, "\u2581" for a space, "<0x0A>" for bytes of characters
 *                  that the vocabulary lacks (Llama 2, Gemma, Mistral) */
#ifndef MHAI_BPE_H
#define MHAI_BPE_H

#include "tokenizer/tokenizer_parts.h"

/* ---- A vocabulary that comes from elsewhere than a folder ------------------------------------ */

/* What a token is, as GGUF numbers it. */
enum {
    MHAI_TOKEN_NORMAL = 1,
    MHAI_TOKEN_UNKNOWN = 2,
    MHAI_TOKEN_CONTROL = 3,
    MHAI_TOKEN_USER_DEFINED = 4,
    MHAI_TOKEN_UNUSED = 5,
    MHAI_TOKEN_BYTE = 6
};

typedef struct mhai_text {
    const char *text; /* need not end with a zero byte */
    size_t size;
} mhai_text;

typedef struct mhai_vocabulary_desc mhai_vocabulary_desc;
struct mhai_vocabulary_desc {
    const char *where;       /* what messages call it, e.g. the path of a file */
    const char *model;       /* "gpt2" (byte-level) or "llama" (SentencePiece) */
    const char *splitter;    /* "gpt-2", "llama-bpe", "qwen2" ...; of "gpt2" only */
    const mhai_text *tokens; /* [count] */
    const int32_t *types;    /* [count] MHAI_TOKEN_NORMAL and so on; NULL: all are normal */
    const float *scores;     /* [count] "llama": the higher, the sooner is a token made */
    int64_t count;
    const mhai_text *merges; /* [merge_count] "gpt2": "a b", the first first */
    int64_t merge_count;
    int32_t bos_id, eos_id, unk_id, pad_id; /* -1: none */
    bool add_bos, add_eos;                  /* around every text */
    bool add_space_prefix;                  /* before every text; of "llama" only */
};

/* Make a tokenizer; desc and what it points to are borrowed for the call. options may be NULL.
 * Errors: those of mha_tokenizer_load(), without its files. */
MHA_NODISCARD mha_status mhai_tokenizer_make(const mhai_vocabulary_desc *desc,
                                             const mha_tokenizer_options *options,
                                             mha_tokenizer **tokenizer);

/* Whether llama.cpp begins texts with a token for the name of a splitter, if nothing says so. */
bool mhai_splitter_adds_bos(const char *name);

/* ---- From inside ----------------------------------------------------------------------------- */

enum { MHAI_BPE_STEPS = 16 };

/* One step of normalising (before the first that splits) or of splitting. */
typedef struct mhai_step {
    enum {
        MHAI_STEP_NFC,
        MHAI_STEP_PREPEND, /* text, unless a word begins with it or the scheme says no */
        MHAI_STEP_REPLACE, /* matches by text */
        MHAI_STEP_SPLIT    /* at matches */
    } what;
    struct mhai_pattern *pattern; /* NULL: literal */
    char *literal, *text;
    size_t literal_size, text_size;
    enum { MHAI_ALWAYS, MHAI_UNLESS_THERE, MHAI_FIRST } prepend; /* FIRST: where the text begins */
    enum mhai_split {
        MHAI_ISOLATED,
        MHAI_REMOVED,
        MHAI_WITH_PREVIOUS,
        MHAI_WITH_NEXT,
        MHAI_CONTIGUOUS
    } split;
    bool invert; /* what matches and what does not change places */
} mhai_step;

typedef struct mhai_pair {
    int32_t left, right, rank, merged;
} mhai_pair;

struct mhai_bpe {
    mha_allocator allocator;
    mhai_step steps[MHAI_BPE_STEPS];
    int32_t normal_count, step_count; /* steps that normalise, and all */
    bool byte_level, byte_fallback, fuse_unk, ignore_merges, has_unk;
    bool trim_offsets, trim_prefix; /* ByteLevel's post-processor */
    bool marks_spaces;              /* by U+2581 */
    int32_t unk;                    /* -1: characters that the vocabulary lacks vanish */
    int32_t byte_ids[256];          /* of single bytes; -1: none */
    mhai_vector pairs;              /* of mhai_pair, by left, then by right */
    int32_t *first;                 /* [first_count]: the pairs of a left token begin here */
    size_t first_count;
    const char *unk_text; /* borrowed while loading */
};

/* The bytes of the letters that byte-level vocabularies write: the letter of a byte, and back (-1: no
 * such letter). */
int32_t mhai_bpe_letter(int byte);
int mhai_bpe_byte(int32_t letter);

MHA_NODISCARD mha_status mhai_bpe_create(const mha_allocator *allocator, mhai_bpe **bpe);
void mhai_bpe_destroy(mhai_bpe *bpe);

/* Append a step; its texts are copied. Errors: MHA_ERR_UNSUPPORTED (too many), MHA_ERR_NOMEM. */
typedef struct mhai_step_desc {
    mhai_step like; /* what, prepend, split, invert */
    const char *pattern, *literal, *text;
    bool own; /* the pattern is ours and needs no check */
} mhai_step_desc;

MHA_NODISCARD mha_status mhai_bpe_add_step(mhai_bpe *bpe, const char *where,
                                           const mhai_step_desc *desc);

/* GPT-2's pattern, and the steps of Digits and Metaspace. */
extern const char mhai_gpt2_pattern[];
MHA_NODISCARD mha_status mhai_bpe_add_split(mhai_bpe *bpe, const char *where, const char *pattern);
MHA_NODISCARD mha_status mhai_bpe_add_digits(mhai_bpe *bpe, const char *where, bool individual);
MHA_NODISCARD mha_status mhai_bpe_add_spaces(mhai_bpe *bpe, const char *where);

/* Pairs by left and right, for the merges that were appended to bpe->pairs with their ranks. Of the
 * same pair twice the last counts. */
MHA_NODISCARD mha_status mhai_bpe_index(mha_tokenizer *t);

/* Append the pairs that scores stand for. */
MHA_NODISCARD mha_status mhai_bpe_score_pairs(mha_tokenizer *t, const mhai_vocabulary_desc *desc);

/* ---- Texts that know where they come from ---------------------------------------------------- */

/* Bytes and where they come from. Without columns, byte i is byte base + i of the text given. */
typedef struct mhai_stretch {
    const char *text;
    size_t size;
    const int64_t *begin, *end; /* [size] of the character that a byte belongs to */
    int64_t base;
} mhai_stretch;

/* The place of bytes [from, to), which are not empty, as whole characters. */
void mhai_stretch_place(const mhai_stretch *stretch, size_t from, size_t to, int64_t *begin,
                        int64_t *end);

/* A stretch in the making. */
typedef struct mhai_draft {
    mhai_vector bytes, begin, end;
} mhai_draft;

mhai_draft mhai_draft_make(const mha_allocator *allocator);
void mhai_draft_free(mhai_draft *draft);
mhai_stretch mhai_draft_stretch(const mhai_draft *draft);

/* Bytes that all come from one place, and a copy of bytes [from, to) of a stretch. */
MHA_NODISCARD mha_status mhai_draft_add(mhai_draft *draft, const char *text, size_t size,
                                        int64_t begin, int64_t end);
MHA_NODISCARD mha_status mhai_draft_copy(mhai_draft *draft, const mhai_stretch *stretch,
                                         size_t from, size_t to);

/* Whether a text is surely in normal form C already, and the composed form of a stretch. */
bool mhai_nfc_is_plain(const char *text, size_t size);
MHA_NODISCARD mha_status mhai_nfc(const mha_allocator *allocator, const mhai_stretch *stretch,
                                  mhai_draft *draft);

#endif
