/* multihead: ablation and patching of heads over many texts: replace a head's output, or a single
 * path from one head to another, and measure how the model's predictions change.
 *
 *   M(x)         a measure of a text, such as a loss, or the difference between a right and a wrong
 *                answer: a sum of terms, each a factor times the log-probability of a token
 *   effect       M without the heads - M, text by text; positive for a loss if the heads help
 *   zero         the output of each head becomes 0
 *   mean         the output becomes its mean over all tokens of the texts
 *   resample     the output becomes that of another text at the same position
 *   interaction  of two heads: the effect of both - the effects of each
 *
 * docs/ablation.md has the definitions with their sources and limits. Letters: L layers, H heads, D
 * size of a head, E width of the stream, M measures; a head's number is layer * H + head. Results
 * are bit-identical for any number of threads.
 *
 * Example, given mha_context *context, const mha_transformer *transformer, mha_effect_data data,
 * double *whole, double *without:
 *
 *   const int64_t first[] = {0, 1, 3}, heads[] = {5, 5, 11}; // without head 5; without 5 and 11
 *   mha_head_sets sets = MHA_INIT(mha_head_sets);
 *   sets.count = 2, sets.first = first, sets.heads = heads;
 *   mha_ablation_desc desc = MHA_INIT(mha_ablation_desc);
 *   desc.kind = MHA_ABLATION_MEAN;
 *   mha_status status =
 *       mha_effect_sets(context, transformer, &desc, &data, &sets, whole, without);
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_ABLATION_H
#define MULTIHEAD_ABLATION_H

#include <multihead/importance.h>
#include <multihead/transformer.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- measures ------------------------------------------------------------------------ */

/* A term of a measure: factor log P(token) at row b T + t of the logits. */
typedef struct mha_effect_term {
    double factor;
    int64_t row;
    int32_t token;
    int32_t measure; /* 0 .. measures - 1; a text without a term lacks the measure */
} mha_effect_term;

/* One text, or several sequences that a measure compares. */
typedef struct mha_effect_text {
    uint32_t struct_size;
    uint32_t reserved;        /* 0 */
    const mha_tensor *tokens; /* i32 [B,T] */
    const int64_t *lengths;   /* [B], NULL: T */
    const mha_effect_term *terms;
    int64_t term_count;
} mha_effect_text;

typedef struct mha_effect_data {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    int64_t texts, measures;
    const mha_effect_text *const *text; /* [texts] */
    /* done and total count multiplications by parameters, as mha_effect_work() does; NULL: not called */
    mha_progress_fn progress;
    void *progress_user;
} mha_effect_data;

/**
 * Make the terms of a mean loss: -factor times the mean log-probability of the tokens first .. end
 * - 1 of a text, each given all tokens before it. With factor 1 and [1,T) it is the text's loss.
 * In-context learning (Olsson et al. 2022) is a mean around the 50th token with factor 1 plus one
 * around the 500th with factor -1.
 *
 *   tokens [end] i32 in    terms [end - first] out
 *
 * Memory   none.   Errors  MHA_ERR_NULL; MHA_ERR_ARGUMENT (1 <= first < end does not hold, a
 *          factor that is not finite); nothing is then written.
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_effect_loss(const int32_t *tokens, int64_t first, int64_t end,
                                                 double factor, int32_t measure,
                                                 mha_effect_term *terms);

/* ---- ablation -------------------------------------------------------------------------------- */

typedef enum mha_ablation {
    MHA_ABLATION_ZERO = 0,
    MHA_ABLATION_MEAN = 1,
    MHA_ABLATION_RESAMPLE = 2
} mha_ablation;

typedef struct mha_ablation_desc {
    uint32_t struct_size;
    mha_ablation kind;
    /* RESAMPLE: text i takes the head outputs of text (i + 1 + r) mod texts, r = SplitMix64 of seed
     * and i, mod (texts - 1): never itself. Sequence b reads sequence b mod its B, position t
     * position t mod its length */
    uint64_t seed;
    const mha_tensor *means; /* MEAN: in, mha_effect_means() */
} mha_ablation_desc;

/** "zero", "mean", "resample"; NULL if unknown. Memory static. Errors none. Threads any. Since 0.1 */
MHA_API const char *mha_ablation_name(mha_ablation kind);

