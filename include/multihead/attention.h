/* multihead: scaled dot-product attention.
 *
 * Letters used in all comments of this header:
 *   B   batch                      T   queries per sequence (rows)
 *   H   query heads                S   keys per sequence (columns)
 *   Hk  key/value heads            D   head size of queries and keys
 *   Dv  head size of values        b h t s d   loop indices over B H T S D
 *
 * The formula (Vaswani et al. 2017, equation 1, with the grouped heads of Ainslie et al. 2023),
 * with everything that a descriptor can add, in this order; i = t + q_offset is the query's
 * position:
 *
 *   score[b,h,t,s] = scale * sum_d q[b,h,t,d] * (k[b,hk,s,d] + shaw_keys[clip(s-i),d])
 *   score          = softcap * tanh(score / softcap)
 *   score         += bias[b,h,t,s] - slope[b,h] |s - i| + t5_table[bucket(s-i),h]
 *   score          = -inf where the mask drops key s for query t
 *   p[b,h,t,:]     = softmax of score[b,h,t,:] with exp(sink[h]) added to the denominator
 *   p              = p * kept / (1 - dropout)          kept: 0 or 1, from a counter-based generator
 *   o[b,h,t,:]     = gate[b,h] * sum_s p[b,h,t,s] * (v[b,hk,s,:] + shaw_values[clip(s-i),:])
 *   lse[b,h,t]     = log(exp(sink[h]) + sum_s exp(score[b,h,t,s]))      natural log, no dropout
 *
 * with hk = h / (H / Hk). A key is visible to a query if every given mask keeps it. Each mask keeps
 * the keys for which its condition holds:
 *   - causal: s <= i (q_offset signed; per sequence if q_offsets is given)
 *   - key_lengths: s < key_lengths[b]
 *   - key_begins: s >= key_begins[b]
 *   - window: i - left_keys <= s <= i + right_keys, or s < key_begins[b] + sink_keys, or
 *     global_keys[b,s] != 0, or global_queries[b,t] != 0
 *   - documents: query_documents[b,t] == key_documents[b,s]
 *   - blocks: keep_blocks[b,h,t / block_queries,s / block_keys] != 0
 *   - keep_mask: keep_mask[b,h,t,s] != 0
 *   - callback: the byte it wrote is not 0
 *   - bias: bias[b,h,t,s] != -inf
 *
 * Special values, on every path and instruction set:
 *   - A query that sees no key gives o = 0, p = 0, lse = -inf (lse = sink[h] with a sink).
 *   - The contents of keys and values that a query does not see never affect its result, not even
 *     NaN or infinity.
 *   - A non-finite element in a visible key, or in the query itself, makes o, lse and the p of the
 *     visible keys of that row NaN. A non-finite element v[.., s, d] of a visible key makes
 *     o[.., d] of that row non-finite and nothing else.
 *   - p is 0 for every key that a query does not see, in every row.
 *   - Finite scores must stay within +-2.3e38; scores of +-1e4 and more are supported. Values must
 *     stay within +-6e35, since up to 512 of them are summed before the division
 *     (docs/numerics.md 3.9).
 *
 * Types: q, k, v, o and bias may each be f32, f16 or bf16, in any mixture. All arithmetic is in f32
 * (on the plain path in double, then rounded to f32); elements are converted in registers, without
 * copying a tensor. Widening every input to f32, which is exact, gives the same bits. Of the
 * outputs, only o may have a type other than f32: it is rounded from f32 to nearest, ties to even,
 * with subnormals kept. Values too large for o's type become infinite (in f16 from 65520 on), and a
 * negative result may round to -0. A NaN or an infinity of any type is treated as above.
 *
 * Reproducibility: the bits of every output are the same for any number of threads, any batch size
 * and any amount of padding, and with or without optional outputs. docs/numerics.md explains how
 * and derives the bounds quoted here.
 *
 * Example, given mha_context *context, float *q, float *k, float *v, float *o, int64_t B, int64_t H,
 * int64_t Hk, int64_t T, int64_t S, int64_t D:
 *
 *   const int64_t queries[] = {B, H, T, D}, keys[] = {B, Hk, S, D};
 *   mha_tensor Q = mha_tensor_contiguous(q, MHA_F32, 4, queries);
 *   mha_tensor K = mha_tensor_contiguous(k, MHA_F32, 4, keys);
 *   mha_tensor V = mha_tensor_contiguous(v, MHA_F32, 4, keys);
 *   mha_tensor O = mha_tensor_contiguous(o, MHA_F32, 4, queries);
 *   mha_attention_desc desc = MHA_INIT(mha_attention_desc);
 *   desc.flags = MHA_ATTENTION_CAUSAL;
 *   mha_status status = mha_attention_forward(context, &desc, &Q, &K, &V, &O, NULL);
 *
 * For arrays laid out as [B, T, H, D] use mha_tensor_bthd() instead of mha_tensor_contiguous().
 * docs/engineer.md shows how to build a program.
 *
 * Stability: stable from 1.0 (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_ATTENTION_H
#define MULTIHEAD_ATTENTION_H

#include <multihead/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How attention is computed. */
typedef enum mha_path {
    MHA_PATH_AUTO = 0,  /* tiled where possible, else plain: mha_attention_explain() */
    MHA_PATH_TILED = 1, /* online softmax over key blocks, O(T + S) memory, all instruction sets */
    MHA_PATH_PLAIN = 2  /* the formula directly, row by row, in double */
} mha_path;

