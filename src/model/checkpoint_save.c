/* Saving a transformer. Everything is validated before the first file is opened. */
#include "io/file.h"
#include "model/checkpoint_parts.h"
#include "model/folder.h"

#include <multihead/component.h>
#include <multihead/io.h>

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- JSON files ---------------------------------------------------------------------------- */

typedef struct output {
    const mha_sink *sink;
    mha_status status;
} output;

static int append(const char *bytes, size_t size, void *user)
{
    output *out = user;
    /* jansson continues after a failed write. */
    if (out->status == MHA_OK) out->status = mhai_file_append(out->sink, bytes, size);
    return out->status == MHA_OK ? 0 : -1;
}

mha_status mhai_checkpoint_write_json(const char *folder, const char *name, const json_t *root)
{
    mha_file *file;
    MHA_TRY(mha_file_create_in(folder, name, &file));
    output out = {mha_file_sink(file), MHA_OK};
    /* Nine digits identify a float. */
    if (json_dump_callback(root, append, &out, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) != 0 &&
        out.status == MHA_OK)
        out.status = MHA_NO_MEMORY("checkpoint");
    if (out.status == MHA_OK) out.status = mhai_file_append(out.sink, "\n", 1);
    return mha_file_finish(file, out.status);
}

/* ---- config.json --------------------------------------------------------------------------- */

static bool put_id(json_t *root, const char *key, const json_t *vocabulary, const char *word)
{
    /* null instead of no key, because transformers has default ids for Llama models */
    return mhai_put(root, key,
                    word ? json_integer(json_integer_value(json_object_get(vocabulary, word)))
                         : json_null());
}

static mha_status check_loads(const mhai_family *family, const json_t *root)
{
    mhai_family_plan plan = {0};
    const mhai_config config = {"mha_checkpoint_save", root};
    const mha_status status = mhai_checkpoint_read_plan(&config, family, &plan);
    mhai_checkpoint_free_plan(&plan);
    return status;
}

static mha_status write_config(const char *folder, const mhai_family *family,
                               const mha_transformer_desc *desc,
                               const mha_checkpoint_settings *settings, const json_t *vocabulary)
{
    json_t *root = json_object();
    mha_status status = MHA_NO_MEMORY("checkpoint");
    if (root && mhai_put(root, "model_type", json_string(family->model_type)) &&
        family->write(desc, root) && put_id(root, "bos_token_id", vocabulary, settings->bos_word) &&
        put_id(root, "eos_token_id", vocabulary, settings->eos_word) &&
        put_id(root, "pad_token_id", vocabulary, settings->pad_word))
        status = settings->like ? mhai_checkpoint_like_ids(settings->like, root) : MHA_OK;
    if (status == MHA_OK) status = check_loads(family, root);
    if (status == MHA_OK) status = mhai_checkpoint_write_json(folder, "config.json", root);
    json_decref(root);
    return status;
}

/* ---- model.safetensors --------------------------------------------------------------------- */

typedef struct weight_list {
    int64_t count;
    char (*text)[MHAI_WEIGHT_NAME];
    const char **names;
    mha_tensor *tensors;
    float *zeros, *numbers; /* NULL: not needed */
} weight_list;

static void free_list(weight_list *list)
{
    free(list->text);
    free(list->names);
    free(list->tensors);
    free(list->zeros);
    free(list->numbers);
}

/* BERT always adds a segment embedding. Write zeros if the transformer has none. */
static mha_status add_segments(const mha_transformer_desc *desc, weight_list *list)
{
    list->zeros = calloc((size_t)desc->embed_dim, 2 * sizeof(float));
    if (!list->zeros) return MHA_NO_MEMORY("checkpoint");
    list->names[list->count] = "embeddings.token_type_embeddings.weight";
    list->tensors[list->count++] =
        mha_tensor_contiguous(list->zeros, MHA_F32, 2, (const int64_t[]){2, desc->embed_dim});
    return MHA_OK;
}

/* Find all parameters in one array: the transformer's, or a copy. */
static mha_status find_numbers(mha_transformer *transformer, weight_list *list, float **data)
{
    *data = mha_transformer_data(transformer);
    if (*data) return MHA_OK;
    list->numbers = calloc((size_t)mha_transformer_size(transformer), sizeof *list->numbers);
    if (!list->numbers) return MHA_NO_MEMORY("checkpoint");
    *data = list->numbers;
    for (int64_t i = 0; i < mha_transformer_parameters(transformer); i++) {
        mha_parameter p;
        MHA_TRY(mha_transformer_parameter(transformer, i, &p));
        MHA_TRY(mha_transformer_read(transformer, &p, 0, p.shape[0], *data + p.offset));
    }
    return MHA_OK;
}

