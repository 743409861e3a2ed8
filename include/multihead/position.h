/* multihead: position encodings, added to inputs or applied to queries and keys before attention.
 * Encodings that act on scores (ALiBi, T5, Shaw) are fields of mha_attention_desc; this header
 * computes their slopes and buckets. docs/positions.md lists the model families that use each.
 *
 * Letters: B batch, H heads, T tokens, D head size, E width of an embedding, P rows of a table.
 * All numbers are f32 and all strides are free, even of the last axis. Every function computes in
 * double and rounds each result once; bits do not depend on the number of threads, on strides or on
 * the instruction set.
 *
 * Example, given mha_context *context, mha_tensor q, mha_tensor k:
 *
 *   mha_rope_desc llama = MHA_INIT(mha_rope_desc);
 *   llama.pairing = MHA_ROPE_HALVES, llama.base = 500000;
 *   mha_status status = mha_rope_apply(context, &llama, &q, &q); // in place
 *   if (!status) status = mha_rope_apply(context, &llama, &k, &k);
 *
 * Stability: stable from 1.0 (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_POSITION_H
#define MULTIHEAD_POSITION_H

#include <multihead/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The positions of tokens. Zero everywhere: token t of every sequence is at t. At most one field
 * may be set. */
typedef struct mha_positions {
    int64_t start;         /* token t is at start + t; may be negative */
    const int64_t *starts; /* [B], one start per sequence: its cached positions */
    const mha_tensor *ids; /* i64, up to 2 dims, broadcasts to [B,T]: any position for any token */
} mha_positions;

/* ---- Rotary position embedding --------------------------------------------------------------- */

/* Which two elements of a head rotate together, i = 0 .. rotary_dim / 2 - 1. Weights are trained
 * for one of the two; with the other the results are wrong, without an error. */
typedef enum mha_rope_pairing {
    MHA_ROPE_INTERLEAVED = 0, /* 2 i and 2 i + 1: as published; GPT-J, ChatGLM, Cohere */
    MHA_ROPE_HALVES = 1       /* i and i + rotary_dim / 2: GPT-NeoX, Llama in transformers */
} mha_rope_pairing;

/* mha_rope_desc.flags */
enum {
    MHA_ROPE_INVERSE = 1 << 0 /* rotate by -angle: the inverse, and the derivative's transpose */
};

/* Zero everywhere means: as published, all of D, base 10000, positions 0 .. T-1. */
typedef struct mha_rope_desc {
    uint32_t struct_size;
    uint32_t flags;
    mha_rope_pairing pairing;
    uint32_t reserved;  /* 0 */
    int64_t rotary_dim; /* number of leading elements that rotate, even; 0: D. The rest is copied */
    double base;        /* 0: 10000; else at least 1 */
    double factor;      /* linear scaling, positions are divided by it; 0: 1; at least 2^-64 */
    mha_positions positions;
    /* Precomputed cosines and sines instead of base and factor, both or none: f32
     * [P, rotary_dim / 2], row p for position p, 0 <= p < P; or f32
     * [B or 1, T or 1, rotary_dim / 2], one row per token, with positions left at zero. For
     * scalings that are not linear. */
    const mha_tensor *cos_table, *sin_table;
} mha_rope_desc;

/**
 * Rotary position embedding (Su et al. 2021, section 3.2.2), of queries and keys before attention:
 *
 *   y[b,h,t,j] = x[b,h,t,j] cos a - x[b,h,t,k] sin a        (j, k) the i-th pair,
 *   y[b,h,t,k] = x[b,h,t,j] sin a + x[b,h,t,k] cos a        a = pos[b,t] / factor * base^(-2 i / R)
 *
 *   x, y [B,H,T,D]     R = rotary_dim     y[.., d] = x[.., d] for d >= R
 *
 * desc may be NULL. y may be the same view as x (in place), else they must not overlap. A
 * non-finite element makes its pair non-finite and nothing else.
 *
 * Memory   all borrowed for the call. Nothing is allocated.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (rotary_dim, pairing, base, factor, a position outside
 *          the tables), MHA_ERR_SHAPE, MHA_ERR_DTYPE, MHA_ERR_STRIDE, MHA_ERR_OVERLAP, MHA_ERR_SIZE
 *          (a position overflows), MHA_ERR_UNSUPPORTED (unknown flags). On error no output byte is
 *          written.
 * Threads  one call at a time per context.
 * Accuracy |y_j - exact| <= u |y_j| + (|x_j| + |x_k|) ((5 + ln base) |a| + 4) 2^-53, u = 2^-24:
 *          positions up to several million cost no accuracy. With tables 2^-52 replaces the
 *          parenthesis and its factor. Positions of 2^53 and beyond are rounded to double first.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_rope_apply(mha_context *context, const mha_rope_desc *desc,
                                                const mha_tensor *x, const mha_tensor *y);

/* ---- Encodings that are added to embeddings -------------------------------------------------- */

