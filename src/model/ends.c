/* See ends.h. */
#include "model/ends.h"

#include "io/file.h"
#include "io/json_file.h"
#include "model/folder.h"

#include <multihead/component.h>

#include <stdlib.h>
#include <string.h>

/* Far above the number in any model. Lookup is linear. */
enum { MOST_ENDS = 1024 };

static const size_t most_config_bytes = 16u << 20;

mha_status mhai_ends_add(mhai_ends *ends, int64_t id, int64_t vocab_size)
{
    if (id < 0 || id >= vocab_size) return MHA_OK;
    for (int64_t i = 0; i < ends->count; i++)
        if (ends->ids[i] == id) return MHA_OK;
    int32_t *grown = realloc(ends->ids, (size_t)(ends->count + 1) * sizeof *grown);
    if (!grown) return mha_fail(MHA_ERR_NOMEM, "model: cannot allocate its end tokens");
    ends->ids = grown;
    grown[ends->count++] = (int32_t)id;
    return MHA_OK;
}

/* ---- folders ------------------------------------------------------------------------------- */

/* Add the number or the list of numbers of a field. With `words`, its numbers are in lists of
 * their own, and longer lists are left out. */
static mha_status add_field(const char *path, const json_t *root, const char *key, bool words,
                            int64_t vocab_size, mhai_ends *ends)
{
    const json_t *value = json_object_get(root, key);
    const bool list = json_is_array(value);
    const size_t count = list ? json_array_size(value) : 1;
    if (!value || json_is_null(value)) return MHA_OK;
    for (size_t i = 0; i < count && count <= MOST_ENDS; i++) {
        const json_t *id = list ? json_array_get(value, i) : value;
        if (words && json_array_size(id) > 1) continue;
        if (words) id = json_array_get(id, 0);
        if (!json_is_integer(id))
            return mhai_path_fail(MHA_ERR_MODEL, path,
                                  "'%s' is neither a token's number nor a list of them", key);
        MHA_TRY(mhai_ends_add(ends, (int64_t)json_integer_value(id), vocab_size));
    }
    if (count <= MOST_ENDS) return MHA_OK;
    return mhai_path_fail(MHA_ERR_MODEL, path, "'%s' lists %zu tokens, at most %d are supported",
                          key, count, (int)MOST_ENDS);
}

/* Read a token's number; -1 if the field is absent. */
static mha_status read_token(const char *path, const json_t *root, const char *key,
                             int64_t vocab_size, int64_t *id)
{
    const json_t *value = json_object_get(root, key);
    *id = value && !json_is_null(value) ? (int64_t)json_integer_value(value) : -1;
    if (*id == -1 && (!value || json_is_null(value))) return MHA_OK;
    if (json_is_integer(value) && *id >= 0 && *id < vocab_size) return MHA_OK;
    return mhai_path_fail(MHA_ERR_MODEL, path, "'%s' is not a token of 0..%lld", key,
                          (long long)vocab_size - 1);
}

static mha_status read_begins(const char *path, const json_t *root, int64_t vocab_size,
                              mhai_begins *begins)
{
    int64_t start, first;
    MHA_TRY(read_token(path, root, "decoder_start_token_id", vocab_size, &start));
    MHA_TRY(read_token(path, root, "forced_bos_token_id", vocab_size, &first));
    MHA_TRY(add_field(path, root, "bad_words_ids", true, vocab_size, &begins->suppressed));
    MHA_TRY(add_field(path, root, "suppress_tokens", false, vocab_size, &begins->suppressed));
    MHA_TRY(add_field(path, root, "begin_suppress_tokens", false, vocab_size, &begins->first));
    if (start < 0) return MHA_OK;
    begins->ids[0] = (int32_t)start;
    begins->ids[1] = (int32_t)first;
    begins->count = first < 0 ? 1 : 2;
    return MHA_OK;
}

static mha_status add_json(const char *path, const json_t *root, int64_t vocab_size,
                           mhai_ends *ends, mhai_begins *begins)
{
    const json_t *text = json_object_get(root, "text_config"); /* multimodal models have one */
    MHA_TRY(add_field(path, json_is_object(text) ? text : root, "eos_token_id", false, vocab_size,
                      ends));
    return begins ? read_begins(path, root, vocab_size, begins) : MHA_OK;
}

