/* multihead: transformers as ordinary Hugging Face folders, saved and loaded.
 *
 *   config.json             the description of the transformer
 *   tokenizer.json, tokenizer_config.json    its tokenizer, if words were given
 *   model.safetensors       its parameters, f32
 *
 * model_type is one of three kinds:
 *
 *   llama      causal, pre-norm with RMS norms, rotary positions, SwiGLU feed-forward layers;
 *              LlamaForCausalLM of transformers loads it unchanged
 *   bert       post-norm with layer norms, one on the embeddings, learned positions, GELU or ReLU,
 *              biases; BertModel of transformers (and mha_model_load()) load it. An output over the
 *              vocabulary is our extension, the weight lm_head.weight
 *   multihead  everything else; only this library reads it
 *
 * docs/model-folders.md lists every field and name.
 *
 * Example, given mha_context *context:
 *
 *   mha_transformer *transformer = NULL;
 *   mha_status status = mha_checkpoint_load(context, "demo", &transformer);
 *   if (!status) status = mha_checkpoint_save("copy", transformer, NULL);
 *   mha_transformer_destroy(transformer);
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_CHECKPOINT_H
#define MULTIHEAD_CHECKPOINT_H

#include <multihead/transformer.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How a tokenizer splits a text into words. */
typedef enum mha_splitting {
    MHA_SPLIT_SPACE = 0,       /* at white space; "tired." is one word */
    MHA_SPLIT_PUNCTUATION = 1, /* likewise, and each punctuation character is a word */
    MHA_SPLIT_CHARACTERS = 2   /* every character is a word, white space included */
} mha_splitting;

/* Further contents of a folder; all optional. */
typedef struct mha_checkpoint_settings {
    uint32_t struct_size;
    uint32_t reserved;        /* 0 */
    const char *const *words; /* [word_count] the text of each token, all distinct, UTF-8; NULL:
                                 no tokenizer is written */
    int64_t word_count;       /* at most vocab_size */
    const char *bos_word;     /* the special tokens, each one of words; NULL: none */
    const char *eos_word;
    const char *pad_word;
    const char *unknown_word;
    mha_splitting splitting; /* how texts are split; only with words */
    /* Without words: a folder with a config.json, whose tokenizer files (tokenizer.json, vocab.txt,
     * ...) and ids of special tokens are copied; NULL: none */
    const char *like;
} mha_checkpoint_settings;

/**
 * Save a transformer to a folder, which is created if missing (its parents are not). Each file is
 * written atomically, model.safetensors last; links in the folder are replaced, not followed
 * (mha_file_create_in()). The tokenizer splits a text as settings specify, looks up each word, and
 * starts with bos_word if there is one. settings may be NULL.
 *
 * Memory   borrowed for the call. The parameters of a transformer with a source are read into one
 *          allocation of the C library, 4 bytes each.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (a duplicate or empty word, a special token that is not
 *          one of the words, more words than vocab_size, an unknown splitting, both words and
 *          like); MHA_ERR_UTF8; MHA_ERR_MODEL, MHA_ERR_SIZE (a field of the description that
 *          mha_checkpoint_load() would reject, such as a max_length above 2^20: nothing is
 *          written); MHA_ERR_UNSUPPORTED (reserved); MHA_ERR_FILE, MHA_ERR_FORMAT, MHA_ERR_SIZE (of
 *          like); MHA_ERR_WRITE (not a folder, not allowed, disk full); MHA_ERR_NOMEM. Files that
 *          were written before the one that failed remain.
 * Threads  any, while no thread changes the transformer.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_checkpoint_save(const char *folder,
                                                     mha_transformer *transformer,
                                                     const mha_checkpoint_settings *settings);

/**
 * Load a transformer from a folder of any family that mha_model_load() supports, or from a GGUF
 * file, as an array of f32 parameters (mha_transformer_data()). Saving and loading is bit-exact.
 *
 * Memory   the caller owns *transformer; memory comes from the context's allocator, which must
 *          outlive it; conversions use the C library's. Apart from tables of angles (at most
 *          512 MB), no more is allocated than the weights in the file require.
 * Errors   MHA_ERR_NULL; MHA_ERR_FILE (folder or file missing); MHA_ERR_FORMAT (malformed JSON or
 *          safetensors); MHA_ERR_MODEL (a field of config.json missing, of a wrong type or out of
 *          range; a weight that is missing, unexpected, or of a shape other than config.json
 *          states); MHA_ERR_UNSUPPORTED (another model_type, an unsupported option or type of
 *          weights); MHA_ERR_SIZE; those of mha_transformer_create(). *transformer is then
 *          unchanged.
 * Threads  as mha_context_create().   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_checkpoint_load(mha_context *context, const char *folder,
                                                     mha_transformer **transformer);

/**
 * Find the next piece of a text, bytes [*from, *at). Set *at to 0 for the first call; it advances
 * past the piece. *from becomes bytes when no piece is left.
 *
 *   text [bytes]  UTF-8
 *
 * Memory   none.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (an unknown splitting, *at beyond the text); MHA_ERR_UTF8
 *          (also a zero byte).
 * Threads  any.   Cost  linear in the bytes scanned.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_split_next(mha_splitting splitting, const char *text,
                                                size_t bytes, size_t *at, size_t *from);

/* ---- words --------------------------------------------------------------------------------- */

