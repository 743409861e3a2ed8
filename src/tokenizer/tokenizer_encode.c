/* Encoding: special tokens in the text, words cut into pieces, truncation, [CLS] and [SEP]. */
#include "tokenizer/tokenizer_parts.h"

#include "tokenizer/unicode_bert.h"

#include <multihead/component.h>

#include <string.h>

typedef struct found_token {
    int64_t begin, end;
    int32_t id;
} found_token;

/* One or two texts on their way. */
typedef struct encoder {
    const mha_tokenizer *tokenizer;
    mhai_normalizer normalizer;
    mhai_vector texts[2]; /* of found_token */
    mhai_vector *tokens;  /* the text at work */
    /* A segment's normalised text, kept only where added tokens are to be found in it. */
    mhai_vector bytes; /* of char */
    mhai_vector chars; /* of kept_char */
    mhai_splitter splitter;
} encoder;

typedef struct kept_char {
    mhai_char ch;
    size_t at; /* in bytes */
} kept_char;

/* ---- WordPiece ------------------------------------------------------------------------------- */

static mha_status push(encoder *e, int32_t id, int64_t begin, int64_t end)
{
    const found_token token = {begin, end, id};
    return mhai_vector_push(e->tokens, &token);
}

static mha_status push_unknown(encoder *e, const mhai_word *word)
{
    return push(e, e->tokenizer->named[MHAI_UNK], word->first, word->last);
}

/* Again and again the longest piece that the rest begins with. Where there is none, the word as a
 * whole is unknown. */
static mha_status cut_word(void *user, const mhai_word *word)
{
    encoder *e = user;
    if (word->chars > MHAI_WORD_CHARS) return push_unknown(e, word);
    const size_t before = e->tokens->count;
    for (size_t at = 0, matched = 0; at < word->size; at += matched) {
        const mhai_lexicon_branch *branch =
            at == 0 ? &e->tokenizer->first_pieces : &e->tokenizer->pieces;
        const int32_t id =
            mhai_lexicon_longest(branch, word->bytes + at, word->size - at, &matched);
        if (id < 0) {
            e->tokens->count = before;
            return push_unknown(e, word);
        }
        MHA_TRY(push(e, id, word->begin[at], word->end[at + matched - 1]));
    }
    return MHA_OK;
}

/* ---- Segments and added tokens --------------------------------------------------------------- */

static mha_status keep_char(encoder *e, const mhai_char *ch)
{
    char bytes[MHAI_UTF8_MAX];
    const int size = mhai_unicode_put(ch->c, bytes);
    const kept_char kept = {*ch, e->bytes.count};
    void *place = NULL;
    MHA_TRY(mhai_vector_push(&e->chars, &kept));
    MHA_TRY(mhai_vector_add(&e->bytes, (size_t)size, &place));
    memcpy(place, bytes, (size_t)size);
    return MHA_OK;
}

static mha_status take_char(void *user, const mhai_char *ch)
{
    encoder *e = user;
    return e->tokenizer->normal.count > 0 ? keep_char(e, ch)
                                          : mhai_tokenizer_words_take(&e->splitter, ch);
}

/* Added tokens that are compared with the normalised text. */
static mha_status find_normal_tokens(encoder *e)
{
    const char *bytes = e->bytes.items;
    const kept_char *chars = e->chars.items;
    for (size_t i = 0; i < e->chars.count;) {
        size_t matched = 0;
        const size_t at = chars[i].at;
        const int32_t id = mhai_lexicon_longest(&e->tokenizer->normal_tokens, bytes + at,
                                                e->bytes.count - at, &matched);
        if (id < 0) {
            MHA_TRY(mhai_tokenizer_words_take(&e->splitter, &chars[i++].ch));
            continue;
        }
        const int64_t begin = chars[i].ch.begin;
        while (i < e->chars.count && chars[i].at < at + matched) i++;
        MHA_TRY(mhai_tokenizer_words_finish(&e->splitter));
        MHA_TRY(push(e, id, begin, chars[i - 1].ch.end));
    }
    return MHA_OK;
}

/* The text between two special tokens: normalised and split separately. */
static mha_status encode_segment(encoder *e, const char *text, size_t from, size_t to)
{
    if (from == to) return MHA_OK;
    e->bytes.count = 0;
    e->chars.count = 0;
    MHA_TRY(mhai_tokenizer_normalize(&e->normalizer, text, from, to));
    MHA_TRY(find_normal_tokens(e));
    return mhai_tokenizer_words_finish(&e->splitter);
}