/* On request the two products, Q K^T and P V, use arithmetic other than f32 (mha_compute in
 * base.h). MHA_COMPUTE_INT8 applies to linear layers only; here it returns MHA_ERR_ARGUMENT.
 *
 * MHA_COMPUTE_BF16: products of bf16, sums in f32: forward only, through mha_attention_forward().
 * q, k and v of any type are rounded to bf16, which changes nothing in tensors of bf16; the weights
 * exp(score - maximum) are also rounded before they multiply values, but their sum is that of the
 * unrounded weights. It supports everything that f32 does except Shaw's positions, outputs other
 * than lse, the plain path, head sizes above 256 and backward passes; these return
 * MHA_ERR_UNSUPPORTED.
 *
 * Accuracy  against the same formula for the rounded q, k, v: |o - exact| is at most the f32 bound
 *           plus 2^-8 (1 + 2^-7) sum_s p_s |v_s| + 2^-49 sum_s |v_s|; scores and lse have the f32
 *           bound. For normal q, k, v (D = Dv = 64, S = 2048) the relative error of o is 0.16 %
 *           (docs/numerics.md 15).
 * Bits      as in f32: the same on AVX2, AVX-512 and NEON, for any number of threads, any batch,
 *           strides and padding. Processors with VDPBF16PS (Zen 4, Cooper Lake, Sapphire Rapids)
 *           use it. On others the bits are the same, but bf16 is no faster than f32.
 * Range     elements and weights of magnitude below 2^-50 count as 0; a query or key with an
 *           element of magnitude 2^59 or more counts as non-finite. */

/* The largest D and Dv of the tiled path. */
enum { MHA_TILED_MAX_HEAD_DIM = 256 };

/* mha_attention_desc.flags */
enum {
    MHA_ATTENTION_CAUSAL = 1 << 0,      /* s <= t + q_offset */
    MHA_ATTENTION_SCALE_GIVEN = 1 << 1, /* use scale as given, even 0 */
    MHA_ATTENTION_STRICT = 1 << 2,      /* fail instead of falling back to another path */
    MHA_ATTENTION_WINDOW = 1 << 3,      /* left_keys and right_keys apply */
    MHA_ATTENTION_T5_ONE_SIDED = 1 << 4 /* T5 buckets of a decoder: all of them for s <= i */
};

/* A mask computed by the caller: write keep[r * keep_stride + c], nonzero to keep, for queries
 * t = query + r and keys s = key + c, r < queries, c < keys, of head h of sequence b. Called from
 * several threads at once, any number of times per pair; must be deterministic. */
typedef void (*mha_keep_fn)(void *user, int64_t b, int64_t h, int64_t query, int64_t queries,
                            int64_t key, int64_t keys, uint8_t *keep, int64_t keep_stride);

