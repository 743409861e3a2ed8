/* Convert texts to tokens: ids, byte ranges and kinds from a model's tokenizer or whole words, and
 * labels. */
#include "study/study.h"

#include <multihead/component.h>
#include <multihead/io.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORD_BYTES = 256 };

mha_status mhai_reader_make(const mha_model *model, mhai_reader *reader)
{
    mha_tokenizer_info info = {.struct_size = sizeof info};
    *reader = (mhai_reader){.pieces = mha_model_tokenizer(model),
                            .words = mha_model_vocabulary(model),
                            .info = {.struct_size = sizeof reader->info},
                            .begin = -1,
                            .end = -1};
    reader->start_count = mha_model_start_tokens(model, &reader->starts);
    reader->end_count = mha_model_end_tokens(model, &reader->ends);
    MHA_TRY(mha_model_describe(model, &reader->info));
    if (reader->pieces) {
        MHA_TRY(mha_tokenizer_describe(reader->pieces, &info));
        reader->wordpiece = info.kind == MHA_TOKENIZER_WORDPIECE;
        reader->begin = info.bos_id;
        reader->end = info.eos_id;
    } else if (reader->words) {
        reader->begin = mha_vocabulary_begin(reader->words);
        reader->end = mha_vocabulary_end(reader->words);
    } else {
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        reader->info.patch_size > 0
                            ? "the model reads images, not texts; see 'multihead view --image'"
                            : "the model has no tokenizer; pass token ids instead of a text");
    }
    return MHA_OK;
}

mhai_piece mhai_piece_of(const mhai_reader *reader, int32_t id)
{
    mhai_piece piece = {.special = true, .letters = reader->wordpiece || reader->words};
    int special = 1;
    piece.name = reader->pieces  ? mha_tokenizer_token(reader->pieces, id)
                 : reader->words ? mha_vocabulary_word(reader->words, id)
                                 : NULL;
    if (!piece.name) piece.name = "?";
    if (reader->pieces && mha_tokenizer_token_bytes(reader->pieces, id, &piece.bytes, &piece.count,
                                                    &special) == MHA_OK) {
        piece.special = special;
        return piece;
    }
    piece.bytes = piece.name;
    piece.count = strlen(piece.name);
    if (reader->words) piece.special = id == reader->begin || id == reader->end;
    return piece;
}

/* ---- labels ---------------------------------------------------------------------------------- */

/* Output that is truncated and counted as by snprintf(). */
typedef struct written {
    char *to;
    size_t room, used;
} written;

static void put(written *out, const char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++, out->used++)
        if (out->used + 1 < out->room) out->to[out->used] = bytes[i];
}

static bool all_spaces(const char *bytes, size_t count)
{
    size_t at = 0;
    while (at < count && bytes[at] == ' ') at++;
    return at == count;
}

/* Write whole characters, and white space as visible symbols. */
static void put_text(written *out, const char *text, size_t count, bool spaces)
{
    static const char *const shown[][2] = {{"\n", "\\n"}, {"\t", "\\t"}, {"\r", "\\r"}};
    for (size_t at = 0; at < count; at++) {
        const char *as = spaces ? "\u2423" : NULL;
        for (int i = 0; i < 3; i++)
            if (text[at] == *shown[i][0]) as = shown[i][1];
        put(out, as ? as : text + at, as ? strlen(as) : 1);
    }
}

/* Show a token that consists of spaces, and write bytes of an incomplete character as numbers. */
static void put_label(written *out, const mhai_piece *piece)
{
    const char *at = piece->bytes, *end = at + piece->count;
    const bool spaces = all_spaces(at, piece->count);
    if (!spaces && *at == ' ') at++;
    while (at < end) {
        size_t stray;
        const size_t whole = mha_utf8_span(at, (size_t)(end - at), &stray);
        put_text(out, at, whole, spaces);
        at += whole;
        if (stray == 0) stray = (size_t)(end - at);
        for (; stray > 0; stray--, at++) {
            char number[8];
            snprintf(number, sizeof number, "<0x%02X>", (unsigned)(unsigned char)*at);
            put(out, number, strlen(number));
        }
    }
}

static size_t label(const mhai_reader *reader, int32_t id, char *to, size_t size)
{
    const mhai_piece piece = mhai_piece_of(reader, id);
    written out = {.to = to, .room = size};
    if (piece.letters || piece.special)
        put(&out, piece.name, strlen(piece.name));
    else
        put_label(&out, &piece);
    if (size > 0) to[out.used < size ? out.used : size - 1] = '\0';
    return out.used;
}

