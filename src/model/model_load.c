/* Model folders: find the files, choose the architecture, let it load, add the tokenizer.
 *
 * Everything in a folder is hostile until checked: io checks the files' form, model_config.c the
 * fields, model_weights.c the tensors; sizes are only allocated after a tensor of that shape was
 * found in the file, so config.json alone cannot ask for memory. */
#include "io/file.h"
#include "io/json_file.h"
#include "model/arch.h"

#include <multihead/component.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The one list of architectures. */
static const mhai_arch *const architectures[] = {&mhai_arch_bert};

enum { ARCHITECTURES = sizeof architectures / sizeof architectures[0] };

static const size_t most_config_bytes = 16u << 20;

/* ---- files of the folder ------------------------------------------------------------------- */

char *mhai_model_join(const char *folder, const char *name)
{
    size_t bytes = strlen(folder) + strlen(name) + 2;
    char *path = malloc(bytes);
    if (path) snprintf(path, bytes, "%s/%s", folder, name);
    return path;
}

static bool holds(const char *folder, const char *name)
{
    struct stat status;
    char *path = mhai_model_join(folder, name);
    bool found = path && stat(path, &status) == 0;
    free(path);
    return found;
}

mha_status mhai_model_check_folder(const char *folder)
{
    struct stat status;
    static const char contents[] = "config.json, model.safetensors and vocab.txt or tokenizer.json";
    if (stat(folder, &status) != 0 && errno != ENOENT)
        return mha_fail(MHA_ERR_FILE, "%s: %s", mhai_show_path(folder).text, strerror(errno));
    if (stat(folder, &status) != 0)
        return mha_fail(MHA_ERR_FILE, "%s: no such folder; tools/get-minilm fetches a model",
                        mhai_show_path(folder).text);
    if (!S_ISDIR(status.st_mode))
        return mha_fail(MHA_ERR_FILE, "%s: not a folder; a model folder has %s",
                        mhai_show_path(folder).text, contents);
    if (access(folder, X_OK) != 0) /* else every file in it would seem to be missing */
        return mha_fail(MHA_ERR_FILE, "%s: its files cannot be opened: %s",
                        mhai_show_path(folder).text, strerror(errno));
    if (!holds(folder, "config.json"))
        return mha_fail(MHA_ERR_FILE,
                        "%s/config.json: no such file; a model folder has %s; see tools/get-minilm",
                        mhai_show_path(folder).text, contents);
    if (holds(folder, "model.safetensors")) return MHA_OK;
    if (holds(folder, "model.safetensors.index.json"))
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "%s: weights in several files are not supported; save the model again with "
                        "a larger max_shard_size",
                        mhai_show_path(folder).text);
    return mha_fail(MHA_ERR_FILE, "%s/model.safetensors: no such file; a model folder has %s%s",
                    mhai_show_path(folder).text, contents,
                    holds(folder, "pytorch_model.bin")
                        ? " (pytorch_model.bin is not read: save_pretrained() writes safetensors)"
                        : "; see tools/get-minilm");
}

/* ---- architecture -------------------------------------------------------------------------- */

static mha_status choose_architecture(const mhai_config *config, const mhai_arch **arch)
{
    const char *type = NULL;
    char known[256] = "";
    if (!json_is_object(config->root))
        return mha_fail(MHA_ERR_MODEL, "%s: is no JSON object", mhai_show_path(config->path).text);
    for (int i = 0; i < ARCHITECTURES; i++)
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "",
                 architectures[i]->model_type);
    MHA_TRY(mhai_config_text(config, "model_type", NULL, &type));
    for (int i = 0; i < ARCHITECTURES; i++)
        if (strcmp(architectures[i]->model_type, type) == 0) {
            *arch = architectures[i];
            return MHA_OK;
        }
    return mha_fail(MHA_ERR_UNSUPPORTED, "%s: architecture '%s' is not supported; known: %s",
                    mhai_show_path(config->path).text, mhai_show_name(type).text, known);
}

