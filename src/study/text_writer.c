/* An incremental detokenizer, which emits whole characters and no byte of a stop text. */
#include "study/study.h"

#include <multihead/component.h>
#include <multihead/io.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct mha_text_writer {
    mhai_reader reader;
    char *stops; /* each with its NUL */
    int64_t stop_count;
    const char *joint; /* text before the next token */
    char *rest;        /* [rest_room] bytes held back */
    size_t used, rest_room;
    char *text; /* [text_room] the last output */
    size_t text_room;
};

mha_status mha_text_writer_create(const mha_model *model, const char *const *stops,
                                  int64_t stop_count, mha_text_writer **writer)
{
    mhai_reader reader;
    size_t bytes = 0;
    MHA_NEED_AS("mha_text_writer_create", "model, stops, writer", model, stops || stop_count <= 0,
                writer);
    MHA_TRY(mhai_reader_make(model, &reader));
    for (int64_t i = 0; i < stop_count; i++) bytes += strlen(stops[i]) + 1;
    mha_text_writer *made = calloc(1, sizeof *made);
    char *copies = malloc(bytes + 1);
    if (!made || !copies) {
        free(made), free(copies);
        return mha_fail(MHA_ERR_NOMEM, "out of memory for a text");
    }
    *made = (mha_text_writer){.reader = reader, .stops = copies, .joint = ""};
    for (int64_t i = 0; i < stop_count; i++) {
        const size_t length = strlen(stops[i]);
        if (length == 0) continue;
        memcpy(copies, stops[i], length + 1);
        copies += length + 1;
        made->stop_count++;
    }
    *writer = made;
    return MHA_OK;
}

void mha_text_writer_destroy(mha_text_writer *writer)
{
    if (!writer) return;
    free(writer->stops);
    free(writer->rest);
    free(writer->text);
    free(writer);
}

static mha_status grow(char **memory, size_t *room, size_t needed)
{
    if (needed <= *room) return MHA_OK;
    char *more = realloc(*memory, 2 * needed + 64);
    if (!more) return mha_fail(MHA_ERR_NOMEM, "out of memory for a text");
    *memory = more;
    *room = 2 * needed + 64;
    return MHA_OK;
}

static void append(mha_text_writer *w, const char *bytes, size_t count)
{
    memcpy(w->rest + w->used, bytes, count);
    w->used += count;
}

/* The offset of the first stop text in the bytes held back; `used` if there is none. *held is the
 * number of trailing bytes that may begin one. */
static size_t find_stop(const mha_text_writer *w, size_t *held)
{
    size_t first = w->used;
    const char *stop = w->stops;
    *held = 0;
    for (int64_t i = 0; i < w->stop_count; i++, stop += strlen(stop) + 1) {
        const size_t length = strlen(stop);
        for (size_t at = 0; at < w->used; at++) {
            const size_t left = w->used - at, compared = left < length ? left : length;
            if (memcmp(w->rest + at, stop, compared) != 0) continue;
            if (compared == length && at < first) first = at;
            if (compared < length && left > *held) *held = left;
        }
    }
    return first;
}

/* Emit the bytes before end. Invalid bytes become U+FFFD, unless later bytes may complete them. */
static mha_status give(mha_text_writer *w, size_t end, bool last, const char **text, size_t *bytes)
{
    static const char unknown[] = "\uFFFD";
    size_t at = 0, written = 0;
    MHA_TRY(grow(&w->text, &w->text_room, sizeof unknown * end + 1));
    while (at < end) {
        size_t broken;
        const size_t whole = mha_utf8_span(w->rest + at, end - at, &broken);
        memcpy(w->text + written, w->rest + at, whole);
        written += whole;
        at += whole;
        if (last && broken == 0) broken = end - at;
        if (broken == 0) break;
        memcpy(w->text + written, unknown, sizeof unknown - 1);
        written += sizeof unknown - 1;
        at += broken;
    }
    w->used -= at;
    if (w->used > 0) memmove(w->rest, w->rest + at, w->used);
    *text = w->text;
    *bytes = written;
    return MHA_OK;
}

mha_status mha_text_writer_add(mha_text_writer *writer, int32_t id, const char **text,
                               size_t *bytes, bool *stopped)
{
    size_t held;
    MHA_NEED("mha_text_writer_add", writer, text, bytes, stopped);
    const mhai_reader *reader = &writer->reader;
    if (!(reader->pieces ? mha_tokenizer_token(reader->pieces, id)
                         : mha_vocabulary_word(reader->words, id)))
        return mha_fail(MHA_ERR_ARGUMENT, "token %" PRId32 " is not in the vocabulary", id);
    const mhai_piece piece = mhai_piece_of(reader, id);
    const size_t joint = strlen(writer->joint);
    *stopped = false;
    if (piece.special) return give(writer, 0, false, text, bytes);
    MHA_TRY(grow(&writer->rest, &writer->rest_room, writer->used + joint + piece.count));
    append(writer, writer->joint, joint);
    append(writer, piece.bytes, piece.count);
    const bool parted =
        reader->words && mha_vocabulary_splitting(reader->words) != MHA_SPLIT_CHARACTERS;
    if (parted) writer->joint = " ";
    const size_t stop = find_stop(writer, &held);
    *stopped = stop < writer->used;
    if (*stopped) writer->used = stop;
    return give(writer, *stopped ? stop : writer->used - held, *stopped, text, bytes);
}

mha_status mha_text_writer_end(mha_text_writer *writer, const char **text, size_t *bytes)
{
    MHA_NEED("mha_text_writer_end", writer, text, bytes);
    return give(writer, writer->used, true, text, bytes);
}