size_t mha_token_label(const mha_model *model, int32_t id, char *to, size_t size)
{
    mhai_reader reader;
    const bool known = mhai_reader_make(model, &reader) == MHA_OK;
    if (!known) reader = (mhai_reader){.begin = -1, .end = -1};
    return label(&reader, id, to, size);
}

bool mha_token_is_special(const mha_model *model, int32_t id)
{
    mhai_reader reader;
    return mhai_reader_make(model, &reader) != MHA_OK || mhai_piece_of(&reader, id).special;
}

int64_t mha_token_count(const mha_model *model)
{
    mhai_reader reader;
    mha_tokenizer_info info = {.struct_size = sizeof info};
    if (mhai_reader_make(model, &reader) != MHA_OK) return 0;
    int64_t count = reader.words ? mha_vocabulary_count(reader.words) : 0;
    if (reader.pieces && mha_tokenizer_describe(reader.pieces, &info) == MHA_OK)
        count = info.vocab_size;
    return count < reader.info.vocab_size ? count : reader.info.vocab_size;
}

bool mhai_is_word(const mhai_reader *reader, int32_t id)
{
    const mhai_piece piece = mhai_piece_of(reader, id);
    const char *at = piece.letters ? piece.name : piece.bytes;
    const char *end = at + (piece.letters ? strlen(at) : piece.count);
    if (reader->words) return mha_vocabulary_word(reader->words, id) && *at != '<';
    if (!piece.letters && (piece.special || at == end || *at++ != ' ')) return false;
    const char *from = at;
    while (at < end && *at >= 'a' && *at <= 'z') at++;
    return at == end && at - from > 1;
}

/* ---- arrays ---------------------------------------------------------------------------------- */

mha_status mhai_tokens_make(int64_t count, size_t labels, mha_tokens *tokens, char **label)
{
    const size_t n = (size_t)count, words = 3 * sizeof(int64_t) + sizeof(char *),
                 small = 2 * sizeof(int32_t) + 3;
    const bool fits = labels < PTRDIFF_MAX && n < (PTRDIFF_MAX - labels) / (words + small);
    char *at = fits ? calloc(1, n * (words + small) + labels + 1) : NULL;
    if (!at) return mha_fail(MHA_ERR_NOMEM, "out of memory for %" PRId64 " tokens", count);
    *tokens = (mha_tokens){.struct_size = sizeof *tokens, .count = count, .memory = at};
    tokens->begin = (int64_t *)(void *)at, at += n * sizeof(int64_t);
    tokens->end = (int64_t *)(void *)at, at += n * sizeof(int64_t);
    tokens->sentences = (int64_t *)(void *)at, at += n * sizeof(int64_t);
    tokens->labels = (const char **)(void *)at, at += n * sizeof(char *);
    tokens->ids = (int32_t *)(void *)at, at += n * sizeof(int32_t);
    tokens->types = (int32_t *)(void *)at, at += n * sizeof(int32_t);
    tokens->sequence = (int8_t *)at, at += n;
    tokens->special = (uint8_t *)at, at += n;
    tokens->separators = (uint8_t *)at, at += n;
    if (label) *label = at;
    if (labels == 0) tokens->labels = NULL;
    return MHA_OK;
}

void mha_tokens_free(mha_tokens *tokens)
{
    if (!tokens) return;
    free(tokens->memory);
    mha_picture_free(tokens->picture);
    free(tokens->picture);
    *tokens = (mha_tokens){.struct_size = tokens->struct_size};
}

/* Special tokens after the first token, and the marks that end a sentence. */
static bool is_separator(const char *text, bool special, int64_t index)
{
    if (special) return index > 0;
    return text && text[0] && !text[1] && strchr(".!?;", text[0]);
}

void mha_tokens_sentences(int64_t count, const char *const *labels, const uint8_t *special,
                          uint8_t *separators, int64_t *sentences)
{
    for (int64_t i = 0, sentence = 0; i < count; i++) {
        separators[i] = is_separator(labels ? labels[i] : NULL, special[i], i);
        sentences[i] = sentence;
        sentence += separators[i];
    }
}

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct reading {
    mhai_reader reader;
    mha_tokens_options how;
    int64_t most; /* tokens; 0: any number */
} reading;

/* The result of a tokenizer or a vocabulary. */
typedef struct columns {
    int64_t count;
    const int32_t *ids, *types; /* types NULL: 0 */
    const int64_t *begin, *end;
    const int8_t *sequence; /* NULL: -1 where begin is -1, otherwise 0 */
} columns;

static bool has(const reading *r, uint32_t flag)
{
    return r->how.flags & flag;
}

