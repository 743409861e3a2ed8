/* multihead: scores of heads over a corpus: distributions of the scores of heads.h, confidence
 * intervals of their means, the places where they are largest and smallest, and the tokens that a
 * head reads from and writes to.
 *
 * mha_head_measures computes means. A mha_head_corpus attached to one receives the same rows:
 *
 *   create, mha_head_corpus_attach(measures, corpus), then for each text
 *   mha_head_corpus_number(corpus, n), begin / rows / end as in heads.h, or mha_head_pass_run()
 *
 * Memory does not depend on the number of texts. All sums over texts are integers in fixed point
 * and all ties have an order, so that results are bit-identical for any order of texts, any order
 * of merging and any number of threads.
 *
 *   mean       of all eligible rows; interval: bootstrap over texts (Efron 1979) in its streaming
 *              form (Chamandy et al. 2012): each replicate counts a text w times, w ~ Poisson(1)
 *              from (seed, text, replicate). Unreliable below about 20 texts
 *   deciles    of rows, from a histogram of MHA_HEAD_CORPUS_BINS bins, exact to one bin: 1 / 256 for
 *              shares, 1 / 128 for correlations, 1 / 16 nats, 4.5 % of a distance
 *   places     the row of each text where the score is largest (smallest), and the best of all texts,
 *              among rows that see at least MHA_HEAD_CORPUS_PLACE_KEYS keys: a row with two keys
 *              scores high by chance
 *   null       95th percentile of the best head's mean under the permutation null, which exchanges
 *              heads at random within each text: it accounts for the search over all heads
 *   tokens     reads: attention received by a token id, and its expectation under uniform attention;
 *              writes: the mean of sum_j alpha_j ||W_O[h] v_j|| over the rows of a token id
 *              (Kobayashi et al. 2020). Both exclude the first token, the usual attention sink
 *
 * Scores of whole maps (vertical, horizontal, cut, the families, rarest) have one value per text:
 * it counts as one row of its histogram, and its place has no row. `diagonal` and `positional`
 * belong to the best offset of all texts and are not included.
 *
 * Example, given mha_context *context, mha_head_measures *measures:
 *
 *   mha_head_corpus *corpus = NULL;
 *   mha_status status = mha_head_corpus_create(context, measures, NULL, &corpus);
 *   if (!status) status = mha_head_corpus_attach(measures, corpus);
 *   // measure the texts, then:
 *   mha_head_distribution found = mha_head_corpus_distribution(corpus, 0, 3, MHA_MEASURE_INDUCTION);
 *   if (!status) printf("%g, %g to %g\n", found.mean, found.low, found.high);
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_HEAD_CORPUS_H
#define MULTIHEAD_HEAD_CORPUS_H

#include <multihead/heads.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    MHA_HEAD_CORPUS_BINS = 256,       /* of a histogram */
    MHA_HEAD_CORPUS_POSITIONS = 24,   /* bins of positions: 0, 1, 2-3, 4-7, ... */
    MHA_HEAD_CORPUS_MOST_PLACES = 64, /* of a score */
    MHA_HEAD_CORPUS_MOST_REPLICATES = 1000,
    MHA_HEAD_CORPUS_PLACE_KEYS = 8
};

typedef struct mha_head_corpus mha_head_corpus;

/* Zero for the defaults. */
typedef struct mha_head_corpus_desc {
    uint32_t struct_size;
    uint32_t flags;       /* 0 */
    int64_t vocab_size;   /* token ids are below it; 0: no sums per token */
    int64_t places;       /* kept per score, the largest and as many smallest; 0: 8 */
    int64_t replicates;   /* of the bootstrap; 0: 200, -1: none */
    int64_t permutations; /* of heads; likewise */
    uint64_t seed;        /* of both */
} mha_head_corpus_desc;

