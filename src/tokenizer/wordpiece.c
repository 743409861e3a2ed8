/* WordPiece as in BERT. A text is normalised character by character and split into words, and every
 * word is split into the longest pieces of the vocabulary.
 *
 * Only the resulting tokens are stored. Each step passes its results to the next, so memory does
 * not depend on the length of segments or words. The exception is a segment in which added tokens
 * are matched in normalised form. */
#include "tokenizer/tokenizer_load.h"

#include "tokenizer/unicode_bert.h"

#include <multihead/component.h>

#include <string.h>

typedef struct encoder {
    const mha_tokenizer *tokenizer;
    const char *text;
    mhai_tokens *tokens;
    mhai_normalizer normalizer;
    mhai_splitter splitter;
    /* The normalised text of a segment, with the source position of each byte. */
    mhai_vector bytes, begin, end; /* of char, int64_t, int64_t */
} encoder;

/* ---- Words to pieces ------------------------------------------------------------------------- */

static mha_status push(encoder *e, int32_t id, int64_t begin, int64_t end)
{
    const mhai_found_token token = {begin, end, id};
    return mhai_vector_push(&e->tokens->found, &token);
}

static mha_status push_word(encoder *e, int32_t id, int64_t begin, int64_t end)
{
    MHA_TRY(push(e, id, begin, end));
    return mhai_tokens_cut(e->tokens);
}

static mha_status push_unknown(encoder *e, const mhai_word *word)
{
    return push_word(e, e->tokenizer->named[MHAI_UNK], word->first, word->last);
}

/* Repeatedly take the longest piece that is a prefix of the rest. If there is none, the whole word
 * becomes the unknown token. */
static mha_status cut_word(void *user, const mhai_word *word)
{
    encoder *e = user;
    if (word->chars > MHAI_WORD_CHARS) return push_unknown(e, word);
    const size_t before = e->tokens->found.count;
    for (size_t at = 0, matched = 0; at < word->size; at += matched) {
        const mhai_lexicon_branch *branch =
            at == 0 ? &e->tokenizer->first_pieces : &e->tokenizer->pieces;
        const int32_t id =
            mhai_lexicon_longest(branch, word->bytes + at, word->size - at, &matched);
        if (id < 0) {
            e->tokens->found.count = before;
            return push_unknown(e, word);
        }
        MHA_TRY(push(e, id, word->begin[at], word->end[at + matched - 1]));
    }
    return mhai_tokens_cut(e->tokens);
}

/* ---- Segments and added tokens --------------------------------------------------------------- */

static mha_status keep_char(encoder *e, const mhai_char *ch)
{
    char bytes[MHAI_UTF8_MAX];
    const int size = mhai_utf8_put(ch->c, bytes);
    for (int i = 0; i < size; i++) {
        MHA_TRY(mhai_vector_push(&e->bytes, &bytes[i]));
        MHA_TRY(mhai_vector_push(&e->begin, &ch->begin));
        MHA_TRY(mhai_vector_push(&e->end, &ch->end));
    }
    return MHA_OK;
}

static mha_status take_char(void *user, const mhai_char *ch)
{
    encoder *e = user;
    return e->tokenizer->normal.count > 0 ? keep_char(e, ch)
                                          : mhai_tokenizer_words_take(&e->splitter, ch);
}

static mha_status take_kept(void *user, size_t from, size_t to)
{
    encoder *e = user;
    const int64_t *begin = e->begin.items, *end = e->end.items;
    while (from < to) {
        mhai_char ch = {.begin = begin[from], .end = end[from]};
        ch.c = mhai_utf8_next(e->bytes.items, &from);
        MHA_TRY(mhai_tokenizer_words_take(&e->splitter, &ch));
    }
    return MHA_OK;
}

static mha_status take_normal_token(void *user, int32_t id, size_t from, size_t to)
{
    encoder *e = user;
    const int64_t *begin = e->begin.items, *end = e->end.items;
    MHA_TRY(mhai_tokenizer_words_finish(&e->splitter));
    return push_word(e, id, begin[from], end[to - 1]);
}