/* The tokenizer stops at the limit, so the number of tokens is unknown. */
static mha_status too_long(const reading *r)
{
    const char *advice = r->how.advise_long;
    return mha_fail(MHA_ERR_SIZE,
                    "the text has too many tokens, the limit is %" PRId64 "%s; shorten it%s%s",
                    r->most, r->how.max_tokens ? "" : " (the model's positions)",
                    advice ? ", " : "", advice ? advice : "");
}

static mha_status unknown_word(const reading *r)
{
    char detail[512];
    snprintf(detail, sizeof detail, "%s", mha_error_detail());
    if (!r->how.advise_words) return MHA_ERR_FORMAT;
    const bool asks = *detail && detail[strlen(detail) - 1] == '?';
    return mha_fail(MHA_ERR_FORMAT, "%s%s %s", detail, asks ? "" : ";", r->how.advise_words);
}

/* Fill token i, whose label is at `text`. Returns the place of the next label. */
static char *put_token(const reading *r, int64_t i, int32_t id, int64_t begin, int64_t end,
                       char *text, mha_tokens *tokens)
{
    tokens->ids[i] = id;
    tokens->begin[i] = begin;
    tokens->end[i] = end;
    tokens->sequence[i] = begin < 0 ? -1 : 0;
    if (!tokens->labels) return text;
    tokens->labels[i] = text;
    return text + label(&r->reader, id, text, SIZE_MAX) + 1;
}

/* The first `starts` tokens are those with which a decoder begins. */
static void fill(const reading *r, int64_t starts, const columns *from, char *text,
                 mha_tokens *tokens)
{
    for (int64_t i = 0; i < starts; i++)
        text = put_token(r, i, r->reader.starts[i], -1, -1, text, tokens);
    for (int64_t i = 0; i < from->count; i++) {
        text = put_token(r, starts + i, from->ids[i], from->begin[i], from->end[i], text, tokens);
        if (from->types) tokens->types[starts + i] = from->types[i];
        if (from->sequence) tokens->sequence[starts + i] = from->sequence[i];
    }
    for (int64_t i = 0; i < tokens->count; i++) tokens->special[i] = tokens->sequence[i] < 0;
    mha_tokens_sentences(tokens->count, tokens->labels, tokens->special, tokens->separators,
                         tokens->sentences);
}

/* The tokenizer's end token; with `all`, any of the model's. */
static bool is_end(const reading *r, int32_t id, bool all)
{
    bool found = id == r->reader.end;
    for (int64_t i = 0; all && i < r->reader.end_count; i++)
        found = found || id == r->reader.ends[i];
    return found;
}

static bool is_empty(const columns *from)
{
    int64_t i = 0;
    while (i < from->count && from->begin[i] < 0) i++;
    return i == from->count;
}

/* A prompt has no end tokens, and neither has the text of a decoder with start tokens, which
 * predicts them. If its prompt is empty, all start tokens are the prompt, unless the tokenizer begins
 * texts with the first one. */
static mha_status take(const reading *r, columns *from, mha_tokens *tokens)
{
    const int64_t nowhere = -1;
    const columns first = {1, &r->reader.begin, NULL, &nowhere, &nowhere, NULL};
    const bool prompt = has(r, MHA_TOKENS_PROMPT), plain = has(r, MHA_TOKENS_PLAIN);
    const bool target = r->reader.start_count > 0;
    int64_t starts = target;
    size_t bytes = 0;
    char *text;
    while ((prompt || target) && from->count > 1 && is_end(r, from->ids[from->count - 1], target))
        from->count--;
    if (target && from->count > 0 && from->ids[0] == r->reader.starts[0])
        starts = 0; /* the tokenizer adds it (Whisper) */
    else if (target && prompt && is_empty(from)) {
        from->count = 0;
        starts = r->reader.start_count;
    }
    if (prompt && from->count == 0 && r->reader.begin >= 0 && !target) *from = first;
    for (int64_t i = 0; i < starts && !plain; i++)
        bytes += label(&r->reader, r->reader.starts[i], NULL, 0) + 1;
    for (int64_t i = 0; i < from->count && !plain; i++)
        bytes += label(&r->reader, from->ids[i], NULL, 0) + 1;
    MHA_TRY(mhai_tokens_make(starts + from->count, bytes, tokens, &text));
    fill(r, starts, from, text, tokens);
    return MHA_OK;
}

