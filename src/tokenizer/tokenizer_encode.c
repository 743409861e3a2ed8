/* Encoding: the tokens of a text, truncation, and the template. Also the public function that
 * returns the words of a text. */
#include "tokenizer/tokenizer_parts.h"

#include <multihead/component.h>

#include <string.h>

/* ---- Truncation ------------------------------------------------------------------------------ */

mha_status mhai_tokens_cut(mhai_tokens *tokens)
{
    if (tokens->found.count <= tokens->most) return MHA_OK;
    tokens->dropped += (int64_t)(tokens->found.count - tokens->most);
    tokens->found.count = tokens->most;
    return tokens->stop ? MHA_ERR_CALLBACK : MHA_OK;
}

static mha_status cut_one(const char *name, int64_t excess, int64_t *count)
{
    if (*count <= excess)
        return mha_fail(MHA_ERR_SIZE,
                        "%s has %lld tokens, but %lld must be removed: raise max_length or "
                        "truncate the longest first",
                        name, (long long)*count, (long long)excess);
    *count -= excess;
    return MHA_OK;
}

/* Truncate the longer text first. The shorter text is truncated only if it exceeds half of the
 * available length. */
static void cut_longest(int64_t room, int64_t count[2])
{
    const int longer = count[1] > count[0] || (count[0] == count[1]) ? 1 : 0;
    const int shorter = 1 - longer;
    if (count[shorter] > room / 2) count[shorter] = room / 2;
    count[longer] = room - count[shorter];
}

/* Replace the numbers of tokens of two texts with the numbers to keep. */
static mha_status truncate_counts(const mha_encode_options *options, int64_t added, bool paired,
                                  int64_t count[2])
{
    if (options->max_length == 0) return MHA_OK;
    if (options->max_length < added)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "max_length: the limit is %lld tokens, the special ones alone are %lld",
                        (long long)options->max_length, (long long)added);
    const int64_t room = options->max_length - added;
    const int64_t excess = count[0] + count[1] - room;
    if (excess <= 0) return MHA_OK;
    if (room == 0 && options->truncation != MHA_TRUNCATE_NEVER) {
        count[0] = count[1] = 0; /* for any kind of truncation, as in Hugging Face */
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
                    "at least %lld tokens with the special ones, at most %lld fit: shorten the "
                    "text or request truncation",
                    (long long)(count[0] + count[1] + added), (long long)options->max_length);
}

/* ---- Assembling an encoding ------------------------------------------------------------------ */

/* The columns of an encoding under construction. */
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

static void add_tokens(columns *c, const mhai_tokens *tokens, int64_t count, int8_t sequence,
                       int32_t type)
{
    const mhai_found_token *found = tokens->found.items;
    for (int64_t k = 0; k < count; k++) {
        const int64_t i = c->count++;
        c->ids[i] = found[k].id;
        c->type_ids[i] = type;
        c->begin[i] = found[k].begin;
        c->end[i] = found[k].end;
        c->sequence[i] = sequence;
        c->special[i] = 0;
    }
}

static int64_t count_of(const mhai_tokens *tokens)
{
    return (int64_t)tokens->found.count + tokens->dropped;
}

static int32_t count_special(const mhai_template *template)
{
    int32_t count = 0;
    for (int32_t i = 0; i < template->count; i++) count += template->parts[i].id >= 0;
    return count;
}

static mha_status put_together(const mha_tokenizer *tokenizer, const mhai_tokens tokens[2],
                               const int64_t kept[2], const mhai_template *template, bool special,
                               mha_encoding *encoding)
{
    const size_t count = (size_t)(kept[0] + kept[1] + (special ? count_special(template) : 0));
    void *memory = NULL, *items = NULL;
    MHA_TRY(mhai_vector_block_make(&tokenizer->allocator, count, TOKEN_BYTES, 0, &memory, &items));
    columns c = {.begin = items};
    c.end = c.begin + count;
    c.ids = (int32_t *)(c.end + count);
    c.type_ids = c.ids + count;
    c.sequence = (int8_t *)(c.type_ids + count);
    c.special = (uint8_t *)(c.sequence + count);
    for (int32_t i = 0; i < template->count; i++) {
        const int32_t id = template->parts[i].id, type = template->parts[i].type;
        if (id < 0)
            add_tokens(&c, &tokens[id == MHAI_TEXT_B], kept[id == MHAI_TEXT_B], id == MHAI_TEXT_B,
                       type);
        else if (special)
            add_special(&c, id, type);
    }
    *encoding = (mha_encoding){
        .struct_size = encoding->struct_size,
        .count = c.count,
        .ids = c.ids,
        .type_ids = c.type_ids,
        .begin = c.begin,
        .end = c.end,
        .sequence = c.sequence,
        .special = c.special,
        .dropped = {count_of(&tokens[0]) - kept[0], count_of(&tokens[1]) - kept[1]},
        .memory = memory,
    };
    return MHA_OK;
}

