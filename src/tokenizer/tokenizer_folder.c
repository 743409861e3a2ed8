/* See tokenizer_folder.h. If files contradict each other, transformers silently uses one of them.
 * Here, a contradiction is an error. */
#include "tokenizer/tokenizer_folder.h"

#include "io/file.h"
#include "io/json_file.h"

#include <multihead/component.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

const char *const mhai_tokenizer_files[] = {"tokenizer.json",          "tokenizer_config.json",
                                            "special_tokens_map.json", "vocab.txt",
                                            "added_tokens.json",       NULL};

/* A vocabulary of a million tokens takes about 30 MB. */
static const size_t most_bytes = (size_t)256 << 20;

static const char *const name_keys[MHAI_NAMED] = {
    [MHAI_UNK] = "unk_token", [MHAI_SEP] = "sep_token",   [MHAI_PAD] = "pad_token",
    [MHAI_CLS] = "cls_token", [MHAI_MASK] = "mask_token", [MHAI_BOS] = "bos_token",
    [MHAI_EOS] = "eos_token",
};

/* ---- Fields ---------------------------------------------------------------------------------- */

mha_status mhai_tokenizer_folder_flag(const char *path, const json_t *object, const char *key,
                                      mhai_answer *value)
{
    const json_t *json = json_object_get(object, key);
    *value = MHAI_UNSAID;
    if (!json || json_is_null(json)) return MHA_OK;
    if (!json_is_boolean(json))
        return mhai_path_fail(MHA_ERR_FORMAT, path, "%s must be true, false or null", key);
    *value = json_is_true(json) ? MHAI_YES : MHAI_NO;
    return MHA_OK;
}

bool mhai_or_default(mhai_answer value, bool otherwise)
{
    return value == MHAI_UNSAID ? otherwise : value == MHAI_YES;
}

const char *mhai_show_json(const json_t *json)
{
    if (!json) return "nothing";
    switch (json_typeof(json)) {
    case JSON_STRING: return json_string_value(json);
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "a list";
    case JSON_NULL: return "null";
    case JSON_TRUE: return "true";
    case JSON_FALSE: return "false";
    default: return "a number";
    }
}

mha_status mhai_tokenizer_folder_id(const char *path, const char *what, const json_t *json,
                                    int32_t *id)
{
    const double value = json_number_value(json);
    if (!json_is_number(json) || !(value >= 0) || value >= INT32_MAX ||
        value != (double)(int32_t)value)
        return mhai_path_fail(MHA_ERR_FORMAT, path,
                              "the id of '%s' must be an integer from 0 to %d",
                              mhai_show_name(what).text, INT32_MAX - 1);
    *id = (int32_t)value;
    return MHA_OK;
}

mha_status mhai_tokenizer_folder_flags(const char *path, const json_t *json, bool *normal,
                                       uint8_t *flags)
{
    static const struct {
        const char *key;
        uint8_t flag;
    } options[] = {{"special", MHAI_IS_SPECIAL},
                   {"lstrip", MHAI_LSTRIP},
                   {"rstrip", MHAI_RSTRIP},
                   {"single_word", MHAI_SINGLE_WORD}};
    mhai_answer value = MHAI_UNSAID;
    *flags = 0;
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        MHA_TRY(mhai_tokenizer_folder_flag(path, json, options[i].key, &value));
        if (value == MHAI_YES) *flags |= options[i].flag;
    }
    MHA_TRY(mhai_tokenizer_folder_flag(path, json, "normalized", &value));
    *normal = mhai_or_default(value, !(*flags & MHAI_IS_SPECIAL));
    return MHA_OK;
}

mha_status mhai_tokenizer_folder_token(const char *path, const char *key, const json_t *json,
                                       const char **text)
{
    *text = NULL;
    if (!json || json_is_null(json)) return MHA_OK;
    if (json_is_object(json)) json = json_object_get(json, "content");
    if (!json_is_string(json) || json_string_length(json) == 0)
        return mhai_path_fail(MHA_ERR_FORMAT, path, "%s must be a text that is not empty", key);
    *text = json_string_value(json);
    return MHA_OK;
}

/* ---- tokenizer_config.json and special_tokens_map.json --------------------------------------- */

