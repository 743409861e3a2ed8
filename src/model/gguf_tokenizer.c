/* The tokenizer of a GGUF file, from its metadata. */
#include "io/file.h"
#include "model/gguf_config.h"
#include "tokenizer/bpe.h"

#include <multihead/component.h>

#include <stdlib.h>
#include <string.h>

/* Owns the memory of the description. */
typedef struct reading {
    const mha_gguf *file;
    mhai_vocabulary_desc desc;
    mhai_text *tokens, *merges;
    int32_t *types;
    float *scores;
    unsigned char *charsmap;
    char model[32], splitter[48];
} reading;

static mha_status allocate(int64_t count, size_t size, void *pointer)
{
    void *memory = calloc((size_t)count + 1, size);
    memcpy(pointer, &memory, sizeof memory);
    if (memory) return MHA_OK;
    return mha_fail(MHA_ERR_NOMEM, "tokenizer: cannot allocate %lld tokens", (long long)count);
}

static bool find(const reading *r, const char *key, mha_gguf_value *value)
{
    return mha_gguf_key_find(r->file, key) >= 0 && mha_gguf_value_of(r->file, key, value) == MHA_OK;
}

/* Read a short string, or the default if the key is absent. */
static mha_status read_word(const reading *r, const char *key, const char *fallback, char *word,
                            size_t room)
{
    mha_gguf_value value;
    const char *text = fallback;
    size_t size = strlen(fallback);
    if (find(r, key, &value)) MHA_TRY(mha_gguf_string(&value, 0, &text, &size));
    if (size >= room) size = room - 1;
    memcpy(word, text, size);
    word[size] = '\0';
    return MHA_OK;
}

/* Read an array of strings; empty if the key is absent. */
static mha_status read_texts(const reading *r, const char *key, mhai_text **texts, int64_t *count)
{
    mha_gguf_value value;
    *count = 0;
    if (!find(r, key, &value)) return MHA_OK;
    MHA_TRY(allocate(value.count, sizeof **texts, texts));
    for (int64_t i = 0; i < value.count; i++)
        MHA_TRY(mha_gguf_string(&value, i, &(*texts)[i].text, &(*texts)[i].size));
    *count = value.count;
    return MHA_OK;
}

/* Find an array with one element per token. */
static mha_status find_array(const reading *r, const char *key, mha_gguf_value *value, bool *found)
{
    *found = find(r, key, value);
    if (!*found || (value->array && value->count == r->desc.count)) return MHA_OK;
    return mhai_path_fail(MHA_ERR_MODEL, r->desc.where,
                          "'%s' has %lld elements, expected %lld, one for each token", key,
                          (long long)value->count, (long long)r->desc.count);
}

static mha_status read_arrays(reading *r)
{
    mha_gguf_value value;
    bool found;
    MHA_TRY(find_array(r, "tokenizer.ggml.token_type", &value, &found));
    if (found) {
        MHA_TRY(allocate(r->desc.count, sizeof *r->types, &r->types));
        r->desc.types = r->types;
        for (int64_t i = 0; i < r->desc.count; i++) {
            int64_t type;
            MHA_TRY(mha_gguf_integer(&value, i, MHAI_TOKEN_NORMAL, MHAI_TOKEN_BYTE, &type));
            r->types[i] = (int32_t)type;
        }
    }
    MHA_TRY(find_array(r, "tokenizer.ggml.scores", &value, &found));
    if (!found) return MHA_OK;
    MHA_TRY(allocate(r->desc.count, sizeof *r->scores, &r->scores));
    r->desc.scores = r->scores;
    for (int64_t i = 0; i < r->desc.count; i++) {
        double score;
        MHA_TRY(mha_gguf_real(&value, i, &score));
        r->scores[i] = (float)score;
    }
    return MHA_OK;
}

static mha_status read_id(const reading *r, const char *key, int32_t *id)
{
    mha_gguf_value value;
    int64_t number = -1;
    if (find(r, key, &value)) MHA_TRY(mha_gguf_integer(&value, 0, 0, r->desc.count - 1, &number));
    *id = (int32_t)number;
    return MHA_OK;
}

static mha_status read_flag(const reading *r, const char *key, bool fallback, bool *flag)
{
    mha_gguf_value value;
    *flag = fallback;
    return find(r, key, &value) ? mha_gguf_bool(&value, 0, flag) : MHA_OK;
}

