/* Times, segments and words of a transcription. */
#include "study/transcription.h"

#include <multihead/component.h>
#include <multihead/io.h>
#include <multihead/maps.h>

#include <inttypes.h>
#include <string.h>

/* ---- times of tokens ------------------------------------------------------------------------- */

enum { REACH = 5, MOST_HEADS = 6 }; /* 0.1 s; as many as openai/whisper names for small models */

/* Whether head i scores higher than j; the first of equal ones does. */
static bool is_higher(const double *scores, int64_t i, int64_t j)
{
    return scores[i] > scores[j] || (scores[i] == scores[j] && i < j);
}

/* The heads with the highest scores, in the order of the model. */
static mha_status choose_heads(mhai_transcription *t)
{
    const int64_t H = t->net.num_heads, all = t->net.num_layers * H;
    const int64_t most = all / 2 < 1 ? 1 : all / 2 < MOST_HEADS ? all / 2 : MOST_HEADS;
    int32_t *heads;
    MHA_TRY(MHA_ROOM_ALLOC(t->room, 2 * most, &heads));
    for (int64_t i = 0; i < all; i++) {
        int64_t higher = 0;
        for (int64_t j = 0; j < all; j++) higher += is_higher(t->made->scores, j, i);
        if (higher >= most) continue;
        heads[2 * t->made->head_count] = (int32_t)(i / H);
        heads[2 * t->made->head_count++ + 1] = (int32_t)(i % H);
    }
    t->made->heads = heads;
    return MHA_OK;
}

/* The heads that the caller or the model names, or those with the highest scores of the first
 * window. */
static mha_status find_heads(mhai_transcription *t)
{
    const mha_transcription_desc *d = t->desc;
    const bool given = d->head_count > 0;
    const int64_t count = given ? d->head_count : t->settings.head_count;
    int32_t *heads;
    if (t->made->heads) return MHA_OK;
    if (count == 0) return choose_heads(t);
    MHA_TRY(MHA_ROOM_ALLOC(t->room, 2 * count, &heads));
    memcpy(heads, given ? d->heads : t->settings.heads, (size_t)(2 * count) * sizeof *heads);
    t->made->heads = heads;
    t->made->head_count = count;
    return MHA_OK;
}

/* Update the mean scores with those of a window's rows. */
static mha_status add_scores(mhai_transcription *t, const mha_tensor *all, int64_t first,
                             int64_t rows, int64_t cols)
{
    const int64_t H = t->net.num_heads, count = t->net.num_layers * H;
    const int64_t reach = REACH < cols - 1 ? REACH : cols - 1;
    if (!t->made->scores) MHA_TRY(MHA_ROOM_ALLOC(t->room, count, &t->made->scores));
    for (int64_t i = 0; i < count; i++) {
        mha_tensor p = {.dtype = MHA_F32,
                        .ndim = 2,
                        .shape = {rows, cols},
                        .stride = {all->shape[4], 1},
                        .data = (float *)all->data + (i * all->shape[3] + first) * all->shape[4]};
        double score;
        MHA_TRY(mha_align_rows(&p, reach, &score, NULL));
        t->made->scores[i] +=
            (score - t->made->scores[i]) * (double)rows / (double)(t->scored + rows);
    }
    t->scored += rows;
    return MHA_OK;
}

/* Warp the rows of the chosen heads. */
static mha_status warp(mhai_transcription *t, const mha_tensor *all, int64_t first, int64_t rows,
                       int64_t cols, double *times)
{
    const int64_t H = t->net.num_heads, S = all->shape[4], count = t->made->head_count;
    float *chosen;
    int64_t *columns;
    MHA_TRY(mha_scratch_alloc(t->context, count * rows * cols, sizeof *chosen, &chosen));
    MHA_TRY(mha_scratch_alloc(t->context, rows, sizeof *columns, &columns));
    for (int64_t k = 0; k < count; k++) {
        const int64_t head = t->made->heads[2 * k] * H + t->made->heads[2 * k + 1];
        const float *p = (const float *)all->data + (head * all->shape[3] + first) * S;
        for (int64_t i = 0; i < rows; i++)
            memcpy(chosen + (k * rows + i) * cols, p + i * S, (size_t)cols * sizeof *chosen);
    }
    const mha_tensor p =
        mha_tensor_contiguous(chosen, MHA_F32, 3, (const int64_t[]){count, rows, cols});
    MHA_TRY(mha_warp_rows(t->context, &p, t->settings.median_width, columns));
    for (int64_t i = 0; i < rows; i++) times[i] = MHAI_ROW_SECONDS * (double)columns[i];
    return MHA_OK;
}

