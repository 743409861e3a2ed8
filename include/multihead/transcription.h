/* multihead: transcribe audio of any length with Whisper (Radford et al. 2022), with times of segments,
 * tokens and words, and the scores of its alignment heads (libmultihead-model).
 *
 * Audio longer than a window (30 s) is read in windows, as by openai/whisper and transformers with
 * temperature 0 and without conditioning on earlier text: a window begins at the last time that the
 * decoder wrote in the window before.
 *
 * Letters: L layers and H heads of the decoder, T tokens of a window, S rows of its audio (0.02 s each).
 *
 * Example, given mha_context *context, mha_model *model, const mha_audio *audio:
 *
 *   mha_transcription_desc desc = MHA_INIT(mha_transcription_desc);
 *   mha_transcript transcript = MHA_INIT(mha_transcript);
 *   desc.flags = MHA_TRANSCRIBE_WORDS, desc.samples = audio->samples, desc.count = audio->count;
 *   mha_status status = mha_transcribe(context, model, &desc, &transcript);
 *   for (int64_t i = 0; !status && i < transcript.word_count; i++)
 *       printf("%.2f %s\n", transcript.words[i].start, transcript.words[i].text);
 *   mha_transcript_free(&transcript);
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_TRANSCRIPTION_H
#define MULTIHEAD_TRANSCRIPTION_H

#include <multihead/audio.h>
#include <multihead/generation.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A model's settings for transcription, from generation_config.json and config.json. */
typedef struct mha_speech_settings {
    uint32_t struct_size;     /* in: sizeof(mha_speech_settings) */
    int32_t first_timestamp;  /* the token of 0.00 s, no_timestamps_token_id + 1; -1: none */
    int64_t timestamps;       /* the number of these tokens, 0.02 s apart */
    int64_t latest_start;     /* max_initial_timestamp_index; -1: no limit */
    int64_t median_width;     /* median_filter_width; default 7 */
    const int32_t *heads;     /* [head_count,2] alignment_heads: layer and head */
    int64_t head_count;       /* 0: not published */
    const int32_t *languages; /* [language_count] the tokens of lang_to_id */
    int64_t language_count;
    /* [prompt_count] the tokens after the start token: forced_decoder_ids, or language and task. -1: the
     * most likely language */
    const int32_t *prompt;
    int64_t prompt_count;
} mha_speech_settings;

/** Describe the settings of a model that reads audio. Memory fills *settings; its arrays live as long as
 * the model. Errors MHA_ERR_NULL, MHA_ERR_ARGUMENT (struct_size), MHA_ERR_UNSUPPORTED (the model is no
 * encoder-decoder that reads audio). Threads any. Since 0.1 */
MHA_API MHA_NODISCARD mha_status mha_model_speech_settings(const mha_model *model,
                                                           mha_speech_settings *settings);

/**
 * Align rows with columns by dynamic time warping, as openai/whisper aligns tokens with audio. With p of
 * head h, mean and deviation over rows t:
 *
 *   z[h,t,s] = (p[h,t,s] - mean_t p) / deviation_t p          0 if the deviation is 0
 *   m[t,s]   = mean over h of the median of z[h,t,s-w .. s+w]  reflected at both ends, 2 w + 1 = width
 *
 * The path from (0,0) to (T-1,S-1) by steps (1,1), (1,0), (0,1) maximises the sum of m (Sakoe and Chiba
 * 1978; Giorgino 2009). (1,1) or (1,0) is taken only if it is strictly best, otherwise (0,1).
 *
 *   p f32 [H,T,S] in, any strides    width odd; with S <= w no median is taken
 *   columns [T] out, the first column of each row's part of the path
 *
 * Memory   scratch of at most 17 (T + 1) (S + 1) + 8 width bytes from the context.
 * Errors   MHA_ERR_NULL, MHA_ERR_SHAPE (p), MHA_ERR_ARGUMENT (width), MHA_ERR_NUMERIC (p is not finite),
 *          MHA_ERR_SIZE, MHA_ERR_NOMEM.
 * Threads  one call per context.   Cost  at most H T S width^2, and T S.
 * Accuracy in double.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_warp_rows(mha_context *context, const mha_tensor *p,
                                               int64_t width, int64_t *columns);

/* mha_transcription_desc.flags */
enum {
    MHA_TRANSCRIBE_WORDS = 1 << 0, /* also times of tokens and words, and scores of heads */
    /* Let the decoder write timestamps also for audio of one window. Implied for longer audio */
    MHA_TRANSCRIBE_TIMESTAMPS = 1 << 1
};

