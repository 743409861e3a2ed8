/* generate --audio: transcribe a recording. */
#ifndef CLI_GENERATE_AUDIO_H
#define CLI_GENERATE_AUDIO_H

#include "common/exits.h"

#include <multihead/transcription.h>

typedef struct audio_job {
    const char *folder; /* for messages */
    mha_context *context;
    mha_model *model;
    mha_transcription_desc desc; /* without samples and progress */
    bool ids;                    /* print tokens instead of text */
    bool stats, quiet;
} audio_job;

/* Transcribe, and print the text of each window, or its words. */
cli_exit generate_audio(const audio_job *job, const mha_audio *audio);

#endif
