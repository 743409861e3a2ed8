/* multihead: the study of a model: its texts as labelled tokens, and what its heads do over them.
 *
 * What the program, its server and the Python package say about a model they say by these calls:
 *
 *   tokens    a text becomes ids with labels, places, kinds and sentences; ids become text
 *   scores    texts and repeated random tokens run through a model, and each head has scores,
 *             chance levels and roles (heads.h)
 *
 *   mha_tokens tokens = MHA_INIT(mha_tokens);
 *   mha_study *study;
 *   mha_tokens_read(model, NULL, text, bytes, NULL, 0, &tokens);
 *   mha_study_create(context, model, NULL, &study);
 *   mha_study_measure(study, &tokens, 1, NULL, 4);
 *   mha_study_roles(mha_study_results(study), layer, head, roles, most);
 *
 * Letters: L layers, H heads of the largest layer, T tokens of a text.
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_STUDY_H
#define MULTIHEAD_STUDY_H

#include <multihead/head_corpus.h>
#include <multihead/head_pass.h>
#include <multihead/model.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------------
 * A text becomes tokens
 * --------------------------------------------------------------------------------------------- */

/* mha_tokens_options.flags */
enum {
    MHA_TOKENS_TRUNCATE = 1 << 0, /* cut a text of more than max_tokens, of a pair the longer */
    MHA_TOKENS_PLAIN = 1 << 1, /* no labels, for long texts: only special tokens are separators */
    /* A text to continue: without the end-of-text token that a tokenizer puts behind every text, and
     * with the beginning-of-text token where nothing else is left */
    MHA_TOKENS_PROMPT = 1 << 2
};

typedef struct mha_tokens_options {
    uint32_t struct_size;
    uint32_t flags;
    int64_t max_tokens; /* special ones included; 0: the model's positions, -1: any number */
    const char
        *advise_long; /* ends the error of too many tokens: "or pass truncate"; NULL: nothing */
    const char
        *advise_words; /* ends that of an unknown word: "'words' lists them"; NULL: nothing */
} mha_tokens_options;

/* The tokens of a text, or of a text and its pair. The caller may change what the arrays hold. */
typedef struct mha_tokens {
    uint32_t struct_size; /* in: sizeof(mha_tokens) */
    uint32_t reserved;    /* 0 */
    int64_t count;        /* T, special tokens included */
    int32_t *ids;         /* [T] */
    int32_t *types;       /* [T] segments as the model is told: 0, and 1 for the pair */
    int64_t *begin, *end; /* [T] bytes of its text that a token stands for; -1: none */
    int8_t *sequence;     /* [T] 0: text, 1: pair, -1: neither */
    uint8_t *special;     /* [T] 1: a token that the text does not have, such as [CLS] */
    uint8_t *separators;  /* [T] 1: ends a sentence: a special token but the first, or . ! ? ; */
    int64_t *sentences;   /* [T] numbers of sentences, from 0; a separator ends its own */
    const char **labels;  /* [T] mha_token_label(); NULL with MHA_TOKENS_PLAIN */
    int64_t dropped[2];   /* tokens of text and pair that were cut off, or more */
    void *memory;         /* of all arrays, for mha_tokens_free() */
} mha_tokens;

/**
 * Read a text, and its pair if there is one, as the model does: by its tokenizer, or word by word
 * where mha_checkpoint_save() wrote it. For the encoder of an encoder-decoder pass
 * mha_model_encoder().
 *
 *   text [bytes], pair [pair_bytes]   UTF-8; pair NULL: there is none. An empty text is fine
 *
 * options may be NULL.
 *
 * Memory   borrows the texts for the call; the caller frees the arrays with mha_tokens_free(); from
 *          the C library, 43 bytes and a label for each token.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (struct_size, max_tokens); MHA_ERR_UTF8; MHA_ERR_FORMAT
 *          (a word that a vocabulary does not have; the nearest is named); MHA_ERR_SIZE (more than
 *          max_tokens without MHA_TOKENS_TRUNCATE); MHA_ERR_UNSUPPORTED (a pair for a model that
 *          knows none, a model without tokenizer, unknown flags); MHA_ERR_NOMEM. *tokens is then
 *          unchanged.
 * Threads  any.   Cost  linear in the bytes.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_tokens_read(const mha_model *model,
                                                 const mha_tokens_options *options,
                                                 const char *text, size_t bytes, const char *pair,
                                                 size_t pair_bytes, mha_tokens *tokens);

/** Free the arrays and clear the struct, except for struct_size; NULL and all zero are fine. Memory
 * frees them. Errors none. Threads any. Since 0.1 */
