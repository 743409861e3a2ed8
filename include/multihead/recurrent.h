/* multihead: attention with a recurrent state: one interface for linear, gated and delta-rule
 * layers.
 *
 * For each head, with a state S [D,Dv] that begins as 0, and t = 0, 1, ...:
 *
 *   S   = diag(a_t) S                    a_t = exp(log_decay[t]): one number, or one per channel
 *   u_t = b_t (v_t - S^T k_t)            with MHA_RECURRENT_DELTA (Widrow and Hoff 1960)
 *   u_t = b_t v_t                        without
 *   S   = S + k_t u_t^T
 *   o_t = scale S^T q_t + skip_t v_t
 *
 *   layer                                     decay         b    delta  skip
 *   linear attention (Katharopoulos 2020)     none          1    no     no    without normalisation
 *   RetNet (Sun 2023)                         per head      1    no     no
 *   Mamba-2 (Dao 2024)                        per head      dt   no     D     q is C, k is B
 *   GLA (Yang 2024)                           per channel   1    no     no
 *   DeltaNet (Yang 2024)                      none          b    yes    no
 *   gated delta net (Yang 2025): Qwen3-Next   per head      b    yes    no
 *   Kimi delta attention (Kimi Team 2025)     per channel   b    yes    no
 *
 * Letters as in attention.h; queries, keys and values have one length T. k of unit length and
 * 0 <= b <= 2 keep the delta rule stable.
 *
 * As a map: o = M v exactly, where M [T,T] is lower triangular, signed, and
 *
 *   M = scale (Q K^T * G) (I + tril(diag(b) (K K^T * G), -1))^-1 diag(b)      with the delta rule
 *   M = scale (Q K^T * G) diag(b)                                             without
 *
 * each plus diag(skip). G[t,j] = a_(j+1) ... a_t for j <= t, else 0 (decays per channel go inside
 * the products).
 * mha_recurrent_visit_rows() computes rows of M, as mha_attention_visit_rows() does for softmax.
 *
 * Arithmetic. Tokens are processed in chunks of MHA_RECURRENT_CHUNK, counted from the first token
 * of a sequence (the WY form, Bischof and Van Loan 1987; Yang et al. 2024), with f32 products and
 * decays in double. A token's arithmetic depends only on that token and earlier ones. So one call,
 * several calls of any length with a state, and single steps are bit-identical, for any number of
 * threads.
 *
 * A non-finite k, strength or log_decay makes the outputs of its heads non-finite, from its token on.
 * A non-finite v does so in its channel only, a non-finite q in its token only. No other output
 * changes.
 *
 * Example, given mha_context *context, mha_tensor q, mha_tensor k, mha_tensor v,
 * mha_tensor log_decay, mha_tensor strength, mha_tensor o:
 *
 *   mha_recurrent_desc desc = MHA_INIT(mha_recurrent_desc);
 *   desc.flags = MHA_RECURRENT_DELTA, desc.log_decay = &log_decay, desc.strength = &strength;
 *   mha_recurrent_state_desc size = MHA_INIT(mha_recurrent_state_desc);
 *   size.batch = 1, size.heads = 32, size.head_dim = 128;
 *   mha_recurrent_state *state = NULL;
 *   mha_status status = mha_recurrent_state_create(context, &size, &state);
 *   if (!status) status = mha_recurrent_forward(context, &desc, &q, &k, &v, state, &o); // a prompt
 *   if (!status) status = mha_recurrent_forward(context, &desc, &q, &k, &v, state, &o); // a step
 *   mha_recurrent_state_destroy(state);
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_RECURRENT_H
#define MULTIHEAD_RECURRENT_H

#include <multihead/backward.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { MHA_RECURRENT_CHUNK = 64 };

/* mha_recurrent_desc.flags */
enum {
    MHA_RECURRENT_DELTA = 1 << 0,      /* erase what the key retrieves before writing */
    MHA_RECURRENT_SCALE_GIVEN = 1 << 1 /* use scale as given, even 0 */
};

typedef struct mha_recurrent_desc {
    uint32_t struct_size;
    uint32_t flags;
    float scale;       /* 0: 1 / sqrt(D), unless MHA_RECURRENT_SCALE_GIVEN */
    uint32_t reserved; /* 0 */
    /* f32, broadcasts to [B,H,T], or with 4 axes to [B,H,T,D]: the natural logarithm of the decay,
     * usually <= 0; -inf clears the state. NULL: 0, no decay. Within a chunk, either all calls have
     * decays per channel or none */
    const mha_tensor *log_decay;
    const mha_tensor *strength; /* f32, broadcasts to [B,H,T]: b; NULL: 1 */
    const int64_t *lengths;     /* [B], 0 .. T, tokens of each sequence; NULL: T. Rows of o beyond
                                   them are 0 */
    const mha_tensor *skip;     /* f32, broadcasts to [B,H,T]; NULL: 0 */
} mha_recurrent_desc;

