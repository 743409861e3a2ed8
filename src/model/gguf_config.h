/* Read a GGUF file like a model folder, with its metadata as config.json and with its names of
 * weights. */
#ifndef MHAI_GGUF_CONFIG_H
#define MHAI_GGUF_CONFIG_H

#include "model/arch/family.h"

#include <multihead/gguf.h>

/* Convert the metadata to the config.json of the same model. The caller frees *root with
 * json_decref(). Errors: MHA_ERR_MODEL (a key is missing or has another type), MHA_ERR_UNSUPPORTED
 * (the architecture, or a feature that no family supports), MHA_ERR_NOMEM. */
MHA_NODISCARD mha_status mhai_gguf_config(const mha_gguf *file, const char *path, json_t **root);

/* The family with GGUF's names of weights. */
mhai_family mhai_gguf_family(const mhai_family *family);

/* Convert the status of a metadata read: a value of the wrong type or out of range is
 * an error of the model. */
mha_status mhai_gguf_status(mha_status status);

/* Create the tokenizer in the metadata. Errors: those of mha_tokenizer_load(), except for files. */
MHA_NODISCARD mha_status mhai_gguf_tokenizer(const mha_gguf *file, const char *path,
                                             mha_tokenizer **tokenizer);

#endif