static mha_status encode_text(encoder *e, const char *text, size_t size)
{
    const mhai_lexicon_branch *special = &e->tokenizer->raw_tokens;
    size_t from = 0, at = 0;
    while (at < size) {
        size_t matched = 0;
        const int32_t id = mhai_lexicon_longest(special, text + at, size - at, &matched);
        if (id < 0) {
            at++;
            continue;
        }
        MHA_TRY(encode_segment(e, text, from, at));
        MHA_TRY(push(e, id, (int64_t)at, (int64_t)(at + matched)));
        at += matched;
        from = at;
    }
    return encode_segment(e, text, from, size);
}

/* ---- Truncation ------------------------------------------------------------------------------ */

static mha_status cut_one(const char *name, int64_t excess, int64_t *count)
{
    if (*count <= excess)
        return mha_fail(MHA_ERR_SIZE,
                        "%s has %lld tokens, but %lld have to go: raise max_length or truncate the "
                        "longest first",
                        name, (long long)*count, (long long)excess);
    *count -= excess;
    return MHA_OK;
}

/* The shorter text stays whole as long as it fits into half of the room. */
static void cut_longest(int64_t room, int64_t count[2])
{
    const int longer = count[1] > count[0] || (count[0] == count[1]) ? 1 : 0;
    const int shorter = 1 - longer;
    if (count[shorter] > room / 2) count[shorter] = room / 2;
    count[longer] = room - count[shorter];
}

/* From the numbers of tokens in the two texts to the numbers that are kept. */
static mha_status truncate_counts(const mha_encode_options *options, int64_t added, bool paired,
                                  int64_t count[2])
{
    if (options->max_length == 0) return MHA_OK;
    if (options->max_length < added)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_encode_options: max_length is %lld, the special tokens alone are %lld",
                        (long long)options->max_length, (long long)added);
    const int64_t room = options->max_length - added;
    const int64_t excess = count[0] + count[1] - room;
    if (excess <= 0) return MHA_OK;
    if (room == 0 && options->truncation != MHA_TRUNCATE_NEVER) {
        count[0] = count[1] = 0; /* whichever text was to be cut: so does Hugging Face's */
        return MHA_OK;
    }
    switch (options->truncation) {
    case MHA_TRUNCATE_LONGEST_FIRST:
        if (paired)
            cut_longest(room, count);
        else
            count[0] = room;
        return MHA_OK;
    case MHA_TRUNCATE_ONLY_FIRST: return cut_one("the first text", excess, &count[0]);
    case MHA_TRUNCATE_ONLY_SECOND: return cut_one("the second text", excess, &count[1]);
    case MHA_TRUNCATE_NEVER: break;
    }
    return mha_fail(MHA_ERR_SIZE,
                    "%lld tokens with the special ones, at most %lld fit: shorten the text or ask "
                    "for truncation",
                    (long long)(count[0] + count[1] + added), (long long)options->max_length);
}

/* ---- Putting together ------------------------------------------------------------------------ */

/* The columns of an encoding while they are filled. */
typedef struct columns {
    int64_t *begin, *end;
    int32_t *ids, *type_ids;
    int8_t *sequence;
    uint8_t *special;
    int64_t count;
} columns;

enum { TOKEN_BYTES = 2 * sizeof(int64_t) + 2 * sizeof(int32_t) + 2 };

static void add_special(columns *c, int32_t id, int32_t type)
{
    const int64_t i = c->count++;
    c->ids[i] = id;
    c->type_ids[i] = type;
    c->begin[i] = -1;
    c->end[i] = -1;
    c->sequence[i] = -1;
    c->special[i] = 1;
}

static void add_tokens(columns *c, const mhai_vector *tokens, int64_t count, int8_t sequence)
{
    const found_token *found = tokens->items;
    for (int64_t k = 0; k < count; k++) {
        const int64_t i = c->count++;
        c->ids[i] = found[k].id;
        c->type_ids[i] = sequence;
        c->begin[i] = found[k].begin;
        c->end[i] = found[k].end;
        c->sequence[i] = sequence;
        c->special[i] = 0;
    }
}

