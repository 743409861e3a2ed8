/* The vocabulary of a tokenizer: vocab.txt, or model.vocab of tokenizer.json. */
#include "tokenizer/tokenizer_load.h"

#include "io/file.h"
#include "tokenizer/bpe.h"
#include "tokenizer/unicode_bert.h"

#include <multihead/component.h>

#include <string.h>

/* The length of a line without trailing white space. */
static size_t trim(const char *line, size_t size)
{
    while (size > 0) {
        size_t at = size - 1;
        while (at > 0 && ((unsigned char)line[at] & 0xC0) == 0x80) at--;
        size_t next = at;
        if (!mhai_unicode_is_space(mhai_utf8_next(line, &next))) break;
        size = at;
    }
    return size;
}

/* Split vocab.txt into lines, in place, without trailing white space. */
static mha_status split_vocab(mhai_loader *l, mhai_vector *lines)
{
    const char *path = l->folder.paths[MHAI_VOCAB_TXT];
    char *text = l->folder.vocab;
    const size_t size = l->folder.vocab_size;
    const size_t valid = mha_utf8_span(text, size, NULL);
    if (valid < size)
        return mhai_path_fail(MHA_ERR_UTF8, path, "byte %zu does not begin a valid UTF-8 character",
                              valid);
    const char *zero = memchr(text, '\0', size);
    if (zero)
        return mhai_path_fail(MHA_ERR_FORMAT, path,
                              "byte %zu is a zero byte, tokens cannot hold one",
                              (size_t)(zero - text));
    for (size_t at = 0; at < size;) {
        const char *newline = memchr(text + at, '\n', size - at);
        const size_t length = newline ? (size_t)(newline - (text + at)) : size - at;
        const char *line = text + at;
        text[at + trim(line, length)] = '\0'; /* the buffer ends with a NUL */
        at += length + 1;
        if (lines->count == INT32_MAX - 1)
            return mhai_path_fail(MHA_ERR_SIZE, path, "more than %d lines", INT32_MAX - 1);
        MHA_TRY(mhai_vector_push(lines, &line));
    }
    return MHA_OK;
}

/* Read model.vocab of tokenizer.json, {"token": id, ...}. The ids must be 0 .. n - 1. */
static mha_status read_json_vocabulary(mhai_loader *l)
{
    const char *path = l->folder.paths[MHAI_TOKENIZER_JSON];
    json_t *model = json_object_get(l->folder.json[MHAI_TOKENIZER_JSON], "model");
    json_t *vocab = json_object_get(model, "vocab"), *value;
    const char *token;
    const size_t count = json_object_size(vocab);
    void *place = NULL;
    if (!json_is_object(vocab))
        return mhai_path_fail(MHA_ERR_FORMAT, path,
                              "model.vocab must be an object of tokens and ids");
    MHA_TRY(mhai_vector_add(&l->tokens, count, &place));
    const char **tokens = place;
    for (size_t i = 0; i < count; i++) tokens[i] = NULL;
    json_object_foreach(vocab, token, value)
    {
        int32_t id = -1;
        MHA_TRY(mhai_tokenizer_folder_id(path, token, value, &id));
        if ((size_t)id >= count)
            return mhai_path_fail(MHA_ERR_MODEL, path,
                                  "token '%s' has id %d, but there are %zu tokens",
                                  mhai_show_name(token).text, id, count);
        if (tokens[id])
            return mhai_path_fail(MHA_ERR_MODEL, path, "tokens '%s' and '%s' both have id %d",
                                  mhai_show_name(tokens[id]).text, mhai_show_name(token).text, id);
        tokens[id] = token;
    }
    return MHA_OK;
}

mha_status mhai_tokenizer_vocab_read(mhai_loader *l)
{
    const bool json = l->folder.json[MHAI_TOKENIZER_JSON] != NULL;
    l->vocabulary_path = l->folder.paths[json ? MHAI_TOKENIZER_JSON : MHAI_VOCAB_TXT];
    if (l->tokenizer->kind == &mhai_kind_unigram)
        MHA_TRY(mhai_unigram_vocabulary(l));
    else if (json)
        MHA_TRY(read_json_vocabulary(l));
    else
        MHA_TRY(split_vocab(l, &l->tokens));
    if (l->tokens.count == 0)
        return mhai_path_fail(MHA_ERR_FORMAT, l->vocabulary_path, "the vocabulary is empty");
    l->model_count = (int32_t)l->tokens.count;
    return MHA_OK;
}

mha_status mhai_tokenizer_vocab_compare(mhai_loader *l)
{
    if (!l->folder.json[MHAI_TOKENIZER_JSON] || !l->folder.vocab) return MHA_OK;
    const char *path = l->folder.paths[MHAI_VOCAB_TXT];
    mhai_vector lines = mhai_vector_make(&l->allocator, sizeof(const char *));
    mha_status status = MHA_OK;
    MHA_TRY_GOTO(split_vocab(l, &lines), done);
    const char *const *line = lines.items, *const *token = l->tokens.items;
    if (lines.count < (size_t)l->model_count || lines.count > l->tokens.count) {
        status = mhai_path_fail(MHA_ERR_MODEL, path, "%zu tokens, but tokenizer.json has %zu",
                                lines.count, l->tokens.count);
        goto done;
    }
    for (size_t i = 0; i < lines.count; i++) {
        const size_t length = strlen(line[i]);
        if (length == trim(token[i], strlen(token[i])) && memcmp(line[i], token[i], length) == 0)
            continue;
        status =
            mhai_path_fail(MHA_ERR_MODEL, path, "line %zu is '%s', but tokenizer.json has '%s'",
                           i + 1, mhai_show_name(line[i]).text, mhai_show_name(token[i]).text);
        goto done;
    }
done:
    mhai_vector_free(&lines);
    return status;
}
