/* The added tokens of a tokenizer, from up to four places: "added_tokens" in tokenizer.json,
 * "added_tokens_decoder" in tokenizer_config.json, and the names in the latter file and in
 * special_tokens_map.json. */
#include "tokenizer/tokenizer_load.h"

#include "io/file.h"

#include <multihead/component.h>

#include <string.h>

/* Find an earlier definition of a token; NULL: none. */
static mhai_added *find(const mhai_loader *l, const char *text)
{
    const json_t *place = json_object_get(l->added_places, text);
    return place ? (mhai_added *)l->added.items + json_integer_value(place) : NULL;
}

/* Add a token, or check that it agrees with an earlier definition. */
static mha_status add(mhai_loader *l, const mhai_added *token)
{
    mhai_added *before = find(l, token->text);
    if (!before) {
        const json_int_t place = (json_int_t)l->added.count;
        if (json_object_set_new(l->added_places, token->text, json_integer(place)) != 0)
            return mha_fail(MHA_ERR_NOMEM, "tokenizer: cannot allocate its added tokens");
        return mhai_vector_push(&l->added, token);
    }
    if (before->normal != token->normal ||
        (before->flags ^ token->flags) & ~(unsigned)MHAI_IS_SPECIAL ||
        (before->id >= 0 && token->id >= 0 && before->id != token->id))
        return mhai_path_fail(MHA_ERR_MODEL, token->path,
                              "token '%s' has another id or is normalized or stripped "
                              "otherwise than in %s",
                              mhai_show_name(token->text).text, mhai_show_path(before->path).text);
    if (token->id >= 0) before->id = token->id;
    before->flags |= token->flags;
    before->in_json |= token->in_json;
    before->in_decoder |= token->in_decoder;
    return MHA_OK;
}

/* Add an element of one of the two lists, with its options. */
static mha_status add_listed(mhai_loader *l, const char *path, const json_t *json, mhai_added token)
{
    token.path = path;
    MHA_TRY(mhai_tokenizer_folder_token(path, "an added token", json, &token.text));
    if (!token.text || !json_is_object(json))
        return mhai_path_fail(MHA_ERR_FORMAT, path,
                              "an added token must be an object with content");
    MHA_TRY(mhai_tokenizer_folder_flags(path, json, &token.normal, &token.flags));
    return add(l, &token);
}

static mha_status add_json_list(mhai_loader *l)
{
    const char *path = l->folder.paths[MHAI_TOKENIZER_JSON];
    const json_t *list = json_object_get(l->folder.json[MHAI_TOKENIZER_JSON], "added_tokens");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *json = json_array_get(list, i);
        mhai_added token = {.in_json = true};
        MHA_TRY(mhai_tokenizer_folder_id(path, "an added token", json_object_get(json, "id"),
                                         &token.id));
        MHA_TRY(add_listed(l, path, json, token));
    }
    return MHA_OK;
}

/* Read {"100": {"content": "[UNK]", ...}, ...}. */
static mha_status add_decoder_list(mhai_loader *l)
{
    const char *path = l->folder.paths[MHAI_CONFIG_JSON], *key;
    json_t *list = json_object_get(l->folder.json[MHAI_CONFIG_JSON], "added_tokens_decoder"), *json;
    json_object_foreach(list, key, json)
    {
        mhai_added token = {.in_decoder = true};
        int64_t id = 0;
        for (const char *digit = key; *digit && id >= 0; digit++)
            id = *digit >= '0' && *digit <= '9' && id < INT32_MAX / 10 ? 10 * id + (*digit - '0')
                                                                       : -1;
        if (id < 0 || *key == '\0')
            return mhai_path_fail(MHA_ERR_FORMAT, path, "added_tokens_decoder: '%s' is not an id",
                                  mhai_show_name(key).text);
        token.id = (int32_t)id;
        MHA_TRY(add_listed(l, path, json, token));
    }
    return MHA_OK;
}

/* Compare the lists if both exist. transformers would use one and ignore the other. */
static mha_status compare_lists(const mhai_loader *l)
{
    const mhai_added *added = l->added.items;
    if (!json_object_get(l->folder.json[MHAI_CONFIG_JSON], "added_tokens_decoder") ||
        !json_object_get(l->folder.json[MHAI_TOKENIZER_JSON], "added_tokens"))
        return MHA_OK;
    for (size_t i = 0; i < l->added.count; i++)
        if (added[i].in_json != added[i].in_decoder)
            return mhai_path_fail(
                MHA_ERR_MODEL, added[i].path,
                "added token '%s' is missing from the other of tokenizer.json and "
                "tokenizer_config.json",
                mhai_show_name(added[i].text).text);
    return MHA_OK;
}

