/* multihead: the similarity of heads in their attention and in their outputs.
 *
 * Two heads may have similar maps and different outputs, or the reverse; a pair is redundant only if
 * both attention and output agree. For heads g and h over the rows t of any number of texts:
 *
 *   maps     mean over t of JS(A_g[t], A_h[t]) / log 2        0: the same rows, 1: no key in common
 *            JS(p, q) = (KL(p, m) + KL(q, m)) / 2, m = (p + q) / 2 (Lin 1991; Clark et al. 2019 sum
 *            over rows and smooth; we take the mean and need no smoothing)
 *   cosine   mean over t of the cosine of out_g[t] and out_h[t], -1 .. 1
 *   cka      linear centred kernel alignment of out_g and out_h (Kornblith et al. 2019), 0 .. 1:
 *            ||X'Y||^2 / (||X'X|| ||Y'Y||) with X, Y [rows,E] minus their column means
 *
 * with out_h = z_h W_O[h], z_h = A_h V_h: what the head writes to the residual stream. No map
 * and no array of all rows is kept.
 *
 * Example, given mha_context *context, int64_t heads, mha_tensor p:
 *
 *   mha_head_distances *distances = NULL;
 *   mha_status status = mha_head_distances_create(context, heads, 0, NULL, &distances); // maps only
 *   if (!status) status = mha_head_distances_rows(distances, &p);
 *   if (!status) printf("%g\n", mha_head_distances_pair(distances, 0, 1).maps);
 *   mha_head_distances_destroy(distances);
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_HEAD_DISTANCES_H
#define MULTIHEAD_HEAD_DISTANCES_H

#include <multihead/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mha_head_distances mha_head_distances;

/**
 * Create empty sums over all pairs of `heads` heads: those of a layer, or any whose rows are added
 * together.
 *
 *   weight [heads,width,E] in    f32, any strides: W_O of each head. Of a matrix [E, heads width],
 *                                as PyTorch has it, the strides are {width, 1, heads width}. NULL:
 *                                outputs() receives out_h itself
 *
 * width 0: maps only.
 *
 * Memory   the caller owns *distances and calls mha_head_distances_destroy(); the context must
 *          outlive it. 8 width^2 bytes per pair, twice that with a weight.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (counts), MHA_ERR_SHAPE, MHA_ERR_DTYPE, MHA_ERR_NUMERIC
 *          (a weight is not finite), MHA_ERR_SIZE, MHA_ERR_NOMEM.
 * Threads  one call at a time per context.
 * Cost     with a weight, width^2 E multiplications per pair.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_head_distances_create(mha_context *context, int64_t heads,
                                                           int64_t width, const mha_tensor *weight,
                                                           mha_head_distances **distances);

/** Free it, or do nothing for NULL. Memory frees all. Errors none. Threads one. Since 0.1 */
MHA_API void mha_head_distances_destroy(mha_head_distances *distances);

/**
 * Add rows of attention.
 *
 *   p [heads,R,S] in    f32, any strides, as from mha_attention_visit_rows(); S may differ from
 *                       call to call
 *
 * Rows are first normalised to sum to 1 (a sink takes part of the mass). A row counts for a pair if
 * it is not 0 in either head.
 *
 * Memory   borrows p for the call.
 * Errors   MHA_ERR_NULL, MHA_ERR_SHAPE, MHA_ERR_DTYPE, MHA_ERR_NOMEM; MHA_ERR_NUMERIC (a weight is
 *          negative or not finite). On error nothing is counted.
 * Threads  one; uses the context's.
 * Accuracy sums in double in the order of keys and rows: the same bits for any number of threads
 *          and any division into blocks.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_head_distances_rows(mha_head_distances *distances,
                                                         const mha_tensor *p);

/**
 * Add the heads' z (with a weight) or outputs (without).
 *
 *   z [heads,R,width] in    f32, any strides
 *
 * Memory   borrows z for the call.
 * Errors   MHA_ERR_NULL, MHA_ERR_SHAPE, MHA_ERR_DTYPE, MHA_ERR_NOMEM; MHA_ERR_NUMERIC (not finite);
 *          MHA_ERR_ARGUMENT (created with width 0). On error nothing is counted.
 * Threads  one; uses the context's.
 * Accuracy as rows; cosines of outputs of length 0 do not count.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_head_distances_outputs(mha_head_distances *distances,
                                                            const mha_tensor *z);

/* 0 where there were no rows. */
typedef struct mha_head_pair {
    double maps, cosine, cka;
    int64_t map_rows, output_rows;
} mha_head_pair;

/** The distances of a pair of heads; zeros for heads out of range. Memory none. Errors none.
 * Threads any while nothing is added. Since 0.1 */
MHA_API mha_head_pair mha_head_distances_pair(const mha_head_distances *distances, int64_t g,
                                              int64_t h);

/** True if both measures agree: maps at most farthest, |cosine| at least nearest; 0.1 and 0.9 are
 * reasonable. Only ablation shows whether one of the heads can be removed. Memory none. Errors
 * none.
 * Threads any. Since 0.1 */
MHA_API bool mha_head_pair_is_redundant(const mha_head_pair *pair, double farthest, double nearest);

/**
 * Average-linkage clustering: the two clusters whose members are nearest on average are merged
 * until the nearest are farther apart than cut.
 *
 *   distance [count,count] in    symmetric, finite; the diagonal is not read
 *   cluster [count] out          0 .. clusters-1, in the order of each cluster's first member
 *
 * Among equal distances the pair with the first members is merged first.
 *
 * Memory   scratch of count^2 doubles.   Cost  O(count^3).
 * Errors   MHA_ERR_NULL, MHA_ERR_NUMERIC, MHA_ERR_SIZE (count beyond 4096), MHA_ERR_ARGUMENT,
 *          MHA_ERR_NOMEM. On error nothing is written.
 * Threads  one call at a time per context.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_head_clusters(mha_context *context, int64_t count,
                                                   const double *distance, double cut,
                                                   int64_t *cluster, int64_t *clusters);

#ifdef __cplusplus
}
#endif
#endif
