/* Settings of a model that reads audio, from its configuration files. */
#ifndef MHAI_SPEECH_H
#define MHAI_SPEECH_H

#include "model/ends.h"

#include <multihead/transcription.h>

enum { MHAI_MOST_PROMPT = 8, MHAI_MOST_HEADS = 1024 };

typedef struct mhai_speech {
    int64_t first_timestamp, timestamps, latest_start, median_width;
    int64_t no_timestamps, transcribe; /* tokens; -1: none */
    int32_t *heads;                    /* [head_count,2]; owned */
    int64_t head_count;
    mhai_ends languages;
    int32_t prompt[MHAI_MOST_PROMPT]; /* after the start token; -1: the language, to be detected */
    int64_t prompt_count;
} mhai_speech;

/* Read config.json and generation_config.json. Errors: those of mhai_json_read(), MHA_ERR_MODEL (a field
 * of a wrong type or out of range), MHA_ERR_UNSUPPORTED (a language without a token). */
MHA_NODISCARD mha_status mhai_speech_read(const char *folder, const mha_model_info *info,
                                          mhai_speech *speech);
void mhai_speech_free(mhai_speech *speech);

#endif
