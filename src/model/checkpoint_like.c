/* Take the tokenizer's files and the ids of special tokens from another folder. */
#include "io/file.h"
#include "io/json_file.h"
#include "model/checkpoint_parts.h"
#include "model/folder.h"
#include "tokenizer/tokenizer_folder.h"

#include <multihead/component.h>
#include <multihead/io.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const size_t most_config_bytes = 16u << 20, most_file_bytes = 1u << 30;

/* The path of a file of the model, which the caller frees; NULL: out of memory. FOLDER/encoder has those
 * of the folder. */
static char *path_of(const char *like, const char *name)
{
    char *outer;
    if (mhai_model_outer(like, &outer) != MHA_OK) return NULL;
    char *path = mhai_model_join(outer ? outer : like, name);
    free(outer);
    return path;
}

mha_status mhai_checkpoint_like_ids(const char *like, json_t *root)
{
    static const char *const keys[] = {"bos_token_id", "eos_token_id", "pad_token_id"};
    json_t *theirs = NULL;
    if (mhai_model_is_gguf(like))
        return mhai_path_fail(
            MHA_ERR_UNSUPPORTED, like,
            "the tokenizer of a GGUF file cannot be copied to a folder; use the model's folder");
    char *path = path_of(like, "config.json");
    if (!path) return MHA_NO_MEMORY("checkpoint");
    mha_status status = mhai_json_read(path, most_config_bytes, &theirs);
    free(path);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0] && status == MHA_OK; i++) {
        json_t *value = json_object_get(theirs, keys[i]); /* a number, or a list of them */
        if (value && !mhai_put(root, keys[i], json_deep_copy(value)))
            status = MHA_NO_MEMORY("checkpoint");
    }
    json_decref(theirs);
    return status;
}

static mha_status copy_file(const char *from, const char *folder, const char *name)
{
    char *bytes = NULL;
    size_t size = 0;
    mha_file *file = NULL;
    mha_status status = mha_file_read(from, most_file_bytes, &bytes, &size);
    if (status == MHA_OK) status = mha_file_create_in(folder, name, &file);
    if (status == MHA_OK) status = mhai_file_append(mha_file_sink(file), bytes, size);
    status = mha_file_finish(file, status);
    mha_file_free(bytes);
    return status;
}

mha_status mhai_checkpoint_like_files(const char *like, const char *folder)
{
    mha_status status = MHA_OK;
    for (const char *const *name = mhai_tokenizer_files; *name && status == MHA_OK; name++) {
        char *from = path_of(like, *name);
        if (!from)
            status = MHA_NO_MEMORY("checkpoint");
        else if (access(from, F_OK) == 0)
            status = copy_file(from, folder, *name);
        free(from);
    }
    return status;
}
