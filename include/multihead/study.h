/* multihead: study a model: tokenize texts with labels, and measure its heads on them.
 *
 * The program, its server and the Python package use these calls for all their reports on a model:
 *
 *   tokens    tokenize a text into ids with labels, byte ranges, kinds and sentences; detokenize ids
 *   scores    run texts and repeated random tokens through a model, and compute the scores, chance
 *             levels and roles of each head (heads.h)
 *
 * Letters: L layers, H heads of the largest layer, T tokens of a text.
 *
 * Example, given mha_context *context, mha_model *model, const char *text:
 *
 *   mha_tokens tokens = MHA_INIT(mha_tokens);
 *   mha_head_role roles[MHA_STUDY_MOST_ROLES];
 *   mha_study *study = NULL;
 *   mha_status status = mha_tokens_read(model, NULL, text, strlen(text), NULL, 0, &tokens);
 *   if (!status) status = mha_study_create(context, model, NULL, &study);
 *   if (!status) status = mha_study_measure(study, &tokens, 1, NULL, 4);
 *   if (!status) printf("%d\n", (int)mha_study_roles(mha_study_results(study), 0, 3, roles)); // L0H3
 *   mha_study_destroy(study);
 *   mha_tokens_free(&tokens);
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_STUDY_H
#define MULTIHEAD_STUDY_H

#include <multihead/head_corpus.h>
#include <multihead/head_pass.h>
#include <multihead/image.h>
#include <multihead/model.h>
#include <multihead/sink.h>
#include <multihead/transport.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------------
 * From a text to tokens
 * --------------------------------------------------------------------------------------------- */

/* mha_tokens_options.flags */
enum {
    MHA_TOKENS_TRUNCATE = 1 << 0, /* truncate to max_tokens; for a pair, truncate the longer text */
    MHA_TOKENS_PLAIN = 1 << 1, /* no labels, for long texts; only special tokens are separators */
    /* A prompt to continue: drop the end-of-text tokens that the tokenizer appends. If no token is
     * left, the beginning-of-text token is the prompt. */
    MHA_TOKENS_PROMPT = 1 << 2
};

typedef struct mha_tokens_options {
    uint32_t struct_size;
    uint32_t flags;
    /* Including special tokens; 0: the model's positions, -1: no limit */
    int64_t max_tokens;
    /* Advice appended to the error for too many tokens: "or pass truncate"; NULL: none */
    const char *advise_long;
    /* Advice appended to the error for an unknown word: "'words' lists them"; NULL: none */
    const char *advise_words;
} mha_tokens_options;

/* The tokens of a text, or of a text and its pair. The caller may modify the arrays' elements. */
typedef struct mha_tokens {
    uint32_t struct_size; /* in: sizeof(mha_tokens) */
    uint32_t reserved;    /* 0 */
    int64_t count;        /* T, special tokens included */
    int32_t *ids;         /* [T] */
    int32_t *types;       /* [T] segment ids for the model: 0, and 1 for the pair */
    int64_t *begin, *end; /* [T] byte range of each token in its text; -1: none */
    int8_t *sequence;     /* [T] 0: text, 1: pair, -1: neither */
    uint8_t *special;     /* [T] 1: a token that the text does not contain, such as [CLS] */
    uint8_t *separators;  /* [T] 1: ends a sentence: . ! ? ; or any special token but the first */
    int64_t *sentences;   /* [T] sentence numbers, from 0; a separator belongs to the sentence that
                             it ends */
    const char **labels;  /* [T] mha_token_label(); NULL with MHA_TOKENS_PLAIN */
    int64_t dropped[2];   /* tokens truncated from the text and from the pair */
    void *memory;         /* the block that holds all arrays, for mha_tokens_free() */
    mha_picture *picture; /* of an image; NULL: a text */
} mha_tokens;

