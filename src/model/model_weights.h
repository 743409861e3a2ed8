/* Weights of a model folder by name, in one file or in shards, checked against the shape that
 * config.json asks for, as f32 whatever floating type a file has and however its data is aligned.
 */
#ifndef MHAI_MODEL_WEIGHTS_H
#define MHAI_MODEL_WEIGHTS_H

#include <multihead/base.h>
#include <multihead/gguf.h>
#include <multihead/io.h>

typedef struct mhai_shard {
    char *path;
    mha_safetensors *file;
    int64_t first; /* number of its first tensor among those of all shards */
} mhai_shard;

typedef struct mhai_weights {
    char *path;           /* of the file, or of the index of several, for messages */
    const mha_gguf *gguf; /* instead of shards; borrowed */
    const char *asks;     /* what says which weights there are, for messages */
    mhai_shard *shard;    /* [shards] */
    int64_t shards, count;
    const char *prefix; /* in front of every name that has it */
    float *converted;   /* the last weight that was not f32 or not aligned */
} mhai_weights;

/* Open FOLDER/model.safetensors, or all files that FOLDER/model.safetensors.index.json names. Close
 * them even after an error. Errors: as mha_safetensors_open(); MHA_ERR_FILE (a shard is missing),
 * MHA_ERR_MODEL (the index, or two shards with one weight). */
MHA_NODISCARD mha_status mhai_weights_open(const char *folder, mhai_weights *weights);
MHA_NODISCARD mha_status mhai_weights_open_gguf(const mha_gguf *file, const char *path,
                                                mhai_weights *weights);
void mhai_weights_close(mhai_weights *weights);

/* Tensor number index of all: its name, and its type and shape without data. */
const char *mhai_weights_name(const mhai_weights *weights, int64_t index);
MHA_NODISCARD mha_status mhai_weights_peek(const mhai_weights *weights, int64_t index,
                                           mha_tensor *tensor);

/* The number of the tensor called prefix + name, or name alone; -1: none. */
int64_t mhai_weights_find(const mhai_weights *weights, const char *name);

/* Read the weight called name into to, contiguous f32 of the shape that it must have; with data
 * NULL it is only checked. Errors: as below, but no MHA_ERR_NOMEM. */
MHA_NODISCARD mha_status mhai_weights_read(mhai_weights *weights, const char *name,
                                           const mha_tensor *to);

/* The weight called name, of tensor's ndim and shape. It lives until the next one is asked for.
 * Errors: MHA_ERR_MODEL (missing, or another shape), MHA_ERR_UNSUPPORTED (not a 16- or 32-bit
 * floating type), MHA_ERR_NOMEM. */
MHA_NODISCARD mha_status mhai_weights_view(mhai_weights *weights, const char *name,
                                           mha_tensor *tensor);

/* "[2, 3]". */
void mhai_weights_print_shape(char *text, size_t room, const mha_tensor *tensor);

#endif
