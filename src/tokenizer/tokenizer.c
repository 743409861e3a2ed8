/* Asking a tokenizer what it is, and what its public functions share. */
#include "tokenizer/tokenizer_parts.h"

#include "tokenizer/unicode_bert.h"

#include <multihead/component.h>

#include <string.h>

void mha_tokenizer_destroy(mha_tokenizer *tokenizer)
{
    if (!tokenizer) return;
    const mha_allocator allocator = tokenizer->allocator;
    const size_t count = (size_t)tokenizer->count;
    mhai_vector_free(&tokenizer->normal_texts);
    mhai_vector_release(&allocator, tokenizer->added_entries, tokenizer->added_count,
                        sizeof *tokenizer->added_entries);
    mhai_vector_release(&allocator, tokenizer->entries, count, sizeof *tokenizer->entries);
    mhai_vector_release(&allocator, tokenizer->tokens, count, sizeof *tokenizer->tokens);
    mhai_vector_release(&allocator, tokenizer->texts, tokenizer->texts_size, 1);
    mhai_vector_release(&allocator, tokenizer, 1, sizeof *tokenizer);
}

mha_status mha_tokenizer_describe(const mha_tokenizer *tokenizer, mha_tokenizer_info *info)
{
    if (!tokenizer || !info) return mha_fail(MHA_ERR_NULL, "mha_tokenizer_describe: NULL argument");
    MHA_TRY(mha_struct_check_size("mha_tokenizer_info", info->struct_size, sizeof *info));
    *info = (mha_tokenizer_info){
        .struct_size = info->struct_size,
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
    };
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
    const size_t valid = size > 0 ? mhai_unicode_check_utf8(text, size) : 0;
    if (valid == size) return MHA_OK;
    return mha_fail(MHA_ERR_UTF8, "%s: byte %zu (0x%02X) does not begin a valid UTF-8 character",
                    name, valid, (unsigned)(unsigned char)text[valid]);
}