/* Add a token that a file names without a definition. Unless a list defines its options, it is
 * matched verbatim in the text. */
static mha_status add_named(mhai_loader *l, const char *path, const char *key, const json_t *json)
{
    mhai_added token = {.id = -1, .path = path};
    MHA_TRY(mhai_tokenizer_folder_token(path, key, json, &token.text));
    if (!token.text) return MHA_OK;
    if (json_is_object(json))
        MHA_TRY(mhai_tokenizer_folder_flags(path, json, &token.normal, &token.flags));
    token.flags |= MHAI_IS_SPECIAL;
    mhai_added *before = find(l, token.text);
    if (!before) return add(l, &token);
    before->flags |= MHAI_IS_SPECIAL;
    return MHA_OK;
}

static bool ends_with_token(const char *key)
{
    const size_t length = strlen(key);
    return length >= 6 && strcmp(key + length - 6, "_token") == 0;
}

/* Add all tokens that a file names: "sep_token", "my_own_token", and a list of others. */
static mha_status add_file_names(mhai_loader *l, int file)
{
    const char *path = l->folder.paths[file], *key;
    json_t *json;
    json_object_foreach(l->folder.json[file], key, json)
    {
        const bool list = strcmp(key, "additional_special_tokens") == 0 ||
                          strcmp(key, "extra_special_tokens") == 0;
        const char *inner;
        json_t *value;
        if (ends_with_token(key) && (json_is_string(json) || json_is_object(json)))
            MHA_TRY(add_named(l, path, key, json));
        for (size_t i = 0; list && i < json_array_size(json); i++)
            MHA_TRY(add_named(l, path, key, json_array_get(json, i)));
        if (list) json_object_foreach(json, inner, value)
            {
                MHA_TRY(add_named(l, path, key, value));
            }
    }
    return MHA_OK;
}

static bool in_vocabulary(const mhai_loader *l, const char *text)
{
    const char *const *tokens = l->tokens.items;
    for (size_t i = 0; i < l->tokens.count; i++)
        if (strcmp(tokens[i], text) == 0) return true;
    return false;
}

/* For BERT's class, add [UNK] etc. under their usual names if no file names them. */
static mha_status add_default_names(mhai_loader *l)
{
    if (!l->folder.defaults) return MHA_OK;
    for (int which = 0; which < MHAI_NAMED; which++) {
        const char *name = l->folder.names[which];
        const mhai_added token = {.text = name,
                                  .id = -1,
                                  .flags = MHAI_IS_SPECIAL,
                                  .path = l->folder.paths[MHAI_CONFIG_JSON]};
        if (name && !l->folder.stated[which] && !find(l, name) && in_vocabulary(l, name))
            MHA_TRY(add(l, &token));
    }
    return MHA_OK;
}

/* Append the added tokens that are not in the vocabulary. Their ids must have no gaps. */
static mha_status append_extra(mhai_loader *l)
{
    const mhai_added *added = l->added.items;
    size_t extra = 0;
    for (size_t i = 0; i < l->added.count; i++) extra += added[i].id >= l->model_count;
    void *place = NULL;
    MHA_TRY(mhai_vector_add(&l->tokens, extra, &place));
    const char **tokens = place;
    for (size_t i = 0; i < extra; i++) tokens[i] = NULL;
    for (size_t i = 0; i < l->added.count; i++) {
        if (added[i].id < l->model_count) continue;
        const size_t at = (size_t)(added[i].id - l->model_count);
        if (at >= extra || tokens[at])
            return mhai_path_fail(
                MHA_ERR_MODEL, added[i].path,
                "added token '%s' has id %d; %zu tokens are added to a vocabulary "
                "of %d, their ids must follow it one by one",
                mhai_show_name(added[i].text).text, added[i].id, extra, l->model_count);
        tokens[at] = added[i].text;
    }
    return MHA_OK;
}

mha_status mhai_tokenizer_added_read(mhai_loader *l)
{
    l->added_places = json_object(); /* out of memory is reported by the first token */
    MHA_TRY(add_json_list(l));
    MHA_TRY(add_decoder_list(l));
    MHA_TRY(compare_lists(l));
    MHA_TRY(add_file_names(l, MHAI_CONFIG_JSON));
    MHA_TRY(add_file_names(l, MHAI_MAP_JSON));
    MHA_TRY(add_default_names(l));
    return append_extra(l);
}
