/* The scales of a folder's float8 weights, described by config.json. */
#ifndef MHAI_QUANTIZATION_H
#define MHAI_QUANTIZATION_H

#include "model/model_config.h"

/* Each block of rows x columns of a weight has a scale, the factor of its elements. */
typedef struct mhai_quantization {
    const char *suffix;    /* name of a weight's scales after its own; NULL: there are no scales */
    int64_t rows, columns; /* INT64_MAX: all */
} mhai_quantization;

/* Read quantization_config. Only weights count: inputs of products are not rounded.
 * Errors: MHA_ERR_MODEL, MHA_ERR_UNSUPPORTED (other methods; scales of inputs or caches). */
MHA_NODISCARD mha_status mhai_quantization_read(const mhai_config *config,
                                                mhai_quantization *quantization);

#endif