/* Read the bytes of a charsmap, which some files store as signed numbers. */
static mha_status read_charsmap(reading *r)
{
    mha_gguf_value value;
    if (!find(r, "tokenizer.ggml.precompiled_charsmap", &value) || value.count == 0) return MHA_OK;
    MHA_TRY(allocate(value.count, 1, &r->charsmap));
    for (int64_t i = 0; i < value.count; i++) {
        int64_t byte;
        MHA_TRY(mha_gguf_integer(&value, i, -128, 255, &byte));
        r->charsmap[i] = (unsigned char)byte;
    }
    r->desc.charsmap = r->charsmap;
    r->desc.charsmap_size = (size_t)value.count;
    return MHA_OK;
}

/* The special tokens of "bert". Older files call those that begin and end a text BOS and EOS. */
static mha_status read_special(reading *r)
{
    mhai_vocabulary_desc *d = &r->desc;
    MHA_TRY(read_id(r, "tokenizer.ggml.cls_token_id", &d->cls_id));
    MHA_TRY(read_id(r, "tokenizer.ggml.seperator_token_id", &d->sep_id));
    MHA_TRY(read_id(r, "tokenizer.ggml.mask_token_id", &d->mask_id));
    d->add_bos = d->add_eos = false; /* as part of the template */
    if (d->cls_id < 0) d->cls_id = d->bos_id;
    if (d->sep_id < 0) d->sep_id = d->eos_id;
    return MHA_OK;
}

/* Read everything. Absent flags have llama.cpp's defaults. */
static mha_status read_all(reading *r)
{
    mhai_vocabulary_desc *d = &r->desc;
    MHA_TRY(read_word(r, "tokenizer.ggml.model", "", r->model, sizeof r->model));
    MHA_TRY(read_word(r, "tokenizer.ggml.pre", "", r->splitter, sizeof r->splitter));
    MHA_TRY(read_texts(r, "tokenizer.ggml.tokens", &r->tokens, &d->count));
    MHA_TRY(read_texts(r, "tokenizer.ggml.merges", &r->merges, &d->merge_count));
    if (d->count == 0)
        return mhai_path_fail(MHA_ERR_MODEL, d->where, "has no 'tokenizer.ggml.tokens'");
    MHA_TRY(read_arrays(r));
    const bool llama = strcmp(r->model, "llama") == 0, unigram = strcmp(r->model, "t5") == 0;
    d->model = r->model;
    d->splitter = r->splitter;
    d->tokens = r->tokens;
    d->merges = r->merges;
    MHA_TRY(read_id(r, "tokenizer.ggml.bos_token_id", &d->bos_id));
    MHA_TRY(read_id(r, "tokenizer.ggml.eos_token_id", &d->eos_id));
    MHA_TRY(read_id(r, "tokenizer.ggml.unknown_token_id", &d->unk_id));
    MHA_TRY(read_id(r, "tokenizer.ggml.padding_token_id", &d->pad_id));
    MHA_TRY(read_flag(r, "tokenizer.ggml.add_bos_token",
                      llama || mhai_splitter_adds_bos(r->splitter), &d->add_bos));
    MHA_TRY(read_flag(r, "tokenizer.ggml.add_eos_token", unigram, &d->add_eos));
    MHA_TRY(
        read_flag(r, "tokenizer.ggml.remove_extra_whitespaces", false, &d->remove_extra_spaces));
    MHA_TRY(read_charsmap(r));
    if (strcmp(r->model, "bert") == 0) MHA_TRY(read_special(r));
    return read_flag(r, "tokenizer.ggml.add_space_prefix", llama || unigram, &d->add_space_prefix);
}

mha_status mhai_gguf_tokenizer(const mha_gguf *file, const char *path, mha_tokenizer **tokenizer)
{
    reading r = {.file = file, .desc = {.where = path}};
    mha_status status = read_all(&r);
    if (status == MHA_OK) status = mhai_tokenizer_make(&r.desc, NULL, tokenizer);
    free(r.tokens);
    free(r.merges);
    free(r.types);
    free(r.scores);
    free(r.charsmap);
    return mhai_gguf_status(status);
}
