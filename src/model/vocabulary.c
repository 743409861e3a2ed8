/* The words of a folder that mha_checkpoint_save() wrote: tokenizer.json is read back, and whatever
 * it says beyond that is refused. */
#include "io/file.h"
#include "io/json_file.h"
#include "model/arch.h"

#include <multihead/checkpoint.h>
#include <multihead/component.h>

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

static const size_t most_bytes = 256u << 20;

struct mha_vocabulary {
    json_t *ids;        /* {word: id}; owns the words */
    const char **words; /* [count] */
    int64_t count;
    int32_t begin, end, unknown; /* -1: none */
};

/* ---- loading ------------------------------------------------------------------------------- */

static mha_status unsupported(const char *path, const char *what)
{
    return mha_fail(MHA_ERR_UNSUPPORTED,
                    "%s: %s; only whole words behind white space are read (WordLevel, "
                    "WhitespaceSplit)",
                    mhai_show_path(path).text, what);
}

static bool is_text(const json_t *object, const char *key, const char *text)
{
    const char *found = json_string_value(json_object_get(object, key));
    return found && strcmp(found, text) == 0;
}

static bool is_unset(const json_t *root, const char *key)
{
    const json_t *value = json_object_get(root, key);
    return !value || json_is_null(value);
}

static mha_status find(const mha_vocabulary *v, const char *path, const char *what,
                       const char *word, int32_t *id)
{
    const json_t *found = word ? json_object_get(v->ids, word) : NULL;
    if (word && !found)
        return mha_fail(MHA_ERR_MODEL, "%s: %s '%s' is not a word of the vocabulary",
                        mhai_show_path(path).text, what, mhai_show_name(word).text);
    *id = found ? (int32_t)json_integer_value(found) : -1;
    return MHA_OK;
}

/* Every id from 0 on, each once. */
static mha_status list_words(const char *path, mha_vocabulary *v)
{
    const char *word;
    json_t *id;
    v->count = (int64_t)json_object_size(v->ids);
    v->words = calloc((size_t)v->count + 1, sizeof *v->words);
    if (!v->words) return mha_fail(MHA_ERR_NOMEM, "vocabulary: cannot allocate its table");
    json_object_foreach(v->ids, word, id)
    {
        const json_int_t at = json_is_integer(id) ? json_integer_value(id) : -1;
        if (at < 0 || at >= v->count || at > INT32_MAX || v->words[at])
            return mha_fail(MHA_ERR_MODEL, "%s: the ids of %lld words are not 0..%lld, see '%s'",
                            mhai_show_path(path).text, (long long)v->count, (long long)v->count - 1,
                            mhai_show_name(word).text);
        v->words[at] = word;
    }
    return MHA_OK;
}

static mha_status read_beginning(const char *path, const json_t *root, mha_vocabulary *v)
{
    const json_t *processor = json_object_get(root, "post_processor");
    const json_t *single = json_object_get(processor, "single");
    const json_t *first = json_object_get(json_array_get(single, 0), "SpecialToken");
    const json_t *second = json_object_get(json_array_get(single, 1), "Sequence");
    if (is_unset(root, "post_processor")) return MHA_OK;
    if (!is_text(processor, "type", "TemplateProcessing") || json_array_size(single) != 2 ||
        !first || !second)
        return unsupported(path, "the post_processor is not a token in front of the text");
    const char *word = json_string_value(json_object_get(first, "id"));
    return find(v, path, "post_processor", word ? word : "", &v->begin);
}

static mha_status read_words(const char *path, const json_t *root, mha_vocabulary *v)
{
    const json_t *model = json_object_get(root, "model");
    if (!is_text(model, "type", "WordLevel"))
        return unsupported(path, "the model is not WordLevel");
    if (!is_text(json_object_get(root, "pre_tokenizer"), "type", "WhitespaceSplit") ||
        !is_unset(root, "normalizer"))
        return unsupported(path, "it has a normalizer or another pre_tokenizer");
    json_t *ids = json_object_get(model, "vocab");
    if (!json_is_object(ids))
        return mha_fail(MHA_ERR_MODEL, "%s: model.vocab is no JSON object",
                        mhai_show_path(path).text);
    v->ids = json_incref(ids);
    MHA_TRY(list_words(path, v));
    const char *unknown = json_string_value(json_object_get(model, "unk_token"));
    if (unknown && json_object_get(v->ids, unknown))
        MHA_TRY(find(v, path, "unk_token", unknown, &v->unknown));
    return read_beginning(path, root, v);
}

/* eos_token is a text or an object that holds it. */
static mha_status read_end(const char *path, const json_t *root, mha_vocabulary *v)
{
    const json_t *token = json_object_get(root, "eos_token");
    if (json_is_object(token)) token = json_object_get(token, "content");
    return find(v, path, "eos_token", json_string_value(token), &v->end);
}