/* The tokenizer of a folder that mha_checkpoint_save() wrote. Immutable after loading. */
typedef struct mha_vocabulary mha_vocabulary;

/**
 * Load tokenizer.json and, if there is one, tokenizer_config.json.
 *
 * Memory   the caller owns *vocabulary; from the C library.
 * Errors   MHA_ERR_NULL; MHA_ERR_FILE; MHA_ERR_FORMAT; MHA_ERR_MODEL (ids that are not 0 .. n - 1,
 *          a special token that is not one of the words); MHA_ERR_UNSUPPORTED (not a WordLevel
 *          tokenizer after one of the three splittings); MHA_ERR_SIZE; MHA_ERR_NOMEM.
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_vocabulary_load(const char *folder,
                                                     mha_vocabulary **vocabulary);

/** Destroy it, or do nothing for NULL. Memory frees all. Errors none. Threads no other thread may
 * be using it. Since 0.1 */
MHA_API void mha_vocabulary_destroy(mha_vocabulary *vocabulary);

/** The number of words. Memory none. Errors none. Threads any. Since 0.1 */
MHA_API int64_t mha_vocabulary_count(const mha_vocabulary *vocabulary);

/** The word of a token; NULL if there is no such token. Memory lives as long as vocabulary. Errors
 * none. Threads any. Since 0.1 */
MHA_API const char *mha_vocabulary_word(const mha_vocabulary *vocabulary, int64_t id);

/** How texts are split. To turn tokens back into text, join characters directly, and words with a
 * space between them. Memory none. Errors none. Threads any. Since 0.1 */
MHA_API mha_splitting mha_vocabulary_splitting(const mha_vocabulary *vocabulary);

/** The beginning-of-text token; -1 if there is none. Memory none. Errors none. Threads any.
 * Since 0.1 */
MHA_API int32_t mha_vocabulary_begin(const mha_vocabulary *vocabulary);

/** The end-of-text token; -1 if there is none. Memory none. Errors none. Threads any.
 * Since 0.1 */
MHA_API int32_t mha_vocabulary_end(const mha_vocabulary *vocabulary);

/**
 * The tokens of a text: the beginning-of-text token if there is one, then the words of the text,
 * split as the folder specifies. Special tokens are recognised if white space surrounds them, but
 * not with MHA_SPLIT_CHARACTERS.
 *
 *   text [bytes]  UTF-8    ids [room] out    *count out, the number of tokens
 *
 * Memory   borrowed for the call.
 * Errors   MHA_ERR_NULL; MHA_ERR_FORMAT (a word that is not in the vocabulary, which has no token
 *          for unknown words); MHA_ERR_UTF8 (also a zero byte); MHA_ERR_SIZE (more than room);
 *          MHA_ERR_NOMEM.
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_vocabulary_encode(const mha_vocabulary *vocabulary,
                                                       const char *text, size_t bytes, int32_t *ids,
                                                       int64_t room, int64_t *count);

/**
 * As mha_vocabulary_encode(), with the byte range of each token.
 *
 *   begin, end [room] out: bytes [begin, end) of the text; -1, -1 for the beginning-of-text token
 *
 * Memory   borrowed for the call.   Errors  as mha_vocabulary_encode().   Threads  any.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_vocabulary_locate(const mha_vocabulary *vocabulary,
                                                       const char *text, size_t bytes, int32_t *ids,
                                                       int64_t *begin, int64_t *end, int64_t room,
                                                       int64_t *count);

/**
 * As mha_vocabulary_locate(), with lenient matching for typed text: each word between spaces that
 * the vocabulary lacks is normalised.
 *
 *   case          "The" matches a word that differs only in the case of ASCII letters
 *   punctuation   ASCII marks at its ends become words of their own: "(tired." is ( tired .
 *
 * The longest match is used, so "..." is one word if the vocabulary has it. Nothing is normalised in
 * a vocabulary with a token for unknown words, or one that splits at punctuation or into characters.
 *
 * Memory   borrowed for the call.
 * Errors   as mha_vocabulary_encode(). With MHA_ERR_FORMAT after normalising, *count is the number of
 *          tokens before the unknown word, whose bytes are in begin[*count] and end[*count], if they
 *          are given and have room.
 * Threads  any.   Cost  linear in the vocabulary for each word that differs in case.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_vocabulary_locate_normalised(const mha_vocabulary *vocabulary,
                                                                  const char *text, size_t bytes,
                                                                  int32_t *ids, int64_t *begin,
                                                                  int64_t *end, int64_t room,
                                                                  int64_t *count);

#ifdef __cplusplus
}
#endif
#endif