static mha_status check_options(const mha_encode_options *options)
{
    if (options->flags & ~(uint32_t)(MHA_ENCODE_NO_SPECIAL | MHA_ENCODE_STOP))
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

/* Encode one text, up to the maximum number of tokens. */
static mha_status encode(const mha_tokenizer *tokenizer, const mha_encode_options *options,
                         const char *text, size_t size, mhai_tokens *tokens)
{
    tokens->most = options->max_length > 0 ? (size_t)options->max_length : SIZE_MAX;
    tokens->stop = options->flags & MHA_ENCODE_STOP || options->truncation == MHA_TRUNCATE_NEVER;
    const mha_status status = tokenizer->kind->encode(tokenizer, text, size, tokens);
    return status == MHA_ERR_CALLBACK ? MHA_OK : status;
}

mha_status mha_tokenizer_encode(const mha_tokenizer *tokenizer, const mha_encode_options *options,
                                const char *text, size_t text_bytes, const char *pair,
                                size_t pair_bytes, mha_encoding *encoding)
{
    MHA_NEED_AS("mha_tokenizer_encode", "tokenizer, text, pair, encoding", tokenizer,
                text || text_bytes == 0, pair || pair_bytes == 0, encoding);
    mha_encode_options own;
    MHA_TRY(mha_struct_read("mha_encode_options", &own, sizeof own, sizeof own, options,
                            options ? options->struct_size : 0));
    MHA_TRY(mha_struct_check_size("mha_encoding", encoding->struct_size, sizeof *encoding));
    MHA_TRY(check_options(&own));
    MHA_TRY(mhai_tokenizer_check_text(pair ? "the first text" : "text", text, text_bytes));
    MHA_TRY(mhai_tokenizer_check_text("the second text", pair, pair_bytes));
    const bool paired = pair != NULL, special = !(own.flags & MHA_ENCODE_NO_SPECIAL);
    const mhai_template *template = &tokenizer->templates[paired];
    mha_status status = MHA_OK;
    mhai_tokens tokens[2] = {{.dropped = 0}, {.dropped = 0}};
    for (int i = 0; i < 2; i++)
        tokens[i].found = mhai_vector_make(&tokenizer->allocator, sizeof(mhai_found_token));
    MHA_TRY_GOTO(encode(tokenizer, &own, text, text_bytes, &tokens[0]), done);
    MHA_TRY_GOTO(encode(tokenizer, &own, pair, pair_bytes, &tokens[1]), done);
    int64_t kept[2] = {count_of(&tokens[0]), count_of(&tokens[1])};
    MHA_TRY_GOTO(truncate_counts(&own, special ? count_special(template) : 0, paired, kept), done);
    MHA_TRY_GOTO(put_together(tokenizer, tokens, kept, template, special, encoding), done);
done:
    for (int i = 0; i < 2; i++) mhai_vector_free(&tokens[i].found);
    return status;
}

void mha_encoding_free(mha_encoding *encoding)
{
    if (!encoding) return;
    const uint32_t struct_size = encoding->struct_size;
    mhai_vector_block_free(encoding->memory);
    *encoding = (mha_encoding){.struct_size = struct_size};
}

/* ---- mha_tokenizer_words --------------------------------------------------------------------- */

/* Return everything in one block: allocator and size, the four columns, the text. */
static mha_status hand_over(const mha_allocator *allocator, const mhai_vector *normalized,
                            const mhai_vector *found_words, mha_words *words)
{
    const size_t count = found_words->count, text_bytes = normalized->count;
    const mhai_found_word *found = found_words->items;
    void *memory = NULL, *items = NULL;
    MHA_TRY(mhai_vector_block_make(allocator, count, 4 * sizeof(int64_t), text_bytes + 1, &memory,
                                   &items));
    int64_t *from = items, *to = from + count, *begin = to + count, *end = begin + count;
    for (size_t i = 0; i < count; i++) {
        from[i] = found[i].from;
        to[i] = found[i].to;
        begin[i] = found[i].begin;
        end[i] = found[i].end;
    }
    char *text = (char *)(end + count);
    if (text_bytes > 0) memcpy(text, normalized->items, text_bytes);
    text[text_bytes] = '\0';
    words->text = text;
    words->text_bytes = (int64_t)text_bytes;
    words->count = (int64_t)count;
    words->from = from;
    words->to = to;
    words->begin = begin;
    words->end = end;
    words->memory = memory;
    return MHA_OK;
}

mha_status mha_tokenizer_words(const mha_tokenizer *tokenizer, const char *text, size_t text_bytes,
                               mha_words *words)
{
    MHA_NEED_AS("mha_tokenizer_words", "tokenizer, text, words", tokenizer, text || text_bytes == 0,
                words);
    MHA_TRY(mha_struct_check_size("mha_words", words->struct_size, sizeof *words));
    MHA_TRY(mhai_tokenizer_check_text("text", text, text_bytes));
    mhai_vector normalized = mhai_vector_make(&tokenizer->allocator, 1);
    mhai_vector found = mhai_vector_make(&tokenizer->allocator, sizeof(mhai_found_word));
    mha_status status = tokenizer->kind->words(tokenizer, text, text_bytes, &normalized, &found);
    if (status == MHA_OK) status = hand_over(&tokenizer->allocator, &normalized, &found, words);
    mhai_vector_free(&normalized);
    mhai_vector_free(&found);
    return status;
}

void mha_words_free(mha_words *words)
{
    if (!words) return;
    const uint32_t struct_size = words->struct_size;
    mhai_vector_block_free(words->memory);
    *words = (mha_words){.struct_size = struct_size};
}
