/* The words of a folder written by mha_checkpoint_save(). Any other tokenizer.json is rejected. */
#include "io/file.h"
#include "io/json_file.h"
#include "model/folder.h"

#include <multihead/checkpoint.h>
#include <multihead/component.h>

#include <stdlib.h>
#include <string.h>

static const size_t most_bytes = 256u << 20;

struct mha_vocabulary {
    json_t *ids;        /* {word: id}; owns the words */
    const char **words; /* [count] */
    int64_t count;
    int32_t begin, end, unknown; /* -1: none */
    mha_splitting splitting;
};

/* ---- loading ------------------------------------------------------------------------------- */

static mha_status unsupported(const char *path, const char *what)
{
    return mhai_path_fail(MHA_ERR_UNSUPPORTED, path,
                          "%s; only whole words are read (WordLevel), split at white space, at "
                          "punctuation too, or into characters",
                          what);
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
        return mhai_path_fail(MHA_ERR_MODEL, path, "%s '%s' is not a word of the vocabulary", what,
                              mhai_show_name(word).text);
    *id = found ? (int32_t)json_integer_value(found) : -1;
    return MHA_OK;
}

/* Check that each id from 0 on occurs exactly once. */
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
            return mhai_path_fail(
                MHA_ERR_MODEL, path, "the ids of %lld words are not 0..%lld, see '%s'",
                (long long)v->count, (long long)v->count - 1, mhai_show_name(word).text);
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

/* Read a pre-tokenizer written by mha_checkpoint_save(). */
static bool read_splitting(const json_t *root, mha_splitting *splitting)
{
    const json_t *how = json_object_get(root, "pre_tokenizer");
    const json_t *parts = json_object_get(how, "pretokenizers");
    *splitting = MHA_SPLIT_SPACE;
    if (is_text(how, "type", "WhitespaceSplit")) return true;
    *splitting = MHA_SPLIT_PUNCTUATION;
    if (is_text(how, "type", "Sequence") && json_array_size(parts) == 2)
        return is_text(json_array_get(parts, 0), "type", "WhitespaceSplit") &&
               is_text(json_array_get(parts, 1), "type", "Punctuation") &&
               is_text(json_array_get(parts, 1), "behavior", "Isolated");
    *splitting = MHA_SPLIT_CHARACTERS;
    return is_text(how, "type", "Split") && is_text(how, "behavior", "Isolated") &&
           is_text(json_object_get(how, "pattern"), "Regex", "[\\s\\S]") &&
           !json_is_true(json_object_get(how, "invert"));
}

static mha_status read_words(const char *path, const json_t *root, mha_vocabulary *v)
{
    const json_t *model = json_object_get(root, "model");
    if (!is_text(model, "type", "WordLevel"))
        return unsupported(path, "the model is not WordLevel");
    if (!read_splitting(root, &v->splitting) || !is_unset(root, "normalizer"))
        return unsupported(path, "it has a normalizer or another pre_tokenizer");
    json_t *ids = json_object_get(model, "vocab");
    if (!json_is_object(ids))
        return mhai_path_fail(MHA_ERR_MODEL, path, "model.vocab is not a JSON object");
    v->ids = json_incref(ids);
    MHA_TRY(list_words(path, v));
    const char *unknown = json_string_value(json_object_get(model, "unk_token"));
    if (unknown && json_object_get(v->ids, unknown))
        MHA_TRY(find(v, path, "unk_token", unknown, &v->unknown));
    return read_beginning(path, root, v);
}

/* eos_token is a string, or an object that contains one. */
static mha_status read_end(const char *path, const json_t *root, mha_vocabulary *v)
{
    const json_t *token = json_object_get(root, "eos_token");
    if (json_is_object(token)) token = json_object_get(token, "content");
    return find(v, path, "eos_token", json_string_value(token), &v->end);
}