/**
 * Tokenize a text, and its pair if there is one, as the model does: with its tokenizer, or with the
 * vocabulary of a model that mha_checkpoint_save() wrote. For the encoder of an encoder-decoder,
 * pass mha_model_encoder().
 *
 *   text [bytes], pair [pair_bytes]   UTF-8; pair may be NULL. The text may be empty
 *
 * options may be NULL.
 *
 * Memory   borrows the texts for the call; the caller frees the arrays with mha_tokens_free(). They
 *          are allocated with calloc(): 43 bytes and the label per token.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (struct_size, max_tokens); MHA_ERR_UTF8; MHA_ERR_FORMAT
 *          (a word that is not in the vocabulary; the detail names the nearest one); MHA_ERR_SIZE
 *          (more than max_tokens without MHA_TOKENS_TRUNCATE); MHA_ERR_UNSUPPORTED (a pair for a
 *          model that takes a single text, a model without a tokenizer, unknown flags);
 *          MHA_ERR_NOMEM. After an error *tokens is unchanged.
 * Threads  any.   Cost  linear in the bytes.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_tokens_read(const mha_model *model,
                                                 const mha_tokens_options *options,
                                                 const char *text, size_t bytes, const char *pair,
                                                 size_t pair_bytes, mha_tokens *tokens);

/**
 * Make the tokens of an image (mha_model_read_image()): CLS and registers, if the model has them, and one
 * for each patch, in rows from the top. Labels are "[CLS]", "[REG0]" and "2,5" (row and column, from 0).
 *
 * Memory   borrows the image for the call; the caller frees the arrays, and tokens->picture, with
 *          mha_tokens_free().
 * Errors   those of mha_model_read_image(). *tokens is then unchanged.
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_tokens_read_image(const mha_model *model,
                                                       const mha_image *image, mha_tokens *tokens);

/** Free the arrays and clear the struct, except for struct_size. NULL and a zeroed struct are allowed.
 * Memory frees them. Errors none. Threads any. Since 0.1 */
MHA_API void mha_tokens_free(mha_tokens *tokens);

/**
 * Find the separators and sentences of tokens from another tokenizer.
 *
 *   labels [count] in, each may be NULL    special [count] in
 *   separators, sentences [count] out
 *
 * Memory  none.   Errors  none.   Threads  any.   Since  0.1
 */
MHA_API void mha_tokens_sentences(int64_t count, const char *const *labels, const uint8_t *special,
                                  uint8_t *separators, int64_t *sentences);

/**
 * Write the readable label of a token: for a WordPiece token or a whole word its text ("##ing");
 * for a BPE token the text that it adds, without a leading space (in a token of only spaces each
 * becomes U+2423, a line feed is "\n", and bytes of an incomplete character are "<0x9F>"); for a
 * special token its name; for an id outside the vocabulary "?".
 *
 *   label [size] out   truncated to size bytes including the NUL, as by snprintf(); may be NULL if
 *                      size is 0
 *
 * Returns the length of the whole label in bytes, without the NUL.
 *
 * Memory  none.   Errors  none.   Threads  any.   Since  0.1
 */
MHA_API size_t mha_token_label(const mha_model *model, int32_t id, char *label, size_t size);

/** Whether a text writer writes nothing for a token, such as <s>. Also true without a tokenizer.
 * Memory none. Errors none. Threads any. Since 0.1 */
MHA_API bool mha_token_is_special(const mha_model *model, int32_t id);

/** The number of ids with a token; larger ids only pad the vocabulary. Returns 0 without a tokenizer.
 * Memory none. Errors none. Threads any. Since 0.1 */
MHA_API int64_t mha_token_count(const mha_model *model);

/**
 * Translate a source: the tokens that an encoder-decoder writes for it, always the most likely one
 * (generation.h), as mha_tokens_read() returns those of a target: start tokens before them, and no
 * end token.
 *
 *   source              mha_tokens_read() of mha_model_encoder()
 *   max_tokens          the limit, start tokens included; 0: the model's positions, at most 512
 *
 * Memory   as mha_tokens_read(); begin and end are -1.
 * Errors   those of mha_generation_create() and mha_generation_next(). *tokens is then unchanged.
 * Threads  one call per context.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_tokens_generate(mha_context *context, mha_model *model,
                                                     const mha_tokens *source, int64_t max_tokens,
                                                     mha_tokens *tokens);

/* ------------------------------------------------------------------------------------------------
 * From tokens to a text
 * --------------------------------------------------------------------------------------------- */

/* An incremental detokenizer: it emits whole characters, and no byte of a stop text. */
typedef struct mha_text_writer mha_text_writer;

