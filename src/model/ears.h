/* The layers of an audio encoder before its transformer: two convolutions over time. */
#ifndef MHAI_EARS_H
#define MHAI_EARS_H

#include "model/arch/family.h"
#include "model/model_weights.h"

typedef struct mhai_ears mhai_ears;

/* Read the convolutions and positions of Whisper's encoder. Errors: those of mhai_weights_check() and
 * mha_linear_create(). */
MHA_NODISCARD mha_status mhai_ears_load(mha_context *context, const mhai_weights *weights,
                                        const mhai_family_plan *plan, mhai_ears **ears);
void mhai_ears_destroy(mhai_ears *ears); /* NULL: a no-op */

#endif
