/* Model folders: which files exist, and the transformer in a folder. */
#ifndef MHAI_MODEL_FOLDER_H
#define MHAI_MODEL_FOLDER_H

#include "model/arch/family.h"
#include "model/ends.h"

#include <multihead/tokenizer.h>

/* Names of the files of a configuration; then NULL. */
extern const char *const mhai_configuration_files[];

/* folder/name; the caller frees it. NULL: no memory. */
char *mhai_model_join(const char *folder, const char *name);

/* Whether path is a regular file that ends with .gguf or begins with the magic number of GGUF. */
bool mhai_model_is_gguf(const char *path);

bool mhai_model_holds(const char *folder, const char *name);

/* Whether a folder is an encoder-decoder: it holds the folders encoder and decoder. */
bool mhai_model_has_encoder(const char *folder);

/* Whether a folder is a model: it has config.json and weights. */
MHA_NODISCARD mha_status mhai_model_check_folder(const char *folder);

typedef struct mhai_loaded {
    mha_transformer *transformer; /* the caller destroys it */
    const mhai_family *family;
    int64_t types;  /* of tokens, from config.json; if all are 0, the transformer has no types */
    mhai_ends ends; /* without the tokenizer's; the caller frees its ids */
} mhai_loaded;

/* Load the transformer of a folder or a GGUF file. tokenizer: also load that of a GGUF file, if it
 * has one, from the same open file; NULL: do not load it. Without MHA_MODEL_ARRAY the parameters
 * stay in their files, which remain open until the transformer is destroyed. */
MHA_NODISCARD mha_status mhai_model_load_part(mha_context *context, const char *path,
                                              const mha_model_options *how,
                                              mha_tokenizer **tokenizer, mhai_loaded *loaded);

#endif
