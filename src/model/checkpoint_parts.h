/* Inside checkpoints: the pieces of saving. */
#ifndef MHAI_CHECKPOINT_PARTS_H
#define MHAI_CHECKPOINT_PARTS_H

#include "model/arch/family.h"

#include <multihead/checkpoint.h>

/* Write one JSON file of a folder, whole or not at all. */
MHA_NODISCARD mha_status mhai_checkpoint_write_json(const char *folder, const char *name,
                                                    const json_t *root);

/* The words of settings checked: vocabulary becomes {word: id}. The caller owns it. */
MHA_NODISCARD mha_status mhai_checkpoint_vocabulary(const mha_checkpoint_settings *settings,
                                                    int64_t vocab_size, json_t **vocabulary);

/* Write tokenizer.json and tokenizer_config.json. */
MHA_NODISCARD mha_status mhai_checkpoint_write_words(const char *folder,
                                                     const mha_checkpoint_settings *settings,
                                                     int64_t max_length, json_t *vocabulary);

/* Take over from another folder: the ids of special tokens; the files of the tokenizer. */
MHA_NODISCARD mha_status mhai_checkpoint_like_ids(const char *like, json_t *root);
MHA_NODISCARD mha_status mhai_checkpoint_like_files(const char *like, const char *folder);

#endif