/* Run the window's tokens again for their cross-attention, except a last one that nothing follows. */
static mha_status align(mhai_transcription *t, mhai_window *w, int64_t rows, mha_room *room)
{
    const int64_t T = w->prompt_count + rows, first = w->prompt_count, S = t->input.rows;
    float *maps;
    const int64_t shape[] = {t->net.num_layers, 1, t->net.num_heads, T, S};
    MHA_TRY(mha_room_alloc(room, shape[0] * shape[2], (size_t)(T * S) * sizeof *maps, &maps));
    const mha_tensor all = mha_tensor_contiguous(maps, MHA_F32, 5, shape);
    const mha_tensor ids = mha_tensor_contiguous(w->tokens, MHA_I32, 2, (const int64_t[]){1, T});
    const mha_transformer_input input = {
        .struct_size = sizeof input, .tokens = &ids, .memory = &t->memory};
    MHA_TRY(mha_transformer_forward(t->context, mha_model_transformer(t->model), &input, NULL, NULL,
                                    NULL, &all));
    MHA_TRY(add_scores(t, &all, first, rows, w->rows));
    MHA_TRY(find_heads(t));
    const mha_scratch_mark mark = mha_scratch_top(t->context);
    return mha_scratch_end(t->context, mark, warp(t, &all, first, rows, w->rows, w->times));
}

mha_status mhai_transcription_times(mhai_transcription *t, mhai_window *w)
{
    const int64_t rows = w->ended ? w->count : w->count - 1;
    mha_room room = {0};
    MHA_TRY(MHA_ROOM_ALLOC(t->room, w->count, &w->times));
    mha_status status = rows > 0 && w->rows > 0 ? align(t, w, rows, &room) : MHA_OK;
    if (rows > 0 && rows < w->count) w->times[rows] = w->times[rows - 1];
    mha_room_release(&room, 0);
    return status;
}

/* ---- words ----------------------------------------------------------------------------------- */

/* Scripts that put no spaces between words: Thai, Lao, Myanmar, Khmer, kana, Han. */
static bool is_unspaced(const char *text, size_t bytes)
{
    static const uint32_t ranges[][2] = {{0x0E00, 0x0EFF},  {0x1000, 0x109F}, {0x1780, 0x17FF},
                                         {0x3040, 0x30FF},  {0x3400, 0x9FFF}, {0xF900, 0xFAFF},
                                         {0x20000, 0x3FFFF}};
    const unsigned char *at = (const unsigned char *)text;
    uint32_t code = 0;
    if (bytes >= 3 && at[0] >= 0xE0 && at[0] < 0xF0)
        code = (uint32_t)(at[0] & 15) << 12 | (uint32_t)(at[1] & 63) << 6 | (at[2] & 63);
    if (bytes >= 4 && at[0] >= 0xF0)
        code = (uint32_t)(at[0] & 7) << 18 | (uint32_t)(at[1] & 63) << 12 |
               (uint32_t)(at[2] & 63) << 6 | (at[3] & 63);
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (code >= ranges[i][0] && code <= ranges[i][1]) return true;
    return false;
}

/* A word in progress. */
typedef struct open_word {
    size_t from;   /* in the text */
    int64_t first; /* token of the transcript */
    double start;
    bool open;
} open_word;

static mha_status close_word(mhai_transcription *t, open_word *word, int64_t end)
{
    static const char blanks[] = " \t\n\r";
    mha_transcript *made = t->made;
    size_t from = word->from, to = t->text_bytes;
    char *text;
    if (!word->open) return MHA_OK;
    word->open = false;
    while (from < to && strchr(blanks, t->text[from])) from++;
    while (to > from && strchr(blanks, t->text[to - 1])) to--;
    if (from == to) return MHA_OK;
    MHA_TRY(mha_room_text(t->room, t->text + from, to - from, &text));
    MHA_TRY(mha_room_grow(t->room, made->word_count + 1, sizeof *made->words, &made->words));
    made->words[made->word_count++] = (mha_spoken_word){.text = text,
                                                        .start = word->start,
                                                        .end = made->times[end - 1],
                                                        .first = word->first,
                                                        .count = end - word->first};
    return MHA_OK;
}

static mha_status append_text(mhai_transcription *t, const char *text, size_t bytes)
{
    const size_t needed = t->text_bytes + bytes + 1;
    if (needed > t->text_room) {
        MHA_TRY(mha_room_grow(t->room, (int64_t)(2 * needed), 1, &t->text));
        t->text_room = 2 * needed;
    }
    memcpy(t->text + t->text_bytes, text, bytes);
    t->text_bytes += bytes;
    t->text[t->text_bytes] = 0;
    t->made->text = t->text;
    return MHA_OK;
}

/* Append the text and words of tokens that the transcript already has. An unfinished character, whose
 * tokens add no text, belongs to the word that it begins. */
