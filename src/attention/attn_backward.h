/* Internals of the attention layer: a checked backward call, and data that both paths share. */
#ifndef MHAI_ATTN_BACKWARD_H
#define MHAI_ATTN_BACKWARD_H

#include "attention/attn_plan.h"

#include <multihead/backward.h>

/* Sums of parameter gradients over all pairs, in double; NULL: not requested. Each path has a fixed
 * order of additions, which does not depend on threads. */
typedef struct mhai_backward_sums {
    double *alibi, *gates;           /* [B, H] */
    double *t5;                      /* [buckets, H] */
    double *shaw_keys, *shaw_values; /* [rows, D], [rows, Dv] */
    double *sinks;                   /* [H] */
    double *scale;                   /* [1] */
} mhai_backward_sums;

typedef struct mhai_backward_problem {
    mhai_attn_problem p; /* o and lse are inputs */
    mha_tensor o_gradient;
    mha_tensor lse_gradient, probabilities_gradient, average_gradient; /* data NULL: not given */
    bool dropped; /* the last two are gradients of p after dropout */
    /* Requested gradients; data NULL: not requested. */
    mha_tensor q, k, v, bias, alibi, t5, shaw_keys, shaw_values, sinks, gates, scale;
    bool accumulate;
    double *delta;       /* [batch, H, rows of q]; NaN: an element of the row is not finite */
    double *weight_sums; /* same shape: sum_s p w, the last term of delta; NULL if no
                          * gradients of p are given */
    double *sink_terms;  /* same shape: the term of the sink's gradient; NULL: not requested */
    mhai_backward_sums sums;
} mhai_backward_problem;

/* delta of a row. `row` is an index on the third axis. */
static inline double mhai_backward_delta(const mhai_backward_problem *x, int64_t batch, int64_t h,
                                         int64_t row)
{
    return x->delta[(batch * x->p.H + h) * x->p.q.shape[2] + row];
}

/* Whether the caller passes gradients of p. */
static inline bool mhai_backward_has_weights(const mhai_backward_problem *x)
{
    return x->probabilities_gradient.data || x->average_gradient.data;
}

/* Add weight_sums to delta and to the sink terms. */
void mhai_backward_join_weights(mhai_backward_problem *x);

/* Whether a parameter's gradient needs a walk over the pairs. Sinks and the dense bias do not. */
static inline bool mhai_backward_has_sums(const mhai_backward_problem *x)
{
    return x->alibi.data || x->gates.data || x->t5.data || x->shaw_keys.data ||
           x->shaw_values.data || x->scale.data;
}

/* Number of keys of a sequence in the tensors, including keys after its length. */
static inline int64_t mhai_backward_stored_keys(const mhai_attn_problem *p, int64_t b)
{
    return p->key_starts ? p->key_starts[b + 1] - p->key_starts[b] : p->S;
}

static inline double mhai_backward_gate(const mhai_attn_problem *p, int64_t b, int64_t h)
{
    return p->gates.data ? (double)mhai_attn_f32(&p->gates, b, h) : 1;
}

/* Write a finished element, or add it if the call accumulates. Adding +0 turns -0 into +0. */
static inline void mhai_backward_write(const mhai_backward_problem *x, float *out, double sum)
{
    *out = (float)(x->accumulate ? (double)*out + sum : sum) + 0.0f;
}

/* Shape and strides of the broadcast bias gradient over the axes B, H, T, S. */
typedef struct mhai_backward_bias {
    int64_t shape[4], stride[4]; /* a missing axis has shape 1 and stride 0 */
} mhai_backward_bias;
static inline mhai_backward_bias mhai_backward_bias_of(const mhai_backward_problem *x)
{
    mhai_backward_bias made = {.shape = {1, 1, 1, 1}};
    for (int i = 0; i < x->bias.ndim; i++) {
        made.shape[4 - x->bias.ndim + i] = x->bias.shape[i];
        made.stride[4 - x->bias.ndim + i] = x->bias.stride[i];
    }
    return made;
}

/* Bytes of a scratch array, including alignment. Cannot overflow, because the tables exist in
 * memory. */
static inline size_t mhai_backward_piece(int64_t count, size_t size)
{
    return (size_t)count * size + 64;
}

/* The plan of a backward call; compare mhai_attn_plan (attn_plan.h). */
typedef struct mhai_backward_plan {
    mhai_backward_problem x;
    const mhai_attn_backend *backend;
    int threads;
    size_t worker_bytes;        /* scratch per thread */
    size_t shared_bytes;        /* upper bound on all other scratch */
    bool both;                  /* tiled: one walk computes dq, dk and dv */
    int walks;                  /* tiled: number of walks that compute pairs */
    mha_attention_plan account; /* flops, bytes and pairs are set only if requested */
} mhai_backward_plan;

/* Check a call and plan it in a zeroed struct. part: as in mhai_attn_problem. */
MHA_NODISCARD mha_status mhai_backward_plan_call(const mha_context *context,
                                                 const mha_attention_backward_call *call,
                                                 const mhai_attn_part *part, bool need_data,
                                                 mhai_backward_plan *plan);

/* Copy the caller's struct, for the public function `name`. */
MHA_NODISCARD mha_status mhai_backward_copy_call(const char *name,
                                                 const mha_attention_backward_call *given,
                                                 mha_attention_backward_call *call);

/* Allocate zeroed scratch for the requested sums, and point x->sums to it. */
MHA_NODISCARD mha_status mhai_backward_take_sums(mha_context *context, mhai_backward_problem *x,
                                                 double **sums, int64_t *count);

/* Allocate scratch for the values per row and for *room, and compute these values. */
MHA_NODISCARD mha_status mhai_backward_take_rows(mha_context *context, mhai_backward_problem *x,
                                                 float **room);
void mhai_backward_prepare(mha_context *context, mhai_backward_problem *x, float *room);

/* Add the sink terms of a sequence's rows to the gradient of a head's sink, in order. */
void mhai_backward_add_sink(const mhai_backward_problem *x, int64_t b, int64_t h, double *sum);

/* The same for the terms from weight_sums. Must be called after the rows of all sequences are
 * added. */
void mhai_backward_add_sink_weights(const mhai_backward_problem *x, int64_t b, int64_t h,
                                    double *sum);

/* Write the gradients of all parameters. */
void mhai_backward_write_parameters(const mhai_backward_problem *x);

#endif
