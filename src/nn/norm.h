/* What layer norm and RMS norm share, forward and backward. */
#ifndef MHAI_NORM_H
#define MHAI_NORM_H

#include "kernels/kernels.h"
#include "nn/nn_check.h"

/* Layer norm; without a mean (and then without a bias) it is RMS norm. */
typedef struct mhai_norm {
    const char *function; /* for messages */
    bool centred;
    const mha_tensor *x, *residual, *weight, *bias;
    double epsilon;
} mhai_norm;

MHA_NODISCARD mha_status mhai_norm_check(const mhai_norm *norm);

/* Rows that share vectors; a call takes its rows by so many. */
enum { MHAI_NORM_ROWS = MHAI_MAX_ROWS };

/* What the kernels are told of the rows from `row` on, at most MHAI_NORM_ROWS. Without a residual
 * they are read where they lie; with one, z = x + residual, rounded once, is put at z first. */
mhai_norm_strip mhai_norm_strip_at(const mhai_norm *norm, int64_t row, float *z, int64_t z_stride);

#endif