/**
 * Create a writer.
 *
 *   stops [stop_count]   texts that end the output and are not part of it; copied. "" is ignored
 *
 * Memory   the caller owns *writer, which borrows the model; allocated with malloc().
 * Errors   MHA_ERR_NULL; MHA_ERR_UNSUPPORTED (a model without a tokenizer); MHA_ERR_NOMEM.
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_text_writer_create(const mha_model *model,
                                                        const char *const *stops,
                                                        int64_t stop_count,
                                                        mha_text_writer **writer);

/** Destroy a writer; NULL is allowed. Memory frees all. Errors none. Threads one. Since 0.1 */
MHA_API void mha_text_writer_destroy(mha_text_writer *writer);

/**
 * Append a token. A special token adds no text; whole words are separated by spaces.
 *
 *   *text [*bytes] out   the new complete characters, UTF-8; may be empty. Bytes that belong to no
 *                        character become U+FFFD. The writer holds back bytes that may still begin a
 *                        stop text
 *   *stopped out         a stop text is complete, and *text ends before it; append no more tokens
 *
 * Memory   *text is valid until the next call.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (no such token), MHA_ERR_NOMEM.
 * Threads  one.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_text_writer_add(mha_text_writer *writer, int32_t id,
                                                     const char **text, size_t *bytes,
                                                     bool *stopped);

/** Return the bytes that the writer held back; an incomplete character becomes U+FFFD. Memory, Errors,
 * Threads as mha_text_writer_add(). Since 0.1 */
MHA_API MHA_NODISCARD mha_status mha_text_writer_end(mha_text_writer *writer, const char **text,
                                                     size_t *bytes);

/* ------------------------------------------------------------------------------------------------
 * Repeated random tokens
 * --------------------------------------------------------------------------------------------- */

/* Sequences of a model's words in random order: a block of at most 25 words, repeated up to four
 * times; both numbers are smaller if the model has too few words or positions. */
typedef struct mha_random_tokens {
    uint32_t struct_size;    /* in: sizeof(mha_random_tokens) */
    uint32_t reserved;       /* 0 */
    mha_repeated_tokens how; /* a block below 4 means that the model is too small to measure */
    int32_t *pool;           /* [pool_count] words to draw from */
    int64_t pool_count;
} mha_random_tokens;

enum { MHA_RANDOM_LEAST_BLOCK = 4 };

/**
 * Plan the sequences of a model: the words to draw from, the special tokens around every text, the size of
 * the block and the number of its repeats. A word is a token of at least two letters a-z, with a leading
 * space for BPE; in a vocabulary of whole words, every token that does not begin with "<".
 *
 * Memory   the caller frees *plan with mha_random_tokens_free(); allocated with calloc().
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (struct_size), MHA_ERR_UNSUPPORTED (no tokenizer),
 *          MHA_ERR_NOMEM.
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_random_tokens_plan(const mha_model *model,
                                                        mha_random_tokens *plan);

/** Free the pool and clear the struct, except for struct_size; NULL is allowed. Memory frees it. Errors
 * none. Threads any. Since 0.1 */
MHA_API void mha_random_tokens_free(mha_random_tokens *plan);

/**
 * Draw the next sequence. It depends on all earlier draws from the plan.
 *
 *   *tokens out   without labels; begin and end are -1
 *
 * Memory   the caller frees *tokens with mha_tokens_free().
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (how), MHA_ERR_NOMEM.   Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_random_tokens_draw(mha_random_tokens *plan,
                                                        mha_tokens *tokens);

/* ------------------------------------------------------------------------------------------------
 * Results: scores and roles
 * --------------------------------------------------------------------------------------------- */

/* The results of a study, or of mha_head_measures that the caller filled with maps. */
typedef struct mha_study_found {
    uint32_t struct_size;
    uint32_t reserved;            /* 0 */
    int64_t layers;               /* L */
    const int64_t *heads;         /* [L] */
    mha_head_measures *texts;     /* NULL: no texts */
    mha_head_measures *random;    /* repeated random tokens; NULL: none */
    const char *const *relations; /* [relation_count] names of gold links */
    int64_t relation_count;
    int64_t text_count, token_count; /* measured texts, and their tokens */
    int64_t random_count;            /* measured sequences of random tokens */
    mha_random_tokens *plan;         /* of the random sequences; NULL before
                                        mha_study_begin_random() */
    int64_t lost_links;              /* gold links with a word that has no token */
    mha_head_corpus *corpus;         /* with MHA_STUDY_CORPUS, else NULL */
    /* [L] with MHA_STUDY_DISTANCES, else NULL; the element of a layer without heads is NULL */
    mha_head_distances **distances;
    /* Word counts over all counted texts; all 0 before mha_study_begin() */
    int64_t vocab_size;    /* V, ids of the model */
    const int64_t *counts; /* [V] occurrences of each id in the texts, special tokens excluded */
    const int64_t *ranks;  /* [V] 0: the most frequent */
    int64_t kinds;         /* distinct ids that occur; the corpus numbers tokens by these kinds */
    /* [kinds] the id of each kind, ascending. Kind number `kinds` stands for all special tokens */
    const int64_t *id_of;
} mha_study_found;