static mha_status write_tokens(mhai_transcription *t, int64_t first, int64_t count, double start)
{
    mha_transcript *made = t->made;
    open_word word = {0};
    int64_t unit = first; /* the first token of the current character */
    for (int64_t i = first; i < first + count && t->writer; i++) {
        const char *text;
        size_t bytes;
        bool stopped;
        const int64_t stamp = t->settings.first_timestamp;
        if (stamp >= 0 && made->tokens[i] >= stamp) {
            if (made->times) MHA_TRY(close_word(t, &word, unit));
            unit = i + 1;
            continue;
        }
        MHA_TRY(mha_text_writer_add(t->writer, made->tokens[i], &text, &bytes, &stopped));
        if (bytes == 0) continue;
        const bool begins = !word.open || *text == ' ' || is_unspaced(text, bytes);
        if (made->times && begins) {
            MHA_TRY(close_word(t, &word, unit));
            word = (open_word){.from = t->text_bytes,
                               .first = unit,
                               .start = unit > first ? made->times[unit - 1] : start,
                               .open = true};
        }
        MHA_TRY(append_text(t, text, bytes));
        unit = i + 1;
    }
    return made->times ? close_word(t, &word, first + count) : MHA_OK;
}

/* ---- segments -------------------------------------------------------------------------------- */

/* Append tokens [from,to) of a window as a segment; start and end are in seconds of the window. */
static mha_status add_segment(mhai_transcription *t, const mhai_window *w, int64_t from, int64_t to,
                              double start, double end)
{
    mha_transcript *made = t->made;
    const int64_t first = made->count, count = to - from;
    const double offset = (double)w->seek * MHA_AUDIO_HOP / MHA_AUDIO_RATE;
    if (count == 0) return MHA_OK;
    MHA_TRY(mha_room_grow(t->room, first + count, sizeof *made->tokens, &made->tokens));
    memcpy(made->tokens + first, w->tokens + w->prompt_count + from,
           (size_t)count * sizeof *made->tokens);
    if (w->times) MHA_TRY(mha_room_grow(t->room, first + count, sizeof *made->times, &made->times));
    for (int64_t i = 0; i < count && w->times; i++)
        made->times[first + i] = offset + w->times[from + i];
    made->count += count;
    MHA_TRY(
        mha_room_grow(t->room, made->segment_count + 1, sizeof *made->segments, &made->segments));
    made->segments[made->segment_count++] =
        (mha_segment){.start = offset + start, .end = offset + end, .first = first, .count = count};
    const double before = w->times && from > 0 ? w->times[from - 1] : 0;
    return write_tokens(t, first, count, offset + before);
}

/* Where the segment that begins at token `from` ends: after the first of the next two adjacent
 * timestamps. -1: there are none. */
static int64_t next_pair(const mhai_window *w, int64_t from, int32_t stamp)
{
    const int32_t *tokens = w->tokens + w->prompt_count;
    for (int64_t i = from; i + 1 < w->count; i++)
        if (tokens[i] >= stamp && tokens[i + 1] >= stamp) return i + 1;
    return -1;
}

/* A window without a pair of timestamps is one segment. */
static mha_status add_whole(mhai_transcription *t, const mhai_window *w)
{
    const int32_t *tokens = w->tokens + w->prompt_count, stamp = t->settings.first_timestamp;
    const int64_t rows = t->timestamps ? w->frames / MHAI_FRAMES_PER_ROW : w->rows;
    double end = MHAI_ROW_SECONDS * (double)rows;
    int64_t last = w->count - 1;
    while (t->timestamps && last >= 0 && tokens[last] < stamp) last--;
    if (t->timestamps && last >= 0 && tokens[last] > stamp)
        end = MHAI_ROW_SECONDS * (double)(tokens[last] - stamp);
    return add_segment(t, w, 0, w->count, 0, end);
}

mha_status mhai_transcription_add(mhai_transcription *t, const mhai_window *w, int64_t *next)
{
    const int32_t *tokens = w->tokens + w->prompt_count, stamp = t->settings.first_timestamp;
    const int64_t n = w->count;
    int64_t from = 0, to = t->timestamps ? next_pair(w, 0, stamp) : -1;
    const bool single = n > 1 && tokens[n - 1] >= stamp && tokens[n - 2] < stamp;
    *next = w->seek + w->frames;
    if (to < 0) return add_whole(t, w);
    while (to >= 0) {
        const int64_t after = next_pair(w, to, stamp);
        const int64_t last = tokens[to - 1] - stamp;
        /* The second timestamp of the last pair stays, as in transformers. */
        const int64_t kept = after < 0 && !single ? to + 1 : to;
        const double start = (double)(tokens[from] - stamp) * MHAI_ROW_SECONDS;
        MHA_TRY(add_segment(t, w, from, kept, start, (double)last * MHAI_ROW_SECONDS));
        if (after < 0 && !single) {
            /* A pair at the window's start would not advance. */
            if (last > 0) *next = w->seek + last * MHAI_FRAMES_PER_ROW;
            return MHA_OK;
        }
        from = to;
        to = after;
    }
    return add_segment(t, w, from, n, (double)(tokens[from] - stamp) * MHAI_ROW_SECONDS,
                       (double)(tokens[n - 1] - stamp) * MHAI_ROW_SECONDS);
}
