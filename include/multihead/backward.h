/* multihead: the gradients of attention.
 *
 * Letters and formulas as in attention.h. With g = dO the gradient of a loss with respect to o, c =
 * gate[b,h], kept[s] = 0 or 1 / (1 - dropout), and p recomputed from the forward's lse:
 *
 *   p[s]     = exp(score[s] - lse)                     (before dropout)
 *   x[s]     = sum_d g[d] (v[s,d] + shaw_values[clip(s-i),d])
 *   w[s]     = the derivative of the loss with respect to p[s]; 0 unless the call has gradients of
 *              probabilities
 *   delta    = sum_d g[d] o[d] + sum_s p[s] w[s] - lse_gradient
 *   ds[s]    = p[s] (c kept[s] x[s] + w[s] - delta)    with respect to the score after the cap
 *   dx[s]    = ds[s] (1 - tanh^2)                      likewise before it; ds[s] without a cap
 *
 *   dq[t]             = scale sum_s dx[t,s] (k[s] + shaw_keys[clip(s-i)])
 *   dk[s]             = scale sum_t dx[t,s] q[t]       also over the query heads of the group
 *   dv[s]             = sum_t c p[t,s] kept[t,s] g[t]
 *   dbias[b,h,t,s]    = ds[t,s]                        summed where the bias is broadcast
 *   dslope[b,h]       = -sum_ts ds[t,s] |s - i|
 *   dt5[bucket,h]     = sum of ds over the pairs of the bucket
 *   dshaw_keys[r]     = scale sum of dx[t,s] q[t] over the pairs of row r
 *   dshaw_values[r]   = sum of c p[t,s] kept[t,s] g[t] over the pairs of row r
 *   dsink[h]          = -sum_bt exp(sink[h] - lse[t]) delta[t]
 *   dgate[b,h]        = sum_ts p[t,s] kept[t,s] x[t,s]       (from p: o is 0 if the gate is 0)
 *   dscale            = sum dx[t,s] q[t] (k[s] + shaw_keys[clip(s-i)])
 *
 * where sum_d g[d] o[d] = sum_s p[s] c kept[s] x[s]. Dropout regenerates the forward's mask from the
 * seed.
 *
 * Besides o, a loss may depend on lse (merged parts, z-losses, distillation of normalisers), on
 * probabilities and on their average over heads. The gradient of lse costs no time. Those of
 * probabilities cost one more product q k per pass and one for their sum: 1.9 times the time of dq,
 * dk and dv (T = S = 512, D = 64).
 *
 *   w[s] = probabilities_gradient[t,s] + average_probabilities_gradient[t,s] / H,  times kept[s] with
 *          MHA_GRADIENTS_DROPPED_PROBABILITIES
 *
 * Special values:
 *   - A query that sees no key has a gradient of 0 and contributes none, with one exception: its lse
 *     is its sink, which receives the lse_gradient.
 *   - Masked keys and values, and the q and dO of a query without keys, have no effect, even if not
 *     finite.
 *   - A query with a non-finite element in q, dO, o, lse or lse_gradient (so also a query that sees
 *     a non-finite key or value), or with a non-finite gradient of a weight that is not 0, makes
 *     its dq, the dk and dv of every key that it sees, and the gradients of the parameters involved
 *     NaN, and nothing else. The gradient of a weight that is 0 has no effect.
 *
 * Reproducibility: the bits of every gradient are the same for any number of threads, any padding
 * and any strides, and do not depend on the other requested gradients. Those of q, k and v are also
 * the same for any batch size.
 *
 * Example, given mha_context *context, mha_attention_backward_call call, mha_tensor dq, mha_tensor
 * dk, mha_tensor dv:
 *
 *   mha_attention_gradients gradients = MHA_INIT(mha_attention_gradients);
 *   gradients.q = &dq, gradients.k = &dk, gradients.v = &dv;
 *   call.gradients = &gradients; // with q, k, v, o, lse and o_gradient set
 *   mha_status status = mha_attention_backward(context, &call);
 *
 * Stability: stable from 1.0 (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_BACKWARD_H
#define MULTIHEAD_BACKWARD_H

#include <multihead/attention.h>
#include <multihead/linear_attention.h>

#ifdef __cplusplus
extern "C" {
#endif

/* mha_attention_gradients.flags */
enum {
    MHA_GRADIENTS_ACCUMULATE = 1 << 0, /* add to the tensors' contents, rounding the sum once;
                                          default: overwrite */
    MHA_GRADIENTS_DROPPED_PROBABILITIES = 1 << 1 /* the input gradients of probabilities refer to p
                                                  after dropout, as in a forward call with
                                                  MHA_OUTPUT_DROPPED_PROBABILITIES */
};

