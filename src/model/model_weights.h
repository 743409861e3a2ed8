/* Weights of a model folder by name, in one file or in shards, checked against the shape in
 * config.json. They are read as f32 from any floating type and alignment. */
#ifndef MHAI_MODEL_WEIGHTS_H
#define MHAI_MODEL_WEIGHTS_H

#include <multihead/base.h>
#include <multihead/gguf.h>
#include <multihead/io.h>

typedef struct mhai_shard {
    char *path;
    mha_safetensors *file;
    int64_t first; /* number of its first tensor over all shards */
} mhai_shard;

typedef struct mhai_weights {
    char *path;        /* of the file, or of the index of several, for messages */
    mha_gguf *gguf;    /* instead of shards; owned */
    const char *asks;  /* the file that lists the weights, for messages */
    mhai_shard *shard; /* [shards] */
    int64_t shards, count;
    const char *prefix; /* optional prefix of the names */
} mhai_weights;

/* Open FOLDER/model.safetensors, or all files that FOLDER/model.safetensors.index.json names. Close
 * them even after an error. Errors: as mha_safetensors_open(); MHA_ERR_FILE (a shard is missing),
 * MHA_ERR_MODEL (the index, or two shards with one weight). */
MHA_NODISCARD mha_status mhai_weights_open(const char *folder, mhai_weights *weights);
MHA_NODISCARD mha_status mhai_weights_open_gguf(mha_gguf *file, const char *path,
                                                mhai_weights *weights);
void mhai_weights_close(mhai_weights *weights);

/* The name of tensor number index of all shards, and its type and shape without data. */
const char *mhai_weights_name(const mhai_weights *weights, int64_t index);
MHA_NODISCARD mha_status mhai_weights_peek(const mhai_weights *weights, int64_t index,
                                           mha_tensor *tensor);

/* The index of the tensor named prefix + name, or name alone; -1: none. */
int64_t mhai_weights_find(const mhai_weights *weights, const char *name);

/* The index of the weight with this name. It must have expected's shape and a supported type.
 * Errors: MHA_ERR_MODEL (missing, or another shape), MHA_ERR_UNSUPPORTED (another type). */
MHA_NODISCARD mha_status mhai_weights_check(const mhai_weights *weights, const char *name,
                                            const mha_tensor *expected, int64_t *index);

/* The elements in the file, in row order. GGUF has all types of safetensors. */
typedef struct mhai_elements {
    mha_gguf_type type;
    const unsigned char *data; /* aligned or not */
} mhai_elements;

/* The elements of a checked tensor; valid while the weights are open. */
mhai_elements mhai_weights_elements(const mhai_weights *weights, int64_t index);

/* Whether two tensors of safetensors have the same type, shape and bytes. */
bool mhai_weights_equal(const mhai_weights *weights, int64_t a, int64_t b);

/* Elements first .. first + count as f32. */
void mhai_elements_read(mhai_elements from, int64_t first, int64_t count, float *to);

/* Whether any tensor has a coded form (gguf_blocks.h). */
bool mhai_weights_have_blocks(const mhai_weights *weights);

/* Whether all readable tensors are f32. */
bool mhai_weights_are_f32(const mhai_weights *weights);

/* "[2, 3]". */
void mhai_weights_print_shape(char *text, size_t room, const mha_tensor *tensor);

#endif