/**
 * The mean of every head's output over all tokens of all texts, those within lengths.
 *
 *   means f32 [L,mha_transformer_heads_width()] out
 *
 * Memory   scratch from the context.   Errors  as mha_effect_sets().   Threads  one call per context.
 * Accuracy summed in double in the order of the texts, rounded once.   Cost  a pass over the texts.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_effect_means(mha_context *context,
                                                  const mha_transformer *transformer,
                                                  const mha_effect_data *data,
                                                  const mha_tensor *means);

/* Sets of heads: those of set s are heads[first[s]] .. heads[first[s + 1] - 1]. */
typedef struct mha_head_sets {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    int64_t count;
    const int64_t *first; /* [count + 1], from 0, ascending */
    const int64_t *heads; /* layer * H + head, of heads that the layer has */
} mha_head_sets;

/**
 * Measure the texts exactly, with all heads and without each set of heads. The run of a set begins
 * at the first layer that it changes; earlier layers are computed once for each text.
 *
 *   whole [texts, M] out            NAN where a text does not have the measure; may be NULL
 *   without [count, texts, M] out   likewise
 *
 * Memory   scratch from the context: L (E + H D) floats for each token of the longest text, and 128
 *          rows of logits.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (texts, measures, terms, sets, kind; RESAMPLE of a single
 *          text); MHA_ERR_UNSUPPORTED (no output, cross-attention, reserved); those of
 *          mha_transformer_forward(); the status that progress returned. Outputs are then
 *          unspecified.
 * Threads  one call per context.   Accuracy  that of the forward passes, f32; sums in double.
 * Cost     mha_effect_work().   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_effect_sets(
    mha_context *context, const mha_transformer *transformer, const mha_ablation_desc *desc,
    const mha_effect_data *data, const mha_head_sets *sets, double *whole, double *without);

/**
 * A linear estimate of `without - whole` for every head, from one gradient of each measure: with z
 * the output of a head and r its replacement,
 *
 *   estimates [L H, texts, M] = sum over rows (r - z) . dM / dz
 *
 * For ZERO it is the negated signed gate gradient of mha_head_importance(). It is inaccurate where
 * effects saturate or heads compensate for each other; use it to select heads for exact ablation.
 *
 *   estimates out; NAN where a text does not have the measure; 0 for heads that a layer lacks
 *
 * Memory   activations of the longest text from the context's allocator; scratch: two rows of the
 *          output for each of its tokens, and 3 L H D floats.
 * Errors   as mha_effect_sets(); MHA_ERR_UNSUPPORTED as mha_transformer_backward() (int8, bf16).
 * Threads  one call per context.   Cost  mha_effect_work().   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_effect_gradients(mha_context *context,
                                                      const mha_transformer *transformer,
                                                      const mha_ablation_desc *desc,
                                                      const mha_effect_data *data,
                                                      double *estimates);

/**
 * The cost of mha_effect_sets(), or with sets NULL of mha_effect_gradients(), in multiplications by
 * parameters; the products of attention itself are not counted.
 *
 * Memory   none.   Errors  those of these calls, except errors of the texts' contents.   Threads  any.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_effect_work(const mha_transformer *transformer,
                                                 const mha_ablation_desc *desc,
                                                 const mha_effect_data *data,
                                                 const mha_head_sets *sets, int64_t *work);

/* ---- statistics over texts --------------------------------------------------------------- */

/* A mean over texts with its 95 % bootstrap interval (percentiles, Efron and Tibshirani 1993, 13.3).
 */
typedef struct mha_effect_interval {
    double mean, low, high; /* NAN without texts; low and high also for one text */
    int64_t texts;          /* texts that have the measure */
} mha_effect_interval;

/**
 * The mean of values[0], values[stride], ... of `count` texts, ignoring NAN, and its bootstrap
 * interval: texts are resampled `replicates` times, by SplitMix64 of the seed.
 *
 *   replicates  at least 40; 0: 2,000
 *
 * Memory   scratch from the context.   Errors  MHA_ERR_NULL; MHA_ERR_ARGUMENT (count or stride below
 *          1, replicates); MHA_ERR_NOMEM.
 * Threads  one call per context.   Cost  O(replicates count).   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_effect_bootstrap(mha_context *context, const double *values,
                                                      int64_t count, int64_t stride,
                                                      int64_t replicates, uint64_t seed,
                                                      mha_effect_interval *interval);

/**
 * Select the heads with the largest effects: each measure in turn selects its head with the largest
 * absolute effect that is not selected yet (the lower number among equals), until `wanted` are
 * selected. Zeros and NAN are not selected.
 *
 *   effects [heads, M] in, such as means of estimates over texts    chosen [wanted] out, *made of them
 *
 * Memory   none.   Errors  MHA_ERR_NULL, MHA_ERR_ARGUMENT (counts below 0, measures below 1).
 * Threads  any.
 * Cost     O(wanted heads).   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_effect_best(const double *effects, int64_t heads,
                                                 int64_t measures, int64_t wanted, int64_t *chosen,
                                                 int64_t *made);

/* ---- patching between two prompts ------------------------------------------------------------ */

