/* Internal to nn: losses of rows in double, for callers that sum them. */
#ifndef MHAI_CROSS_ENTROPY_H
#define MHAI_CROSS_ENTROPY_H

#include <multihead/nn.h>

/* The losses [M] of rows as in mha_cross_entropy(), but not rounded. The caller has checked logits
 * [M,V] and targets i32 [M], which must be in 0 .. V - 1. */
MHA_NODISCARD mha_status mhai_cross_entropy_rows(mha_context *context, const mha_tensor *logits,
                                                 const mha_tensor *targets, double *losses);

#endif
