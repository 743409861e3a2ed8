/* What layer norm and RMS norm share, forward and backward. */
#ifndef MHAI_NORM_H
#define MHAI_NORM_H

#include "nn/nn_check.h"

/* Layer norm; without a mean (and then without a bias) it is RMS norm. */
typedef struct mhai_norm {
    const char *function; /* for messages */
    bool centred;
    const mha_tensor *x, *residual, *weight, *bias;
    double epsilon;
} mhai_norm;

MHA_NODISCARD mha_status mhai_norm_check(const mhai_norm *norm);

/* A row's mean (0 if not centred) and 1 / sqrt(variance + epsilon), in double and in two passes:
 * nothing cancels. z has the row of x + residual. */
typedef struct mhai_norm_row {
    double mean, scale;
} mhai_norm_row;
mhai_norm_row mhai_norm_measure(const mhai_norm *norm, const float *z);

/* z = x + residual of a row, rounded once. */
void mhai_norm_load(const mhai_norm *norm, int64_t row, float *z);

#endif
