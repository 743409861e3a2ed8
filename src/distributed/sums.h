/* Gradients that are sums over queries, of parameters and of a bias that queries share. Sums go from piece to piece in
 * the order in which one process adds (sequences, heads, queries), and the last rank sends them to all. */
#ifndef MHAI_SUMS_H
#define MHAI_SUMS_H

#include "distributed/exchange.h"

#include "attention/attn_backward_share.h"

typedef struct mhai_sums {
    mha_context *context;
    const mhai_roles *roles;
    const mha_attention_desc *desc;
    mhai_backward_problem *x;    /* of all heads */
    mhai_backward_share *shares; /* of this rank's pieces, computed */
    bool shares_bias;            /* its gradient is wanted, and queries share it */
    double *parameters;          /* what x->sums points into */
    int64_t count;               /* of numbers; 0: no parameter's gradient is wanted */
    bool again;                  /* what gradients of probabilities add to the sinks' are added */
    mhai_cells_job job;          /* of x */
    double *bias;                /* [items][numbers] */
    int64_t items, numbers;
    int32_t *at; /* [items] the rank that has them; -1: none yet, they are 0 */
} mhai_sums;

/* Take scratch; the caller's fields are set, except shares. */
MHA_NODISCARD mha_status mhai_sums_take(mhai_sums *sums);

/* Add up, and write the gradients at every rank. */
MHA_NODISCARD mha_status mhai_sums_run(mhai_sums *sums);

#endif