/* The requested gradients, all f32; NULL: not requested. Requesting one does not change the bits
 * of the others. Each has the shape of the input it belongs to, which must be given; a bias of
 * shape [1,H,T,S] gives a gradient of shape [1,H,T,S]. q, k and v have a contiguous last axis, the
 * others any strides. */
typedef struct mha_attention_gradients {
    uint32_t struct_size;
    uint32_t flags;
    const mha_tensor *q, *k, *v;
    const mha_tensor *bias;
    const mha_tensor *alibi_slopes, *t5_table;
    const mha_tensor *shaw_keys, *shaw_values;
    const mha_tensor *sink_logits, *gates;
    const mha_tensor *scale; /* one element: any number of dims, all 1 */

    /* In: gradients of the loss with respect to outputs of the forward call other than o. NULL: the
     * loss does not depend on that output. f32, any strides, including 0. S is that of the outputs;
     * all heads and rows are included. */
    const mha_tensor *lse_gradient;                   /* [B,H,T] */
    const mha_tensor *probabilities_gradient;         /* [B,H,T,S] */
    const mha_tensor *average_probabilities_gradient; /* [B,T,S] */
} mha_attention_gradients;

/* One call. */
typedef struct mha_attention_backward_call {
    uint32_t struct_size;
    uint32_t reserved;                        /* 0 */
    const mha_attention_desc *attention;      /* as in the forward call; NULL: all defaults */
    const mha_tensor *q;                      /* [B,H ,T,D ] in, as in the forward call */
    const mha_tensor *k;                      /* [B,Hk,S,D ] in, likewise */
    const mha_tensor *v;                      /* [B,Hk,S,Dv] in, likewise */
    const mha_tensor *o;                      /* [B,H ,T,Dv] in, from the forward call */
    const mha_tensor *lse;                    /* [B,H ,T] in, likewise */
    const mha_tensor *o_gradient;             /* [B,H ,T,Dv] in, last axis contiguous */
    const mha_attention_gradients *gradients; /* requested gradients: tensors out, f32 */
} mha_attention_backward_call;

/**
 * Attention backward: the formulas above.
 *
 * q, k, v, o, o_gradient and a bias may each be f32, f16 or bf16: elements are widened exactly, so
 * f32 tensors of the same numbers give the same bits. (delta is computed from o: an o rounded to
 * f16 contributes its error of 2^-11 |o|.)
 *
 * Memory   everything is borrowed for the call. Gradients must not overlap inputs or each other;
 *          elements of o and lse must not overlap, as the forward pass ensures. Scratch comes from
 *          the context: a float for each of the B H T queries (another with gradients of
 *          probabilities, another with that of the sinks), sums for each parameter, and for each
 *          thread a cell of 112 x 256 pairs with at most 16 MiB of dq (tiled; plus 32 times the
 *          size of a Shaw table) or a row (plain). Nothing of size T x S is stored, except the
 *          gradient of a bias of that size. In a steady state nothing is allocated.
 * Errors   as mha_attention_forward(); MHA_ERR_ARGUMENT for the gradient of an input that the
 *          descriptor does not have. On error no output byte is written.
 * Threads  one call at a time per context; any number of contexts.
 * Accuracy docs/numerics.md, "Attention backward": p inherits u |lse| from the rounding of lse, and
 *          ds the error of o, sum_d |g[d]| |o error|.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_attention_backward(mha_context *context,
                                                        const mha_attention_backward_call *call);

/**
 * Report what mha_attention_backward() would do with the same call, with the same checks.
 * o, lse and o_gradient may be NULL here; data pointers of tensors are not read (those of
 * key_lengths and q_offsets are). In the plan, flops counts the matrix products that would be
 * computed: gradients of keys and of queries each recompute the scores, so flops exceeds 10 D per
 * pair.
 *
 * Memory   fills *plan.   Errors  as mha_attention_backward(), except MHA_ERR_NOMEM.
 * Threads  any.           Since   0.1
 */