enum { MHA_STUDY_NAME_BYTES = 96, MHA_STUDY_MOST_ROLES = 64 };

/** The number of scores: the MHA_MEASURES scores of texts, numbered as in mha_head_measure; then
 * duplicate, induction and induction_mean on random tokens; then two per relation. Memory none.
 * Errors none. Threads any. Since 0.1 */
MHA_API int64_t mha_study_score_count(const mha_study_found *found);

/** The name of a score: "induction"; "random_induction". A relation has two: "amod" for the dependent
 * that attends to its head word, "amod-back" for the head word that attends to its dependent. Memory
 * writes name. Errors none. Threads any. Since 0.1 */
MHA_API void mha_study_score_name(const mha_study_found *found, int64_t score,
                                  char name[MHA_STUDY_NAME_BYTES]);

/** The name of a score for readers: "previous token"; "induction on repeated random tokens"; "amod",
 * "amod, reversed". found may be NULL for scores without a relation. Memory writes label. Errors none. Threads any. Since 0.1 */
MHA_API void mha_study_score_label(const mha_study_found *found, int64_t score,
                                   char label[MHA_STUDY_NAME_BYTES]);

/** The definition of a score, in one sentence. Memory static text. Errors none. Threads any. Since
 * 0.1 */
MHA_API const char *mha_study_score_text(int64_t score);

/** The number of the score with this name, or -1. With prefer_random, and if random tokens were
 * measured, "induction" and "duplicate" select the scores on random tokens, in which words recur
 * only because the block is repeated. Memory none. Errors none. Threads any. Since 0.1 */
MHA_API int64_t mha_study_score_find(const mha_study_found *found, const char *name,
                                     bool prefer_random);

/** A score of a head; zeros if it was not measured. Memory none. Errors none. Threads any while no
 * measurement is in progress. Since 0.1 */
MHA_API mha_head_score mha_study_score(const mha_study_found *found, int64_t layer, int64_t head,
                                       int64_t score);

/**
 * Determine the roles of a head on texts. Duplicate token and induction are determined on random tokens
 * if these were measured. Specific roles come first, in the order of MHA_ROLE_LIST, with relations by
 * their margin above the baseline. Resting roles come last (mha_study_role_rests()).
 *
 * Returns the number of roles, at most MHA_STUDY_MOST_ROLES.
 *
 * Memory  none.   Errors  none.   Threads  as mha_study_score().   Since  0.1
 */
MHA_API int64_t mha_study_roles(const mha_study_found *found, int64_t layer, int64_t head,
                                mha_head_role roles[MHA_STUDY_MOST_ROLES]);

/** Whether a role is a resting one: the head attends to the first token, to separators, CLS or registers, or
 * uniformly. Memory none. Errors none. Threads any. Since 0.1 */
MHA_API bool mha_study_role_rests(mha_role role);

/** The name of a role: "previous token"; of a relation, "amod-back". Memory writes name.
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
    MHA_STUDY_CORPUS = 1 << 1,     /* keep an mha_head_corpus of texts */
    MHA_STUDY_DISTANCES = 1 << 2,  /* measure the distances between the heads of each layer */
    MHA_STUDY_PREDICT = 1 << 3,    /* gold links: MHA_HEADS_QUERY_PREDICTS */
    /* Of an encoder-decoder: measure the decoder's cross-attention, whose keys are the source;
     * without the flag, its self-attention. Excludes MHA_STUDY_DISTANCES and gold links */
    MHA_STUDY_CROSS = 1 << 4
};

/* The progress of a measurement. */
typedef struct mha_study_progress {
    bool random;           /* true: a sequence of random tokens; false: a text */
    int64_t number, count; /* of the current text or sequence, from 0; their total */
    int64_t layer, layers, row, rows;
} mha_study_progress;

/* The saved state of a study: its results, and fingerprints of the model's files, the gates and the texts.
 * A study with the same fingerprints continues, with results bit-identical to those of one that
 * never stopped. */