static mha_status list_weights(const mhai_family *family, const mha_transformer_desc *desc,
                               mha_transformer *transformer, weight_list *list)
{
    const int64_t count = mha_transformer_parameters(transformer);
    const size_t room = (size_t)count + 1;
    list->text = calloc(room, sizeof *list->text);
    list->names = calloc(room, sizeof *list->names);
    list->tensors = calloc(room, sizeof *list->tensors);
    if (!list->text || !list->names || !list->tensors) return MHA_NO_MEMORY("checkpoint");
    float *data;
    MHA_TRY(find_numbers(transformer, list, &data));
    for (int64_t i = 0; i < count; i++) {
        mha_parameter p;
        MHA_TRY(mha_transformer_parameter(transformer, i, &p));
        /* all names have a prefix, except a decoder's output */
        const bool inner =
            family->shape & MHA_MODEL_SHAPE_CAUSAL && strcmp(p.name, "lm_head.weight");
        char name[MHAI_WEIGHT_NAME];
        mhai_family_name(family, p.name, name);
        snprintf(list->text[i], sizeof list->text[i], "%s%s", inner ? family->prefix : "", name);
        list->names[i] = list->text[i];
        list->tensors[i] = mha_tensor_contiguous(data + p.offset, MHA_F32, p.ndim, p.shape);
    }
    list->count = count;
    const bool segments = strcmp(family->model_type, "bert") == 0 && desc->type_count == 0;
    return segments ? add_segments(desc, list) : MHA_OK;
}

static mha_status write_weights(const char *folder, const weight_list *list)
{
    static const char *const metadata[] = {"format", "pt", NULL}; /* required by transformers */
    mha_file *file;
    MHA_TRY(mha_file_create_in(folder, "model.safetensors", &file));
    return mha_file_finish(file, mha_safetensors_write_to(mha_file_sink(file), list->names,
                                                          list->tensors, list->count, metadata));
}

/* ---- public -------------------------------------------------------------------------------- */

static mha_status save(const char *folder, mha_transformer *transformer,
                       const mha_checkpoint_settings *settings, json_t *vocabulary,
                       weight_list *list)
{
    mha_transformer_desc desc;
    mha_transformer_describe(transformer, &desc);
    const mhai_family *family = mhai_family_of(&desc);
    MHA_TRY(list_weights(family, &desc, transformer, list));
    MHA_TRY(write_config(folder, family, &desc, settings, vocabulary));
    if (settings->like) MHA_TRY(mhai_checkpoint_like_files(settings->like, folder));
    if (settings->words)
        MHA_TRY(mhai_checkpoint_write_words(folder, settings, desc.max_length, vocabulary));
    return write_weights(folder, list);
}

mha_status mha_checkpoint_save(const char *folder, mha_transformer *transformer,
                               const mha_checkpoint_settings *settings)
{
    MHA_NEED("mha_checkpoint_save", folder, transformer);
    mha_checkpoint_settings own;
    mha_transformer_desc desc;
    json_t *vocabulary = NULL;
    weight_list list = {0};
    MHA_TRY(mha_struct_read("mha_checkpoint_settings", &own, sizeof own,
                            offsetof(mha_checkpoint_settings, splitting), settings,
                            settings ? settings->struct_size : 0));
    if ((unsigned)own.splitting > MHA_SPLIT_CHARACTERS)
        return mha_fail(MHA_ERR_ARGUMENT, "splitting is %d, expected 0..2 (mha_splitting)",
                        (int)own.splitting);
    if (own.reserved)
        return mha_fail(MHA_ERR_UNSUPPORTED, "mha_checkpoint_settings: reserved is %u, expected 0",
                        (unsigned)own.reserved);
    if (own.words && own.like)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_checkpoint_settings: words and like; give one");
    mha_transformer_describe(transformer, &desc);
    MHA_TRY(mhai_checkpoint_vocabulary(&own, desc.vocab_size, &vocabulary));
    mha_status status = save(folder, transformer, &own, vocabulary, &list);
    free_list(&list);
    json_decref(vocabulary);
    return status;
}
