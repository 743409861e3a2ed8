/* multihead: measure the heads of a transformer on texts, such as a corpus.
 *
 * Each text takes one call of mha_head_pass_run(): the text runs through the transformer once, and
 * the rows of each layer's attention are recomputed from its queries and keys, a block at a time,
 * so that no map is kept. It fills mha_head_measures (heads.h) and mha_head_distances
 * (head_distances.h). Measures of parts of a corpus may be merged (mha_head_measures_merge()).
 *
 * Helpers for a corpus: ranks of tokens by frequency, the words in which tokens begin, and repeated
 * random tokens.
 *
 * Example, given mha_context *context, const mha_transformer *transformer, mha_head_measures
 * *measures, mha_tensor tokens:
 *
 *   mha_transformer_input input = MHA_INIT(mha_transformer_input);
 *   input.tokens = &tokens; // i32 [1,T]
 *   mha_head_pass pass = MHA_INIT(mha_head_pass);
 *   pass.measures = measures;
 *   mha_status status = mha_head_pass_run(context, transformer, &input, NULL, &pass);
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_HEAD_PASS_H
#define MULTIHEAD_HEAD_PASS_H

#include <multihead/head_distances.h>
#include <multihead/heads.h>
#include <multihead/transformer.h>

#ifdef __cplusplus
extern "C" {
#endif

/* mha_head_pass.flags */
enum {
    /* With a transformer spread over ranks: each rank measures the heads of its own layers, and
     * only the stream is sent. mha_head_measures_merge_layers() merges the ranks' objects. Without
     * the flag every rank measures all heads */
    MHA_HEAD_PASS_OWN_LAYERS = 1 << 0,
    /* Measure the cross-attention of a transformer with MHA_TRANSFORMER_CROSS, not its
     * self-attention. The objects then have num_heads heads in each layer, and no distances */
    MHA_HEAD_PASS_CROSS = 1 << 1
};

/* Objects to fill. They have as many heads in each layer as the transformer. */
typedef struct mha_head_pass {
    uint32_t struct_size;
    uint32_t flags;
    mha_head_measures *measures;          /* no text is open; NULL: none */
    mha_head_distances *const *distances; /* [L], each may be NULL; NULL: none */
    /* Called before the rows of a layer from `row` on are added; a status other than MHA_OK
     * (MHA_ERR_CALLBACK) ends the pass. NULL: not called */
    mha_status (*progress)(void *user, int64_t layer, int64_t row);
    void *progress_user;
} mha_head_pass;