/* Read a JSON file of the folder. A missing optional file counts as empty. */
static mha_status read_json(const char *folder, const char *name, bool optional,
                            mha_status (*read)(const char *, const json_t *, mha_vocabulary *),
                            mha_vocabulary *v)
{
    json_t *root = NULL;
    char *path = mhai_model_join(folder, name);
    if (!path) return mha_fail(MHA_ERR_NOMEM, "vocabulary: cannot allocate a name");
    /* model_max_length may exceed 64 bits, so read it as a real; ids are integers */
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
    MHA_NEED("mha_vocabulary_load", folder, vocabulary);
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

/* ---- lookup -------------------------------------------------------------------------------- */

int64_t mha_vocabulary_count(const mha_vocabulary *v)
{
    return v->count;
}

const char *mha_vocabulary_word(const mha_vocabulary *v, int64_t id)
{
    return id >= 0 && id < v->count ? v->words[id] : NULL;
}

mha_splitting mha_vocabulary_splitting(const mha_vocabulary *v)
{
    return v->splitting;
}

int32_t mha_vocabulary_begin(const mha_vocabulary *v)
{
    return v->begin;
}

int32_t mha_vocabulary_end(const mha_vocabulary *v)
{
    return v->end;
}

/* Find the token of a NUL-terminated word. */
static mha_status look_up(const mha_vocabulary *v, const char *word, int32_t *id)
{
    const json_t *found = json_object_get(v->ids, word);
    *id = found ? (int32_t)json_integer_value(found) : v->unknown;
    if (*id >= 0) return MHA_OK;
    return mha_fail(MHA_ERR_FORMAT, "text: '%s' is not one of the model's %lld words",
                    mhai_show_name(word).text, (long long)v->count);
}

/* Output arrays. begin and end may be NULL. */
typedef struct token_room {
    int32_t *ids;
    int64_t *begin, *end;
    int64_t room, count;
} token_room;

static mha_status put_token(token_room *out, int32_t id, int64_t begin, int64_t end)
{
    if (out->count >= out->room)
        return mha_fail(MHA_ERR_SIZE, "text: it has more than %lld tokens", (long long)out->room);
    if (out->begin) out->begin[out->count] = begin;
    if (out->end) out->end[out->count] = end;
    out->ids[out->count++] = id;
    return MHA_OK;
}

/* Encode bytes [from, to) as one token. Temporarily writes a NUL into text. */
static mha_status encode_piece(const mha_vocabulary *v, char *text, size_t from, size_t to,
                               token_room *out)
{
    int32_t id;
    const char after = text[to];
    text[to] = '\0';
    mha_status status = look_up(v, text + from, &id);
    text[to] = after;
    return status == MHA_OK ? put_token(out, id, (int64_t)from, (int64_t)to) : status;
}

/* Whether a word is a special token, which is not split at punctuation. */
static bool is_special(const mha_vocabulary *v, const char *word, size_t bytes)
{
    const int32_t special[] = {v->begin, v->end, v->unknown};
    for (int i = 0; i < 3; i++) {
        const char *name = mha_vocabulary_word(v, special[i]);
        if (name && strlen(name) == bytes && memcmp(name, word, bytes) == 0) return true;
    }
    return false;
}

static mha_status encode(const mha_vocabulary *v, char *text, size_t bytes, token_room *out)
{
    const bool twice = v->splitting == MHA_SPLIT_PUNCTUATION;
    if (v->begin >= 0) MHA_TRY(put_token(out, v->begin, -1, -1));
    for (size_t at = 0, from;;) {
        MHA_TRY(mha_split_next(twice ? MHA_SPLIT_SPACE : v->splitting, text, bytes, &at, &from));
        if (from == bytes) return MHA_OK;
        size_t inner = from, begin = from;
        if (!twice || is_special(v, text + from, at - from)) {
            MHA_TRY(encode_piece(v, text, from, at, out));
            continue;
        }
        while (inner < at) {
            MHA_TRY(mha_split_next(v->splitting, text, at, &inner, &begin));
            MHA_TRY(encode_piece(v, text, begin, inner, out));
        }
    }
}

mha_status mha_vocabulary_locate(const mha_vocabulary *v, const char *text, size_t bytes,
                                 int32_t *ids, int64_t *begin, int64_t *end, int64_t room,
                                 int64_t *count)
{
    MHA_NEED_AS("mha_vocabulary_encode", "vocabulary, text, ids, count", v, text || bytes == 0,
                ids || room <= 0, count);
    if (bytes > PTRDIFF_MAX - 1) return mha_fail(MHA_ERR_SIZE, "text: longer than memory");
    char *copy = malloc(bytes + 1);
    if (!copy) return mha_fail(MHA_ERR_NOMEM, "text: cannot allocate %zu bytes", bytes + 1);
    if (bytes) memcpy(copy, text, bytes);
    token_room out = {.ids = ids, .begin = begin, .end = end, .room = room};
    mha_status status = encode(v, copy, bytes, &out);
    if (status == MHA_OK) *count = out.count;
    free(copy);
    return status;
}

mha_status mha_vocabulary_encode(const mha_vocabulary *v, const char *text, size_t bytes,
                                 int32_t *ids, int64_t room, int64_t *count)
{
    return mha_vocabulary_locate(v, text, bytes, ids, NULL, NULL, room, count);
}
