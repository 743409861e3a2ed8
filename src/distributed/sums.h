/* Gradients that are sums over queries: of parameters, and of a bias that queries share. Sums are
 * passed from piece to piece in the order in which one process adds (sequences, heads, queries);
 * the last rank broadcasts them. */
#ifndef MHAI_SUMS_H
#define MHAI_SUMS_H

#include "distributed/exchange.h"

#include "attention/attn_backward_share.h"

typedef struct mhai_sums {
    mha_context *context;
    const mhai_roles *roles;
    const mha_attention_desc *desc;
    mhai_backward_problem *x;    /* of all heads */
    mhai_backward_share *shares; /* computed, for this rank's pieces */
    bool shares_bias;            /* its gradient is requested, and queries share it */
    double *parameters;          /* memory of x->sums */
    int64_t count;               /* of numbers; 0: no parameter's gradient is requested */
    bool again;                  /* terms of the sinks' gradients from gradients of probabilities */
    mhai_cells_job job;          /* of x */
    double *bias;                /* [items][numbers] */
    int64_t items, numbers;
    int32_t *at; /* [items] the rank that holds them; -1: none yet, they are 0 */
} mhai_sums;

/* Allocate scratch; the caller has set its fields, except shares. */
MHA_NODISCARD mha_status mhai_sums_take(mhai_sums *sums);

/* Add the sums, and write the gradients at every rank. */
MHA_NODISCARD mha_status mhai_sums_run(mhai_sums *sums);

#endif
