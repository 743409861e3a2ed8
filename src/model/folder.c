/* The files that a model folder has. */
#include "model/folder.h"

#include "io/file.h"
#include "io/gguf_split.h"
#include "model/model_weights.h"
#include "tokenizer/tokenizer_folder.h"

#include <multihead/component.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *const mhai_configuration_files[] = {"config.json", "generation_config.json", NULL};
const char *const mhai_image_files[] = {"preprocessor_config.json", NULL};

char *mhai_model_join(const char *folder, const char *name)
{
    size_t bytes = strlen(folder) + strlen(name) + 2;
    char *path = malloc(bytes);
    if (path) snprintf(path, bytes, "%s/%s", folder, name);
    return path;
}

bool mhai_model_is_gguf(const char *path)
{
    struct stat status;
    char magic[4];
    const size_t length = strlen(path);
    if (stat(path, &status) != 0 || !S_ISREG(status.st_mode)) return false;
    if (length > 5 && strcmp(path + length - 5, ".gguf") == 0) return true;
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    const bool is = file >= 0 && read(file, magic, sizeof magic) == sizeof magic &&
                    memcmp(magic, "GGUF", sizeof magic) == 0;
    if (file >= 0) close(file);
    return is;
}

bool mhai_model_holds(const char *folder, const char *name)
{
    struct stat status;
    char path[PATH_MAX]; /* on the stack: a failed allocation must not look like a missing file */
    const int length = snprintf(path, sizeof path, "%s/%s", folder, name);
    return length > 0 && (size_t)length < sizeof path && stat(path, &status) == 0;
}

bool mhai_model_has_encoder(const char *folder)
{
    return !mhai_model_is_gguf(folder) && !mhai_model_holds(folder, "config.json") &&
           mhai_model_holds(folder, "encoder/config.json") &&
           mhai_model_holds(folder, "decoder/config.json");
}

mha_status mhai_model_outer(const char *path, char **folder)
{
    static const char part[] = "/encoder";
    struct stat status;
    const size_t length = strlen(path), tail = sizeof part - 1;
    *folder = NULL;
    if (length <= tail || strcmp(path + length - tail, part) != 0 || stat(path, &status) == 0)
        return MHA_OK;
    char *made = strdup(path);
    if (!made) return mhai_path_fail(MHA_ERR_NOMEM, path, "cannot allocate names");
    made[length - tail] = '\0';
    if (mhai_model_holds(made, "config.json"))
        *folder = made;
    else
        free(made);
    return MHA_OK;
}

mha_status mhai_model_check_folder(const char *folder)
{
    struct stat status;
    static const char contents[] = "config.json, model.safetensors and vocab.txt or tokenizer.json";
    if (stat(folder, &status) != 0 && errno != ENOENT)
        return mhai_path_fail(MHA_ERR_FILE, folder, "%s", strerror(errno));
    if (stat(folder, &status) != 0)
        return mhai_path_fail(
            MHA_ERR_FILE, folder,
            "no such folder or file; tools/get-minilm fetches an encoder, tools/get-smollm2 a "
            "model that generates text");
    if (!S_ISDIR(status.st_mode))
        return mhai_path_fail(MHA_ERR_FILE, folder,
                              "neither a folder nor a GGUF file; a model folder has %s", contents);
    if (access(folder, X_OK) != 0) /* otherwise all files would appear to be missing */
        return mhai_path_fail(MHA_ERR_FILE, folder, "its files cannot be opened: %s",
                              strerror(errno));
    if (!mhai_model_holds(folder, "config.json"))
        return mha_fail(MHA_ERR_FILE,
                        "%s/config.json: no such file; a model folder has %s; see tools/get-minilm",
                        mhai_show_path(folder).text, contents);
    if (mhai_model_holds(folder, "model.safetensors")) return MHA_OK;
    if (mhai_model_holds(folder, "model.safetensors.index.json")) return MHA_OK;
    if (mhai_model_holds(folder, "pytorch_model.bin") ||
        mhai_model_holds(folder, "pytorch_model.bin.index.json"))
        return mhai_path_fail(
            MHA_ERR_UNSUPPORTED, folder,
            "pytorch_model.bin is not read, since a pickle can run code; convert it in "
            "the folder: python3 -c 'import glob, torch, safetensors.torch as s; "
            "s.save_file({k: v.contiguous().clone() for f in glob.glob(\"pytorch_model*.bin\")"
            " for k, v in torch.load(f, weights_only=True).items()}, "
            "\"model.safetensors\", {\"format\": \"pt\"})'");
    return mha_fail(MHA_ERR_FILE,
                    "%s/model.safetensors: no such file; a model folder has %s; see "
                    "tools/get-minilm",
                    mhai_show_path(folder).text, contents);
}

/* ---- the files that are read ----------------------------------------------------------------- */

typedef mha_status each_file(void *user, const char *name, const char *path);

static mha_status each_of(const char *folder, const char *const *names, each_file *each, void *user)
{
    for (; *names; names++) {
        if (!mhai_model_holds(folder, *names)) continue;
        char *path = mhai_model_join(folder, *names);
        const mha_status status =
            path ? each(user, *names, path) : MHA_NO_MEMORY(mhai_show_path(folder).text);
        free(path);
        MHA_TRY(status);
    }
    return MHA_OK;
}

static mha_status each_weights(const char *folder, each_file *each, void *user)
{
    static const char *const index[] = {"model.safetensors.index.json", NULL};
    mhai_weights weights;
    mha_status status = mhai_weights_open(folder, &weights);
    if (status == MHA_OK && !mhai_model_holds(folder, "model.safetensors"))
        status = each_of(folder, index, each, user);
    for (int64_t i = 0; i < weights.shards && status == MHA_OK; i++)
        status = each(user, weights.shard[i].path + strlen(folder) + 1, weights.shard[i].path);
    mhai_weights_close(&weights);
    return status;
}

/* Visit a GGUF file, without a name, or each part of a split model, with its name. */
static mha_status each_gguf(const char *path, each_file *each, void *user)
{
    mha_gguf *file = NULL;
    mha_status status = MHA_OK;
    MHA_TRY(mha_gguf_open(path, &file));
    const int64_t parts = mhai_gguf_parts(file);
    for (int64_t i = 0; i < parts && status == MHA_OK; i++) {
        char *part = mhai_gguf_part_path(file, path, i);
        const char *base = part ? strrchr(part, '/') : NULL, *name = base ? base + 1 : part;
        status = part ? each(user, parts > 1 ? name : NULL, part)
                      : MHA_NO_MEMORY(mhai_show_path(path).text);
        free(part);
    }
    mha_gguf_close(file);
    return status;
}

mha_status mha_model_files(const char *folder, each_file *each, void *user)
{
    MHA_NEED("mha_model_files", folder, each);
    if (mhai_model_is_gguf(folder)) return each_gguf(folder, each, user);
    MHA_TRY(each_of(folder, mhai_configuration_files, each, user));
    MHA_TRY(each_of(folder, mhai_image_files, each, user));
    MHA_TRY(each_of(folder, mhai_tokenizer_files, each, user));
    return each_weights(folder, each, user);
}
