/* multihead: linear attention with a positive feature map (Katharopoulos et al. 2020).
 *
 * The exponential of a softmax score is replaced by a product of features, so that all keys fold
 * into one matrix and one vector, whose size does not depend on the number of keys:
 *
 *   S[b,hk] = sum_s phi(k[b,hk,s]) v[b,hk,s]^T       [F,Dv]
 *   z[b,hk] = sum_s phi(k[b,hk,s])                   [F]
 *   o[b,h,t] = phi(q[b,h,t]) S[b,hk] / (phi(q[b,h,t]) . z[b,hk])
 *
 * with hk = h / (H/Hk), s over the keys that query t sees, and letters as in attention.h; F is the
 * number of features. Time is O((T + S) F Dv), and memory does not depend on T or S. The map is
 *
 *   phi(x)[i] = elu(x[i]) + 1 = x[i] + 1 for x[i] > 0, else exp(x[i])        F = D
 *
 * or the caller's. There is no scale: if the map needs one, multiply q by it.
 *
 * A key is visible if s < key_lengths[b] and, if causal, s <= t + q_offset. Keys of the state that
 * a call starts from are visible to every query.
 *
 * Order of summation: every sum over keys runs key by key, from the initial state of the call to
 * the last key. So the keys of a sequence may be split over calls anywhere, down to one key per
 * call, each call starting from the state left by the one before, and every bit of o, S and z is
 * the same. The cost: a sum over n keys accumulates up to n rounding errors, about the square root
 * of n in practice.
 *
 * Special values:
 *   - A query whose z is 0 in every element gives o = 0: it sees no key.
 *   - Keys and values that a query does not see never affect its result.
 *   - A non-finite element of a visible key or of the query makes o of that row NaN (with a
 *     caller's map, if the features are NaN). A non-finite v[.., s, d] of a visible key makes
 *     o[.., d] non-finite and nothing else. Both remain in the output state.
 *   - Elements of q and k below -87 count as -87. Products of features must stay within the range
 *     of f32; where phi(q) . z underflows to 0, o is 0.
 *
 * Example, given mha_context *context, mha_tensor q, mha_tensor k, mha_tensor v, mha_tensor o,
 * mha_tensor s, mha_tensor z:
 *
 *   mha_linear_attention_desc desc = MHA_INIT(mha_linear_attention_desc);
 *   mha_linear_attention_outputs outputs = MHA_INIT(mha_linear_attention_outputs);
 *   desc.flags = MHA_LINEAR_ATTENTION_CAUSAL;
 *   desc.state_s = outputs.state_s = &s; // continue from the state, and update it
 *   desc.state_z = outputs.state_z = &z;
 *   mha_status status = mha_linear_attention_forward(context, &desc, &q, &k, &v, &o, &outputs);
 *
 * Stability: stable from 1.0 (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_LINEAR_ATTENTION_H
#define MULTIHEAD_LINEAR_ATTENTION_H

#include <multihead/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* mha_linear_attention_desc.flags */
enum {
    MHA_LINEAR_ATTENTION_CAUSAL = 1 << 0 /* s <= t + q_offset */
};

/* A feature map: rows [count,head_dim] in, features [count,feature_dim] out, both contiguous. The
 * features of a row may depend on that row only, and should not be negative. Called from several
 * threads at once, with any number of rows of queries or keys. */
typedef void (*mha_feature_map_fn)(void *user, const float *rows, int64_t count, int64_t head_dim,
                                   float *features, int64_t feature_dim);

/* What to compute. Zero everywhere means: all keys visible, elu + 1, no initial state. */
typedef struct mha_linear_attention_desc {
    uint32_t struct_size;
    uint32_t flags;
    mha_feature_map_fn feature_map; /* NULL: elu + 1 */
    void *feature_map_user;
    int64_t feature_dim;        /* F with a caller's map; 0: D */
    int64_t q_offset;           /* query t is at key position t + q_offset, -2^60 .. 2^60. Only
                                   if causal */
    const int64_t *q_offsets;   /* [B], instead of q_offset */
    const int64_t *key_lengths; /* [B], 0 .. S; NULL: S for all */
    /* The initial state, f32; both or neither. */
    const mha_tensor *state_s; /* [B,Hk,F,Dv] */
    const mha_tensor *state_z; /* [B,Hk,F] */
    /* Ragged batches, as in attention.h. B of the states is then `sequences`. */
    const int64_t *query_starts, *key_starts; /* [sequences + 1], both or neither */
    int64_t sequences;
} mha_linear_attention_desc;

/* Outputs besides o; NULL: not requested. Either may be the tensor of the initial state: it is read
 * before it is written. */
typedef struct mha_linear_attention_outputs {
    uint32_t struct_size;
    uint32_t reserved;         /* 0 */
    const mha_tensor *state_s; /* [B,Hk,F,Dv] f32, after all keys within key_lengths */
    const mha_tensor *state_z; /* [B,Hk,F] f32 */
} mha_linear_attention_outputs;

/**
 * Linear attention forward: the formulas above.
 *
 *   q [B,H ,T,D ] in    k [B,Hk,S,D ] in    v [B,Hk,S,Dv] in    o [B,H,T,Dv] out
 *
 * each f32, f16 or bf16, in any mixture: the results are those of widening the inputs to f32, which
 * is exact, and rounding o to its type at the end, to nearest (mha_tensor_convert()). A caller's
 * feature map receives f32.
 *
 * H is a multiple of Hk. Any strides, last axis contiguous. desc and outputs may be NULL. Lengths
 * of 0 are allowed everywhere: T = 0 only builds a state, S = 0 only reads one. One step of
 * decoding is a causal call with T = S = 1 and q_offset 0 whose state tensors are both in and out.
 *
 * Memory   everything is borrowed for the call. Outputs must not overlap inputs or each other,
 *          except for the state. Scratch comes from the context: a state and 64 keys with their
 *          features for each thread (causal), or a state for each key/value head (not causal).
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT, MHA_ERR_SHAPE, MHA_ERR_DTYPE, MHA_ERR_STRIDE,
 *          MHA_ERR_OVERLAP, MHA_ERR_SIZE, MHA_ERR_NOMEM, MHA_ERR_UNSUPPORTED. On error no output
 *          byte is written.
 * Threads  one call at a time per context; any number of contexts. Key/value heads and, if not
 *          causal, blocks of queries are divided among the threads. The bits of every output are
 *          the same for any number of threads, any batch and any padding.
 * Accuracy |o - exact| <= 2 (n + F + 10) u max_s |v| to first order, n the number of visible keys,
 *          u = 2^-24, for features that are not negative; phi's relative error is at most 2.5 u. An
 *          o of f16 or bf16 adds the bound of mha_tensor_convert().
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status
mha_linear_attention_forward(mha_context *context, const mha_linear_attention_desc *desc,
                             const mha_tensor *q, const mha_tensor *k, const mha_tensor *v,
                             const mha_tensor *o, const mha_linear_attention_outputs *outputs);

#ifdef __cplusplus
}
#endif
#endif
