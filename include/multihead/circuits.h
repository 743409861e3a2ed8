/* multihead: the QK and OV circuits of heads, from the weights alone (Elhage et al.
 * 2021). libmultihead-circuits, requires LAPACK.
 *
 * Letters as in attention.h, E the width of the residual stream, L layers, V tokens. W_Q[h],
 * W_K[h], W_V[h] [D,E] are a head's rows of the projections, for K and V the rows of its group;
 * W_O[h] [E,D] its columns of the output projection. For stream vectors x of a query and y of a
 * key,
 *
 *   score  x^T M_QK y / sqrt(D)     M_QK = W_Q[h]^T R W_K[h] = sum_k s_k q_k k_k^T
 *   adds   M_OV y                   M_OV = W_O[h] W_V[h]     = sum_k s_k w_k r_k^T
 *
 * Norms are folded in as published (ibid., "Handling Layer Normalization"). The weights of the norm
 * in front of a layer, and a LayerNorm's centring, go into W_Q, W_K and W_V; the weights of query
 * and key norms into their rows; those of a branch norm (Gemma 2) into W_O. The division of every
 * norm, biases, softcaps, score terms and everything between two layers are ignored. Norms after
 * the sum (post-norm) are not folded.
 *
 * R is the identity without rotary positions. With them it rotates keys: R = mean over offsets o =
 * first .. last of R(-o), times the square of YaRN's amplitude, for a key o tokens before its
 * query. R(p) is the rotation of position p.
 *
 * Latent attention (mha_layer_desc): W_Q, W_K and W_V are the products of its matrices, rounded to
 * f32, as if latents had a root mean square of 1. D is head_dim; value_dim must not exceed it.
 *
 * No E x E matrix is decomposed: W_Q^T = Q_q R_q and W_K^T = Q_k R_k (QR), the singular value
 * decomposition of R_q R R_k^T [D,D] = U S V^T, q = Q_q U, k = Q_k V; likewise for M_OV. All in
 * double.
 *
 * Bits depend on the installed LAPACK, but not on the number of threads.
 * docs/circuits.md has the definitions with their sources and limits.
 *
 * Example, given mha_context *context, const mha_transformer *transformer, double *copying:
 *
 *   mha_circuits circuits = MHA_INIT(mha_circuits);
 *   circuits.copying = copying; // [L,H] out: -1 .. 1
 *   mha_status status = mha_transformer_circuits(context, transformer, NULL, &circuits);
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_CIRCUITS_H
#define MULTIHEAD_CIRCUITS_H

#include <multihead/importance.h>
#include <multihead/transformer.h>

#ifdef __cplusplus
extern "C" {
#endif

/* mha_circuits_desc.flags, mha_direction_desc.flags */
enum {
    /* Divide a token's embedding by its root mean square, with the centring and epsilon of the norm
     * in front of the first layer (and of a norm on embeddings), so that the length of an embedding
     * does not affect the order. Default: as published, no division */
    MHA_CIRCUITS_NORMED_TOKENS = 1 << 0
};

typedef struct mha_circuits_desc {
    uint32_t struct_size;
    uint32_t flags;
    /* Offsets of R: the key is that many tokens before the query; negative: after it. 0, 0: M_QK is
     * W_Q^T W_K. At most 2^20 of them, none beyond 2^40. Ignored without rotary positions */
    int64_t first_offset, last_offset;
    int64_t directions;   /* K, leading singular vectors of each circuit, up to D and E; 0: 1 */
    const uint8_t *heads; /* [L,H], not 0: this head; NULL: all */
    mha_progress_fn
        progress; /* called before each layer, and with done 0 while tokens are read; NULL: none */
    void *progress_user;
} mha_circuits_desc;

/* The outputs; NULL: not requested. H is the transformer's. Entries of skipped heads, or heads that
 * a layer lacks, are not written. */
