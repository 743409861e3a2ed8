/* The files of a folder that define its tokenizer, and the settings in them. */
#ifndef MHAI_TOKENIZER_FOLDER_H
#define MHAI_TOKENIZER_FOLDER_H

#include "tokenizer/tokenizer_parts.h"

#include <jansson.h>

/* Names of a tokenizer's files, indexed by these numbers, followed by a file that
 * is rejected, and NULL. */
extern const char *const mhai_tokenizer_files[];
enum { MHAI_TOKENIZER_JSON, MHAI_CONFIG_JSON, MHAI_MAP_JSON, MHAI_VOCAB_TXT, MHAI_FILES };

typedef struct mhai_folder {
    char *paths[MHAI_FILES];
    json_t *json[MHAI_FILES]; /* NULL: no such file, or vocab.txt */
    char *vocab;              /* vocab.txt; NULL: no such file */
    size_t vocab_size;
    /* A tokenizer class of transformers that takes everything from tokenizer.json. BERT's own class
     * takes the vocabulary from there, and the rules from tokenizer_config.json. */
    bool generic;
    bool defaults; /* default names count as added tokens if the vocabulary has them */
    int64_t max_length;
    const char *names[MHAI_NAMED];    /* texts of the named tokens; NULL: none */
    bool stated[MHAI_NAMED];          /* set by a file, not a default */
    int32_t template_ids[MHAI_NAMED]; /* [CLS] and [SEP] in the template of
                                       * tokenizer.json; -1: none */
} mhai_folder;

/* Read the files and their settings. The caller closes folder, even after an error. */
MHA_NODISCARD mha_status mhai_tokenizer_folder_open(const char *path, mhai_folder *folder);
void mhai_tokenizer_folder_close(mhai_folder *folder);

/* An optional setting of a file. */
typedef enum mhai_answer { MHAI_UNSAID = -1, MHAI_NO = 0, MHAI_YES = 1 } mhai_answer;

MHA_NODISCARD mha_status mhai_tokenizer_folder_flag(const char *path, const json_t *object,
                                                    const char *key, mhai_answer *value);

bool mhai_or_default(mhai_answer value, bool otherwise);

/* The text of a string, or the type of anything else, for messages. */
const char *mhai_show_json(const json_t *json);

/* Read a named token: its text, or an object with the text as its content. *text is NULL if json is
 * NULL or null. Errors: MHA_ERR_FORMAT. */
MHA_NODISCARD mha_status mhai_tokenizer_folder_token(const char *path, const char *key,
                                                     const json_t *json, const char **text);

/* Read the options of an added token, MHAI_IS_SPECIAL etc. *normal is "normalized", which defaults
 * to false for special tokens and to true for others. */
MHA_NODISCARD mha_status mhai_tokenizer_folder_flags(const char *path, const json_t *json,
                                                     bool *normal, uint8_t *flags);

/* Read an id, an integer in 0 .. INT32_MAX - 1. */
MHA_NODISCARD mha_status mhai_tokenizer_folder_id(const char *path, const char *what,
                                                  const json_t *json, int32_t *id);

#endif
