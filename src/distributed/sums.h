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
    mhai_backward_problem *x;    /* the problem of all heads */
    mhai_backward_share *shares; /* of this rank's pieces, already computed */
    bool shares_bias;            /* queries share a bias whose gradient is requested */
    double *parameters;          /* memory of x->sums */
    int64_t count;               /* number of sums; 0: no parameter's gradient is requested */
    bool again;                  /* adds the terms of sinks from gradients of probabilities */
    mhai_cells_job job;          /* of x */
    double *bias;                /* [items][numbers] */
    int64_t items, numbers;
    int32_t *at; /* [items] the rank that holds the sums; -1: none yet, they are 0 */
} mhai_sums;

/* Allocate scratch. The caller has set the other fields; shares may follow later. */
MHA_NODISCARD mha_status mhai_sums_take(mhai_sums *sums);

/* Add the sums, and write the gradients at every rank. */
MHA_NODISCARD mha_status mhai_sums_run(mhai_sums *sums);

#endif