/* ---- State ----------------------------------------------------------------------------------- */

typedef struct mha_recurrent_state_desc {
    uint32_t struct_size;
    uint32_t flags;    /* 0 */
    int64_t batch;     /* B, required, like the next two */
    int64_t heads;     /* H */
    int64_t head_dim;  /* D */
    int64_t value_dim; /* Dv; 0: D */
} mha_recurrent_state_desc;

/* The states of all heads of some sequences, with the tokens of their unfinished chunks. */
typedef struct mha_recurrent_state mha_recurrent_state;

/**
 * Create states with S = 0.
 *
 * Memory   the caller owns *state; B H (D + MHA_RECURRENT_CHUNK) Dv floats, Dv rounded up to 32,
 *          and B H (164 D + 32) for the chunk, from the context's allocator, which must outlive it.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (struct_size, a size below 1), MHA_ERR_UNSUPPORTED
 *          (flags), MHA_ERR_SIZE, MHA_ERR_NOMEM.
 * Threads  as mha_context_create().   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_recurrent_state_create(mha_context *context,
                                                            const mha_recurrent_state_desc *desc,
                                                            mha_recurrent_state **state);

/** Destroy states; NULL is allowed. Memory frees all. Errors none. Threads no other thread may be
 * using them. Since 0.1 */
MHA_API void mha_recurrent_state_destroy(mha_recurrent_state *state);

/** The bytes of a state. Memory none. Errors none. Threads any. Since 0.1 */
MHA_API size_t mha_recurrent_state_bytes(const mha_recurrent_state *state);

/** The number of tokens that each sequence has processed, [B]. Memory owned by the state and updated
 * with it. Errors none. Threads any while the state does not change. Since 0.1 */
MHA_API const int64_t *mha_recurrent_state_lengths(const mha_recurrent_state *state);

/** Set the state of all sequences to 0 and their lengths to 0. Memory none. Errors none. Threads one
 * per state. Since 0.1 */
MHA_API void mha_recurrent_state_reset(mha_recurrent_state *state);

/**
 * Copy the state of sequence from_b of `from` to sequence to_b of `to`, which may be the same
 * object: a branch, or a snapshot to return to. A state has no history: rolling back requires a
 * snapshot.
 *
 * Memory   copied.   Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (no such sequence); MHA_ERR_SHAPE
 *                             (heads or sizes differ). Nothing is then changed.
 * Threads  one per state.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_recurrent_state_copy(const mha_recurrent_state *from,
                                                          int64_t from_b, mha_recurrent_state *to,
                                                          int64_t to_b);

/**
 * Read S after all tokens so far: f32 [B,H,D,Dv], any strides.
 *
 * Memory   fills s.   Errors  MHA_ERR_NULL, MHA_ERR_SHAPE, MHA_ERR_DTYPE, MHA_ERR_STRIDE.
 * Threads  as mha_recurrent_state_lengths().   Accuracy  as if a chunk ended here.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_recurrent_state_read(const mha_recurrent_state *state,
                                                          const mha_tensor *s);

/**
 * Set S of all sequences, for example to a learned initial state, and set their lengths to 0.
 *
 *   s [B,H,D,Dv] in   f32, any strides
 *
 * Memory   copied.   Errors  MHA_ERR_NULL, MHA_ERR_SHAPE, MHA_ERR_DTYPE.   Threads  one per state.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_recurrent_state_write(mha_recurrent_state *state,
                                                           const mha_tensor *s);

/* ---- Forward --------------------------------------------------------------------------------- */

/**
 * Process T tokens: the formulas above.
 *
 *   q [B,Hq,T,D] in    k [B,Hk,T,D] in    v [B,Hv,T,Dv] in    o [B,H,T,Dv] out
 *
 * each f32, f16 or bf16, last axis contiguous. H is a multiple of Hq, Hk and Hv: head h reads q head
 * h / (H / Hq), and so on. desc may be NULL. state NULL: start from 0 and discard the final state.
 *
 * Memory   borrowed for the call; outputs must not overlap inputs. Scratch per thread: about 66 D +
 *          48 Dv + 3072 floats, and a head's state if `state` is NULL.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (struct_size, scale, a length, decays of another kind within
 *          a chunk), MHA_ERR_SHAPE, MHA_ERR_DTYPE, MHA_ERR_STRIDE, MHA_ERR_OVERLAP,
 *          MHA_ERR_UNSUPPORTED, MHA_ERR_SIZE, MHA_ERR_NOMEM. On error no output byte is written and
 *          the state is unchanged.
 * Threads  one call at a time per context and state. Heads are divided among the threads.
 * Accuracy for unit keys, 0 <= b <= 2, log_decay <= 0, with u = 2^-24 and w_j = |S_j| + |k_j| |u_j|
 *          (Frobenius): |o_t - exact| <= 3 scale |q_t| (D + 80) u sum_j G[t,j] w_j + u |skip_t v_t|
 *          (docs/numerics.md 16).
 * Cost     about 6 D Dv + 192 (D + Dv) floating-point operations per token and head.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_recurrent_forward(
    mha_context *context, const mha_recurrent_desc *desc, const mha_tensor *q, const mha_tensor *k,
    const mha_tensor *v, mha_recurrent_state *state, const mha_tensor *o);

/* ---- Backward -------------------------------------------------------------------------------- */