static mha_status load_body(mha_context *context, const mhai_config *config,
                            const char *weights_path, mha_model *model)
{
    mha_safetensors *file = NULL;
    MHA_TRY(choose_architecture(config, &model->arch));
    MHA_TRY(mha_safetensors_open(weights_path, &file));
    mhai_weights weights = {.path = weights_path, .file = file, .prefix = ""};
    mha_status status = model->arch->load(context, config, &weights, model);
    model->info.architecture = model->arch->model_type;
    model->info.parameters = weights.parameters;
    mhai_weights_close(&weights);
    mha_safetensors_close(file);
    return status;
}

static mha_status load_tokenizer(const char *folder, mha_model *model)
{
    mha_tokenizer_info info = {.struct_size = sizeof info};
    MHA_TRY(mha_tokenizer_load(folder, NULL, &model->tokenizer));
    MHA_TRY(mha_tokenizer_describe(model->tokenizer, &info));
    if (info.vocab_size > model->info.vocab_size)
        return mha_fail(MHA_ERR_MODEL,
                        "%s: the tokenizer has %lld tokens, config.json's vocab_size is %lld; they "
                        "belong to different models",
                        mhai_show_path(folder).text, (long long)info.vocab_size,
                        (long long)model->info.vocab_size);
    return MHA_OK;
}

static mha_status load(mha_context *context, const char *folder, const mha_model_options *options,
                       mha_model *model)
{
    MHA_TRY(mhai_model_check_folder(folder));
    json_t *root = NULL;
    char *config_path = mhai_model_join(folder, "config.json");
    char *weights_path = mhai_model_join(folder, "model.safetensors");
    mha_status status = MHA_OK;
    if (!config_path || !weights_path) {
        status = mha_fail(MHA_ERR_NOMEM, "%s: cannot allocate names", mhai_show_path(folder).text);
        goto done;
    }
    MHA_TRY_GOTO(mhai_json_read(config_path, most_config_bytes, &root), done);
    const mhai_config config = {config_path, root};
    MHA_TRY_GOTO(load_body(context, &config, weights_path, model), done);
    if (!(options->flags & MHA_MODEL_NO_TOKENIZER)) status = load_tokenizer(folder, model);
done:
    json_decref(root);
    free(weights_path);
    free(config_path);
    return status;
}

/* ---- public -------------------------------------------------------------------------------- */

mha_status mha_model_load(mha_context *context, const char *folder,
                          const mha_model_options *options, mha_model **model)
{
    if (!context || !folder || !model)
        return mha_fail(MHA_ERR_NULL, "mha_model_load: %s is NULL",
                        !context  ? "context"
                        : !folder ? "folder"
                                  : "model");
    mha_model_options own;
    MHA_TRY(mha_struct_read("mha_model_options", &own, sizeof own, sizeof own, options,
                            options ? options->struct_size : 0));
    if (own.flags & ~(uint32_t)MHA_MODEL_NO_TOKENIZER)
        return mha_fail(MHA_ERR_UNSUPPORTED, "mha_model_options: flags 0x%x are unknown",
                        (unsigned)own.flags);
    mha_allocator allocator = mha_context_allocator(context);
    mha_model *made = allocator.alloc(allocator.user, sizeof *made, _Alignof(mha_model));
    if (!made) return mha_fail(MHA_ERR_NOMEM, "model: cannot allocate %zu bytes", sizeof *made);
    *made = (mha_model){.allocator = allocator};
    mha_status status = load(context, folder, &own, made);
    if (status == MHA_OK)
        *model = made;
    else
        mha_model_destroy(made);
    return status;
}

void mha_model_destroy(mha_model *model)
{
    if (!model) return;
    mha_tokenizer_destroy(model->tokenizer);
    if (model->arch) model->arch->destroy(model->body);
    mha_allocator allocator = model->allocator;
    allocator.release(allocator.user, model, sizeof *model);
}

mha_status mha_model_describe(const mha_model *model, mha_model_info *info)
{
    if (!model || !info) return mha_fail(MHA_ERR_NULL, "mha_model_describe: NULL argument");
    uint32_t size = info->struct_size;
    MHA_TRY(mha_struct_check_size("mha_model_info", size, sizeof *info));
    memset(info, 0, size); /* fields of a newer caller */
    *info = model->info;
    info->struct_size = size;
    return MHA_OK;
}

const mha_tokenizer *mha_model_tokenizer(const mha_model *model)
{
    return model ? model->tokenizer : NULL;
}