/* The description of a call. All zero: full attention, scale 1/sqrt(D), best path. */
typedef struct mha_attention_desc {
    uint32_t struct_size;
    uint32_t flags;
    mha_path path;
    float scale; /* 0: 1/sqrt(D), unless MHA_ATTENTION_SCALE_GIVEN. Negative is allowed */
    /* Query t is at key position i = t + q_offset. 0 aligns top-left; S - T aligns bottom-right
     * (the queries are the last ones); may be negative, from -2^60 to 2^60. Allowed only if
     * something uses positions: causal, window, ALiBi, T5, Shaw, or the outputs diagonal and
     * offset_mass. */
    int64_t q_offset;
    const int64_t *q_offsets;    /* [B], instead of q_offset; NULL: q_offset for all */
    const int64_t *key_lengths;  /* [B], 0 .. S; NULL: S for all */
    const mha_tensor *keep_mask; /* u8, up to 4 dims, broadcasts to [B,H,T,S]; NULL: keep all */
    const mha_tensor *bias;      /* f32, f16 or bf16, likewise, added to the scaled scores */

    /* Masks that need no T x S array; the cost is proportional to the pairs they keep. */
    int64_t left_keys, right_keys;    /* keys visible before and after position i, which is
                                         visible too; -1: unlimited. Only with
                                         MHA_ATTENTION_WINDOW */
    int64_t sink_keys;                /* number of first keys exempt from the window */
    const mha_tensor *global_keys;    /* u8, broadcasts to [B,S]: keys exempt from it */
    const mha_tensor *global_queries; /* u8, broadcasts to [B,T]: queries exempt from it */
    const mha_tensor *query_documents, *key_documents; /* i32, broadcast to [B,T], [B,S]; both or
                                                          neither */
    const mha_tensor *keep_blocks; /* u8, up to 4 dims, broadcasts to [B,H,rows,cols] of blocks */
    int64_t block_queries, block_keys; /* block size; the last block may be partial. Only with
                                          keep_blocks */
    mha_keep_fn keep_callback;
    void *keep_callback_user;

    /* Score terms, and steps after the softmax. */
    float softcap;                  /* 0: none; else 2^-126 .. 2^127 */
    float dropout;                  /* probability that a p becomes 0, in 0..1 */
    const mha_tensor *alibi_slopes; /* f32, broadcasts to [B,H] (Press et al. 2022) */
    const mha_tensor *t5_table;     /* f32 [buckets,H] (Raffel et al. 2020) */
    int64_t t5_max_distance;        /* 0: 128. Only with t5_table */
    const mha_tensor *shaw_keys;    /* f32 [2 k + 1, D], row clip(s - i, -k, k) + k (Shaw 2018) */
    const mha_tensor *shaw_values;  /* f32 [2 k + 1, Dv]; last axis contiguous, as in shaw_keys */
    const mha_tensor *sink_logits;  /* f32 [H], not scaled (gpt-oss), at most 2^127; -inf: none */
    const mha_tensor *gates;        /* f32, finite, broadcasts to [B,H], multiplies outputs */
    uint64_t dropout_seed;

    /* Ragged batches without padding: q, o are [1,H,queries,D], k, v [1,Hk,keys,D], and sequence b
     * has queries query_starts[b] .. query_starts[b+1]-1 and keys key_starts[b] .. key_starts[b+1]-1.
     * In [B,H] above, B is the number of sequences; inputs of shape [B,T] or [B,S] are packed like q
     * and k, as [1,queries] or [1,keys]. t and s count from each sequence's start, and dense inputs
     * and outputs over S have as many columns as the longest sequence has keys. */
    const int64_t *query_starts, *key_starts; /* [sequences + 1], both or neither */
    int64_t sequences;

    mha_compute compute; /* the arithmetic, f32 or bf16; default f32 */
    uint32_t reserved;   /* 0 */

    const int64_t *key_begins; /* [B], 0 .. S; NULL: 0 for all. For batches padded on the left:
                                  sequences begin there, and end at S or key_lengths */
    /* Global index of q's first head, if heads are divided over calls; dropout and keep_callback
     * use global indices. 0 .. 2^32 - H */
    int64_t first_head;
} mha_attention_desc;