/* One file of the folder; one that may be missing reads as nothing. */
static mha_status read_json(const char *folder, const char *name, bool optional,
                            mha_status (*read)(const char *, const json_t *, mha_vocabulary *),
                            mha_vocabulary *v)
{
    json_t *root = NULL;
    char *path = mhai_model_join(folder, name);
    if (!path) return mha_fail(MHA_ERR_NOMEM, "vocabulary: cannot allocate a name");
    /* model_max_length may be beyond 64 bits, which only reals hold; ids are integers */
    mha_status status = optional ? mhai_json_read_reals(path, most_bytes, &root)
                                 : mhai_json_read(path, most_bytes, &root);
    if (status == MHA_OK)
        status = read(path, root, v);
    else if (optional && status == MHA_ERR_FILE)
        status = MHA_OK;
    json_decref(root);
    free(path);
    return status;
}

mha_status mha_vocabulary_load(const char *folder, mha_vocabulary **vocabulary)
{
    if (!folder || !vocabulary)
        return mha_fail(MHA_ERR_NULL, "mha_vocabulary_load: %s is NULL",
                        folder ? "vocabulary" : "folder");
    mha_vocabulary *made = calloc(1, sizeof *made);
    if (!made) return mha_fail(MHA_ERR_NOMEM, "vocabulary: cannot allocate it");
    made->begin = made->end = made->unknown = -1;
    mha_status status = read_json(folder, "tokenizer.json", false, read_words, made);
    if (status == MHA_OK) status = read_json(folder, "tokenizer_config.json", true, read_end, made);
    if (status == MHA_OK)
        *vocabulary = made;
    else
        mha_vocabulary_destroy(made);
    return status;
}

void mha_vocabulary_destroy(mha_vocabulary *v)
{
    if (!v) return;
    json_decref(v->ids);
    free(v->words);
    free(v);
}

/* ---- asking -------------------------------------------------------------------------------- */

int64_t mha_vocabulary_count(const mha_vocabulary *v)
{
    return v->count;
}

const char *mha_vocabulary_word(const mha_vocabulary *v, int64_t id)
{
    return id >= 0 && id < v->count ? v->words[id] : NULL;
}

int32_t mha_vocabulary_end(const mha_vocabulary *v)
{
    return v->end;
}

/* White space as Unicode has it. */
static bool is_space(utf8proc_int32_t code)
{
    const utf8proc_category_t c = utf8proc_category(code);
    return (code >= 9 && code <= 13) || code == 0x85 || c == UTF8PROC_CATEGORY_ZS ||
           c == UTF8PROC_CATEGORY_ZL || c == UTF8PROC_CATEGORY_ZP;
}

/* Bytes of the character at text, at least 1; *space says what it is. */
static mha_status next(const char *text, size_t at, size_t bytes, size_t *step, bool *space)
{
    utf8proc_int32_t code;
    const utf8proc_ssize_t length = utf8proc_iterate((const utf8proc_uint8_t *)text + at,
                                                     (utf8proc_ssize_t)(bytes - at), &code);
    if (length < 1 || code == 0)
        return mha_fail(MHA_ERR_UTF8, "text: byte %zu does not begin a valid UTF-8 character", at);
    *step = (size_t)length;
    *space = is_space(code);
    return MHA_OK;
}

static mha_status look_up(const mha_vocabulary *v, char *word, int32_t *id)
{
    const json_t *found = json_object_get(v->ids, word);
    *id = found ? (int32_t)json_integer_value(found) : v->unknown;
    if (*id >= 0) return MHA_OK;
    return mha_fail(MHA_ERR_FORMAT, "text: '%s' is not one of the model's %lld words",
                    mhai_show_name(word).text, (long long)v->count);
}

static mha_status encode(const mha_vocabulary *v, char *text, size_t bytes, int32_t *ids,
                         int64_t room, int64_t *count)
{
    int64_t tokens = 0;
    if (v->begin >= 0 && room > 0) ids[0] = v->begin;
    if (v->begin >= 0) tokens = 1;
    for (size_t at = 0, from = 0, step; at <= bytes; at += step) {
        bool space = true;
        step = 1;
        if (at < bytes) MHA_TRY(next(text, at, bytes, &step, &space));
        if (!space) continue;
        text[at] = '\0'; /* the end of a word */
        if (at > from) {
            if (tokens >= room)
                return mha_fail(MHA_ERR_SIZE, "text: it has more than %lld tokens",
                                (long long)room);
            MHA_TRY(look_up(v, text + from, &ids[tokens++]));
        }
        from = at + step;
    }
    if (tokens > room)
        return mha_fail(MHA_ERR_SIZE, "text: it has more than %lld tokens", (long long)room);
    *count = tokens;
    return MHA_OK;
}

mha_status mha_vocabulary_encode(const mha_vocabulary *v, const char *text, size_t bytes,
                                 int32_t *ids, int64_t room, int64_t *count)
{
    if (!v || (!text && bytes) || (!ids && room > 0) || !count)
        return mha_fail(MHA_ERR_NULL, "mha_vocabulary_encode: an argument is NULL");
    if (bytes > PTRDIFF_MAX - 1) return mha_fail(MHA_ERR_SIZE, "text: longer than memory");
    char *copy = malloc(bytes + 1);
    if (!copy) return mha_fail(MHA_ERR_NOMEM, "text: cannot allocate %zu bytes", bytes + 1);
    if (bytes) memcpy(copy, text, bytes);
    mha_status status = encode(v, copy, bytes, ids, room, count);
    free(copy);
    return status;
}