typedef struct mha_study_state {
    uint32_t struct_size;
    uint32_t reserved;       /* 0 */
    const void *bytes;       /* [size] of mha_study_write(), untrusted; only rank 0 reads them */
    size_t size;             /* 0: begin a new state */
    const char *name;        /* the state's name in errors, for example its path */
    mha_model_digests model; /* of the files of the model; tokenizer: not used */
    /* The time between two merges of the results of several ranks. A single process ignores it */
    double every; /* seconds */
    /* Called whenever all texts or sequences before the next one have results: after each one or,
     * with several ranks, on rank 0 after each merge. It may call mha_study_write(). NULL: not
     * called */
    void (*save)(void *user);
    void *save_user;
} mha_study_state;

typedef struct mha_study_desc {
    uint32_t struct_size;
    uint32_t flags;
    /* [L,H] f32: factors of the outputs of the measured heads; NULL: all 1 */
    const mha_tensor *gates;
    const char *const *relations; /* [relation_count] names of gold links */
    int64_t relation_count;
    /* Called during a measurement; the measuring call stops and returns any status other than MHA_OK
     * (use MHA_ERR_CALLBACK). NULL: not called */
    mha_status (*progress)(void *user, const mha_study_progress *progress);
    void *progress_user;
    int64_t sequences; /* sequences of random tokens that mha_study_next() counts */
    /* Divide the texts and sequences, or with MHA_STUDY_OWN_LAYERS the layers, among the ranks. All
     * ranks make the same calls; rank 0 receives the results. create, begin, begin_random and next
     * are collective: they return the same status on all ranks. NULL: one process */
    const mha_transport *ranks;
    const mha_study_state *state; /* read by mha_study_create(); NULL: nothing is saved */
} mha_study_desc;

/**
 * Create a study of a model's heads over texts, or over images (mha_tokens_read_image()). Count all
 * texts before measuring the first one: rare words are determined from all of them. Call in this order:
 *
 *   mha_study_count() for each text; mha_study_begin(); mha_study_text() for each text, in
 *   the order of mha_study_next();
 *   mha_study_begin_random(); mha_study_draw() until mha_study_next() returns -1
 *
 * or call mha_study_measure(), which does all of it. desc may be NULL.
 *
 * An encoder-decoder needs the source of each text (mha_study_visit). It has no random sequences,
 * and no state.
 *
 * Memory   the caller owns *study. The context, the model and everything desc points to must outlive
 *          it. 32 bytes per token of the vocabulary, plus the memory of mha_head_measures_create().
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (struct_size; a state of another version, model or gates),
 *          MHA_ERR_FORMAT (a damaged state), MHA_ERR_UNSUPPORTED (flags; an encoder of audio; an
 *          encoder-decoder with a state or MHA_STUDY_OWN_LAYERS; a model without a tokenizer),
 *          MHA_ERR_NOMEM; with ranks, as mha_transport_agree().
 * Threads  one call at a time per context, including all calls on a study.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_study_create(mha_context *context, mha_model *model,
                                                  const mha_study_desc *desc, mha_study **study);

/** Destroy a study and its results; NULL is allowed. Memory frees all. Errors none. Threads one.
 * Since 0.1 */
MHA_API void mha_study_destroy(mha_study *study);

/* Gold links of a text. */
typedef struct mha_study_links {
    const int64_t *begin, *end; /* [words] bytes of the text, ascending */
    int64_t words;
    const mha_heads_link *links; /* [count] between words, by number */
    int64_t count;
} mha_study_links;

/** Count the tokens of a text to be measured, with its gold links or NULL; with MHA_STUDY_CROSS, the tokens
 * of its source. Memory 16 bytes per text. Errors
 * MHA_ERR_NULL; MHA_ERR_ARGUMENT (after mha_study_begin(), or an id outside the vocabulary);
 * MHA_ERR_NOMEM. Threads one. Since 0.1 */
MHA_API MHA_NODISCARD mha_status mha_study_count(mha_study *study, const mha_tokens *tokens,
                                                 const mha_study_links *links);

