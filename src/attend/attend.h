/* Attention without its projections, for modules and transformers: normalise and rotate queries and
 * keys, then attend, with or without a cache. The order of the steps is that of Llama and its
 * descendants, including Qwen 3. */
#ifndef MHAI_ATTEND_H
#define MHAI_ATTEND_H

#include <multihead/attention.h>
#include <multihead/cache.h>
#include <multihead/position.h>

/* Sinks that move along with a window (StreamingLLM, Xiao et al. 2024). A query at
 * position i sees sink j at position j + max(0, i + 1 - count - window), as if the
 * discarded tokens had never existed. */
typedef struct mhai_attend_sinks {
    float *keys; /* [B,Hk,count,D] before rotation; persist between steps */
    int64_t count, window;
    mha_tensor cosines, sines; /* [B,T,width / 2] for the call's rows */
    /* Compute the rotations of any positions: [rows,width], each row with cosines and then sines.
     * Width 0: keys are not rotated. */
    mha_status (*turn)(const void *encoding, mha_context *context, int64_t begin, int64_t rows,
                       float *turns);
    const void *encoding;
    int64_t width;
} mhai_attend_sinks;

/* Settings of a layer, followed by those of a call. */
typedef struct mhai_attend {
    mha_qk_norm_kind qk_norm;
    bool norms_row; /* one norm for all heads of a token, whose vectors are then contiguous */
    bool norms_values;
    float qk_norm_epsilon;
    const float *q_norm, *k_norm; /* [D], or with norms_row [H D] and [Hk D]; NULL: no norms */
    bool rotates;
    mha_rope_desc rope; /* without positions */
    mha_attention_desc desc;

    mha_context *context;
    bool borrows; /* k and v are those of an earlier layer, or already in the cache */
    mha_positions query_positions, key_positions;
    mha_attention_outputs outputs;
    mha_kv_cache *cache;            /* or NULL */
    const mhai_attend_sinks *sinks; /* requires a cache with a window, firsts, counts and
                                     * desc.q_offsets; NULL: sinks keep their positions */
    const int64_t *firsts, *counts; /* [B] with a cache (see mha_kv_cache_append_rows()) */
    mha_tensor q, k, v, heads;      /* q [B,H,T,D]; k, v [B,Hk,S,..]; with a cache,
                                     * ndim 0: absent */
} mhai_attend;

/* Check that norms and rotation are valid for heads of D elements. */
MHA_NODISCARD mha_status mhai_attend_check(mha_context *context, const mhai_attend *a, int64_t D);

/* Normalise and rotate q and k in place. */
MHA_NODISCARD mha_status mhai_attend_position(const mhai_attend *a);

/* Compute the heads from q, k and v. With a cache, append k and v, then attend to all keys in it.
 * After an error, the caller truncates the cache. */
MHA_NODISCARD mha_status mhai_attend_run(const mhai_attend *a);

/* The input of a norm, and the gradient of its weight, to which the call adds. weight NULL: not
 * requested. */
typedef struct mhai_attend_norm {
    const mha_tensor *input; /* shaped like q or k; unused without norms */
    float *weight;           /* same shape as the norm's weight */
} mhai_attend_norm;

/* Backpropagate dq and dk in place through rotation and norms, to the projections. */
MHA_NODISCARD mha_status mhai_attend_position_backward(const mhai_attend *a, const mha_tensor *dq,
                                                       const mha_tensor *dk,
                                                       const mhai_attend_norm *q_norm,
                                                       const mhai_attend_norm *k_norm);

/* The same for values that are normalised: dv in place. v: the projected values. */
MHA_NODISCARD mha_status mhai_attend_values_backward(const mhai_attend *a, const mha_tensor *v,
                                                     const mha_tensor *dv);

#endif