MHA_API void mha_tokens_free(mha_tokens *tokens);

/**
 * Find separators and sentences of tokens that come from elsewhere.
 *
 *   labels [count] in, each may be NULL    special [count] in
 *   separators, sentences [count] out
 *
 * Memory  none.   Errors  none.   Threads  any.   Since  0.1
 */
MHA_API void mha_tokens_sentences(int64_t count, const char *const *labels, const uint8_t *special,
                                  uint8_t *separators, int64_t *sentences);

/**
 * A token as a reader knows it: of WordPiece and of whole words its text, "##ing"; of BPE what it adds
 * to a text, without the space in front, spaces that are all of it as U+2423, line ends as "\n", and
 * bytes of a part of a character as "<0x9F>"; of special tokens their names; "?" for an id that is
 * none.
 *
 *   label [size] out   cut to size bytes with its NUL, as by snprintf(); may be NULL with size 0
 *
 * Returns the bytes of the whole label without its NUL.
 *
 * Memory  none.   Errors  none.   Threads  any.   Since  0.1
 */
MHA_API size_t mha_token_label(const mha_model *model, int32_t id, char *label, size_t size);

/** The number of ids of a model that stand for tokens, from 0 on: a vocabulary may be padded with ids
 * that stand for nothing. 0 without tokenizer. Memory none. Errors none. Threads any. Since 0.1 */
MHA_API int64_t mha_token_count(const mha_model *model);

/** Whether a token is a word of at least two letters a-z, of BPE behind a space; of a vocabulary of
 * whole words whether it does not begin with "<". Memory none. Errors none. Threads any. Since 0.1 */
MHA_API bool mha_token_is_word(const mha_model *model, int32_t id);

/* ------------------------------------------------------------------------------------------------
 * Tokens become a text
 * --------------------------------------------------------------------------------------------- */

/* A text that grows by tokens: whole characters as they are certain, and nothing of a stop text. */
typedef struct mha_text_writer mha_text_writer;

/**
 * Create a writer.
 *
 *   stops [stop_count]   texts that end the text and are no part of it; copied. "" is left out
 *
 * Memory   the caller owns *writer; it borrows the model. From the C library.
 * Errors   MHA_ERR_NULL; MHA_ERR_UNSUPPORTED (a model without tokenizer); MHA_ERR_NOMEM.
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_text_writer_create(const mha_model *model,
                                                        const char *const *stops,
                                                        int64_t stop_count,
                                                        mha_text_writer **writer);

/** Destroy; NULL is fine. Memory frees all. Errors none. Threads one. Since 0.1 */
MHA_API void mha_text_writer_destroy(mha_text_writer *writer);

/**
 * Append a token, of which special ones add nothing; whole words are parted by spaces.
 *
 *   *text [*bytes] out   what is certain now and was not given before: UTF-8, may be empty. Bytes of
 *                        no character become U+FFFD
 *   *stopped out         a stop text is complete, and *text ends before it; add no more
 *
 * Memory   *text lives until the next call.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (no such token), MHA_ERR_NOMEM.
 * Threads  one.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_text_writer_add(mha_text_writer *writer, int32_t id,
                                                     const char **text, size_t *bytes,
                                                     bool *stopped);

/** What was held back; a character that was begun becomes U+FFFD. Memory, Errors, Threads as
 * mha_text_writer_add(). Since 0.1 */
