/* Weights of a model folder by name, from one file or from shards. Shapes must match config.json.
 * Any floating type and alignment is read as f32. */
#ifndef MHAI_MODEL_WEIGHTS_H
#define MHAI_MODEL_WEIGHTS_H

#include "model/quantization.h"

#include <multihead/base.h>
#include <multihead/gguf.h>
#include <multihead/io.h>

typedef struct mhai_shard {
    char *path;
    mha_safetensors *file;
    int64_t first; /* index of its first tensor among all shards */
} mhai_shard;

typedef struct mhai_weights {
    char *path;        /* path of the file or, with several shards, of their index; for messages */
    mha_gguf *gguf;    /* instead of shards; owned */
    const char *asks;  /* the file that describes the weights, for messages */
    mhai_shard *shard; /* [shards] */
    int64_t shards, count;
    const char *prefix; /* optional prefix of the names */
    const char *outer;  /* of the others, such as that of the output */
    mhai_quantization quantization;
} mhai_weights;

/* Open FOLDER/model.safetensors, or all files listed in FOLDER/model.safetensors.index.json.
 * The caller closes the weights, even after an error. Errors: those of
 * mha_safetensors_open(), MHA_ERR_FILE (a shard is missing), MHA_ERR_MODEL (the index is
 * invalid, or two shards have the same weight). */
MHA_NODISCARD mha_status mhai_weights_open(const char *folder, mhai_weights *weights);
MHA_NODISCARD mha_status mhai_weights_open_gguf(mha_gguf *file, const char *path,
                                                mhai_weights *weights);
void mhai_weights_close(mhai_weights *weights);

/* The name of a tensor by its index among all shards; its type and shape, without data. */
const char *mhai_weights_name(const mhai_weights *weights, int64_t index);
MHA_NODISCARD mha_status mhai_weights_peek(const mhai_weights *weights, int64_t index,
                                           mha_tensor *tensor);

/* The index of the tensor named prefix + name or, failing that, outer + name; -1: none. */
int64_t mhai_weights_find(const mhai_weights *weights, const char *name);

/* Find the index of a weight by name. Errors: MHA_ERR_MODEL (missing, or its shape differs from
 * expected's), MHA_ERR_UNSUPPORTED (its type is not a floating one, or u8 if that is expected). */
MHA_NODISCARD mha_status mhai_weights_check(const mhai_weights *weights, const char *name,
                                            const mha_tensor *expected, int64_t *index);

/* The index of the tensor with the scales of a float8 weight; -1: none. */
int64_t mhai_weights_scales(const mhai_weights *weights, int64_t index);

/* Elements of a tensor in the file, row by row. The types are those of gguf_blocks.h. */
typedef struct mhai_elements {
    mha_gguf_type type;
    const unsigned char *data; /* may be unaligned */
    /* Scales [.., scale_columns] of the blocks of a matrix with `columns` columns; NULL: none. */
    const unsigned char *scales;
    mha_gguf_type scale_type;
    int64_t columns, scale_columns, block_rows, block_columns;
    /* Of blocks of MXFP4, whose numbers are then in order; NULL: data is of this type */
    const unsigned char *exponents;
} mhai_elements;

/* The elements of a checked tensor. They are valid while the weights are open. */
mhai_elements mhai_weights_elements(const mhai_weights *weights, int64_t index);

/* Whether two safetensors tensors have the same type, shape and bytes. */
bool mhai_weights_equal(const mhai_weights *weights, int64_t a, int64_t b);

/* Read elements first .. first + count - 1 as f32. */
void mhai_elements_read(mhai_elements from, int64_t first, int64_t count, float *to);

/* Whether any tensor is quantised with a coded form (gguf_blocks.h). */
bool mhai_weights_have_blocks(const mhai_weights *weights);

/* Whether all readable tensors are f32. */
bool mhai_weights_are_f32(const mhai_weights *weights);

/* Print a shape like "[2, 3]". */
void mhai_weights_print_shape(char *text, size_t room, const mha_tensor *tensor);

#endif
