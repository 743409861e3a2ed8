/* The tokenizer of a saved folder: one token per word. The settings say how texts are split. */
#include "io/file.h"
#include "model/checkpoint_parts.h"

#include <multihead/component.h>

#include <string.h>

static mha_status check_utf8(const char *word, int64_t index)
{
    const size_t bytes = strlen(word), valid = mha_utf8_span(word, bytes, NULL);
    if (valid == bytes) return MHA_OK;
    return mha_fail(MHA_ERR_UTF8, "words[%lld] is not valid UTF-8 at byte %zu", (long long)index,
                    valid);
}

static mha_status fill(const mha_checkpoint_settings *settings, json_t *vocabulary)
{
    for (int64_t i = 0; i < settings->word_count; i++) {
        const char *word = settings->words[i];
        if (!word || !*word)
            return mha_fail(word ? MHA_ERR_ARGUMENT : MHA_ERR_NULL, "words[%lld] is %s",
                            (long long)i, word ? "empty" : "NULL");
        MHA_TRY(check_utf8(word, i));
        const json_t *before = json_object_get(vocabulary, word);
        if (before)
            return mha_fail(MHA_ERR_ARGUMENT, "words[%lld] and words[%lld] are both '%s'",
                            (long long)json_integer_value(before), (long long)i,
                            mhai_show_name(word).text);
        if (!mhai_put(vocabulary, word, json_integer(i)))
            return MHA_NO_MEMORY("checkpoint: tokenizer");
    }
    const struct {
        const char *name, *word;
    } special[] = {{"bos_word", settings->bos_word},
                   {"eos_word", settings->eos_word},
                   {"pad_word", settings->pad_word},
                   {"unknown_word", settings->unknown_word}};
    for (size_t i = 0; i < sizeof special / sizeof special[0]; i++)
        if (special[i].word && !json_object_get(vocabulary, special[i].word))
            return mha_fail(MHA_ERR_ARGUMENT, "%s '%s' is not one of the %lld words",
                            special[i].name, mhai_show_name(special[i].word).text,
                            (long long)settings->word_count);
    return MHA_OK;
}

mha_status mhai_checkpoint_vocabulary(const mha_checkpoint_settings *settings, int64_t vocab_size,
                                      json_t **vocabulary)
{
    const int64_t count = settings->word_count;
    if (settings->words ? count < 1 || count > vocab_size : count != 0)
        return mha_fail(
            MHA_ERR_ARGUMENT, "word_count is %lld, expected %s%lld", (long long)count,
            settings->words ? "1.." : "no words: ", settings->words ? (long long)vocab_size : 0LL);
    json_t *made = json_object();
    if (!made) return MHA_NO_MEMORY("checkpoint: tokenizer");
    mha_status status = fill(settings, made);
    if (status == MHA_OK)
        *vocabulary = made;
    else
        json_decref(made);
    return status;
}

