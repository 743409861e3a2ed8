/* multihead: transformers as ordinary Hugging Face folders, saved and loaded.
 *
 *   config.json             what the transformer is
 *   tokenizer.json, tokenizer_config.json    its words, if they were given
 *   model.safetensors       its parameters, f32
 *
 * model_type says which of three kinds a folder is:
 *
 *   llama      causal, pre-norm with RMS norms, rotary positions, SwiGLU feed-forward layers;
 *              LlamaForCausalLM of transformers loads it as it is
 *   bert       post-norm with layer norms, one on the embeddings, learned positions, GELU or ReLU,
 *              biases; BertModel of transformers (and mha_model_load()) load it. An output over the
 *              vocabulary is our extension, the weight lm_head.weight
 *   multihead  everything else; only this library reads it
 *
 * docs/model-folders.md lists every field and name.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_CHECKPOINT_H
#define MULTIHEAD_CHECKPOINT_H

#include <multihead/transformer.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How a tokenizer cuts a text into the pieces that are its words. */
typedef enum mha_splitting {
    MHA_SPLIT_SPACE = 0,       /* at white space; "tired." is one word */
    MHA_SPLIT_PUNCTUATION = 1, /* each punctuation character is a word of its own, too */
    MHA_SPLIT_CHARACTERS = 2   /* every character is one, white space too */
} mha_splitting;

/* What a folder holds besides the transformer; all of it is optional. */
typedef struct mha_checkpoint_settings {
    uint32_t struct_size;
    uint32_t reserved;        /* 0 */
    const char *const *words; /* [word_count] the text of each token, different ones, UTF-8; NULL:
                                 no tokenizer is written */
    int64_t word_count;       /* at most vocab_size */
    const char *bos_word;     /* the special tokens, each one of words; NULL: there is none */
    const char *eos_word;
    const char *pad_word;
    const char *unknown_word;
    mha_splitting splitting; /* of texts, with words */
    /* Without words: a folder with a config.json, whose tokenizer files (tokenizer.json, vocab.txt
     * and their like) and numbers of special tokens are taken over; NULL: none */
    const char *like;
} mha_checkpoint_settings;

/**
 * Save a transformer to a folder, which is made if it is missing (those above it are not). Each
 * file is written whole or not at all, model.safetensors last; links in the folder are replaced,
 * not followed (mha_file_create_in()). The tokenizer splits a text as settings say, looks each word
 * up, and begins with bos_word if there is one. settings may be NULL.
 *
 * Memory   borrowed for the call. The numbers of a transformer with a source are read into one piece
 *          of the C library's memory, 4 bytes each.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (a word twice or empty, a special token that is no word,
 *          more words than vocab_size, no such splitting, words and like); MHA_ERR_UTF8;
 *          MHA_ERR_MODEL, _SIZE (a field of the description that mha_checkpoint_load() would
 *          refuse, such as a max_length above 2^20: nothing is written); MHA_ERR_UNSUPPORTED
 *          (reserved); MHA_ERR_FILE, _FORMAT, _SIZE (of like); MHA_ERR_WRITE (not a folder, not
 *          allowed, disk full); MHA_ERR_NOMEM. Files that were written before the one that failed
 *          stay.
 * Threads  any, while nobody changes the transformer.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_checkpoint_save(const char *folder,
                                                     mha_transformer *transformer,
                                                     const mha_checkpoint_settings *settings);

/**
 * Load a transformer from a folder of any family that mha_model_load() knows, written by any program,
 * or from a GGUF file. Its parameters are an array of f32, mha_transformer_data(). What was saved
 * here comes back with the same bits.
 *
 * Memory   the caller owns *transformer; memory comes from the context's allocator, which must
 *          outlive it; conversions use the C library's. But for tables of angles (at most 512
 *          MB) no more is allocated than the weights in the file ask for.
 * Errors   MHA_ERR_NULL; MHA_ERR_FILE (folder or file missing); MHA_ERR_FORMAT (malformed JSON or
 *          safetensors); MHA_ERR_MODEL (a field of config.json missing, of a wrong type or absurd;
 *          a weight missing, of another shape than config.json says, or one that is not asked for);
 *          MHA_ERR_UNSUPPORTED (another model_type, an option that is not built, a weight's type);
 *          MHA_ERR_SIZE; what mha_transformer_create() gives. *transformer is then as it was.
 * Threads  as mha_context_create().   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_checkpoint_load(mha_context *context, const char *folder,
                                                     mha_transformer **transformer);

/**
 * The next piece of a text: bytes [*from, *at), with *at, 0 at first, moved past it. *from is
 * bytes where none is left.
 *
 *   text [bytes]  UTF-8
 *
 * Memory   none.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (no such splitting, *at beyond the text); MHA_ERR_UTF8 (a
 *          zero byte, too).
 * Threads  any.   Cost  linear in the bytes that are passed over.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_split_next(mha_splitting splitting, const char *text,
                                                size_t bytes, size_t *at, size_t *from);

/* ---- words --------------------------------------------------------------------------------- */

