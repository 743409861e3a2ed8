/* The tables of a vision transformer that are made from several weights of its file. */
#ifndef MHAI_MODEL_PICTURE_WEIGHTS_H
#define MHAI_MODEL_PICTURE_WEIGHTS_H

#include "model/arch/family.h"
#include "model/model_weights.h"

/* Make the rows of parameter p, whose form is MHAI_SPECIAL_ROWS or MHAI_POSITION_ROWS. name: its
 * first weight. The caller frees *made, even after an error. Errors: those of mhai_weights_check();
 * MHA_ERR_NOMEM. */
MHA_NODISCARD mha_status mhai_picture_table(const mhai_weights *weights,
                                            const mhai_family_plan *plan, const mha_parameter *p,
                                            mhai_weight_form form, const char *name, float **made);

#endif