/* A part of the audio between two timestamps. */
typedef struct mha_segment {
    double start, end;    /* in seconds */
    int64_t first, count; /* its tokens */
} mha_segment;

typedef struct mha_spoken_word {
    const char *text;     /* UTF-8, without spaces around it */
    double start, end;    /* in seconds */
    int64_t first, count; /* its tokens */
} mha_spoken_word;

typedef struct mha_transcript {
    uint32_t struct_size; /* in: sizeof(mha_transcript) */
    uint32_t reserved;    /* 0 */
    int64_t count;
    int32_t *tokens; /* [count] written by the decoder, timestamps included, without end tokens */
    double *times; /* [count] the end of each in seconds, if words were requested; otherwise NULL */
    const char *text; /* of all tokens, without timestamps */
    mha_segment *segments;
    int64_t segment_count;
    mha_spoken_word *words; /* [word_count]; NULL: not requested */
    int64_t word_count;
    /* With words: mha_align_rows() of each head's cross-attention, the mean over windows, [L,H];
     * otherwise NULL */
    double *scores;
    const int32_t *heads; /* [head_count,2] the heads that gave the times: layer and head */
    int64_t head_count;
    const int32_t *prompt; /* [prompt_count] with which each window began */
    int64_t prompt_count;
    bool full;       /* a window reached max_tokens or the last position before its end */
    mha_room memory; /* for mha_transcript_free() */
} mha_transcript;

typedef struct mha_transcription_desc {
    uint32_t struct_size;
    uint32_t flags;
    const float *samples; /* [count] at 16 kHz, one channel */
    int64_t count;        /* at least 1 */
    /* [prompt_count] tokens with which the decoder's text begins in each window. NULL: the model's
     * start token and the prompt of its settings; without timestamps also no_timestamps_token_id */
    const int32_t *prompt;
    int64_t prompt_count;
    int64_t max_tokens; /* of a window; 0: as many as there are positions */
    /* [head_count,2] for times of words; NULL: alignment_heads, otherwise the heads with the highest
     * scores, 6 or at most half of all */
    const int32_t *heads;
    int64_t head_count;
    const mha_sampling *sampling;  /* NULL: the most likely token */
    const mha_decoder_desc *cache; /* as in mha_generation_desc */
    /* Called after each window with all results so far; samples `done` of count are transcribed.
     * A status other than MHA_OK ends the call and is returned. NULL: none */
    mha_status (*progress)(void *user, const mha_transcript *so_far, int64_t done);
    void *progress_user;
} mha_transcription_desc;

/**
 * Transcribe samples.
 *
 * Each window is decoded by mha_decoder_step(). With timestamps, tokens follow openai/whisper's rules:
 * the first is a timestamp of at most latest_start, timestamps come in pairs and do not decrease, and a
 * timestamp is written if all together are more likely than any other token. After the window,
 * text is kept up to the last pair of timestamps, where the next window begins; without a pair, or after a
 * single timestamp at the end, it begins after the window. suppress_tokens are never written.
 *
 * Times of tokens are those of transformers' return_token_timestamps: mha_warp_rows() of the chosen heads,
 * over the window's audio; the last token, which no row predicts, has the time of the one before. A word
 * begins at the end of the token before it. Words begin at a space, and at each character of a script
 * without spaces (Han, kana, Thai, Lao, Khmer, Myanmar).
 *
 * Memory   the caller frees *transcript with mha_transcript_free(). During the call log-mel features of
 *          all samples; with words 4 L H T S bytes.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (struct_size, counts, tokens or heads that the model does not
 *          have); MHA_ERR_UNSUPPORTED (no Whisper model; timestamps needed but the model has none;
 *          words without a tokenizer; flags); MHA_ERR_SIZE (the prompt leaves no position); those of
 *          mha_log_mel(), mha_model_encode_audio(), mha_decoder_step(), mha_sample_token() and
 *          mha_warp_rows(). There is then nothing to free.
 * Threads  one call per context.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_transcribe(mha_context *context, mha_model *model,
                                                const mha_transcription_desc *desc,
                                                mha_transcript *transcript);

/** Free a transcript and clear the struct, except for struct_size; NULL is allowed. Memory frees it.
 * Errors none. Threads any. Since 0.1 */
MHA_API void mha_transcript_free(mha_transcript *transcript);

#ifdef __cplusplus
}
#endif
#endif