MHA_API MHA_NODISCARD mha_status mha_text_writer_end(mha_text_writer *writer, const char **text,
                                                     size_t *bytes);

/* ------------------------------------------------------------------------------------------------
 * Repeated random tokens
 * --------------------------------------------------------------------------------------------- */

/* Repeated random tokens of a model's words: at most 25 words, at most four times, as many as its
 * words and positions allow. */
typedef struct mha_random_tokens {
    uint32_t struct_size;    /* in: sizeof(mha_random_tokens) */
    uint32_t reserved;       /* 0 */
    mha_repeated_tokens how; /* block below 4: the model has too few words or positions */
    int32_t *pool;           /* [pool_count] words to draw from */
    int64_t pool_count;
} mha_random_tokens;

enum { MHA_RANDOM_LEAST_BLOCK = 4 };

/**
 * Find the words of a model that may be drawn (mha_token_is_word()), the tokens that it puts around
 * every text, and how many words a sequence repeats how often.
 *
 * Memory   the caller frees *plan with mha_random_tokens_free(); from the C library.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (struct_size), MHA_ERR_UNSUPPORTED (no tokenizer),
 *          MHA_ERR_NOMEM.
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_random_tokens_plan(const mha_model *model,
                                                        mha_random_tokens *plan);

/** Free the pool and clear the struct, except for struct_size; NULL is fine. Memory frees it. Errors
 * none. Threads any. Since 0.1 */
MHA_API void mha_random_tokens_free(mha_random_tokens *plan);

/**
 * Draw the next sequence. Sequences depend on those before them.
 *
 * Memory   the caller frees *tokens with mha_tokens_free(), which has no labels and no places.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (how), MHA_ERR_NOMEM.   Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_random_tokens_draw(mha_random_tokens *plan,
                                                        mha_tokens *tokens);

/* ------------------------------------------------------------------------------------------------
 * What was measured: scores and roles
 * --------------------------------------------------------------------------------------------- */

/* What a study has measured, or what somebody else has (mha_head_measures of maps). */
typedef struct mha_study_found {
    uint32_t struct_size;
    uint32_t reserved;            /* 0 */
    int64_t layers;               /* L */
    const int64_t *heads;         /* [L] */
    mha_head_measures *texts;     /* NULL: no texts */
    mha_head_measures *random;    /* repeated random tokens; NULL: none */
    const char *const *relations; /* [relation_count] names of gold links */
    int64_t relation_count;
    int64_t text_count, token_count; /* texts that were measured, and their tokens */
    int64_t random_count;            /* sequences that were measured, of ... */
    mha_random_tokens *plan;         /* NULL before mha_study_begin_random() */
    int64_t lost_links;              /* gold links of a word that no token begins in */
    mha_head_corpus *corpus;         /* MHA_STUDY_CORPUS, else NULL */
    /* [L] MHA_STUDY_DISTANCES, else NULL; of a layer without heads NULL */
    mha_head_distances **distances;
    /* The vocabulary as all texts have it; all 0 before mha_study_begin() */
    int64_t vocab_size;    /* V, ids of the model */
    const int64_t *counts; /* [V] how often each id occurs as a word of a text */
    const int64_t *ranks;  /* [V] 0: the most frequent */
    int64_t kinds;         /* ids that occur; what a corpus counts are numbers of kinds, ... */
    const int64_t *id_of;  /* [kinds] ascending; kind `kinds` stands for special tokens */
} mha_study_found;

enum { MHA_STUDY_NAME_BYTES = 96, MHA_STUDY_MOST_ROLES = 64 };

/** The number of scores: those of texts (MHA_MEASURES), by the numbers of mha_head_measure; then
 * duplicate, induction and induction_mean on random tokens; then two for each relation. Memory none.
 * Errors none. Threads any. Since 0.1 */
MHA_API int64_t mha_study_score_count(const mha_study_found *found);

