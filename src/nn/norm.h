/* Declarations shared by layer norm and RMS norm, forward and backward. */
#ifndef MHAI_NORM_H
#define MHAI_NORM_H

#include "kernels/kernels.h"
#include "nn/nn_check.h"

/* Layer norm, or RMS norm if there is no mean and no bias. */
typedef struct mhai_norm {
    const char *function; /* name in messages */
    bool centred;
    const mha_tensor *x, *residual, *weight, *bias;
    double epsilon;
} mhai_norm;

MHA_NODISCARD mha_status mhai_norm_check(const mhai_norm *norm);

/* Number of rows per kernel call. */
enum { MHAI_NORM_ROWS = MHAI_MAX_ROWS };

/* The kernel arguments for at most MHAI_NORM_ROWS rows, starting at `row`. Without a residual, rows
 * are read in place. With one, z = x + residual is stored first, rounded once. */
mhai_norm_strip mhai_norm_strip_at(const mhai_norm *norm, int64_t row, float *z, int64_t z_stride);

#endif
