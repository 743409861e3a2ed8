/* The gradients of the whole formula of multihead/attention.h in double precision, summed over
 * single pairs, without tiles or recomputation from a stored lse. Central differences of
 * kinds_reference.h verify them (tests/unit/test_backward_reference.c). The reference does not call
 * the library. */
#ifndef TEST_BACKWARD_REFERENCE_H
#define TEST_BACKWARD_REFERENCE_H

#include "reference/kinds_reference.h"

/* Inputs with gradients: the name, and the tensor in ref_attention. */
#define BACKWARD_LIST(X)                    \
    X(Q, q, a->q)                           \
    X(K, k, a->k)                           \
    X(V, v, a->v)                           \
    X(BIAS, bias, a->desc->bias)            \
    X(ALIBI, alibi, a->desc->alibi_slopes)  \
    X(T5, t5, a->desc->t5_table)            \
    X(SHAW_K, shaw_k, a->desc->shaw_keys)   \
    X(SHAW_V, shaw_v, a->desc->shaw_values) \
    X(SINKS, sinks, a->desc->sink_logits)   \
    X(GATES, gates, a->desc->gates)
enum {
#define BACKWARD_ENUM(name, field, tensor) BACKWARD_##name,
    BACKWARD_LIST(BACKWARD_ENUM)
#undef BACKWARD_ENUM
        BACKWARD_SCALE,
    BACKWARD_COUNT
};

/* One contiguous array per input, in the input's shape, or NULL if the problem lacks the input. */
typedef struct backward_arrays {
    double *of[BACKWARD_COUNT];
    int64_t count[BACKWARD_COUNT];
} backward_arrays;

/* The input itself, or NULL if there is none, and for the scale. */
const mha_tensor *backward_input(const ref_attention *a, int which);
const char *backward_name(int which);

backward_arrays backward_arrays_make(const ref_attention *a);
void backward_arrays_free(backward_arrays *x);

/* The loss, as its gradients with respect to the forward call's outputs. A gradient is NULL if the
 * loss does not depend on the output. The loss is linear: it is the sum of gradients times
 * results. */
typedef struct backward_loss {
    const mha_tensor *o;             /* [B,H,T,Dv] */
    const mha_tensor *lse;           /* [B,H,T] */
    const mha_tensor *probabilities; /* [B,H,T,S] */
    const mha_tensor *average;       /* [B,T,S] */
    bool dropped;                    /* the last two use p after dropout */
} backward_loss;

/* The derivative of the loss by p of key s in a row; `factor` is the dropout factor of p. */
double backward_weight(const backward_loss *loss, const ref_attention *a, int64_t b, int64_t h,
                       int64_t t, int64_t s, double factor);

/* The terms of the gradients of one visible pair. */
typedef struct backward_pair {
    kinds_sequence at;
    int64_t b, h, hk, t, s;
    double p, factor, gate; /* factor: the dropout factor of p */
    double x;               /* dO . (v + shaw) */
    double w;               /* backward_weight() */
    double delta;           /* delta of the row: dO . o + sum p w - dlse */
    double ds;              /* gradient of the score after the cap, with dp = gate factor x + w */
    double slope;           /* slope of the cap */
    double score, lse;
} backward_pair;
typedef void (*backward_visit_fn)(void *user, const backward_pair *pair);

/* Visits every visible pair. If `row` is not NULL, it is called after the pairs of each row. */
typedef void (*backward_row_fn)(void *user, int64_t b, int64_t h, int64_t t, const kinds_row *row,
                                double delta);
void backward_walk(const ref_attention *a, const backward_loss *loss, backward_visit_fn visit,
                   backward_row_fn row, void *user);

/* A pair's share of the gradients. Each gradient is linear in one of these numbers. */
typedef struct backward_share {
    double ds;   /* bias, ALiBi, T5 */
    double dx_q; /* times scale (k + shaw): q */
    double dx_k; /* times scale q: k, Shaw's keys */
    double dx_c; /* times q (k + shaw): scale */
    double w;    /* times dO: v, Shaw's values */
    double gate; /* gates */
} backward_share;

/* Adds a share. With `magnitudes`, the share is multiplied by the absolute values of its
 * factors. */
void backward_add(const ref_attention *a, const mha_tensor *o_gradient, const backward_pair *pair,
                  const backward_share *share, bool magnitudes, backward_arrays *out);

/* All gradients of the loss. */
void backward_reference(const ref_attention *a, const backward_loss *loss, backward_arrays *out);

#endif