/**
 * Create an object for the heads of a mha_head_measures.
 *
 * Memory   the caller owns *corpus and calls mha_head_corpus_destroy(); the context must outlive
 *          it. Per head and score 2 KiB of histogram, 64 bytes per place, 16 bytes per replicate
 *          and permutation; per head 16 bytes per token id.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT, MHA_ERR_UNSUPPORTED (flags), MHA_ERR_SIZE,
 *          MHA_ERR_NOMEM.
 * Threads  one call at a time per context.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_head_corpus_create(mha_context *context,
                                                        const mha_head_measures *measures,
                                                        const mha_head_corpus_desc *desc,
                                                        mha_head_corpus **corpus);

/** Free it, attached or not, or do nothing for NULL. Memory frees all. Errors none. Threads one.
 * Since 0.1 */
MHA_API void mha_head_corpus_destroy(mha_head_corpus *corpus);

/**
 * Attach corpus: it receives the rows of the texts that begin afterwards; NULL: detach.
 * mha_head_measures_end() then adds to both. A text that is never ended leaves the rows of finished
 * layers in histograms, positions and tokens, as in measures, but does not affect places or
 * intervals. If texts may fail, measure each in its own objects and merge them.
 *
 * Memory   borrows corpus until it is detached or destroyed.
 * Errors   MHA_ERR_NULL (measures); MHA_ERR_ARGUMENT (a text is open; other heads).
 * Threads  one.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_head_corpus_attach(mha_head_measures *measures,
                                                        mha_head_corpus *corpus);

/**
 * Set the number of the next text, which identifies it in places and determines its random weights.
 * Numbers are unique within a corpus. The default is the number of texts seen before.
 *
 * Memory   none.   Errors  MHA_ERR_NULL, MHA_ERR_ARGUMENT (negative).   Threads  one.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_head_corpus_number(mha_head_corpus *corpus, int64_t text);

/**
 * Set the values of a layer before its rows, for MHA_HEAD_WRITES and norm-weighted sinks.
 *
 *   v [Hk,S,Dv] in        f32, any strides: values of the text, H a multiple of Hk
 *   weight [E,H Dv] in    f32, any strides: W_O; NULL: that of the layer's first text
 *
 * Without this call they are not measured. mha_head_pass_run() makes it.
 *
 * Memory   scratch of the call; keeps H S floats, and the Gram matrices W_O[h]^T W_O[h] of the layer,
 *          H Dv^2 floats, for later texts: weight must not change.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (no text is open in the measures it is attached to, a
 *          layer), MHA_ERR_SHAPE, MHA_ERR_DTYPE, MHA_ERR_NOMEM. Rows whose sum_j alpha_j ||W_O[h]
 *          v_j|| is 2^20 or more are skipped.
 * Threads  one.   Accuracy  norms within Dv 2^-22 of ||W_O[h]|| ||v_j||, the same bits everywhere.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_head_corpus_values(mha_head_corpus *corpus, int64_t layer,
                                                        const mha_tensor *v,
                                                        const mha_tensor *weight);

/**
 * Add another corpus, of other texts, measured with the same desc.
 *
 * Memory   none.   Errors  MHA_ERR_NULL; MHA_ERR_ARGUMENT (the same object, other heads or desc, a
 *          text is open); MHA_ERR_SIZE (sums beyond 2^62). Nothing is then changed.
 * Threads  one.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_head_corpus_merge(mha_head_corpus *corpus,
                                                       const mha_head_corpus *from);

/**
 * Add a corpus of the same texts with the same numbers, in which other layers were measured, as
 * mha_head_measures_merge_layers().
 *
 * Memory   none.   Errors  as mha_head_corpus_merge(); MHA_ERR_ARGUMENT (other numbers of texts).
 * Threads  one.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_head_corpus_merge_layers(mha_head_corpus *corpus,
                                                              const mha_head_corpus *from);

/* ---- results -------------------------------------------------------------------------- */

/* A score of a head over the corpus; 0 where there were no rows. */
typedef struct mha_head_distribution {
    double mean;
    double low, high;   /* 2.5 % and 97.5 % of the replicates' means; mean without replicates */
    double deciles[11]; /* the smallest row's, 10 %, ... 90 %, the largest row's */
    int64_t rows;       /* of the histogram */
    int64_t texts;      /* with at least one row */
} mha_head_distribution;

/** The distribution of a head's score; zeros for numbers out of range. Memory none. Errors none.
 * Threads any while no text is open. Since 0.1 */
