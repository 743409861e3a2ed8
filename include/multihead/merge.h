/* multihead: merge attention results over disjoint parts of the keys.
 *
 * A softmax over keys in several places (blocks of a cache, a shared prefix, machines of a ring) is
 * computed for each part separately and merged by the log-sum-exp of the parts:
 *
 *   m   = max_k lse_k        w_k = exp(lse_k - m)
 *   o   = sum_k w_k o_k / sum_k w_k
 *   lse = m + log sum_k w_k
 *
 * The result is again a part, so parts may be merged in any grouping.
 *
 * For the result to be the attention over all keys, the parts must agree in these respects:
 *   - Masks, biases and positions: each part uses those of its own keys. The part that begins at
 *     key s0 uses q_offset - s0 if anything depends on positions.
 *   - Sinks: exactly one part has sink_logits, since each adds exp(sink) to the denominator.
 *   - Gates: give them to every part, or multiply the merged o by them; both are the same, since a
 *     merge is linear in o. lse does not depend on gates.
 *   - Dropout numbers keys from 0 in every part. Give each part its own seed, otherwise all parts
 *     drop the same keys. The result is correct in the mean over seeds, but not bit-identical to an
 *     undivided call.
 *
 * Letters as in attention.h.
 *
 * Example, given mha_context *context, mha_tensor o[2], mha_tensor lse[2], mha_tensor whole:
 *
 *   mha_attention_part parts[2];
 *   for (int i = 0; i < 2; i++) parts[i].o = &o[i], parts[i].lse = &lse[i];
 *   mha_status status = mha_attention_merge(context, parts, 2, &whole, NULL);
 *
 * Stability: stable from 1.0 (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_MERGE_H
#define MULTIHEAD_MERGE_H

#include <multihead/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The results of mha_attention_forward() over some of the keys. */
typedef struct mha_attention_part {
    const mha_tensor *o; /* [B,H,T,Dv] f32 */
    const mha_tensor
        *lse; /* [B,H,T] f32, natural logarithm; -inf: the query saw none of the keys */
} mha_attention_part;

/**
 * Merge parts: the formulas above, for every query.
 *
 *   parts [count] in    o [B,H,T,Dv] out    lse [B,H,T] out, may be NULL    all f32
 *
 * Any strides, last axis of the o's contiguous. Parts are summed in order, in double; each result
 * is rounded once. The bits therefore depend only on the order of the parts. A single part, or the
 * only part that is not empty, keeps its bits.
 *
 *   - A part with lse = -inf is empty for that query: its o is not read.
 *   - All parts empty, or a count of 0: o = 0, lse = -inf.
 *   - A part with lse NaN or +inf makes o and lse of that query NaN.
 *   - A non-finite element of o in a part that is not empty makes that element non-finite.
 *
 * Memory   everything is borrowed for the call; scratch of count numbers per thread. o may be
 *          the tensor of one part's o, and lse that of one part's lse: a query's inputs are read
 *          before its results are written. Any other overlap is an error.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (count negative), MHA_ERR_SHAPE, MHA_ERR_DTYPE,
 *          MHA_ERR_STRIDE, MHA_ERR_OVERLAP, MHA_ERR_SIZE, MHA_ERR_NOMEM. On error no output byte is
 *          written.
 * Threads  one call at a time per context; any number of contexts. Bits do not depend on threads.
 * Accuracy against the formulas: |o - exact| <= u |o| + 2^-43 max_k |o_k| + 2^-150 and
 *          |lse - exact| <= u |lse| + 2^-43, u = 2^-24, for up to 100 parts. If the parts
 *          themselves have errors of e_k in o and at most d in lse, add
 *          |o - whole| <= max_k e_k + (exp(2 d) - 1) max_k |o_k - whole|, and d for lse
 *          (docs/numerics.md 3.11).
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_attention_merge(mha_context *context,
                                                     const mha_attention_part *parts, int64_t count,
                                                     const mha_tensor *o, const mha_tensor *lse);

#ifdef __cplusplus
}
#endif
#endif
