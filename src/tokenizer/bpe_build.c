/* Build the BPE tables from a vocabulary and its merges. */
#include "tokenizer/bpe.h"
#include "tokenizer/tokenizer_load.h"

#include "io/file.h"
#include "tokenizer/bpe_encode.h"
#include "tokenizer/unicode_bert.h"

#include <multihead/component.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Pairs ----------------------------------------------------------------------------------- */

static int by_pair(const void *a, const void *b)
{
    const mhai_pair *x = a, *y = b;
    if (x->left != y->left) return x->left < y->left ? -1 : 1;
    if (x->right != y->right) return x->right < y->right ? -1 : 1;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* Sort the ranked pairs in bpe->pairs by left and then by right token. Among duplicates, the last
 * one is used. */
static mha_status index_pairs(mha_tokenizer *t)
{
    mhai_bpe *bpe = t->bpe;
    mhai_pair *pairs = bpe->pairs.items;
    size_t kept = 0;
    if (bpe->pairs.count > INT32_MAX)
        return mha_fail(MHA_ERR_SIZE, "tokenizer: %zu merges, at most %d are supported",
                        bpe->pairs.count, INT32_MAX);
    if (bpe->pairs.count > 0) qsort(pairs, bpe->pairs.count, sizeof *pairs, by_pair);
    for (size_t i = 0; i < bpe->pairs.count; i++) {
        if (kept > 0 && pairs[kept - 1].left == pairs[i].left &&
            pairs[kept - 1].right == pairs[i].right)
            kept--;
        pairs[kept++] = pairs[i];
    }
    bpe->pairs.count = kept;
    bpe->first_count = (size_t)t->model_count + 1;
    bpe->first = mhai_vector_alloc(&bpe->allocator, bpe->first_count, sizeof *bpe->first);
    if (!bpe->first) return mha_fail(MHA_ERR_NOMEM, "tokenizer: cannot allocate %zu merges", kept);
    size_t at = 0;
    for (int32_t left = 0; left <= t->model_count; left++) {
        while (at < kept && pairs[at].left < left) at++;
        bpe->first[left] = (int32_t)at;
    }
    return MHA_OK;
}

/* Find the id of a text of size bytes. `text` is memory for a NUL-terminated copy. */
static mha_status look_up(const mhai_loader *l, mhai_vector *text, const char *first,
                          size_t first_size, const char *second, size_t second_size, size_t merge,
                          int32_t *id)
{
    text->count = 0;
    MHA_TRY(mhai_vector_append(text, first, first_size));
    MHA_TRY(mhai_vector_append(text, second, second_size));
    MHA_TRY(mhai_vector_push(text, ""));
    *id = mhai_lexicon_find(&l->tokenizer->vocabulary, text->items);
    if (*id >= 0 && strlen(text->items) == first_size + second_size) return MHA_OK;
    return mhai_path_fail(MHA_ERR_MODEL, l->vocabulary_path,
                          "merge %zu: '%s' is not in the vocabulary", merge + 1,
                          mhai_show_name(text->items).text);
}

static mha_status add_merges(mhai_loader *l, mhai_vector *text)
{
    const mhai_merge *merges = l->merges.items;
    mhai_bpe *bpe = l->tokenizer->bpe;
    for (size_t i = 0; i < l->merges.count; i++) {
        const mhai_merge *m = &merges[i];
        const size_t left = (size_t)m->left_size, right = (size_t)m->right_size;
        mhai_pair pair = {.rank = i < INT32_MAX ? (int32_t)i : INT32_MAX};
        MHA_TRY(look_up(l, text, m->left, left, "", 0, i, &pair.left));
        MHA_TRY(look_up(l, text, m->right, right, "", 0, i, &pair.right));
        MHA_TRY(look_up(l, text, m->left, left, m->right, right, i, &pair.merged));
        MHA_TRY(mhai_vector_push(&bpe->pairs, &pair));
    }
    return MHA_OK;
}

/* ---- Single bytes ---------------------------------------------------------------------------- */

static mha_status find_bytes(const mhai_loader *l)
{
    const mha_tokenizer *t = l->tokenizer;
    mhai_bpe *bpe = t->bpe;
    for (int byte = 0; byte < 256; byte++) {
        char text[8 + MHAI_SUFFIX_BYTES];
        if (bpe->byte_level) {
            const int size = mhai_utf8_put(mhai_bpe_letter(byte), text);
            snprintf(text + size, sizeof text - (size_t)size, "%s", bpe->suffix ? bpe->suffix : "");
            bpe->last_ids[byte] = mhai_lexicon_find(&t->vocabulary, text);
            text[size] = '\0';
        } else {
            snprintf(text, sizeof text, "<0x%02X>", (unsigned)byte);
        }
        bpe->byte_ids[byte] = mhai_lexicon_find(&t->vocabulary, text);
        if (bpe->byte_fallback && !bpe->byte_level && !bpe->scores && bpe->byte_ids[byte] < 0)
            return mhai_path_fail(
                MHA_ERR_MODEL, l->vocabulary_path,
                "byte_fallback needs the tokens <0x00> to <0xFF>, there is no '%s'", text);
    }
    return MHA_OK;
}

static mha_status find_unknown(const mhai_loader *l)
{
    mhai_bpe *bpe = l->tokenizer->bpe;
    if (bpe->unk_text) {
        bpe->unk = mhai_lexicon_find(&l->tokenizer->vocabulary, bpe->unk_text);
        if (bpe->unk < 0)
            return mhai_path_fail(MHA_ERR_MODEL, l->vocabulary_path,
                                  "model.unk_token '%s' is not in model.vocab",
                                  mhai_show_name(bpe->unk_text).text);
        bpe->unk_text = NULL;
    } else if (!bpe->byte_level && !bpe->byte_fallback) {
        return mhai_path_fail(MHA_ERR_UNSUPPORTED, l->vocabulary_path,
                              "a BPE model without bytes, byte_fallback and unk_token, which drops "
                              "what its vocabulary lacks, is not supported");
    }
    return MHA_OK;
}

/* Check the templates, which were read before the vocabulary existed. */
static mha_status check_templates(const mhai_loader *l)
{
    const mha_tokenizer *t = l->tokenizer;
    for (int which = 0; which < 2; which++)
        for (int32_t i = 0; i < t->templates[which].count; i++)
            if (t->templates[which].parts[i].id >= t->count)
                return mhai_path_fail(MHA_ERR_MODEL, l->vocabulary_path,
                                      "post_processor adds token %d, the vocabulary has %d",
                                      t->templates[which].parts[i].id, t->count);
    return MHA_OK;
}

static mha_status build(mhai_loader *l)
{
    mhai_vector text = mhai_vector_make(&l->allocator, 1);
    mha_status status = add_merges(l, &text);
    mhai_vector_free(&text);
    MHA_TRY(status);
    if (l->scores) MHA_TRY(mhai_bpe_score_pairs(l->tokenizer, l->scores));
    MHA_TRY(index_pairs(l->tokenizer));
    MHA_TRY(find_bytes(l));
    MHA_TRY(find_unknown(l));
    return check_templates(l);
}

static mha_status build_unigram(mhai_loader *l)
{
    MHA_TRY(mhai_unigram_build(l));
    MHA_TRY(find_bytes(l));
    return check_templates(l);
}

/* ---- The bytes of tokens --------------------------------------------------------------------- */

/* Decode letters to bytes. A token with any other character is copied unchanged. */
static size_t speak_letters(const mha_tokenizer *t, const char *token, char *bytes)
{
    const char *suffix = t->bpe->suffix;
    size_t count = 0, size = strlen(token);
    const size_t end = suffix ? strlen(suffix) : 0;
    if (end > 0 && size > end && strcmp(token + size - end, suffix) == 0) size -= end;
    for (size_t at = 0; at < size;) {
        const int byte = mhai_bpe_byte(mhai_utf8_next(token, &at));
        if (byte < 0) {
            memcpy(bytes, token, size);
            return size;
        }
        bytes[count++] = (char)byte;
    }
    return count;
}

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static size_t speak_text(const mha_tokenizer *t, const char *token, char *bytes)
{
    static const char mark[] = "\xE2\x96\x81";
    size_t count = 0, size = strlen(token);
    if (t->bpe->byte_fallback && size == 6 && strncmp(token, "<0x", 3) == 0 && token[5] == '>' &&
        hex(token[3]) >= 0 && hex(token[4]) >= 0) {
        bytes[0] = (char)(16 * hex(token[3]) + hex(token[4]));
        return 1;
    }
    for (size_t at = 0; at < size;) {
        const bool space = t->bpe->marks_spaces && strncmp(token + at, mark, 3) == 0;
        bytes[count++] = space ? ' ' : token[at];
        at += space ? 3 : 1;
    }
    return count;
}

const mhai_kind mhai_kind_byte_bpe = {.kind = MHA_TOKENIZER_BYTE_BPE,
                                      .build = build,
                                      .normalize = mhai_bpe_normalize,
                                      .encode = mhai_bpe_encode,
                                      .words = mhai_bpe_words,
                                      .speak = speak_letters};

const mhai_kind mhai_kind_sentencepiece_bpe = {.kind = MHA_TOKENIZER_SENTENCEPIECE_BPE,
                                               .build = build,
                                               .normalize = mhai_bpe_normalize,
                                               .encode = mhai_bpe_encode,
                                               .words = mhai_bpe_words,
                                               .speak = speak_text};

const mhai_kind mhai_kind_unigram = {.kind = MHA_TOKENIZER_UNIGRAM,
                                     .build = build_unigram,
                                     .normalize = mhai_bpe_normalize,
                                     .encode = mhai_bpe_encode,
                                     .words = mhai_bpe_words,
                                     .speak = speak_text};