/* The tensors of a descriptor, for code that handles all of them: X(field, type, axes, stage).
 *
 *   type   U8, I32, F32, or REAL: f32, f16 or bf16
 *   axes   broadcast: BHTS, BT, BS, BH, or BLOCKS: [B,H, T / block_queries, S / block_keys];
 *          exact: H, and the tables RH, RD, RV with any number of rows and H, D or Dv columns
 *   stage  where the formula reads it: PRODUCT: in scale * q k; BIAS: added to the capped score;
 *          DISTANCE: likewise, as a function of s - i; MASK: hides keys; RESULT: after the scores
 */
#define MHA_ATTENTION_INPUTS(X)        \
    X(keep_mask, U8, BHTS, MASK)       \
    X(bias, REAL, BHTS, BIAS)          \
    X(global_keys, U8, BS, MASK)       \
    X(global_queries, U8, BT, MASK)    \
    X(query_documents, I32, BT, MASK)  \
    X(key_documents, I32, BS, MASK)    \
    X(keep_blocks, U8, BLOCKS, MASK)   \
    X(alibi_slopes, F32, BH, DISTANCE) \
    X(t5_table, F32, RH, DISTANCE)     \
    X(shaw_keys, F32, RD, PRODUCT)     \
    X(shaw_values, F32, RV, RESULT)    \
    X(sink_logits, F32, H, RESULT)     \
    X(gates, F32, BH, RESULT)

/* mha_attention_outputs.flags */
enum {
    MHA_OUTPUT_DROPPED_PROBABILITIES = 1 << 0 /* probabilities and average_probabilities hold p
                                                 after dropout; default: before */
};

/* Which scores mha_attention_outputs.scores holds, in natural units. */
typedef enum mha_score_stage {
    MHA_SCORES_RAW = 0,    /* scale * sum_d q (k + shaw_keys), of every pair, masks ignored */
    MHA_SCORES_CAPPED = 1, /* RAW after softcap; masks ignored */
    MHA_SCORES_BIASED = 2  /* CAPPED plus bias, ALiBi and T5: the input of the softmax; -inf where
                              the mask drops the key */
} mha_score_stage;

/* Outputs besides o. NULL: not requested. Requesting one does not change the bits of the others.
 *
 * All are computed from p before dropout, unless MHA_OUTPUT_DROPPED_PROBABILITIES is set. With a
 * sink, a row's p may sum to less than 1; the sink is not a key in any output. Ragged batches: B is
 * 1, t indexes the packed axis, S is that of the longest sequence, except that column_sums has the
 * packed axis of the keys.
 *
 * scores   raw and capped: every key in memory, including those beyond key_lengths; a pair whose
 *          query or key has a non-finite element gives NaN, visible or not. Biased: -inf for a key
 *          that the query does not see, NaN for a visible pair with such an element. In a ragged
 *          batch, columns beyond the keys of a sequence are -inf at every stage.
 * rows without a visible key: 0, largest_key and top_keys -1, biased scores -inf.
 * rows with NaN (see above): entropy, largest_weight and top_weights are NaN, largest_key and
 *          top_keys -1; first_token, diagonal, offset_mass, column_sums and averages are NaN if they
 *          include such a p.
 *
 * Cost, relative to the forward pass: outputs that need p recompute the scores of their rows
 * without a T x S array. Row statistics and probabilities of all rows share one pass of 0.7 to 0.8.
 * Writing probabilities adds 0.4; top keys add up to 0.6 if many weights are nearly equal. Column
 * sums, scores and the average take another pass each, of 0.8 to 1. For up to 4,096 keys, without
 * dropout and with lse as the only other output, the average is computed in the forward pass and
 * adds only 0.2 to 0.4. The cost of selected rows is proportional to their number. docs/numerics.md
 * 3.13 has the error bounds. */