/**
 * Rank the counted tokens by frequency, create found.texts with its corpus and distances, and restore
 * the texts of the state. Another call discards the results and keeps the counts.
 *
 * A word is rare if its frequency rank is 500 or higher; in a small corpus, if it is at or above
 * the median rank.
 *
 * Memory   that of mha_head_measures_create(), mha_head_corpus_create(), mha_head_pass_distances().
 * Errors   those of these calls; MHA_ERR_ARGUMENT (a state of other texts; the detail names a
 *          difference), MHA_ERR_FORMAT (a damaged state).
 * Threads  one.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_study_begin(mha_study *study);

/**
 * The next text to measure, or after mha_study_begin_random() the next sequence to draw; -1: none is left.
 * Without ranks and state the numbers are 0, 1, ... Texts and sequences of the state, and texts of
 * other ranks, are skipped.
 *
 * Memory   with ranks, on rank 0, that of another rank's results.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (no begin call); with ranks, as mha_transport_agree().
 * Threads  one.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_study_next(mha_study *study, int64_t *number);

/* Additions to the run of a text. */
typedef struct mha_study_visit {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    /* Outputs, after_layer, patches and other fields of the run; the study sets tokens, token_types and
     * gates. NULL: none */
    const mha_transformer_input *run;
    const mha_study_links *links; /* NULL: none */
    const mha_tokens *source;     /* required for an encoder-decoder: the tokens of its encoder */
} mha_study_visit;

/**
 * Run a text through the model and measure its heads. visit may be NULL.
 *
 * Memory   scratch from the context; borrows everything for the call.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (mha_study_begin() was not called, an id that the model
 *          lacks, a link of a missing word, a source without an encoder or none with one); those of
 *          mha_head_pass_run(), including MHA_ERR_NUMERIC for attention weights that are not finite;
 *          the status that progress or after_layer returned.
 * Threads  one.   Accuracy  as mha_head_pass_run().   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_study_text(mha_study *study, const mha_tokens *tokens,
                                                const mha_study_visit *visit);

/** Create found.random, or discard its results, and restore the sequences of the state. It stays NULL
 * for an encoder-decoder, and if the model is too small for MHA_RANDOM_LEAST_BLOCK. Memory, Errors as
 * mha_study_begin(). Threads one. Since 0.1 */
MHA_API MHA_NODISCARD mha_status mha_study_begin_random(mha_study *study);

/** Draw the next sequence from found.plan, and measure it unless another rank does. Memory, Errors, Accuracy
 * as mha_study_text(). Threads one. Since 0.1 */
MHA_API MHA_NODISCARD mha_status mha_study_draw(mha_study *study);

/**
 * Count and measure all texts, then `sequences` sequences of random tokens; this number overrides
 * the one in the description.
 *
 *   texts [count]   visit [count], each may be NULL; visit NULL: none
 *
 * Memory, Errors  as mha_study_text() and mha_study_draw().   Threads  one.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_study_measure(mha_study *study, const mha_tokens *texts,
                                                   int64_t count,
                                                   const mha_study_visit *const *visit,
                                                   int64_t sequences);

/** Whether the study was created with a state that has results. *texts and *sequences receive their
 * numbers. Memory none. Errors none. Threads one. Since 0.1 */
MHA_API bool mha_study_resumes(const mha_study *study, int64_t *texts, int64_t *sequences);

/** Load the results of a new study's state, without measuring; afterwards only mha_study_results()
 * may be called. Only rank 0 makes the call. Memory moves the results. Errors MHA_ERR_NULL;
 * MHA_ERR_ARGUMENT (no state, or not a new study); MHA_ERR_FORMAT (a damaged state); MHA_ERR_NOMEM.
 * Threads one. Since 0.1 */
MHA_API MHA_NODISCARD mha_status mha_study_restore(mha_study *study);

/**
 * Write the state: 8-byte little-endian words, their checksum, then states of head_state.h. All texts and
 * sequences before the next must have results (mha_study_state.save).
 *
 * Memory   none.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (a study without a state); the status of the sink.
 * Threads  one.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_study_write(const mha_study *study, const mha_sink *sink);

/** The results so far. Memory the study owns and updates them. Errors none.
 * Threads one. Since 0.1 */
MHA_API const mha_study_found *mha_study_results(const mha_study *study);

/** The kinds of a text's tokens, numbered as in the corpus of the study (found.id_of).
 *
 *   kinds [T] out
 *
 * Memory none. Errors none; every id must be in the vocabulary. Threads one. Since 0.1 */
MHA_API void mha_study_kinds(const mha_study *study, const mha_tokens *tokens, int64_t *kinds);

#ifdef __cplusplus
}
#endif
#endif