/**
 * Run one text through a transformer and add its self-attention heads, or those of its
 * cross-attention, to the objects of pass.
 *
 *   input   of one sequence: tokens i32 [1,T], lengths NULL or T; its outputs are filled and its
 *           after_layer is called, before a layer is measured
 *   text    properties of the tokens (heads.h), with queries and keys 0 or T and q_offset 0; ids NULL:
 *           the tokens; MHA_HEADS_CAUSAL is set if the transformer is causal. NULL: only ids are
 *           known. With MHA_HEAD_PASS_CROSS the keys are the rows of input->memory: keys is 0 or
 *           their number, the arrays of keys and ids describe them, and MHA_HEADS_CROSS is set
 *
 * Layers without heads are skipped. Maps of recurrent layers are measured as signed ones
 * (mha_head_measures_signed()); for distances, the positive and the negative weight on a key count
 * as two keys. The window of a layer limits the keys of its rows and their chance
 * (mha_head_measures_window()). MHA_MEASURE_COSINE compares the inputs of a layer's attention.
 *
 * Memory   scratch from the context: that of a mha_transformer_forward() without activations and of
 *          mha_attention_visit_rows(). Borrows everything for the call.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (a length, queries or keys; MHA_HEAD_PASS_CROSS with
 *          distances or without cross-attention); those of
 *          mha_transformer_forward(), mha_head_measures_begin() and _rows(),
 *          mha_head_distances_*(); the status that progress or after_layer returned. The text is
 *          then closed and not counted as a text, but the rows added so far remain: if texts may
 *          fail, measure each in its own objects and merge them. Ranks of a spread transformer
 *          return the same error.
 * Threads  one call per context.
 * Accuracy bit-identical to mha_head_measures_attention() on each layer's queries and keys.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_head_pass_run(mha_context *context,
                                                   const mha_transformer *transformer,
                                                   const mha_transformer_input *input,
                                                   const mha_heads_text *text,
                                                   const mha_head_pass *pass);

/**
 * mha_head_distances_create() for the heads of a layer's self-attention, with its W_O. *distances
 * becomes NULL for a layer without heads.
 *
 * Memory, Errors, Threads, Cost  as there; MHA_ERR_ARGUMENT (no such layer).   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_head_pass_distances(mha_context *context,
                                                         const mha_transformer *transformer,
                                                         int64_t layer,
                                                         mha_head_distances **distances);

/**
 * Ranks by frequency, for mha_heads_text.ranks: 0 for the most frequent token, 1 for the next, and
 * so on; among equal counts the lower id is first. Tokens that never occur get 0.
 *
 *   counts [vocab_size] in    ranks [vocab_size] out    *kinds out: distinct tokens; may be NULL
 *
 * Memory   scratch from the context.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (vocab_size or a count below 0); MHA_ERR_SIZE,
 *          MHA_ERR_NOMEM; nothing is then written.
 * Threads  one call per context.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_head_pass_ranks(mha_context *context, int64_t vocab_size,
                                                     const int64_t *counts, int64_t *ranks,
                                                     int64_t *kinds);

/**
 * Find the word in which each token begins, for mha_heads_text.words and links; positions are bytes
 * of the text.
 *
 *   token_begin [tokens] in         ascending; -1: a token that does not occur in the text
 *   word_begin, word_end [words] in ascending, words do not overlap
 *   word_of [tokens] out            words that have tokens are numbered from 0; -1: in no word. A
 *                                   token at -1 ends its word: later tokens are not in it
 *   number [words] out              the number of each word; -1: no token begins in it
 *
 * Memory   none.   Errors  MHA_ERR_NULL, MHA_ERR_ARGUMENT (counts below 0).   Threads  any.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_head_pass_words(int64_t tokens, const int64_t *token_begin,
                                                     int64_t words, const int64_t *word_begin,
                                                     const int64_t *word_end, int64_t *word_of,
                                                     int64_t *number);

/* One block of random tokens, repeated. Only the repetition makes them predictable, so they reveal
 * duplicate-token and induction heads (Olsson et al. 2022). */
typedef struct mha_repeated_tokens {
    uint32_t struct_size;
    uint32_t reserved;       /* 0 */
    int64_t block, repeats;  /* distinct tokens, number of repetitions: each at least 1 */
    int32_t first, last;     /* special tokens around all of them; -1: none */
    uint64_t seed, sequence; /* determine the tokens: SplitMix64 of both */
} mha_repeated_tokens;

/**
 * Draw repeated random tokens.
 *
 *   pool [pool_count] in, out    ids to draw from; drawn ids move to the front, and a pool in the
 *                                same order gives the same tokens
 *   tokens [block repeats + 2] out    special likewise, 1 for first and last; *count of them
 *
 * Memory   none.   Errors  MHA_ERR_NULL; MHA_ERR_ARGUMENT (block beyond the pool, which has at most
 *          2^32 tokens; repeats); MHA_ERR_SIZE; nothing is then written.
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_head_pass_repeated(const mha_repeated_tokens *desc,
                                                        int64_t pool_count, int32_t *pool,
                                                        int32_t *tokens, uint8_t *special,
                                                        int64_t *count);

/**
 * Visit the rows of a layer's maps: those of mha_attention_visit_rows(), or of
 * mha_recurrent_visit_rows(), whose entries may be negative.
 *
 * Memory, Errors, Threads, Accuracy  as there.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_layer_visit_rows(mha_context *context,
                                                      const mha_layer_view *view,
                                                      int64_t block_rows, mha_rows_fn fn,
                                                      void *user);

#ifdef __cplusplus
}
#endif
#endif
