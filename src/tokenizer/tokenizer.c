/* Queries about a tokenizer, and helpers for its public functions. */
#include "tokenizer/tokenizer_load.h"

#include "io/file.h"
#include "tokenizer/bpe.h"
#include "tokenizer/unicode_bert.h"

#include <multihead/component.h>

#include <stddef.h>
#include <string.h>

void mha_tokenizer_destroy(mha_tokenizer *tokenizer)
{
    if (!tokenizer) return;
    const mha_allocator allocator = tokenizer->allocator;
    const size_t count = (size_t)tokenizer->count;
    mhai_bpe_destroy(tokenizer->bpe);
    mhai_vector_free(&tokenizer->normal_texts);
    mhai_vector_release(&allocator, tokenizer->added_entries, tokenizer->added_count,
                        sizeof *tokenizer->added_entries);
    mhai_vector_release(&allocator, tokenizer->entries, count, sizeof *tokenizer->entries);
    mhai_vector_release(&allocator, tokenizer->tokens, count, sizeof *tokenizer->tokens);
    mhai_vector_release(&allocator, tokenizer->flags, count, 1);
    mhai_vector_release(&allocator, tokenizer->spoken_end, count, sizeof *tokenizer->spoken_end);
    mhai_vector_release(&allocator, tokenizer->spoken, tokenizer->texts_size, 1);
    mhai_vector_release(&allocator, tokenizer->texts, tokenizer->texts_size, 1);
    mhai_vector_release(&allocator, tokenizer, 1, sizeof *tokenizer);
}

mha_status mha_tokenizer_describe(const mha_tokenizer *tokenizer, mha_tokenizer_info *info)
{
    MHA_NEED("mha_tokenizer_describe", tokenizer, info);
    const uint32_t size = info->struct_size;
    MHA_TRY(mha_struct_check_size("mha_tokenizer_info", size, offsetof(mha_tokenizer_info, kind)));
    const mha_tokenizer_info full = {
        .struct_size = size,
        .cls_id = tokenizer->named[MHAI_CLS],
        .sep_id = tokenizer->named[MHAI_SEP],
        .pad_id = tokenizer->named[MHAI_PAD],
        .unk_id = tokenizer->named[MHAI_UNK],
        .mask_id = tokenizer->named[MHAI_MASK],
        .vocab_size = tokenizer->count,
        .max_length = tokenizer->max_length,
        .clean_text = tokenizer->rules.clean,
        .handle_chinese_chars = tokenizer->rules.cjk,
        .strip_accents = tokenizer->rules.strip,
        .lowercase = tokenizer->rules.lower,
        .kind = tokenizer->kind->kind,
        .bos_id = tokenizer->named[MHAI_BOS],
        .eos_id = tokenizer->named[MHAI_EOS],
    };
    memcpy(info, &full, size < sizeof full ? size : sizeof full);
    return MHA_OK;
}

mha_status mha_tokenizer_token_bytes(const mha_tokenizer *tokenizer, int32_t id, const char **bytes,
                                     size_t *count, int *special)
{
    MHA_NEED("mha_tokenizer_token_bytes", tokenizer, bytes, count);
    if (id < 0 || id >= tokenizer->count)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_tokenizer_token_bytes: id %d, give 0 to %d", id,
                        tokenizer->count - 1);
    const size_t begin = id > 0 ? tokenizer->spoken_end[id - 1] : 0;
    *bytes = tokenizer->spoken + begin;
    *count = tokenizer->spoken_end[id] - begin;
    if (special) *special = (tokenizer->flags[id] & MHAI_IS_SPECIAL) != 0;
    return MHA_OK;
}

const char *mha_tokenizer_token(const mha_tokenizer *tokenizer, int32_t id)
{
    return tokenizer && id >= 0 && id < tokenizer->count ? tokenizer->tokens[id] : NULL;
}

int32_t mha_tokenizer_id(const mha_tokenizer *tokenizer, const char *token)
{
    if (!tokenizer || !token || token[0] == '\0') return -1;
    const int32_t id = mhai_lexicon_find(&tokenizer->vocabulary, token);
    return id >= 0 ? id : mhai_lexicon_find(&tokenizer->extra, token);
}

/* ---- Shared checks --------------------------------------------------------------------------- */

mha_status mhai_tokenizer_check_text(const char *name, const char *text, size_t size)
{
    if (size > PTRDIFF_MAX)
        return mha_fail(MHA_ERR_SIZE, "%s: %zu bytes are more than memory can hold", name, size);
    const size_t valid = mha_utf8_span(text, size, NULL);
    if (valid == size) return MHA_OK;
    return mha_fail(MHA_ERR_UTF8, "%s: byte %zu (0x%02X) does not begin a valid UTF-8 character",
                    name, valid, (unsigned)(unsigned char)text[valid]);
}

/* ---- Kinds of folders ------------------------------------------------------------------------ */

static const struct {
    const char *model; /* model.type of tokenizer.json */
    mha_status (*read)(mhai_loader *loader);
} kinds[] = {
    {"WordPiece", mhai_wordpiece_read}, {"BPE", mhai_bpe_read}, {"Unigram", mhai_unigram_read}};

mha_status mhai_tokenizer_kind_read(mhai_loader *loader)
{
    const json_t *root = loader->folder.json[MHAI_TOKENIZER_JSON];
    const json_t *model = json_object_get(root, "model"), *type = json_object_get(model, "type");
    if (!root) return mhai_wordpiece_read(loader); /* vocab.txt */
    /* Old files have no type; only BPE has merges, only Unigram a list of pieces. */
    const char *name = json_object_get(model, "merges")                 ? "BPE"
                       : json_is_array(json_object_get(model, "vocab")) ? "Unigram"
                                                                        : "WordPiece";
    if (type || !json_is_object(model)) name = mhai_show_json(type ? type : model);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(name, kinds[i].model) == 0) return kinds[i].read(loader);
    return mhai_path_fail(MHA_ERR_UNSUPPORTED, loader->folder.paths[MHAI_TOKENIZER_JSON],
                          "model is '%s', only WordPiece, BPE and Unigram are supported",
                          mhai_show_name(name).text);
}
