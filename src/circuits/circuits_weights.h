/* Weights of a transformer by name, and the vectors of tokens in the stream. */
#ifndef MHAI_CIRCUITS_WEIGHTS_H
#define MHAI_CIRCUITS_WEIGHTS_H

#include <multihead/circuits.h>
#include <multihead/component.h>

#include <stdbool.h>

/* mha_scratch_alloc() of a x b elements, with a, b >= 0. */
MHA_NODISCARD mha_status mhai_circuits_take(mha_context *context, int64_t a, int64_t b, size_t size,
                                            void *pointer);

/* A parameter in scratch. All elements are finite. A vector has 1 column. Without a parameter of
 * that name, data is NULL, and rows and columns are 0. */
typedef struct mhai_weight {
    const float *data;
    int64_t rows, columns;
} mhai_weight;

MHA_NODISCARD mha_status mhai_circuits_weight(mha_context *context, const mha_transformer *t,
                                              int64_t layer, const char *name, mhai_weight *weight);

/* W_Q, W_K [H D,E], W_V [H D,E] and W_O [E,H D] of a layer with latent attention: products of its
 * matrices, with the norms of latents folded in. Rows of W_V and columns of W_O beyond value_dim,
 * which is at most D, are 0. */
MHA_NODISCARD mha_status mhai_circuits_latent(mha_context *context, const mha_transformer *t,
                                              const mha_transformer_desc *d, int64_t layer,
                                              mhai_weight *q, mhai_weight *k, mhai_weight *v,
                                              mhai_weight *o);

/* The tokens of one side: t = weight A row, where row is a row of a table, A a linear map, and
 * weight comes from the division by a norm. */
typedef struct mhai_tokens {
    mha_parameter table; /* [V,E] */
    int64_t V, E;
    double scale;
    const float *gain;   /* [E] or NULL; scratch */
    bool centred, first; /* first: centred before gain */
    bool layer;          /* norms are LayerNorm */
    bool normed;         /* rows are divided by a norm */
    bool pre_norm;       /* weight also includes the divisor of the first layer's norm */
    double epsilon;
} mhai_tokens;

MHA_NODISCARD mha_status mhai_circuits_tokens(mha_context *context, const mha_transformer *t,
                                              mha_token_side side, uint32_t flags,
                                              mhai_tokens *tokens);

/* Subtract the mean from x. */
void mhai_circuits_centre(double *x, int64_t count);

/* Replace x with A x, or with A^T x. */
void mhai_tokens_map(const mhai_tokens *tokens, double *x);
void mhai_tokens_pull(const mhai_tokens *tokens, double *x);

/* Compute the weight of a row; room [E] is scratch. */
double mhai_tokens_weight(const mhai_tokens *tokens, const float *row, double *room);

/* Read rows of the table, and check that they are finite. */
MHA_NODISCARD mha_status mhai_tokens_read(const mha_transformer *t, const mhai_tokens *tokens,
                                          int64_t first, int64_t rows, float *to);

/* gram [E,E] = sum of t_a^T t_b over tokens in order, with the weight of a to the given
 * power. progress may be NULL. */
MHA_NODISCARD mha_status mhai_circuits_gram(mha_context *context, const mha_transformer *t,
                                            const mhai_tokens *a, const mhai_tokens *b, int power,
                                            const mha_circuits_desc *desc, double *gram);

#endif
