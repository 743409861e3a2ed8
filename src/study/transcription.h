/* Shared by the files of a transcription. */
#ifndef MHAI_TRANSCRIPTION_H
#define MHAI_TRANSCRIPTION_H

#include <multihead/study.h>
#include <multihead/transcription.h>

enum { MHAI_FRAMES_PER_ROW = 2 }; /* of features; a row and a timestamp are 0.02 s */

#define MHAI_ROW_SECONDS 0.02

/* The decoder's text of one window. */
typedef struct mhai_window {
    int64_t seek, frames; /* where it begins, and its frames of audio, without padding */
    int64_t rows;         /* of these frames */
    int32_t *tokens;      /* [prompt_count + count] */
    int64_t prompt_count, count;
    bool ended; /* by an end token */
    double
        *times; /* [count] with words: the end of each token, in seconds from the window's start */
} mhai_window;

typedef struct mhai_transcription {
    mha_context *context;
    mha_model *model;
    const mha_transcription_desc *desc;
    mha_speech_settings settings;
    mha_transformer_desc net;
    mha_audio_input input;
    mha_tensor memory; /* [1,S,E] the encoder's rows of the window */
    mha_transcript *made;
    mha_room *room;
    mha_text_writer *writer; /* NULL without a tokenizer */
    char *text;              /* [text_bytes] of the transcript */
    size_t text_bytes, text_room;
    int64_t scored; /* rows that scores average */
    bool timestamps;
} mhai_transcription;

/* Find the times of a window's tokens, and add to the scores of heads. */
MHA_NODISCARD mha_status mhai_transcription_times(mhai_transcription *t, mhai_window *window);

/* Append the kept tokens of a window, its segments, text and words. *next: where the next window
 * begins. */
MHA_NODISCARD mha_status mhai_transcription_add(mhai_transcription *t, const mhai_window *window,
                                                int64_t *next);

#endif