/* Special tokens are matched verbatim in a text, and omitted by decoding. */
static bool add_special(json_t *list, const json_t *vocabulary, const char *word)
{
    if (!word) return true;
    for (size_t i = 0; i < json_array_size(list); i++)
        if (strcmp(json_string_value(json_object_get(json_array_get(list, i), "content")), word) ==
            0)
            return true;
    json_t *token =
        json_pack("{s:I,s:s,s:b,s:b,s:b,s:b,s:b}", "id",
                  json_integer_value(json_object_get(vocabulary, word)), "content", word,
                  "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1);
    return json_array_append_new(list, token) == 0;
}

/* Prepend the beginning token if the model was trained with one. */
static json_t *beginning(const mha_checkpoint_settings *s, const json_t *vocabulary)
{
    const char *bos = s->bos_word;
    if (!bos) return json_null();
    return json_pack("{s:s,s:[{s:{s:s,s:i}},{s:{s:s,s:i}}],"
                     "s:[{s:{s:s,s:i}},{s:{s:s,s:i}},{s:{s:s,s:i}}],s:{s:{s:s,s:[I],s:[s]}}}",
                     "type", "TemplateProcessing", "single", "SpecialToken", "id", bos, "type_id",
                     0, "Sequence", "id", "A", "type_id", 0, "pair", "SpecialToken", "id", bos,
                     "type_id", 0, "Sequence", "id", "A", "type_id", 0, "Sequence", "id", "B",
                     "type_id", 0, "special_tokens", bos, "id", bos, "ids",
                     json_integer_value(json_object_get(vocabulary, bos)), "tokens", bos);
}

static json_t *splitting(mha_splitting how)
{
    switch (how) {
    case MHA_SPLIT_PUNCTUATION:
        return json_pack("{s:s,s:[{s:s},{s:s,s:s}]}", "type", "Sequence", "pretokenizers", "type",
                         "WhitespaceSplit", "type", "Punctuation", "behavior", "Isolated");
    case MHA_SPLIT_CHARACTERS:
        return json_pack("{s:s,s:{s:s},s:s,s:b}", "type", "Split", "pattern", "Regex", "[\\s\\S]",
                         "behavior", "Isolated", "invert", 0);
    default: return json_pack("{s:s}", "type", "WhitespaceSplit");
    }
}

/* Without a decoder, words are joined by spaces, and characters without them. */
static json_t *decoder(mha_splitting how)
{
    return how == MHA_SPLIT_CHARACTERS ? json_pack("{s:s}", "type", "Fuse") : json_null();
}

static json_t *tokenizer(const mha_checkpoint_settings *s, json_t *vocabulary)
{
    json_t *added = json_array();
    if (!added || !add_special(added, vocabulary, s->bos_word) ||
        !add_special(added, vocabulary, s->eos_word) ||
        !add_special(added, vocabulary, s->pad_word) ||
        !add_special(added, vocabulary, s->unknown_word)) {
        json_decref(added);
        return NULL;
    }
    return json_pack("{s:s,s:n,s:n,s:o,s:n,s:o,s:o,s:o,s:{s:s,s:O,s:s}}", "version", "1.0",
                     "truncation", "padding", "added_tokens", added, "normalizer", "pre_tokenizer",
                     splitting(s->splitting), "post_processor", beginning(s, vocabulary), "decoder",
                     decoder(s->splitting), "model", "type", "WordLevel", "vocab", vocabulary,
                     "unk_token", s->unknown_word ? s->unknown_word : "<unk>");
}

static bool put_word(json_t *root, const char *key, const char *word)
{
    return !word || mhai_put(root, key, json_string(word));
}

static json_t *tokenizer_config(const mha_checkpoint_settings *s, int64_t max_length)
{
    json_t *root =
        json_pack("{s:s,s:I,s:b}", "tokenizer_class", "PreTrainedTokenizerFast", "model_max_length",
                  (json_int_t)max_length, "clean_up_tokenization_spaces", 0);
    if (root && put_word(root, "bos_token", s->bos_word) &&
        put_word(root, "eos_token", s->eos_word) && put_word(root, "pad_token", s->pad_word) &&
        put_word(root, "unk_token", s->unknown_word))
        return root;
    json_decref(root);
    return NULL;
}

mha_status mhai_checkpoint_write_words(const char *folder, const mha_checkpoint_settings *settings,
                                       int64_t max_length, json_t *vocabulary)
{
    json_t *root = tokenizer(settings, vocabulary),
           *config = tokenizer_config(settings, max_length);
    mha_status status = root && config ? MHA_OK : MHA_NO_MEMORY("checkpoint: tokenizer");
    if (status == MHA_OK) status = mhai_checkpoint_write_json(folder, "tokenizer.json", root);
    if (status == MHA_OK)
        status = mhai_checkpoint_write_json(folder, "tokenizer_config.json", config);
    json_decref(config);
    json_decref(root);
    return status;
}