/* The requested gradients, all f32; NULL: not requested. Requesting one does not change the bits of
 * the others. Shapes are those of the inputs. If heads, sequences or tokens share an input, its gradient is
 * summed over them. q, k and v have a contiguous last axis, the others any strides. */
typedef struct mha_recurrent_gradients {
    uint32_t struct_size;
    uint32_t flags; /* MHA_GRADIENTS_ACCUMULATE */
    const mha_tensor *q, *k, *v, *log_decay, *strength;
    const mha_tensor *initial;
    /* In: the gradient of the loss with respect to S after all tokens, [B,H,D,Dv], any strides. NULL: 0 */
    const mha_tensor *state;
    const mha_tensor *skip;
} mha_recurrent_gradients;

/**
 * Gradients of a call that starts from the state `initial`. With G the gradient with respect to S, from the last token
 * to the first, and S' = diag(a_t) S_(t-1):
 *
 *   G   = G + scale q_t dO_t^T         dq_t = scale S_t dO_t        du = G^T k_t
 *   dv_t = b_t du + skip_t dO_t        db_t = du . (v_t - S'^T k_t)   (without the delta rule du . v_t)
 *   dskip_t = dO_t . v_t
 *   dk_t = G u_t - b_t S' du           (terms with b_t, here and in the next line: delta rule only)
 *   G   = G - b_t k_t du^T             dlog_decay_t = sum_c G S', of each channel, or of all
 *   G   = diag(a_t) G                  dinitial = G at the end
 *
 *   q, k, v, desc as in mha_recurrent_forward()     o_gradient [B,H,T,Dv] in, f32, f16 or bf16
 *   initial [B,H,D,Dv] in, f32, any strides; NULL: 0
 *
 * Tokens are processed in blocks of 32, whose states are recomputed.
 *
 * Memory   borrowed for the call; gradients must not overlap inputs or each other. Scratch per thread:
 *          about 2 sqrt(T / 32) states of D Dv floats. Inputs that heads share: B H T D floats each.
 * Errors   as mha_recurrent_forward(); MHA_ERR_ARGUMENT for the gradient of an absent input. On error no
 *          output byte is written.
 * Threads  one call at a time per context. Heads are divided among the threads; bits do not depend
 *          on the number of threads.
 * Accuracy f32 products, decays in double (docs/numerics.md 16). Every term of the gradient of log_decay
 *          has the decay as a factor; it is 0 where the decay is 0.
 * Cost     about 20 D Dv + 320 (D + Dv) floating-point operations per token and head.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status
mha_recurrent_backward(mha_context *context, const mha_recurrent_desc *desc, const mha_tensor *q,
                       const mha_tensor *k, const mha_tensor *v, const mha_tensor *initial,
                       const mha_tensor *o_gradient, const mha_recurrent_gradients *gradients);

/* ---- The map --------------------------------------------------------------------------------- */

/**
 * Visit rows of M, a block at a time, in the order of b and t: an mha_rows_fn receives p [H,R,T]
 * f32, with lengths[b] in place of T where lengths are given. Entries may be negative, and rows do
 * not sum to 1.
 *
 *   q, k, desc   as for mha_recurrent_forward(), from a state of 0
 *
 * block_rows 0 selects about 4 MiB per block, but at least 32 rows. Row t is computed backward from
 * r = scale q_t: M[t,j] = b_j (k_j . r), then r = a_j (r - (k_j . r) b_j k_j) for the delta rule, for 32
 * keys and up to 128 rows at once. The bits do not depend on block_rows; small blocks repeat work
 * for the keys.
 *
 * Memory   a block of H block_rows T floats of scratch, and about 550 D floats per thread.
 * Errors   as mha_recurrent_forward(); MHA_ERR_ARGUMENT (heads, block_rows); the status that fn
 *          returned.
 * Threads  one call at a time per context; fn runs in the calling thread.
 * Accuracy for unit keys, 0 <= b <= 2 and log_decay <= 0, n = (t - j) / 32 + 2:
 *          |M - exact| <= 3 n (D + 80) u scale |q_t| b_j max_d G[t,j] (docs/numerics.md 16.2), and
 *          on the diagonal u |M| more with skip.
 * Cost     about 4 D floating-point operations per pair.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_recurrent_visit_rows(mha_context *context,
                                                          const mha_recurrent_desc *desc,
                                                          const mha_tensor *q, const mha_tensor *k,
                                                          int64_t heads, int64_t block_rows,
                                                          mha_rows_fn fn, void *user);

#ifdef __cplusplus
}
#endif
#endif
