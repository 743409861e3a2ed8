/* The files of a folder that define its tokenizer, and their combined settings. */
#ifndef MHAI_TOKENIZER_FOLDER_H
#define MHAI_TOKENIZER_FOLDER_H

#include "tokenizer/tokenizer_parts.h"

#include <jansson.h>

/* Names of the files of a tokenizer, indexed by these numbers; then a file that is only rejected,
 * and NULL. */
extern const char *const mhai_tokenizer_files[];
enum { MHAI_TOKENIZER_JSON, MHAI_CONFIG_JSON, MHAI_MAP_JSON, MHAI_VOCAB_TXT, MHAI_FILES };

typedef struct mhai_folder {
    char *paths[MHAI_FILES];
    json_t *json[MHAI_FILES]; /* NULL: no such file; vocab.txt has none */
    char *vocab;              /* vocab.txt; NULL: no such file */
    size_t vocab_size;
    /* A tokenizer class of transformers that reads everything from tokenizer.json. BERT's own class
     * reads the vocabulary from there and the rules from tokenizer_config.json. */
    bool generic;
    bool defaults; /* default names are added tokens if the vocabulary has them */
    int64_t max_length;
    const char *names[MHAI_NAMED];    /* the texts of the named tokens; NULL: none */
    bool stated[MHAI_NAMED];          /* set by a file, not by default */
    int32_t template_ids[MHAI_NAMED]; /* used as [CLS] and [SEP] by tokenizer.json; -1: none */
} mhai_folder;

/* Read the files and their settings. folder must be closed even if this fails. */
MHA_NODISCARD mha_status mhai_tokenizer_folder_open(const char *path, mhai_folder *folder);
void mhai_tokenizer_folder_close(mhai_folder *folder);

/* Optional settings of a file. */
typedef enum mhai_answer { MHAI_UNSAID = -1, MHAI_NO = 0, MHAI_YES = 1 } mhai_answer;

MHA_NODISCARD mha_status mhai_tokenizer_folder_flag(const char *path, const json_t *object,
                                                    const char *key, mhai_answer *value);

bool mhai_or_default(mhai_answer value, bool otherwise);

/* For messages: a string's text, or its type. */
const char *mhai_show_json(const json_t *json);

/* A named token of a file: its text, or an object with the text as its content. *text is NULL if
 * json is NULL or null. Errors: MHA_ERR_FORMAT. */
MHA_NODISCARD mha_status mhai_tokenizer_folder_token(const char *path, const char *key,
                                                     const json_t *json, const char **text);

/* The options of an added token, MHAI_IS_SPECIAL and so on: *normal is "normalized", by default
 * true unless it is special. */
MHA_NODISCARD mha_status mhai_tokenizer_folder_flags(const char *path, const json_t *json,
                                                     bool *normal, uint8_t *flags);

/* An id: an integer in 0 .. INT32_MAX - 1. */
MHA_NODISCARD mha_status mhai_tokenizer_folder_id(const char *path, const char *what,
                                                  const json_t *json, int32_t *id);

#endif