static mha_status read_names(mhai_folder *f)
{
    for (int which = 0; which < MHAI_NAMED; which++)
        for (int file = MHAI_CONFIG_JSON; file <= MHAI_MAP_JSON; file++) {
            const char *text = NULL, *key = name_keys[which];
            MHA_TRY(mhai_tokenizer_folder_token(f->paths[file], key,
                                                json_object_get(f->json[file], key), &text));
            if (!text) continue;
            if (f->names[which] && strcmp(text, f->names[which]) != 0)
                return mhai_path_fail(MHA_ERR_MODEL, f->paths[file], "%s is '%s', but '%s' in %s",
                                      key, mhai_show_name(text).text,
                                      mhai_show_name(f->names[which]).text,
                                      mhai_tokenizer_files[MHAI_CONFIG_JSON]);
            f->names[which] = text;
            f->stated[which] = true;
        }
    return MHA_OK;
}

static mha_status read_config(mhai_folder *f)
{
    const char *path = f->paths[MHAI_CONFIG_JSON];
    const json_t *config = f->json[MHAI_CONFIG_JSON];
    mhai_answer split;
    MHA_TRY(mhai_tokenizer_folder_flag(path, config, "split_special_tokens", &split));
    if (split == MHAI_YES)
        return mhai_path_fail(MHA_ERR_UNSUPPORTED, path, "split_special_tokens is not supported");
    const json_t *length = json_object_get(config, "model_max_length");
    const double tokens = json_number_value(length);
    if (length && !json_is_null(length) && !(json_is_number(length) && tokens >= 1))
        return mhai_path_fail(MHA_ERR_FORMAT, path, "model_max_length must be a number from 1");
    /* transformers writes 1e30 if no limit is known. */
    f->max_length = tokens >= 1 && tokens < 1e15 ? (int64_t)tokens : 0;
    return MHA_OK;
}

/* ---- Files ----------------------------------------------------------------------------------- */

/* The path of a file in the folder; NULL if out of memory. */
static char *join(const char *folder, const char *name)
{
    const size_t length = strlen(folder), rest = strlen(name);
    char *path = malloc(length + rest + 2);
    if (!path) return NULL;
    memcpy(path, folder, length);
    path[length] = '/';
    memcpy(path + length + 1, name, rest + 1);
    return path;
}

/* Whether anything exists there. An unreadable file must be an error, not a missing file. */
static bool exists(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

static mha_status read_file(mhai_folder *f, int file)
{
    const char *path = f->paths[file];
    if (!exists(path)) return MHA_OK;
    if (file == MHAI_VOCAB_TXT) return mha_file_read(path, most_bytes, &f->vocab, &f->vocab_size);
    MHA_TRY(mhai_json_read_reals(path, most_bytes, &f->json[file]));
    if (json_is_object(f->json[file])) return MHA_OK;
    return mhai_path_fail(MHA_ERR_FORMAT, path, "holds %s, expected a JSON object",
                          mhai_show_json(f->json[file]));
}

/* Reject a file of older folders that may be the only definition of some tokens. */
static mha_status refuse_added_tokens_file(const char *path, const mhai_folder *f)
{
    if (f->json[MHAI_TOKENIZER_JSON] ||
        json_object_get(f->json[MHAI_CONFIG_JSON], "added_tokens_decoder"))
        return MHA_OK;
    char *added = join(path, mhai_tokenizer_files[MHAI_FILES]);
    if (!added) return mhai_path_fail(MHA_ERR_NOMEM, path, "cannot allocate names");
    const bool there = exists(added);
    free(added);
    if (!there) return MHA_OK;
    return mhai_path_fail(MHA_ERR_UNSUPPORTED, path,
                          "added_tokens.json is not supported; save the tokenizer again with "
                          "transformers, which writes tokenizer.json");
}

mha_status mhai_tokenizer_folder_open(const char *path, mhai_folder *folder)
{
    for (int i = 0; i < MHAI_NAMED; i++) folder->template_ids[i] = -1;
    for (int i = 0; i < MHAI_FILES; i++) {
        folder->paths[i] = join(path, mhai_tokenizer_files[i]);
        if (!folder->paths[i]) return mhai_path_fail(MHA_ERR_NOMEM, path, "cannot allocate names");
    }
    for (int i = 0; i < MHAI_FILES; i++) MHA_TRY(read_file(folder, i));
    if (!folder->vocab && !folder->json[MHAI_TOKENIZER_JSON])
        return mhai_path_fail(MHA_ERR_FILE, path, "has neither vocab.txt nor tokenizer.json");
    MHA_TRY(refuse_added_tokens_file(path, folder));
    MHA_TRY(read_names(folder));
    return read_config(folder);
}

void mhai_tokenizer_folder_close(mhai_folder *folder)
{
    for (int i = 0; i < MHAI_FILES; i++) {
        free(folder->paths[i]);
        json_decref(folder->json[i]);
    }
    mha_file_free(folder->vocab);
}