typedef struct mha_attention_outputs {
    uint32_t struct_size;
    uint32_t flags;
    const mha_tensor *lse;                   /* [B,H,T] f32, natural logarithm */
    const mha_tensor *probabilities;         /* [B,heads,rows,S] f32; without a sink, rows sum to 1
                                                or are 0 */
    const mha_tensor *average_probabilities; /* [B,T,S] f32, mean over all heads, in f32: summed in
                                                head order, then divided by H */
    const mha_tensor *scores;                /* [B,heads,rows,S] f32 at score_stage */
    mha_score_stage score_stage;
    uint32_t reserved; /* 0 */

    /* The heads and query rows that probabilities and scores hold, in the order given; entries may
     * repeat. NULL with a count of 0: all of them. */
    const int64_t *heads, *rows; /* 0 .. H-1; 0 .. T-1 */
    int64_t heads_count, rows_count;

    /* Statistics of every row over its keys, from the f32 p that probabilities would hold. */
    const mha_tensor *entropy;        /* [B,H,T] f32, -sum_s p log p, natural, 0 log 0 = 0 */
    const mha_tensor *largest_weight; /* [B,H,T] f32, max_s p */
    const mha_tensor *largest_key;    /* [B,H,T] i64, the first key with it; -1 if all p are 0 */
    const mha_tensor *first_token;    /* [B,H,T] f32, p of key 0, or key_begins[b] */
    const mha_tensor *diagonal;       /* [B,H,T] f32, p of key i = t + q_offset; 0 if outside */
    const mha_tensor *offset_mass;    /* [B,H,T,offsets_count] f32, p of key i + offsets[n] */
    const int64_t *offsets;           /* any sign, may repeat */
    int64_t offsets_count;
    const mha_tensor *top_keys;    /* [B,H,T,K] i64, the K >= 1 keys of largest p > 0, descending,
                                      ties by key; -1 where there are fewer. Requires top_weights */
    const mha_tensor *top_weights; /* [B,H,T,K] f32, their p; 0 where there are fewer */
    const mha_tensor *column_sums; /* [B,H,S] f32, sum_t p, the total weight of each key; summed in
                                      double in the order of t, rounded once */
} mha_attention_outputs;

/**
 * Attention forward: the formula above, one softmax per query row.
 *
 *   q [B,H ,T,D ] in    k [B,Hk,S,D ] in    v [B,Hk,S,Dv] in    o [B,H,T,Dv] out
 *
 * each f32, f16 or bf16. H is a multiple of Hk; query head h reads key head h / (H/Hk). Any
 * strides, last axis contiguous. desc and outputs may be NULL. Lengths of 0 are allowed everywhere.
 *
 * Memory   everything is borrowed for the call. Outputs must not overlap inputs or each other.
 *          Scratch comes from the context; on the tiled path its size is bounded for any T and S:
 *          up to 256 MiB if threads divide the keys of few queries, else a few MiB per thread. On
 *          the plain path it is O(S) per thread. Outputs that need the probabilities take 8 more
 *          bytes per row and head (tiled). In a steady state nothing is allocated.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT, MHA_ERR_SHAPE, MHA_ERR_DTYPE, MHA_ERR_STRIDE,
 *          MHA_ERR_OVERLAP, MHA_ERR_SIZE, MHA_ERR_NOMEM; MHA_ERR_UNSUPPORTED with
 *          MHA_ATTENTION_STRICT if the path does not support the problem. On error no output byte
 *          is written.
 * Threads  one call at a time per context; any number of contexts.
 * Accuracy |o - exact| <= (2 max_s|delta_s| + (S/51 + 600) u) max_s|v| with u = 2^-24 and delta_s
 *          the error of a score, (D + 3) u |scale| sum_d |q_d k_d| + u |score| + 1.3 u |bias|, for
 *          small delta_s and without the terms of other features (docs/numerics.md has them all).
 *          f16 and bf16 inputs add no error: exact refers to the values they hold. An o of such a
 *          type adds the bound of mha_tensor_convert().
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_attention_forward(mha_context *context,
                                                       const mha_attention_desc *desc,
                                                       const mha_tensor *q, const mha_tensor *k,
                                                       const mha_tensor *v, const mha_tensor *o,
                                                       const mha_attention_outputs *outputs);

/* Arrays of floats without gaps, for mha_attention_floats(). */
typedef struct mha_attention_sizes {
    uint32_t struct_size;
    uint32_t flags;    /* MHA_ATTENTION_CAUSAL or 0 */
    int64_t batch;     /* B; 0: 1 */
    int64_t heads;     /* H; 0: 1 */
    int64_t kv_heads;  /* Hk; 0: as many as heads */
    int64_t queries;   /* T */
    int64_t keys;      /* S; 0: as many as queries */
    int64_t head_dim;  /* D */
    int64_t value_dim; /* Dv; 0: head_dim */
} mha_attention_sizes;