/**
 * Rows start .. start + T - 1 of the sinusoidal encoding (Vaswani et al. 2017, section 3.5):
 *
 *   table[t,2i]   = sin((start + t) / 10000^(2i/E))
 *   table[t,2i+1] = cos((start + t) / 10000^(2i/E))         for every index below E, odd E too
 *
 *   table [T,E] out
 *
 * Memory   borrowed for the call. Nothing is allocated.
 * Errors   MHA_ERR_NULL, MHA_ERR_SHAPE, MHA_ERR_DTYPE, MHA_ERR_STRIDE, MHA_ERR_SIZE. On error no
 *          output byte is written.
 * Threads  one call at a time per context.
 * Accuracy |table - exact| <= u |table| + (15 |a| + 4) 2^-53, a the angle, u = 2^-24.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_sinusoidal_encoding(mha_context *context, int64_t start,
                                                         const mha_tensor *table);

/**
 * Add an encoding to embeddings: y[b,t,e] = x[b,t,e] + table[pos[b,t], e], for learned tables and
 * sinusoidal ones.
 *
 *   x [B,T,E] in    table [P,E] in    y [B,T,E] out, may be the same view as x
 *
 * positions NULL: token t is at t.
 *
 * Memory   all borrowed for the call. Nothing is allocated.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (a position outside 0 .. P-1), MHA_ERR_SHAPE,
 *          MHA_ERR_DTYPE, MHA_ERR_STRIDE, MHA_ERR_OVERLAP, MHA_ERR_SIZE. On error no output byte is
 *          written.
 * Threads  one call at a time per context.
 * Accuracy exact sum, rounded once.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_add_positions(mha_context *context,
                                                   const mha_positions *positions,
                                                   const mha_tensor *x, const mha_tensor *table,
                                                   const mha_tensor *y);

/* ---- Score terms ----------------------------------------------------------------------------- */

/**
 * The slopes of ALiBi (Press et al. 2022) for any number of heads, as in the authors' code.
 * With n the largest power of two <= num_heads:
 *
 *   slopes[h] = 2^(-8 (h + 1) / n)              for h < n
 *   slopes[h] = 2^(-4 (2 (h - n) + 1) / n)      for the rest: every second one of 2 n heads
 *
 * Memory   fills num_heads floats.   Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (num_heads < 1).
 * Threads  any.   Accuracy  each rounded once from double: within (1 + 2^-24) half an ulp.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_alibi_slopes(int64_t num_heads, float *slopes);

/**
 * The row of a T5 bias table (Raffel et al. 2020) for a key at distance relative = s - i from its
 * query. One side has n = buckets (one_sided, a decoder: s > i counts as 0) or buckets / 2, those
 * of s > i being the upper half; d = |s - i|:
 *
 *   d < n/2           its own bucket, d
 *   else              n/2 + floor(log(d / (n/2)) / log(max_distance / (n/2)) * (n - n/2)), at most
 *                     n - 1                                                    (n/2 rounded down)
 *
 * Attention uses the same function; T5 itself has 32 buckets and max_distance 128.
 *
 * Memory   fills *bucket, 0 .. buckets - 1.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT: fewer than 2 buckets, two-sided fewer than 4 or an odd
 *          number; max_distance (0: 128) not above n/2.
 * Threads  any.   Accuracy  exact: a distance on a boundary belongs to the upper bucket.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_t5_bucket(int64_t relative, int64_t buckets,
                                               int64_t max_distance, bool one_sided,
                                               int64_t *bucket);

/* ---- Norms of queries and keys --------------------------------------------------------------- */

typedef enum mha_qk_norm_kind {
    MHA_QK_NORM_RMS = 0, /* x / sqrt(mean x^2 + epsilon): Qwen3, Gemma 3 */
    MHA_QK_NORM_L2 = 1   /* x / max(|x|, epsilon): Henry et al. 2020, Swin v2 */
} mha_qk_norm_kind;

/**
 * Normalise each head's vector, of queries and keys before attention (and before RoPE):
 *
 *   y[b,h,t,:] = x[b,h,t,:] / norm(x[b,h,t,:]) * weight
 *
 *   x, y [B,H,T,D]     weight [D], or [H,D] per head, or NULL: 1
 *
 * y may be the same view as x, else they must not overlap. A vector of zeros gives zeros for any
 * epsilon. A NaN makes its vector NaN; an infinity makes its vector zeros and one NaN. Other vectors
 * do not change.
 *
 * Memory   all borrowed for the call. Nothing is allocated.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (kind; epsilon negative or not finite), MHA_ERR_SHAPE,
 *          MHA_ERR_DTYPE, MHA_ERR_STRIDE, MHA_ERR_OVERLAP. On error no output byte is written.
 * Threads  one call at a time per context.
 * Accuracy |y - exact| <= (u + (D + 8) 2^-53) |y|, u = 2^-24.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_qk_norm(mha_context *context, mha_qk_norm_kind kind,
                                             float epsilon, const mha_tensor *x,
                                             const mha_tensor *weight, const mha_tensor *y);

#ifdef __cplusplus
}
#endif
#endif