MHA_API MHA_NODISCARD mha_status mha_attention_backward_explain(
    const mha_context *context, const mha_attention_backward_call *call, mha_attention_plan *plan);

/* ---- Linear attention ------------------------------------------------------------------------ */

/* The gradient of a loss with respect to rows [count,head_dim], given the rows and the gradient
 * with respect to their features [count,feature_dim], all contiguous: the backward of a
 * mha_feature_map_fn. */
typedef void (*mha_feature_map_gradient_fn)(void *user, const float *rows, int64_t count,
                                            int64_t head_dim, const float *feature_gradients,
                                            int64_t feature_dim, float *row_gradients);

/* The requested gradients, all f32; NULL: not requested. Shapes are those of the inputs. */
typedef struct mha_linear_attention_gradients {
    uint32_t struct_size;
    uint32_t flags; /* MHA_GRADIENTS_ACCUMULATE */
    const mha_tensor *q, *k, *v;
    const mha_tensor *state_s, *state_z;              /* of the initial state */
    mha_feature_map_gradient_fn feature_map_gradient; /* required with a caller's feature_map */
} mha_linear_attention_gradients;

/**
 * Linear attention backward. With a = phi(q[t]), f[s] = phi(k[s]), n = a S, m = a . z, o = n / m, S
 * and z the sums over the keys that t sees, and g = dO:
 *
 *   da       = (S g - (g . o) z) / m                                  dq = da phi'(q)
 *   R[s]     = sum over the queries t that see s of a g^T / m         [F,Dv]
 *   r[s]     = - sum likewise of a (g . o) / m                        [F]
 *   df[s]    = R[s] v[s] + r[s]           dv[s] = f[s]^T R[s]         dk = df phi'(k)
 *   dstate_s = sum over all queries of a g^T / m                      dstate_z likewise
 *
 *   q, k, v, desc as in mha_linear_attention_forward(), whose o is recomputed
 *   o_gradient [B,H,T,Dv] in, last axis contiguous     gradients: tensors out, f32
 *
 * S is accumulated forward with the queries, R backward with the keys: time O((T + S) F Dv), and
 * memory independent of T S. Gradients with respect to the state after the call are not supported.
 * phi is computed as in the forward pass, everything else in double. phi' of elu + 1 is 1 above 0,
 * phi(x) below, 0 below -87. A query whose phi(q) . z is 0 has a gradient of 0 and contributes
 * none. A non-finite element in a query or its o_gradient makes the gradients of that query and of
 * every key that it sees NaN; one in a key or value does so for every query that sees it.
 *
 * Memory   everything is borrowed for the call; no two tensors may overlap, o_gradient included.
 *          Scratch: two doubles for each query, and a state in double for each thread.
 * Errors   as mha_linear_attention_forward(), where o means o_gradient; MHA_ERR_ARGUMENT for a
 *          state gradient without a state; MHA_ERR_UNSUPPORTED for a feature_map without its
 *          gradient. On error no output byte is written.
 * Threads  one call at a time per context. Key/value heads are divided among the threads; bits do
 *          not depend on the number of threads.
 * Accuracy the features' 2.5 u and the last rounding, with double precision in between.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_linear_attention_backward(
    mha_context *context, const mha_linear_attention_desc *desc, const mha_tensor *q,
    const mha_tensor *k, const mha_tensor *v, const mha_tensor *o_gradient,
    const mha_linear_attention_gradients *gradients);

#ifdef __cplusplus
}
#endif
#endif
