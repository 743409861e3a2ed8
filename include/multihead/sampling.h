/* multihead: choose the next token from logits.
 *
 *   p = softmax(logits / temperature), over the top_k largest logits
 *   then over the most likely of these whose p add up to top_p (Holtzman et al. 2020),
 *   then over those with p >= min_p max p (Nguyen et al. 2024)
 *
 * One of the remaining tokens is drawn with probability p / sum p. The order of the steps is that
 * of Hugging Face's transformers.
 *
 * Example, given mha_context *context, const float *logits, int64_t vocab_size, uint64_t step:
 *
 *   mha_sampling sampling = MHA_INIT(mha_sampling);
 *   sampling.temperature = 0.8, sampling.top_p = 0.95, sampling.seed = 1;
 *   int32_t token = 0;
 *   mha_status status = mha_sample_token(context, &sampling, step, logits, vocab_size, &token);
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_SAMPLING_H
#define MULTIHEAD_SAMPLING_H

#include <multihead/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* All zero except struct_size: the most likely token. */
typedef struct mha_sampling {
    uint32_t struct_size;
    uint32_t reserved;  /* 0 */
    double temperature; /* 0: the most likely token; else finite and above 0 */
    int64_t top_k;      /* maximum number of tokens to draw from; 0: all */
    double top_p;       /* above 0, at most 1; 0: 1 */
    double min_p;       /* 0 .. 1 */
    uint64_t seed;
} mha_sampling;

/**
 * Choose a token.
 *
 *   logits [count] in, count at least 1 and at most 2^31 - 1    *token out, 0 .. count - 1
 *   sampling   NULL: the most likely token
 *   step       number of the draw: the same seed, step and logits give the same token
 *
 * Among equal logits the lower token comes first.
 *
 * Memory   scratch of 16 bytes for each logit, if temperature is above 0.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (struct_size, count, a number out of range);
 *          MHA_ERR_UNSUPPORTED (a reserved field is set); MHA_ERR_NUMERIC (a logit is not finite);
 *          MHA_ERR_SIZE, MHA_ERR_NOMEM. *token is then unchanged.
 * Threads  one call per context.   Accuracy  p in double.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_sample_token(mha_context *context,
                                                  const mha_sampling *sampling, uint64_t step,
                                                  const float *logits, int64_t count,
                                                  int32_t *token);

#ifdef __cplusplus
}
#endif
#endif
