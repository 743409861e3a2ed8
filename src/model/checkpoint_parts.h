/* Inside checkpoints: what the three kinds of folders are, and the pieces of saving. A kind is one
 * row of the table in checkpoint_kinds.c. */
#ifndef MHAI_CHECKPOINT_PARTS_H
#define MHAI_CHECKPOINT_PARTS_H

#include "model/model_config.h"

#include <multihead/checkpoint.h>

/* A weight's name in a file: longer than every name that a kind makes. */
enum { MHAI_CHECKPOINT_NAME = 128 };

/* What config.json says. */
typedef struct mhai_checkpoint_plan {
    mha_transformer_desc desc;
    /* Where the transformer has biases but the file has none: they stay 0. */
    bool no_attention_bias, no_mlp_bias;
    int64_t *head_lists; /* what desc.layer_heads points to; NULL: none. To be freed */
} mhai_checkpoint_plan;

typedef struct mhai_checkpoint_kind {
    const char *model_type;
    const char *layers; /* in front of a layer's number */
    const char *prefix; /* may stand in front of every name in files of others, or not; "": no */
    const char *const (*names)[2]; /* {ours, theirs} without ".weight"; ends with {NULL, NULL} */
    bool (*fits)(const mha_transformer_desc *desc);
    bool (*write)(const mha_transformer_desc *desc, json_t *root); /* false: no memory */
    mha_status (*read)(const mhai_config *config, mhai_checkpoint_plan *plan);
    bool (*ignores)(const mhai_checkpoint_plan *plan, const char *name); /* a weight left alone */
} mhai_checkpoint_kind;

/* The kind that a transformer is saved as; there always is one. */
const mhai_checkpoint_kind *mhai_checkpoint_kind_of(const mha_transformer_desc *desc);

/* The kind called model_type; NULL: none. */
const mhai_checkpoint_kind *mhai_checkpoint_kind_named(const char *model_type);

/* What a kind calls one of our parameters. */
void mhai_checkpoint_name(const mhai_checkpoint_kind *kind, const char *ours,
                          char theirs[MHAI_CHECKPOINT_NAME]);

/* Set a member of a JSON object; false: no memory. value may be NULL and is used up. */
bool mhai_checkpoint_put(json_t *object, const char *key, json_t *value);

/* A float as the shortest decimal number that gives it back. */
json_t *mhai_checkpoint_real(float value);

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
