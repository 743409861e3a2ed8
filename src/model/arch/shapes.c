/* Families that are supported only for the shape of their attention. */
#include "model/arch/family.h"

#define SHAPE(name, type, sizes, flags, key, shares)            \
    extern const mhai_family mhai_family_##name;                \
    const mhai_family mhai_family_##name = {.model_type = type, \
                                            .keys = &(sizes),   \
                                            .shape = (flags),   \
                                            .bias_key = (key),  \
                                            .grouped = (shares)};
SHAPE(mixtral, "mixtral", mhai_usual_keys, MHA_MODEL_SHAPE_CAUSAL, NULL, true)