/** The name of a score: "induction"; "random_induction"; of a relation, "amod" where the word looks at
 * what it depends on, "amod-back" where it is looked at. Memory writes name. Errors none. Threads any.
 * Since 0.1 */
MHA_API void mha_study_score_name(const mha_study_found *found, int64_t score,
                                  char name[MHA_STUDY_NAME_BYTES]);

/** What a score counts. Memory static text. Errors none. Threads any. Since 0.1 */
MHA_API const char *mha_study_score_text(int64_t score);

/** The number of the score of that name, or -1. told: where random tokens were measured, "induction"
 * and "duplicate" are those of random tokens, in which nothing else repeats words. Memory none. Errors
 * none. Threads any. Since 0.1 */
MHA_API int64_t mha_study_score_find(const mha_study_found *found, const char *name, bool told);

/** A score of a head; zeros where it was not measured. Memory none. Errors none. Threads any while
 * nothing is added. Since 0.1 */
MHA_API mha_head_score mha_study_score(const mha_study_found *found, int64_t layer, int64_t head,
                                       int64_t score);

/**
 * The roles of a head: those on texts, but duplicate token and induction on random tokens where there
 * are any. Specific ones come first, in the order of MHA_ROLE_LIST, relations by what they are above
 * their baselines; last come those of heads that rest (mha_study_role_rests()).
 *
 * Returns the number of roles, at most MHA_STUDY_MOST_ROLES.
 *
 * Memory  none.   Errors  none.   Threads  as mha_study_score().   Since  0.1
 */
MHA_API int64_t mha_study_roles(const mha_study_found *found, int64_t layer, int64_t head,
                                mha_head_role roles[MHA_STUDY_MOST_ROLES]);

/** Whether a role says that a head finds nothing: it rests on the first token, on separators, on all.
 * Memory none. Errors none. Threads any. Since 0.1 */
MHA_API bool mha_study_role_rests(mha_role role);

/** What a role is called: "previous token"; of a relation its name, "amod-back". Memory writes name.
 * Errors none. Threads any. Since 0.1 */
MHA_API void mha_study_role_name(const mha_study_found *found, const mha_head_role *role,
                                 char name[MHA_STUDY_NAME_BYTES]);

/* ------------------------------------------------------------------------------------------------
 * Measuring
 * --------------------------------------------------------------------------------------------- */

typedef struct mha_study mha_study;

/* mha_study_desc.flags */
enum {
    MHA_STUDY_OWN_LAYERS = 1 << 0, /* MHA_HEAD_PASS_OWN_LAYERS */
    MHA_STUDY_CORPUS = 1 << 1,     /* keep a mha_head_corpus of texts */
    MHA_STUDY_DISTANCES = 1 << 2   /* and the distances between the heads of each layer */
};

/* How far a measurement is. */
typedef struct mha_study_progress {
    bool random;           /* a sequence of random tokens, else a text */
    int64_t number, count; /* from 0, of so many */
    int64_t layer, layers, row, rows;
} mha_study_progress;

typedef struct mha_study_desc {
    uint32_t struct_size;
    uint32_t flags;
    const mha_tensor *gates;      /* [L,H] f32: factors of the heads' outputs; NULL: 1 */
    const char *const *relations; /* [relation_count] names of gold links */
    int64_t relation_count;
    /* Called while a text is measured; a status other than MHA_OK (MHA_ERR_CALLBACK) ends the call
     * that measures, and is returned. NULL: not called */
    mha_status (*progress)(void *user, const mha_study_progress *progress);
    void *progress_user;
} mha_study_desc;