/* The tokenizer of a folder as mha_checkpoint_save() writes them, to encode and decode texts.
 * Immutable after loading. */
typedef struct mha_vocabulary mha_vocabulary;

/**
 * Load tokenizer.json and, if there is one, tokenizer_config.json.
 *
 * Memory   the caller owns *vocabulary; from the C library.
 * Errors   MHA_ERR_NULL; MHA_ERR_FILE; MHA_ERR_FORMAT; MHA_ERR_MODEL (ids that are not 0 .. n - 1,
 *          a special token that is no word); MHA_ERR_UNSUPPORTED (another kind of tokenizer: only
 *          WordLevel behind one of the three splittings); MHA_ERR_SIZE; MHA_ERR_NOMEM.
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_vocabulary_load(const char *folder,
                                                     mha_vocabulary **vocabulary);

/** Destroy; NULL is fine. Memory frees all. Errors none. Threads nobody uses it. Since 0.1 */
MHA_API void mha_vocabulary_destroy(mha_vocabulary *vocabulary);

/** The number of words. Memory none. Errors none. Threads any. Since 0.1 */
MHA_API int64_t mha_vocabulary_count(const mha_vocabulary *vocabulary);

/** The word of a token; NULL if there is no such token. Memory lives as long as vocabulary. Errors
 * none. Threads any. Since 0.1 */
MHA_API const char *mha_vocabulary_word(const mha_vocabulary *vocabulary, int64_t id);

/** How its texts are split; written again, characters are joined as they are, words with a space
 * between them. Memory none. Errors none. Threads any. Since 0.1 */
MHA_API mha_splitting mha_vocabulary_splitting(const mha_vocabulary *vocabulary);

/** The beginning-of-text token; -1 if there is none. Memory none. Errors none. Threads any.
 * Since 0.1 */
MHA_API int32_t mha_vocabulary_begin(const mha_vocabulary *vocabulary);

/** The end-of-text token; -1 if there is none. Memory none. Errors none. Threads any.
 * Since 0.1 */
MHA_API int32_t mha_vocabulary_end(const mha_vocabulary *vocabulary);

/**
 * The tokens of a text: its words, as the folder splits them, behind the token that begins a text
 * if it has one. Special tokens are recognised where they stand between white space, but not among
 * characters.
 *
 *   text [bytes]  UTF-8    ids [room] out    *count out, the number of tokens
 *
 * Memory   borrowed for the call.
 * Errors   MHA_ERR_NULL; MHA_ERR_FORMAT (a word that is not in the vocabulary, which has no token
 *          for unknown ones); MHA_ERR_UTF8; MHA_ERR_SIZE (more than room); MHA_ERR_NOMEM.
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_vocabulary_encode(const mha_vocabulary *vocabulary,
                                                       const char *text, size_t bytes, int32_t *ids,
                                                       int64_t room, int64_t *count);

/**
 * The same, and which bytes of the text each token stands for.
 *
 *   begin, end [room] out: bytes [begin, end) of the text; -1, -1 for the token put in front
 *
 * Memory   borrowed for the call.   Errors  as mha_vocabulary_encode().   Threads  any.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_vocabulary_locate(const mha_vocabulary *vocabulary,
                                                       const char *text, size_t bytes, int32_t *ids,
                                                       int64_t *begin, int64_t *end, int64_t room,
                                                       int64_t *count);

#ifdef __cplusplus
}
#endif
#endif
