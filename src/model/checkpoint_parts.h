/* Functions that loading and saving of checkpoints share, and the steps of saving. */
#ifndef MHAI_CHECKPOINT_PARTS_H
#define MHAI_CHECKPOINT_PARTS_H

#include "model/arch/family.h"

#include <multihead/checkpoint.h>

/* Read and validate config.json, with bounds above those of any real model. Saving passes the
 * config.json that it is about to write, and so rejects all models that loading would reject. The
 * caller frees the plan, even after an error. */
MHA_NODISCARD mha_status mhai_checkpoint_read_plan(const mhai_config *config,
                                                   const mhai_family *family,
                                                   mhai_family_plan *plan);
void mhai_checkpoint_free_plan(mhai_family_plan *plan);

/* The width of the tables of embeddings. */
static inline int64_t mhai_width_of_tables(const mha_transformer_desc *d)
{
    return d->token_dim ? d->token_dim : d->embed_dim;
}

/* A lower bound for the number of parameters, which ignores norms and biases. Layers may share one
 * T5 table, or, if `shared`, everything. The bounds of the sizes prevent overflow of a double. */
double mhai_checkpoint_numbers(const mha_transformer_desc *d, bool shared);

/* Write a JSON file to a folder. If writing fails, no partial file remains. */
MHA_NODISCARD mha_status mhai_checkpoint_write_json(const char *folder, const char *name,
                                                    const json_t *root);

/* Validate the words of settings, and set vocabulary to {word: id}, which the caller owns. */
MHA_NODISCARD mha_status mhai_checkpoint_vocabulary(const mha_checkpoint_settings *settings,
                                                    int64_t vocab_size, json_t **vocabulary);

MHA_NODISCARD mha_status mhai_checkpoint_write_words(const char *folder,
                                                     const mha_checkpoint_settings *settings,
                                                     int64_t max_length, json_t *vocabulary);

/* Copy the ids of special tokens, or the tokenizer's files, from another folder. */
MHA_NODISCARD mha_status mhai_checkpoint_like_ids(const char *like, json_t *root);
MHA_NODISCARD mha_status mhai_checkpoint_like_files(const char *like, const char *folder);

#endif
