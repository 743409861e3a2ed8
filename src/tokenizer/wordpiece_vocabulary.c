/* A WordPiece from a vocabulary in memory, as in GGUF files: llama.cpp's converters mark the pieces that
 * begin a word by U+2581, and drop the "##" of the others. */
#include "tokenizer/bpe.h"
#include "tokenizer/tokenizer_load.h"

#include "io/file.h"

#include <multihead/component.h>

#include <string.h>

static const char mark[] = "\xE2\x96\x81";

size_t mhai_wordpiece_text(const mhai_vocabulary_desc *d, int64_t id, char *text)
{
    const mhai_text *token = &d->tokens[id];
    const bool special = d->types && d->types[id] == MHAI_TOKEN_CONTROL;
    const bool begins = token->size > 3 && memcmp(token->text, mark, 3) == 0;
    const size_t skip = begins && !special ? 3 : 0, more = special || begins ? 0 : 2;
    if (token->size == 0) return 0;
    memcpy(text, "##", more);
    memcpy(text + more, token->text + skip, token->size - skip);
    return token->size - skip + more;
}

/* Files do not say whether a text is lowercased. No text could use a capital letter of the vocabulary
 * if it were. */
static bool has_capitals(const mhai_vocabulary_desc *d)
{
    for (int64_t i = 0; i < d->count; i++) {
        const mhai_text *token = &d->tokens[i];
        const char *from = token->size > 3 ? token->text + 3 : token->text;
        const size_t size = token->size > 3 ? token->size - 3 : 0;
        if ((d->types && d->types[i] != MHAI_TOKEN_NORMAL) || (size > 0 && from[0] == '['))
            continue;
        for (size_t at = 0; at < size; at++)
            if (from[at] >= 'A' && from[at] <= 'Z') return true;
    }
    return false;
}

mha_status mhai_wordpiece_set(mhai_loader *l, const mhai_vocabulary_desc *d)
{
    static const char *const names[MHAI_NAMED] = {[MHAI_UNK] = "unknown_token_id",
                                                  [MHAI_SEP] = "seperator_token_id",
                                                  [MHAI_PAD] = "padding_token_id",
                                                  [MHAI_CLS] = "cls_token_id",
                                                  [MHAI_MASK] = "mask_token_id"};
    const int32_t ids[MHAI_NAMED] = {[MHAI_UNK] = d->unk_id,
                                     [MHAI_SEP] = d->sep_id,
                                     [MHAI_PAD] = d->pad_id,
                                     [MHAI_CLS] = d->cls_id,
                                     [MHAI_MASK] = d->mask_id};
    mha_tokenizer *t = l->tokenizer;
    const char *const *tokens = l->tokens.items;
    for (int i = 0; i < MHAI_BOS; i++) {
        const bool given = ids[i] >= 0 && ids[i] < d->count && tokens[ids[i]][0];
        const bool needed = i != MHAI_PAD && i != MHAI_MASK;
        if ((needed || ids[i] >= 0) && !given)
            return mhai_path_fail(MHA_ERR_MODEL, d->where,
                                  "'tokenizer.ggml.%s' is %s, expected a token of the vocabulary",
                                  names[i], ids[i] < 0 ? "missing" : "not one");
        t->named[i] = ids[i];
        l->folder.names[i] = given ? tokens[ids[i]] : NULL;
        l->folder.template_ids[i] = -1;
    }
    for (int i = MHAI_BOS; i < MHAI_NAMED; i++) l->folder.template_ids[i] = -1;
    t->rules.clean = t->rules.cjk = true;
    t->rules.lower = t->rules.strip = !has_capitals(d);
    return MHA_OK;
}