/* The receiver of a path: a head's queries, or a key/value head's keys or values. */
typedef struct mha_path_receiver {
    int64_t layer, head;
    mha_patch_part part; /* MHA_PATCH_QUERY, _KEY or _VALUE */
    uint32_t reserved;   /* 0 */
} mha_path_receiver;

typedef struct mha_patching {
    uint32_t struct_size;
    mha_patch_part part; /* the patched tensor, one head at a time; for paths MHA_PATCH_OUTPUT */
    const mha_effect_text *to; /* the run that is patched, and its terms */
    const mha_tensor *from;    /* i32 [B,T], like to->tokens: the run whose values are patched in */
    const uint8_t *rows;       /* [B T], 1: patch this row; NULL: all rows */
    const mha_path_receiver *receivers; /* of mha_path_patching(); NULL: the logits */
    int64_t receiver_count;
    int64_t measures;         /* M */
    mha_progress_fn progress; /* called before each head; NULL: none */
    void *progress_user;
} mha_patching;

/**
 * Activation patching (Vig et al. 2020, Meng et al. 2022): `to` runs once for each head, with this
 * head's output (or queries, keys, values) taken from the run of `from`. With the clean prompt as
 * `from` (denoising) it finds heads that suffice; with the corrupted prompt (noising), heads that
 * are necessary.
 *
 *   to_values [M], from_values [M] out    the terms in both runs; NULL
 *   values [L H, M] out                   NAN where there is no such head (keys and values have one
 *                                         entry per key/value head)
 *
 * Memory   scratch from the context: L (2 E + (H + 2 Hk) D) floats for each token, and rows of logits.
 * Errors   as mha_effect_sets(); MHA_ERR_SHAPE (from); MHA_ERR_ARGUMENT (receivers are given).
 * Threads  one call per context.   Cost  2 forward passes, and half of one for each head.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_activation_patching(mha_context *context,
                                                         const mha_transformer *transformer,
                                                         const mha_patching *desc,
                                                         double *to_values, double *from_values,
                                                         double *values);

/**
 * Path patching (Wang et al. 2023, 3.1): the effect of a head through its paths to the receivers
 * that pass through no other head. For each sender, a first run of `to` takes the sender's output
 * from `from` and fixes the outputs of all other heads, while feed-forward layers and norms are
 * recomputed. A second run of `to` then uses the receivers' inputs of the first. With the logits as
 * receiver the first run suffices.
 *
 * A receiver's keys and values are those of its key/value head, hence of all heads of that group.
 *
 *   to_values, from_values, values  as mha_activation_patching(); a sender after all receivers has
 *                                   to_values
 *
 * Memory, Errors, Threads  as mha_activation_patching(); MHA_ERR_ARGUMENT (part, a receiver).
 * Cost     two passes from the sender's layer on for each head.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_path_patching(mha_context *context,
                                                   const mha_transformer *transformer,
                                                   const mha_patching *desc, double *to_values,
                                                   double *from_values, double *values);

/* ---- direct effects -------------------------------------------------------------------------- */

/**
 * Direct logit attribution (attribution.h) of every head over the texts: the change of a measure if
 * the head's own term were removed from the logits and nothing else changed, with log P
 * approximated by the logit minus the mean of all logits:
 *
 *   direct [L H, texts, M] = - sum over terms factor (u(row, token) . out_h[row])
 *
 * u is the direction of W_out[token] - mean of W_out in the stream, through the final norm frozen at
 * that row. For a loss this is the amount that the head itself adds to the logits of the right
 * tokens. Where the factors of a row sum to 0, the mean cancels.
 *
 *   direct out; NAN where a text does not have the measure; 0 for heads that a layer lacks
 *
 * Memory   scratch from the context.
 * Errors   as mha_effect_sets(); MHA_ERR_UNSUPPORTED (norms after blocks, where no head writes to the
 *          final stream directly: MHA_TRANSFORMER_POST_NORM, _BRANCH_NORM).
 * Threads  one call per context.   Accuracy  sums in double.
 * Cost     a pass over the texts, and E H D L multiplications for each term.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_effect_direct(mha_context *context,
                                                   const mha_transformer *transformer,
                                                   const mha_effect_data *data, double *direct);

#ifdef __cplusplus
}
#endif
#endif