typedef struct mha_circuits {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    double *qk_values; /* [L,H,D] singular values of M_QK, the largest first */
    double *ov_values; /* [L,H,D] of M_OV */
    float *queries;    /* [L,H,K,E] q_k, a direction of queries */
    float *keys;       /* [L,H,K,E] k_k, the direction of keys that q_k matches */
    float *reads;      /* [L,H,K,E] r_k, a direction that the head reads */
    float *writes;     /* [L,H,K,E] w_k, the direction that it writes for r_k */
    /* [L,H] the sum of the eigenvalues divided by the sum of their absolute values: -1 to 1, 0 if
     * all are 0. The matrices are
     *   copying   U M_OV T^T  [V,V], from tokens to logits. 1: the head raises the logit of the token
     *             that it reads; -1: it lowers it
     *   matching  T M_QK T^T  [V,V], from query tokens to key tokens. 1: it attends to the same token
     * T are the token embeddings and U the output matrix with its norm folded in, or T if there is
     * no output */
    double *copying, *matching;
} mha_circuits;

/**
 * Circuits of the heads of self-attention. Singular vectors have length 1. The sign of each pair
 * makes the element of q_k or w_k of largest magnitude positive (the first of equal ones).
 *
 * desc may be NULL. Eigenvalues are computed from the [D,D] product, since AB and BA have the same
 * nonzero eigenvalues.
 *
 * Cost     O(E D^2 + D^3) per head; copying and matching: V E^2 once, and E^2 D per head.
 * Memory   fills *out. Scratch: the weights of a layer, for each thread 3 E D + 6 D^2 doubles and
 *          LAPACK's workspace, with copying and matching E^2 and H D E doubles of each.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (struct_size, offsets, directions); MHA_ERR_UNSUPPORTED
 *          (an unknown flag or a reserved field is set); MHA_ERR_NUMERIC (a weight is not finite,
 *          or LAPACK does not converge); MHA_ERR_SIZE, MHA_ERR_NOMEM; the status that progress
 *          returned. Outputs are then unspecified.
 * Threads  one call at a time per context.
 * Accuracy singular values within 100 D 2^-52 of the largest. The error of vectors grows as
 *          singular values approach each other: for equal values only the span is determined.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_transformer_circuits(mha_context *context,
                                                          const mha_transformer *transformer,
                                                          const mha_circuits_desc *desc,
                                                          const mha_circuits *out);

/* ---- tokens at the ends of a direction ------------------------------------------------------- */

typedef enum mha_token_side {
    MHA_SIDE_EMBEDDING = 0, /* the embedding of a token: for queries, keys, reads */
    MHA_SIDE_UNEMBEDDING =
        1 /* its row of the output: for writes; the embedding if there is no output */
} mha_token_side;

typedef struct mha_direction_desc {
    uint32_t struct_size;
    uint32_t flags; /* MHA_CIRCUITS_NORMED_TOKENS, for MHA_SIDE_EMBEDDING */
    mha_token_side side;
    uint32_t reserved;        /* 0 */
    int64_t count;            /* M, directions */
    int64_t most;             /* N, tokens at each end */
    const uint8_t *tokens;    /* [V], not 0: this token may be listed; NULL: all */
    mha_progress_fn progress; /* of tokens; NULL: none */
    void *progress_user;
} mha_direction_desc;

/**
 * The tokens with the largest and smallest projection on each direction: t . direction, with t the
 * embedding (scaled, the weights and centring of a norm on it folded in; without positions and
 * types) or the row of the output (the final norm folded in).
 *
 *   directions [M,E] in    ids [M,2,N] out: largest, then smallest, the extreme first; ties by id
 *   values [M,2,N] out, or NULL
 *
 * Cost     M V E.
 * Memory   borrowed; scratch of M E floats, 256 rows of E and of M.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (struct_size, a number, fewer than N tokens);
 *          MHA_ERR_UNSUPPORTED; MHA_ERR_NUMERIC (a weight is not finite); MHA_ERR_SIZE,
 *          MHA_ERR_NOMEM; the status that progress returned. Outputs are then unspecified.
 * Threads  one call at a time per context.   Accuracy  that of mha_linear_forward(): bits do not depend
 *          on the number of threads.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_direction_tokens(mha_context *context,
                                                      const mha_transformer *transformer,
                                                      const mha_direction_desc *desc,
                                                      const float *directions, int32_t *ids,
                                                      float *values);

#ifdef __cplusplus
}
#endif
#endif