MHA_API mha_head_distribution mha_head_corpus_distribution(const mha_head_corpus *corpus,
                                                           int64_t layer, int64_t head,
                                                           mha_head_measure measure);

/* A place: query `row` of text number `text`, and the key with its largest weight; -1 for whole
 * maps. */
typedef struct mha_head_place {
    int64_t text, row, key;
    double value;
} mha_head_place;

/**
 * The places of the largest values of a score, the largest first, or with `least` the smallest;
 * among equal values the lower text number first, each text once.
 *
 *   places [most] out    the first `most` of them; may be NULL with most 0
 *
 * Returns the number of places.
 *
 * Memory   none.   Errors  none: 0 for numbers out of range.
 * Threads  as mha_head_corpus_distribution().   Since 0.1
 */
MHA_API int64_t mha_head_corpus_places(const mha_head_corpus *corpus, int64_t layer, int64_t head,
                                       mha_head_measure measure, bool least, mha_head_place *places,
                                       int64_t most);

/* The two lists of token ids of a head. */
typedef enum mha_head_token_list {
    MHA_HEAD_READS = 0, /* sorted by mass */
    MHA_HEAD_WRITES = 1 /* sorted by mean */
} mha_head_token_list;

typedef struct mha_head_token {
    int64_t token;
    double mass; /* reads: attention received; writes: sum of norms */
    double
        expected;  /* reads: that of uniform attention; writes: the head's mean over all rows times
                        count */
    double mean;   /* mass / count */
    int64_t count; /* reads: visible (row, key) pairs with the token as key; writes: its rows */
} mha_head_token;

/**
 * The token ids that a head reads from most, or writes to most, among those that occur at least
 * `least_count` times; ties by id.
 *
 *   tokens [most] out
 *
 * Returns how many were written; 0 without vocab_size, and for MHA_HEAD_WRITES without values.
 *
 * Memory   none.   Errors  none.
 * Threads  as mha_head_corpus_distribution().   Cost  vocab_size times most.   Since 0.1
 */
MHA_API int64_t mha_head_corpus_tokens(const mha_head_corpus *corpus, int64_t layer, int64_t head,
                                       mha_head_token_list list, int64_t least_count,
                                       mha_head_token *tokens, int64_t most);

/* A bin of positions: keys from first to last of a text. */
typedef struct mha_head_position {
    int64_t first, last;
    int64_t rows;
    double entropy, distance; /* means over the bin's rows */
} mha_head_position;

/**
 * Entropy (nats) and distance (tokens) by the position of the query.
 *
 *   bins [MHA_HEAD_CORPUS_POSITIONS] out
 *
 * Returns the number of bins up to the last that has rows.
 *
 * Memory   none.   Errors  none.   Threads  as mha_head_corpus_distribution().   Since 0.1
 */
MHA_API int64_t mha_head_corpus_positions(const mha_head_corpus *corpus, int64_t layer,
                                          int64_t head,
                                          mha_head_position bins[MHA_HEAD_CORPUS_POSITIONS]);

/* The attention sink on the first token: its share of attention, and of the norm that the head
 * moves. Over the rows after the first: the mean of alpha_0, and of alpha_0 ||f_0|| / sum_j alpha_j
 * ||f_j||, f_j = W_O[h] v_j. */
typedef struct mha_head_rest {
    double mass, moved;
    int64_t rows, moved_rows; /* moved_rows 0: no values were given */
} mha_head_rest;

/** The attention sink of a head. Memory none. Errors none. Threads as mha_head_corpus_distribution(). Since 0.1 */
MHA_API mha_head_rest mha_head_corpus_rest(const mha_head_corpus *corpus, int64_t layer,
                                           int64_t head);

/**
 * The 95th percentile of the largest mean of a score over all heads under the permutation null. 0
 * without permutations or rows.
 *
 * Memory   none.   Errors  none.   Threads  as mha_head_corpus_distribution().   Since 0.1
 */
MHA_API double mha_head_corpus_luck(const mha_head_corpus *corpus, mha_head_measure measure);

#ifdef __cplusplus
}
#endif
#endif