/**
 * Create a study of a model's heads. Texts are counted first, since which words are rare is known when
 * all are:
 *
 *   mha_study_count() each text, mha_study_begin(), mha_study_text() each text,
 *   mha_study_begin_random(), mha_random_tokens_draw() of found.plan and mha_study_random() each
 *   sequence
 *
 * or mha_study_measure(), which does all of it. desc may be NULL.
 *
 * Memory   the caller owns *study; context, model, and what desc points to, must outlive it. 32 bytes
 *          per token of the vocabulary, and what mha_head_measures_create() says.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (struct_size), MHA_ERR_UNSUPPORTED (flags; an
 *          encoder-decoder; a model without tokenizer), MHA_ERR_NOMEM.
 * Threads  one call at a time per context, as for all calls of a study.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_study_create(mha_context *context, mha_model *model,
                                                  const mha_study_desc *desc, mha_study **study);

/** Destroy it and what it has measured; NULL is fine. Memory frees all. Errors none. Threads one.
 * Since 0.1 */
MHA_API void mha_study_destroy(mha_study *study);

/** Count the tokens of a text that will be measured. Memory none. Errors MHA_ERR_NULL; MHA_ERR_ARGUMENT
 * (mha_study_begin() was called, an id that the model does not have). Threads one. Since 0.1 */
MHA_API MHA_NODISCARD mha_status mha_study_count(mha_study *study, const mha_tokens *tokens);

/**
 * Rank the tokens that were counted, and make found.texts, with its corpus and distances; again: begin
 * anew with nothing measured, of the same counts.
 *
 * A word is rare from the 500th kind of token on, in a small corpus from the median kind.
 *
 * Memory   that of mha_head_measures_create() and the like.   Errors  those of these calls.
 * Threads  one.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_study_begin(mha_study *study);

/* Gold links of a text. */
typedef struct mha_study_links {
    const int64_t *begin, *end; /* [words] bytes of the text, ascending */
    int64_t words;
    const mha_heads_link *links; /* [count] between numbers of words */
    int64_t count;
    bool predict; /* MHA_HEADS_QUERY_PREDICTS */
} mha_study_links;

/* What a text's run does besides. */
typedef struct mha_study_visit {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    /* Outputs, after_layer, patches and whatever else of the run; its tokens, token_types and gates are
     * the study's. NULL: nothing */
    const mha_transformer_input *run;
    const mha_study_links *links; /* NULL: none */
} mha_study_visit;

/**
 * Run a text through the model and measure its heads. visit may be NULL.
 *
 * Memory   scratch from the context; borrows everything for the call.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (mha_study_begin() was not called, an id that the model does
 *          not have, tokens without kinds); those of mha_head_pass_run(), MHA_ERR_NUMERIC among them
 *          for weights that are not finite; what progress or after_layer returned.
 * Threads  one.   Accuracy  as mha_head_pass_run().   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_study_text(mha_study *study, const mha_tokens *tokens,
                                                const mha_study_visit *visit);

/** Make found.random, or begin anew; what mha_random_tokens_plan() finds too small leaves it NULL.
 * Memory, Errors as mha_study_begin(). Threads one. Since 0.1 */
MHA_API MHA_NODISCARD mha_status mha_study_begin_random(mha_study *study);

/** Measure a sequence that was drawn of found.plan. Memory, Errors, Accuracy as mha_study_text(). Threads one.
 * Since 0.1 */
MHA_API MHA_NODISCARD mha_status mha_study_random(mha_study *study, const mha_tokens *tokens);

/**
 * Count, begin and measure texts, then sequences of random tokens.
 *
 *   texts [count]   visit [count], each may be NULL; visit NULL: none
 *
 * Memory, Errors  as those calls.   Threads  one.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_study_measure(mha_study *study, const mha_tokens *texts,
                                                   int64_t count,
                                                   const mha_study_visit *const *visit,
                                                   int64_t sequences);

/** What was measured until now. Memory belongs to the study, and changes with it. Errors none.
 * Threads one. Since 0.1 */
MHA_API const mha_study_found *mha_study_results(const mha_study *study);

/** The kinds of a text's tokens as the corpus of a study numbers them.
 *
 *   kinds [T] out
 *
 * Memory none. Errors none; tokens are of the model. Threads one. Since 0.1 */
MHA_API void mha_study_kinds(const mha_study *study, const mha_tokens *tokens, int64_t *kinds);

#ifdef __cplusplus
}
#endif
#endif
