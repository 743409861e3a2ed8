/* Gradients that are sums over queries: gradients of parameters, and of a bias that queries share.
 * Sums are passed from piece to piece in the order in which a single process adds: sequences,
 * heads, queries. The last rank broadcasts them. */
#ifndef MHAI_SUMS_H
#define MHAI_SUMS_H

#include "distributed/exchange.h"

#include "attention/attn_backward_share.h"

typedef struct mhai_sums {
    mha_context *context;
    const mhai_roles *roles;
    const mha_attention_desc *desc;
    mhai_backward_problem *x;    /* the problem of all heads */
    mhai_backward_share *shares; /* one per piece of this rank, already computed */
    bool shares_bias;            /* the gradient of a bias that queries share is requested */
    double *parameters;          /* memory behind x->sums */
    int64_t count;               /* number of sums; 0: no gradients of parameters are requested */
    bool again;                  /* the second round, for sink terms from gradients
                                  * of probabilities */
    mhai_cells_job job;          /* of x */
    double *bias;                /* [items][numbers] */
    int64_t items, numbers;
    int32_t *at; /* [items] rank that has the sums; -1: none yet, they are 0 */
} mhai_sums;

/* Allocate scratch. The other fields must be set; shares may be set later. */
MHA_NODISCARD mha_status mhai_sums_take(mhai_sums *sums);

/* Compute the sums, and write the gradients on every rank. */
MHA_NODISCARD mha_status mhai_sums_run(mhai_sums *sums);

#endif