static mha_status put_together(const mha_tokenizer *tokenizer, const mhai_vector tokens[2],
                               const int64_t kept[2], bool paired, bool special,
                               mha_encoding *encoding)
{
    const size_t count = (size_t)(kept[0] + kept[1] + (special ? 2 + paired : 0));
    void *memory = NULL, *items = NULL;
    MHA_TRY(mhai_vector_block_make(&tokenizer->allocator, count, TOKEN_BYTES, 0, &memory, &items));
    columns c = {.begin = items};
    c.end = c.begin + count;
    c.ids = (int32_t *)(c.end + count);
    c.type_ids = c.ids + count;
    c.sequence = (int8_t *)(c.type_ids + count);
    c.special = (uint8_t *)(c.sequence + count);
    if (special) add_special(&c, tokenizer->named[MHAI_CLS], 0);
    add_tokens(&c, &tokens[0], kept[0], 0);
    if (special) add_special(&c, tokenizer->named[MHAI_SEP], 0);
    if (paired) add_tokens(&c, &tokens[1], kept[1], 1);
    if (special && paired) add_special(&c, tokenizer->named[MHAI_SEP], 1);
    *encoding = (mha_encoding){
        .struct_size = encoding->struct_size,
        .count = c.count,
        .ids = c.ids,
        .type_ids = c.type_ids,
        .begin = c.begin,
        .end = c.end,
        .sequence = c.sequence,
        .special = c.special,
        .dropped = {(int64_t)tokens[0].count - kept[0], (int64_t)tokens[1].count - kept[1]},
        .memory = memory,
    };
    return MHA_OK;
}

static mha_status check_options(const mha_encode_options *options)
{
    if (options->flags & ~(uint32_t)MHA_ENCODE_NO_SPECIAL)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_encode_options: unknown flags 0x%X",
                        (unsigned)options->flags);
    if (options->max_length < 0)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_encode_options: max_length is %lld, give 0 or more",
                        (long long)options->max_length);
    if (options->truncation < MHA_TRUNCATE_NEVER || options->truncation > MHA_TRUNCATE_ONLY_SECOND)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_encode_options: unknown truncation %d",
                        (int)options->truncation);
    if (options->reserved != 0)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_encode_options: reserved must be 0");
    return MHA_OK;
}

static void start(const mha_tokenizer *tokenizer, encoder *e)
{
    const mha_allocator *allocator = &tokenizer->allocator;
    *e = (encoder){.tokenizer = tokenizer};
    e->normalizer = mhai_tokenizer_normalize_make(tokenizer, take_char, e);
    e->bytes = mhai_vector_make(allocator, 1);
    e->chars = mhai_vector_make(allocator, sizeof(kept_char));
    for (int i = 0; i < 2; i++) e->texts[i] = mhai_vector_make(allocator, sizeof(found_token));
    mhai_tokenizer_words_begin(&e->splitter, cut_word, e);
}

static void finish(encoder *e)
{
    mhai_tokenizer_normalize_free(&e->normalizer);
    mhai_vector_free(&e->bytes);
    mhai_vector_free(&e->chars);
    for (int i = 0; i < 2; i++) mhai_vector_free(&e->texts[i]);
}

mha_status mha_tokenizer_encode(const mha_tokenizer *tokenizer, const mha_encode_options *options,
                                const char *text, size_t text_bytes, const char *pair,
                                size_t pair_bytes, mha_encoding *encoding)
{
    if (!tokenizer || !encoding || (!text && text_bytes > 0) || (!pair && pair_bytes > 0))
        return mha_fail(MHA_ERR_NULL, "mha_tokenizer_encode: NULL argument");
    mha_encode_options own;
    MHA_TRY(mha_struct_read("mha_encode_options", &own, sizeof own, sizeof own, options,
                            options ? options->struct_size : 0));
    MHA_TRY(mha_struct_check_size("mha_encoding", encoding->struct_size, sizeof *encoding));
    MHA_TRY(check_options(&own));
    MHA_TRY(mhai_tokenizer_check_text(pair ? "the first text" : "text", text, text_bytes));
    MHA_TRY(mhai_tokenizer_check_text("the second text", pair, pair_bytes));
    const bool paired = pair != NULL, special = !(own.flags & MHA_ENCODE_NO_SPECIAL);
    encoder e;
    mha_status status = MHA_OK;
    start(tokenizer, &e);
    e.tokens = &e.texts[0];
    MHA_TRY_GOTO(encode_text(&e, text, text_bytes), done);
    e.tokens = &e.texts[1];
    MHA_TRY_GOTO(encode_text(&e, pair, pair_bytes), done);
    int64_t kept[2] = {(int64_t)e.texts[0].count, (int64_t)e.texts[1].count};
    MHA_TRY_GOTO(truncate_counts(&own, special ? 2 + paired : 0, paired, kept), done);
    MHA_TRY_GOTO(put_together(tokenizer, e.texts, kept, paired, special, encoding), done);
done:
    finish(&e);
    return status;
}

void mha_encoding_free(mha_encoding *encoding)
{
    if (!encoding) return;
    const uint32_t struct_size = encoding->struct_size;
    mhai_vector_block_free(encoding->memory);
    *encoding = (mha_encoding){.struct_size = struct_size};
}