/* Encode the text between two added tokens, which is normalised and split separately. */
static mha_status encode_segment(void *user, size_t from, size_t to)
{
    encoder *e = user;
    const mhai_finder kept = {e, take_normal_token, take_kept};
    e->bytes.count = e->begin.count = e->end.count = 0;
    MHA_TRY(mhai_tokenizer_normalize(&e->normalizer, e->text, from, to));
    MHA_TRY(mhai_tokenizer_find(e->tokenizer, &e->tokenizer->normal_tokens, e->bytes.items,
                                e->bytes.count, &kept));
    return mhai_tokenizer_words_finish(&e->splitter);
}

static mha_status take_token(void *user, int32_t id, size_t from, size_t to)
{
    return push_word(user, id, (int64_t)from, (int64_t)to);
}

static mha_status encode(const mha_tokenizer *t, const char *text, size_t size, mhai_tokens *tokens)
{
    encoder e = {.tokenizer = t, .text = text, .tokens = tokens};
    const mhai_finder finder = {&e, take_token, encode_segment};
    e.normalizer = mhai_tokenizer_normalize_make(t, take_char, &e);
    e.bytes = mhai_vector_make(&t->allocator, 1);
    e.begin = mhai_vector_make(&t->allocator, sizeof(int64_t));
    e.end = mhai_vector_make(&t->allocator, sizeof(int64_t));
    mhai_tokenizer_words_begin(&e.splitter, cut_word, &e);
    const mha_status status = mhai_tokenizer_find(t, &t->raw_tokens, text, size, &finder);
    mhai_tokenizer_normalize_free(&e.normalizer);
    mhai_vector_free(&e.bytes);
    mhai_vector_free(&e.begin);
    mhai_vector_free(&e.end);
    return status;
}

/* ---- Words ----------------------------------------------------------------------------------- */

typedef struct collector {
    mhai_splitter splitter;
    mhai_vector *text;  /* of char */
    mhai_vector *words; /* of mhai_found_word */
} collector;

static mha_status append_char(void *user, const mhai_char *ch)
{
    char bytes[MHAI_UTF8_MAX];
    return mhai_vector_append(user, bytes, (size_t)mhai_utf8_put(ch->c, bytes));
}

static mha_status collect_word(void *user, const mhai_word *word)
{
    collector *c = user;
    const mhai_found_word found = {word->from, word->to, word->first, word->last};
    return mhai_vector_push(c->words, &found);
}

static mha_status collect_char(void *user, const mhai_char *ch)
{
    collector *c = user;
    MHA_TRY(append_char(c->text, ch));
    return mhai_tokenizer_words_take(&c->splitter, ch);
}

static mha_status words(const mha_tokenizer *t, const char *text, size_t size,
                        mhai_vector *normalized, mhai_vector *found)
{
    collector c = {.text = normalized, .words = found};
    mhai_normalizer normalizer = mhai_tokenizer_normalize_make(t, collect_char, &c);
    mhai_tokenizer_words_begin(&c.splitter, collect_word, &c);
    mha_status status = mhai_tokenizer_normalize(&normalizer, text, 0, size);
    if (status == MHA_OK) status = mhai_tokenizer_words_finish(&c.splitter);
    mhai_tokenizer_normalize_free(&normalizer);
    return status;
}

static mha_status normalize(const mha_tokenizer *t, const char *text, mhai_vector *normalized)
{
    mhai_normalizer normalizer = mhai_tokenizer_normalize_make(t, append_char, normalized);
    const mha_status status = mhai_tokenizer_normalize(&normalizer, text, 0, strlen(text));
    mhai_tokenizer_normalize_free(&normalizer);
    return status;
}

/* ---- The kind -------------------------------------------------------------------------------- */

/* Pieces such as "##ing" continue a word. */
static size_t speak(const mha_tokenizer *t, const char *token, char *bytes)
{
    const size_t size = strlen(token), skip = size > 2 && strncmp(token, "##", 2) == 0 ? 2 : 0;
    (void)t;
    memcpy(bytes, token + skip, size - skip);
    return size - skip;
}

static mha_status build(mhai_loader *l)
{
    mhai_lexicon_branch_make(&l->tokenizer->vocabulary, "##", &l->tokenizer->pieces);
    return mhai_wordpiece_template(l);
}

const mhai_kind mhai_kind_wordpiece = {.kind = MHA_TOKENIZER_WORDPIECE,
                                       .build = build,
                                       .normalize = normalize,
                                       .encode = encode,
                                       .words = words,
                                       .speak = speak};
