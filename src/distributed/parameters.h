/* Gradients of parameters, which are sums over all queries. A sum goes from piece to piece in the order in
 * which one process adds, and the last rank sends it to all. */
#ifndef MHAI_PARAMETERS_H
#define MHAI_PARAMETERS_H

#include "distributed/split.h"

#include "attention/attn_backward_fold.h"

typedef struct mhai_parameters {
    const mhai_split *s;
    const mha_attention_desc *desc;
    const mhai_backward_fold *folds; /* of this rank's pieces, finished */
    mhai_backward_problem *x;        /* whose sums these are: zeros at first */
    double *sums;
    int64_t count; /* of numbers; 0: no parameter's gradient is wanted */
} mhai_parameters;

/* All sums at all ranks. */
MHA_NODISCARD mha_status mhai_parameters_sum(const mhai_parameters *parameters);

#endif
