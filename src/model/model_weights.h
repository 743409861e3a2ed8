/* Weights of an open safetensors file by name, checked against the shape that config.json asks
 * for, as f32 whatever floating type the file has and however its data is aligned. */
#ifndef MHAI_MODEL_WEIGHTS_H
#define MHAI_MODEL_WEIGHTS_H

#include <multihead/base.h>
#include <multihead/io.h>

typedef struct mhai_weights {
    const char *path; /* of the file, for messages */
    const mha_safetensors *file;
    const char *prefix; /* in front of every name */
    float *converted;   /* the last matrix that was not f32 or not aligned */
} mhai_weights;

/* Free what conversions left behind. */
void mhai_weights_close(mhai_weights *weights);

/* Whether prefix + name is in the file. */
bool mhai_weights_have(const mhai_weights *weights, const char *name);

/* Read the weight called name into to, contiguous f32 of the shape that it must have; with data
 * NULL it is only checked. Errors: as below, but no MHA_ERR_NOMEM. */
MHA_NODISCARD mha_status mhai_weights_read(mhai_weights *weights, const char *name,
                                           const mha_tensor *to);

/* The matrix [rows, columns] called name. It lives until the next one is asked for. Errors:
 * MHA_ERR_MODEL (missing, or another shape), MHA_ERR_UNSUPPORTED (not a 16- or 32-bit floating
 * type), MHA_ERR_NOMEM. */
MHA_NODISCARD mha_status mhai_weights_matrix(mhai_weights *weights, const char *name, int64_t rows,
                                             int64_t columns, mha_tensor *tensor);

/* "[2, 3]". */
void mhai_weights_print_shape(char *text, size_t room, const mha_tensor *tensor);

#endif
