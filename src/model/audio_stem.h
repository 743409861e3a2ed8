/* The layers of an audio encoder before its transformer: two convolutions over time. */
#ifndef MHAI_AUDIO_STEM_H
#define MHAI_AUDIO_STEM_H

#include "model/arch/family.h"
#include "model/model_weights.h"

typedef struct mhai_audio_stem mhai_audio_stem;

/* Read the convolutions and positions of Whisper's encoder. Errors: those of mhai_weights_check() and
 * mha_linear_create(). */
MHA_NODISCARD mha_status mhai_audio_stem_load(mha_context *context, const mhai_weights *weights,
                                              const mhai_family_plan *plan, mhai_audio_stem **stem);
void mhai_audio_stem_destroy(mhai_audio_stem *stem); /* NULL: a no-op */

#endif
