/* multihead: continue a text token by token (libmultihead-model).
 *
 * A generation processes a prompt, then chooses a token from the logits (sampling.h), appends it
 * and continues until the first of these:
 *
 *   an end token of the model (mha_model_end_tokens()) or of the caller, which is not part of the text;
 *   a stop text, before which the text ends;
 *   max_tokens new tokens;
 *   the end of the positions. The last token needs no position: after P prompt tokens a model with
 *   max_length N generates N - P + 1 tokens.
 *
 * An encoder-decoder first encodes its source, once; the prompt begins the decoder's text.
 * mha_model_suppressed_tokens() are never chosen.
 *
 * The tokens depend on the model, the prompt, the sampling and the cache; not on threads or ranks.
 *
 * Example, given mha_context *context, mha_model *model, const int32_t *prompt, int64_t count:
 *
 *   mha_generation_desc desc = MHA_INIT(mha_generation_desc);
 *   desc.prompt = prompt, desc.prompt_count = count, desc.max_tokens = 64;
 *   mha_generation *generation = NULL;
 *   mha_generation_step step = MHA_INIT(mha_generation_step);
 *   mha_status status = mha_generation_create(context, model, &desc, &generation);
 *   while (!status && step.state == MHA_GENERATION_CONTINUES) {
 *       status = mha_generation_next(context, generation, &step);
 *       if (!status) fwrite(step.text, 1, step.bytes, stdout);
 *   }
 *   mha_generation_destroy(generation);
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_GENERATION_H
#define MULTIHEAD_GENERATION_H

#include <multihead/model.h>
#include <multihead/sampling.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mha_generation mha_generation;

typedef struct mha_generation_desc {
    uint32_t struct_size;
    uint32_t reserved;     /* 0 */
    const int32_t *prompt; /* [prompt_count], at least one token unless there is a source */
    int64_t prompt_count;  /* at most max_length, unless the cache is MHA_DECODER_STREAMING */
    int64_t max_tokens;    /* maximum number of new tokens; 0: only process the prompt */
    const int32_t *ends;   /* [end_count] end tokens in addition to those of the model */
    int64_t end_count;
    const char *const *stops;      /* [stop_count] as for mha_text_writer_create() */
    int64_t stop_count;            /* 0 for a model without a tokenizer */
    const mha_sampling *sampling;  /* NULL: the most likely token */
    const mha_decoder_desc *cache; /* batch, capacity and max_step must be 0: the library
                                      chooses them. NULL: f32 */
    /* [source_count] the text of the encoder: required for an encoder-decoder, whose prompt may then be
     * empty if it has mha_model_start_tokens(); else NULL */
    const int32_t *source;
    int64_t source_count;
    /* [1,S,E] the encoder's rows, in place of source (audio.h); NULL: none */
    const mha_tensor *memory;
} mha_generation_desc;

typedef enum mha_generation_state {
    MHA_GENERATION_CONTINUES = 0,
    MHA_GENERATION_END_TOKEN = 1,
    MHA_GENERATION_STOP_TEXT = 2,
    MHA_GENERATION_MAX_TOKENS = 3,
    MHA_GENERATION_FULL = 4,   /* no position is left before max_tokens */
    MHA_GENERATION_STOPPED = 5 /* by mha_generation_stop() */
} mha_generation_state;

typedef struct mha_generation_step {
    uint32_t struct_size;
    mha_generation_state state;
    /* The new token in MHA_GENERATION_CONTINUES, the end token in MHA_GENERATION_END_TOKEN, otherwise
     * -1 */
    int32_t token;
    uint32_t reserved; /* 0 */
    /* [bytes] the new complete characters (mha_text_writer_add()); at the end also the bytes that were
     * held back. Empty without a tokenizer. Valid until the next call */
    const char *text;
    size_t bytes;
} mha_generation_step;

/**
 * Create a generation and process its prompt.
 *
 * Memory   the caller owns *generation, which borrows the model. It holds a decoder for prompt_count +
 *          max_tokens tokens (mha_decoder_create()), logits [V] and a text. The arrays of desc are
 *          copied.
 * Errors   MHA_ERR_NULL; MHA_ERR_UNSUPPORTED (no logits, or not causal); MHA_ERR_ARGUMENT (no
 *          prompt, a negative number, stops without a tokenizer, batch, capacity or max_step of the
 *          cache; a source without an encoder, or none with one); MHA_ERR_SIZE (the prompt exceeds the
 *          model's positions); as mha_sample_token(), mha_decoder_create() and mha_decoder_step().
 * Threads  one call per context.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_generation_create(mha_context *context, mha_model *model,
                                                       const mha_generation_desc *desc,
                                                       mha_generation **generation);

/** Destroy; NULL is allowed. Memory frees all. Errors none. Threads one. Since 0.1 */
MHA_API void mha_generation_destroy(mha_generation *generation);

/**
 * Choose the next token, or end. After the end every call returns the same state and an empty text.
 *
 * Memory   fills *step, whose struct_size must be set.
 * Errors   MHA_ERR_NULL; MHA_ERR_NUMERIC (a logit is not finite); as mha_sample_token() and
 *          mha_decoder_step(). The generation must then be destroyed.
 * Threads  one call per context and generation.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_generation_next(mha_context *context,
                                                     mha_generation *generation,
                                                     mha_generation_step *step);

/** End before max_tokens: the next call returns the rest of the text. Memory none. Errors none.
 * Threads one. Since 0.1 */
MHA_API void mha_generation_stop(mha_generation *generation);

/** The decoder, for its length and bytes. Memory owned by the generation. Errors none. Threads any.
 * Since 0.1 */
MHA_API const mha_decoder *mha_generation_decoder(const mha_generation *generation);

#ifdef __cplusplus
}
#endif
#endif
