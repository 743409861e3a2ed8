/* Internals of checkpoints: functions shared by loading and saving, and the steps of saving. */
#ifndef MHAI_CHECKPOINT_PARTS_H
#define MHAI_CHECKPOINT_PARTS_H

#include "model/arch/family.h"

#include <multihead/checkpoint.h>

/* Read and validate config.json, with bounds above those of any model. Saving reads the config.json
 * that it is about to write, so it rejects every model that loading would reject. Free the plan
 * even on failure. */
MHA_NODISCARD mha_status mhai_checkpoint_read_plan(const mhai_config *config,
                                                   const mhai_family *family,
                                                   mhai_family_plan *plan);
void mhai_checkpoint_free_plan(mhai_family_plan *plan);

/* Write one JSON file of a folder. A failed write leaves no partial file. */
MHA_NODISCARD mha_status mhai_checkpoint_write_json(const char *folder, const char *name,
                                                    const json_t *root);

/* Validate the words of settings; vocabulary becomes {word: id}. The caller owns it. */
MHA_NODISCARD mha_status mhai_checkpoint_vocabulary(const mha_checkpoint_settings *settings,
                                                    int64_t vocab_size, json_t **vocabulary);

/* Write tokenizer.json and tokenizer_config.json. */
MHA_NODISCARD mha_status mhai_checkpoint_write_words(const char *folder,
                                                     const mha_checkpoint_settings *settings,
                                                     int64_t max_length, json_t *vocabulary);

/* Copy from another folder: the ids of special tokens; the files of the tokenizer. */
MHA_NODISCARD mha_status mhai_checkpoint_like_ids(const char *like, json_t *root);
MHA_NODISCARD mha_status mhai_checkpoint_like_files(const char *like, const char *folder);

#endif
