/* Model folders: their files, and the transformer in them. */
#ifndef MHAI_MODEL_FOLDER_H
#define MHAI_MODEL_FOLDER_H

#include "model/arch/family.h"
#include "model/ends.h"

#include <multihead/tokenizer.h>

/* Names of the configuration files, and of those of image processors, ended by NULL. */
extern const char *const mhai_configuration_files[], *const mhai_image_files[];

/* Return folder/name, which the caller frees; NULL: out of memory. */
char *mhai_model_join(const char *folder, const char *name);

/* Whether path is a regular file that ends in .gguf or starts with GGUF's magic number. */
bool mhai_model_is_gguf(const char *path);

bool mhai_model_holds(const char *folder, const char *name);

/* Whether a folder is an encoder-decoder, with subfolders encoder and decoder. */
bool mhai_model_has_encoder(const char *folder);

/* The folder whose encoder alone a path names: FOLDER/encoder without such a subfolder. The caller
 * frees it. NULL: the path is not of this form. */
MHA_NODISCARD mha_status mhai_model_outer(const char *path, char **folder);

/* Check that a folder has config.json and weights. */
MHA_NODISCARD mha_status mhai_model_check_folder(const char *folder);

typedef struct mhai_loaded {
    mha_transformer *transformer; /* the caller destroys it */
    const mhai_family *family;
    int64_t types;  /* token types in config.json; if their table is 0, the transformer has none */
    mhai_ends ends; /* not those of the tokenizer; the caller frees its ids */
    mhai_begins begins;                 /* of a decoder in a folder with two towers; likewise */
    struct mhai_audio_stem *audio_stem; /* of an audio encoder; the caller destroys it */
    mhai_picture picture;
} mhai_loaded;

/* Load the transformer of a folder or a GGUF file; of a folder with two towers the decoder, or the
 * encoder if `encoder`. If tokenizer is not NULL, also load the tokenizer of a GGUF file, if it has
 * one, without opening the file again. Without MHA_MODEL_ARRAY, parameters stay in their files, which
 * remain open until the transformer is destroyed. */
MHA_NODISCARD mha_status mhai_model_load_part(mha_context *context, const char *path,
                                              const mha_model_options *how, bool encoder,
                                              mha_tokenizer **tokenizer, mhai_loaded *loaded);

#endif