/**
 * mha_attention_forward() of contiguous arrays of floats.
 *
 *   q [B,H,T,D] in    k [B,Hk,S,D] in    v [B,Hk,S,Dv] in    o [B,H,T,Dv] out
 *
 * With MHA_ATTENTION_CAUSAL q_offset is S - T: the queries are the last T positions of the keys'
 * sequence, and the last query sees all keys.
 *
 * Memory, Threads, Accuracy   as mha_attention_forward().
 * Errors   as there; MHA_ERR_UNSUPPORTED (another flag).
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_attention_floats(mha_context *context,
                                                      const mha_attention_sizes *sizes,
                                                      const float *q, const float *k,
                                                      const float *v, float *o);

/* A callback that receives rows of sequence b: p [H,R,S] f32 holds queries row .. row+R-1 of all
 * heads. An error stops the visit and is returned. It may call the library on the same context. */
typedef mha_status (*mha_rows_fn)(void *user, int64_t b, int64_t row, const mha_tensor *p);

/* mha_attention_plan.flags */
enum {
    /* Keys and values are read in place; otherwise blocks of them are packed. Blocks with a
     * non-finite element and blocks of further passes are packed anyway. */
    MHA_PLAN_KEYS_IN_PLACE = 1 << 0,
    /* Work items are blocks of keys, because there are too few queries for all threads. */
    MHA_PLAN_KEYS_SHARED = 1 << 1,
    /* The keys of a sequence are one block, and the only masks and terms are causal, lengths,
     * keep_mask and bias: a work item packs them once and finishes each of its rows in one step. An
     * item with a non-finite element uses the general path anyway. */
    MHA_PLAN_ONE_BLOCK = 1 << 2
};

/* The plan of a call. */
typedef struct mha_attention_plan {
    mha_path path; /* MHA_PATH_TILED or MHA_PATH_PLAIN */
    mha_isa isa;
    const char *reason; /* why this path, one sentence, static text */
    int64_t key_block;  /* keys per softmax step: a constant, since results depend on it */
    int64_t row_block;  /* maximum number of query rows processed together with those keys */
    int64_t work_items; /* items that the threads share; 1: too small to wake another thread */
    /* Query-key pairs over B and H that causal, lengths, window and sink_keys allow. Neither
     * tensors that hide keys (documents, blocks, masks) or exempt them from the window (global keys
     * and queries) nor the callback are taken into account. */
    int64_t visible_pairs;
    double flops;         /* 2 (D + Dv) visible_pairs, plus 2 D per pair for each further pass */
    double bytes;         /* of inputs and outputs, each counted once */
    size_t scratch_bytes; /* of the context's scratch, all threads */
    mha_compute compute;
    uint32_t flags; /* MHA_PLAN_... */
} mha_attention_plan;

/**
 * Report what mha_attention_forward() would do with the same arguments, with the same checks.
 * o may be NULL here; data pointers of tensors are not read (those of key_lengths and q_offsets
 * are).
 *
 * Memory   fills *plan.   Errors  as mha_attention_forward(), except MHA_ERR_NOMEM.
 * Threads  any.           Since   0.1
 */
MHA_API MHA_NODISCARD mha_status mha_attention_explain(const mha_context *context,
                                                       const mha_attention_desc *desc,
                                                       const mha_tensor *q, const mha_tensor *k,
                                                       const mha_tensor *v, const mha_tensor *o,
                                                       const mha_attention_outputs *outputs,
                                                       mha_attention_plan *plan);

#ifdef __cplusplus
}
#endif
#endif