static mha_status read_pieces(const reading *r, const char *text, size_t bytes, const char *pair,
                              size_t pair_bytes, mha_tokens *tokens)
{
    mha_encoding found = {.struct_size = sizeof found};
    const bool truncate = has(r, MHA_TOKENS_TRUNCATE);
    const mha_encode_options options = {.struct_size = sizeof options,
                                        .flags = truncate || !r->most ? 0 : MHA_ENCODE_STOP,
                                        .max_length = r->most,
                                        .truncation = MHA_TRUNCATE_LONGEST_FIRST};
    MHA_TRY(
        mha_tokenizer_encode(r->reader.pieces, &options, text, bytes, pair, pair_bytes, &found));
    columns from = {found.count, found.ids, found.type_ids, found.begin, found.end, found.sequence};
    const bool cut = found.dropped[0] + found.dropped[1] > 0;
    const mha_status status = cut && !truncate ? too_long(r) : take(r, &from, tokens);
    if (status == MHA_OK) memcpy(tokens->dropped, found.dropped, sizeof found.dropped);
    mha_encoding_free(&found);
    return status;
}

/* At least one byte separates words, and one more token may precede them. */
static mha_status read_words(const reading *r, const char *text, size_t bytes, mha_tokens *tokens)
{
    const bool truncate = has(r, MHA_TOKENS_TRUNCATE);
    int64_t room = (int64_t)bytes + 1, count = 0;
    if (!truncate && r->most && room > r->most) room = r->most;
    int64_t *places = calloc(2 * (size_t)room, sizeof *places);
    int32_t *ids = calloc((size_t)room, sizeof *ids);
    mha_status status =
        places && ids ? MHA_OK : mha_fail(MHA_ERR_NOMEM, "out of memory for a text");
    if (status == MHA_OK)
        status = mha_vocabulary_locate_normalised(r->reader.words, text, bytes, ids, places,
                                                  places + room, room, &count);
    if (status == MHA_ERR_SIZE) status = too_long(r);
    if (status == MHA_ERR_FORMAT) status = unknown_word(r);
    if (status == MHA_OK) {
        columns from = {truncate && r->most && count > r->most ? r->most : count,
                        ids,
                        NULL,
                        places,
                        places + room,
                        NULL};
        const int64_t dropped = count - from.count;
        status = take(r, &from, tokens);
        if (status == MHA_OK) tokens->dropped[0] = dropped;
    }
    free(places), free(ids);
    return status;
}

static mha_status check_pair(const reading *r, const mha_model *model)
{
    mha_transformer_desc desc;
    if (r->reader.pieces && r->reader.info.type_vocab_size > 1) return MHA_OK;
    mha_transformer_describe(mha_model_transformer((mha_model *)(uintptr_t)model), &desc);
    const bool types = r->reader.pieces && !(desc.flags & MHA_TRANSFORMER_CAUSAL);
    return mha_fail(MHA_ERR_UNSUPPORTED, "the model takes no second text%s; give one text",
                    types ? " (one type of token: its type_vocab_size is 1)" : "");
}

mha_status mha_tokens_read(const mha_model *model, const mha_tokens_options *options,
                           const char *text, size_t bytes, const char *pair, size_t pair_bytes,
                           mha_tokens *tokens)
{
    reading r;
    const uint32_t known = MHA_TOKENS_TRUNCATE | MHA_TOKENS_PLAIN | MHA_TOKENS_PROMPT;
    mha_tokens made = {.struct_size = sizeof made};
    MHA_NEED_AS("mha_tokens_read", "model, text, pair, tokens", model, text || bytes == 0,
                pair || pair_bytes == 0, tokens);
    MHA_TRY(mha_struct_read("mha_tokens_options", &r.how, sizeof r.how, sizeof r.how, options,
                            options ? options->struct_size : 0));
    MHA_TRY(mha_struct_check_size("mha_tokens", tokens->struct_size, sizeof *tokens));
    MHA_TRY(mhai_reader_make(model, &r.reader));
    if (r.how.max_tokens < -1)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_tokens_read: max_tokens is %" PRId64 ", expected -1 or more",
                        r.how.max_tokens);
    if (r.how.flags & ~known)
        return mha_fail(MHA_ERR_UNSUPPORTED, "mha_tokens_read: flags has unknown bits");
    if (pair) MHA_TRY(check_pair(&r, model));
    r.most = r.how.max_tokens > 0 ? r.how.max_tokens : 0;
    if (r.how.max_tokens == 0) r.most = r.reader.info.max_positions;
    if (r.most > 1 && r.reader.start_count > 0) r.most--;
    MHA_TRY(r.reader.pieces ? read_pieces(&r, text, bytes, pair, pair_bytes, &made)
                            : read_words(&r, text, bytes, &made));
    made.struct_size = tokens->struct_size;
    *tokens = made;
    return MHA_OK;
}
