/* Inside nn: losses of rows in double, for whoever adds them up itself. */
#ifndef MHAI_CROSS_ENTROPY_H
#define MHAI_CROSS_ENTROPY_H

#include <multihead/nn.h>

/* losses [M]: each row's loss as mha_cross_entropy() has it, before it is rounded. logits [M,V] and
 * targets i32 [M], 0 .. V-1, are checked by the caller. */
MHA_NODISCARD mha_status mhai_cross_entropy_rows(mha_context *context, const mha_tensor *logits,
                                                 const mha_tensor *targets, double *losses);

#endif
