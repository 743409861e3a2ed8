/* A GGUF file as a model folder: its metadata as config.json would say it, what it calls weights. */
#ifndef MHAI_GGUF_CONFIG_H
#define MHAI_GGUF_CONFIG_H

#include "model/arch/family.h"

#include <multihead/gguf.h>

/* What config.json of the same model says, for a family to read. The caller frees *root with
 * json_decref(). Errors: MHA_ERR_MODEL (a key is missing or of another type), MHA_ERR_UNSUPPORTED
 * (the architecture, or what of it no family says), MHA_ERR_NOMEM. */
MHA_NODISCARD mha_status mhai_gguf_config(const mha_gguf *file, const char *path, json_t **root);

/* The family with GGUF's names in place of transformers'. */
mhai_family mhai_gguf_family(const mhai_family *family);

/* The status of a model whose metadata was read with one: a value of another type, or out of range,
 * is wrong with the model. */
mha_status mhai_gguf_status(mha_status status);

/* The tokenizer that the metadata describes. Errors: those of mha_tokenizer_load(), without its
 * files. */
MHA_NODISCARD mha_status mhai_gguf_tokenizer(const mha_gguf *file, const char *path,
                                             mha_tokenizer **tokenizer);

#endif