mha_status mhai_ends_of_folder(const char *folder, int64_t vocab_size, mhai_ends *ends,
                               mhai_begins *begins)
{
    mha_status status = MHA_OK;
    for (const char *const *name = mhai_configuration_files; *name && status == MHA_OK; name++) {
        json_t *root = NULL;
        if (!mhai_model_holds(folder, *name)) continue;
        char *path = mhai_model_join(folder, *name);
        status = path ? mhai_json_read(path, most_config_bytes, &root)
                      : mha_fail(MHA_ERR_NOMEM, "%s: cannot allocate a name", folder);
        if (status == MHA_OK) status = add_json(path, root, vocab_size, ends, begins);
        json_decref(root);
        free(path);
    }
    return status;
}

/* ---- GGUF files ---------------------------------------------------------------------------- */

/* llama.cpp also ends a text at these tokens, since some files do not list them. */
static bool is_end(const char *text, size_t size)
{
    static const char *const names[] = {"<|eot_id|>",
                                        "<|eom_id|>",
                                        "<|im_end|>",
                                        "<|end|>",
                                        "<end_of_turn>",
                                        "<|endoftext|>",
                                        "<|end_of_text|>",
                                        "<EOT>",
                                        "_<EOT>",
                                        "[EOT]",
                                        "[EOS]",
                                        "<eos>",
                                        "</s>",
                                        "<end_of_utterance>",
                                        "<\uFF5Cend\u2581of\u2581sentence\uFF5C>"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strlen(names[i]) == size && memcmp(names[i], text, size) == 0) return true;
    return false;
}

/* The token that begins the texts of a decoder. As in llama.cpp, it is by default that of padding. */
static mha_status read_begin(const mha_gguf *file, const char *path, int64_t vocab_size,
                             mhai_begins *begins)
{
    static const char *const keys[] = {"t5.decoder_start_token_id",
                                       "tokenizer.ggml.padding_token_id"};
    const char *key = keys[mha_gguf_key_find(file, keys[0]) < 0];
    mha_gguf_value value;
    int64_t id;
    if (mha_gguf_key_find(file, key) < 0) return MHA_OK;
    MHA_TRY(mha_gguf_value_of(file, key, &value));
    MHA_TRY(mha_gguf_integer(&value, 0, INT64_MIN, INT64_MAX, &id));
    if (id < 0 || id >= vocab_size)
        return mhai_path_fail(MHA_ERR_MODEL, path, "'%s' is %lld, expected a token of 0..%lld", key,
                              (long long)id, (long long)vocab_size - 1);
    begins->ids[0] = (int32_t)id;
    begins->count = 1;
    return MHA_OK;
}

mha_status mhai_ends_of_gguf(const mha_gguf *file, const char *path, int64_t vocab_size,
                             mhai_ends *ends, mhai_begins *begins)
{
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    static const char tokens[] = "tokenizer.ggml.tokens";
    mha_gguf_value value;
    if (begins) MHA_TRY(read_begin(file, path, vocab_size, begins));
    for (int i = 0; i < 3; i++) {
        int64_t id;
        if (mha_gguf_key_find(file, keys[i]) < 0) continue;
        MHA_TRY(mha_gguf_value_of(file, keys[i], &value));
        MHA_TRY(mha_gguf_integer(&value, 0, INT64_MIN, INT64_MAX, &id));
        MHA_TRY(mhai_ends_add(ends, id, vocab_size));
    }
    if (mha_gguf_key_find(file, tokens) < 0) return MHA_OK;
    MHA_TRY(mha_gguf_value_of(file, tokens, &value));
    for (int64_t i = 0; i < value.count; i++) {
        const char *text;
        size_t size;
        MHA_TRY(mha_gguf_string(&value, i, &text, &size));
        if (is_end(text, size)) MHA_TRY(mhai_ends_add(ends, i, vocab_size));
    }
    return MHA_OK;
}
