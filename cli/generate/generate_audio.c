/* See generate_audio.h. */
#include "generate/generate_audio.h"

#include "common/arena.h"
#include "common/print.h"
#include "common/progress.h"
#include "common/signals.h"
#include "generate/generate_stream.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

ARENA_RELEASE(free_transcript, mha_transcript_free)

/* The state of printing a transcript during transcription. */
typedef struct printing {
    const audio_job *job;
    const mha_audio *audio;
    progress shown;
    size_t bytes;
    int64_t tokens, words;
    bool unended; /* the terminal's line has text, which progress would erase */
} printing;

static void print_new(printing *l, const mha_transcript *t)
{
    const bool words = l->job->desc.flags & MHA_TRANSCRIBE_WORDS;
    const size_t bytes = strlen(t->text);
    for (; l->job->ids && l->tokens < t->count; l->tokens++)
        cli_print("%s%" PRId32, l->tokens > 0 ? " " : "", t->tokens[l->tokens]);
    if (l->job->ids) return;
    for (; words && l->words < t->word_count; l->words++) {
        const mha_spoken_word *w = &t->words[l->words];
        cli_print("%8.2f %8.2f  %s\n", w->start, w->end, w->text);
    }
    if (!words && bytes > l->bytes) generate_print(t->text + l->bytes, bytes - l->bytes);
    l->bytes = bytes;
}

static void clear_progress(const printing *l)
{
    if (!l->unended) progress_clear(&l->shown);
}

static mha_status after_window(void *user, const mha_transcript *t, int64_t done)
{
    printing *l = user;
    clear_progress(l);
    print_new(l, t);
    if (cli_finish_stdout(CLI_OK) != CLI_OK) return MHA_ERR_CALLBACK; /* reported */
    l->unended = l->shown.terminal && isatty(STDOUT_FILENO) && (l->bytes > 0 || l->tokens > 0) &&
                 !(l->job->desc.flags & MHA_TRANSCRIBE_WORDS);
    if (done < l->audio->count && !l->unended)
        progress_show(&l->shown, (double)done / (double)l->audio->count, "%.0f of %.0f s of audio",
                      (double)done / MHA_AUDIO_RATE, (double)l->audio->count / MHA_AUDIO_RATE);
    return MHA_OK;
}

static bool among(const int32_t *heads, int64_t count, int64_t layer, int64_t head)
{
    for (int64_t i = 0; i < count; i++)
        if (heads[2 * i] == layer && heads[2 * i + 1] == head) return true;
    return false;
}

/* Print all heads on stderr, the highest score first, beside those that the model publishes. */
static cli_exit print_heads(const audio_job *job, const mha_transcript *t)
{
    mha_model_info info = {.struct_size = sizeof info};
    mha_speech_settings known = {.struct_size = sizeof known};
    CLI_TRY(cli_check(mha_model_describe(job->model, &info)));
    CLI_TRY(cli_check(mha_model_speech_settings(job->model, &known)));
    const int64_t all = info.layers * info.heads;
    bool *printed;
    if (!t->scores) return CLI_OK;
    CLI_TRY(ARENA_ALLOC(all, &printed));
    cli_note(false, "alignment of heads with the audio (mha_align_rows); * published in "
                    "generation_config.json; + used for the times");
    for (int64_t rank = 0; rank < all; rank++) {
        int64_t best = -1;
        for (int64_t i = 0; i < all; i++)
            if (!printed[i] && (best < 0 || t->scores[i] > t->scores[best])) best = i;
        printed[best] = true;
        const int64_t layer = best / info.heads, head = best % info.heads;
        char name[48];
        snprintf(name, sizeof name, "L%" PRId64 "H%" PRId64, layer, head);
        cli_note(false, "  %-7s %6.3f  %s%s", name, t->scores[best],
                 among(known.heads, known.head_count, layer, head) ? "*" : "",
                 among(t->heads, t->head_count, layer, head) ? "+" : "");
    }
    return CLI_OK;
}

cli_exit generate_audio(const audio_job *job, const mha_audio *audio)
{
    mha_transcript *transcript;
    printing l = {.job = job, .audio = audio, .shown = progress_begin(job->quiet)};
    mha_transcription_desc desc = job->desc;
    desc.samples = audio->samples;
    desc.count = audio->count;
    desc.progress = after_window;
    desc.progress_user = &l;
    CLI_TRY(ARENA_ALLOC(1, &transcript));
    transcript->struct_size = sizeof *transcript;
    const double from = seconds_now();
    progress_show(&l.shown, 0, "%.0f s of audio", (double)audio->count / MHA_AUDIO_RATE);
    const mha_status status = mha_transcribe(job->context, job->model, &desc, transcript);
    clear_progress(&l);
    if (status == MHA_ERR_CALLBACK) return CLI_NO_OUTPUT;
    if (status == MHA_ERR_NUMERIC) return cli_fail(CLI_BAD_INPUT, "%s", mha_error_detail());
    CLI_TRY(cli_check(status));
    CLI_TRY(arena_keep(transcript, free_transcript));
    const bool words = job->desc.flags & MHA_TRANSCRIBE_WORDS && !job->ids;
    if (!words && transcript->count > 0) cli_print("\n");
    CLI_TRY(cli_finish_stdout(CLI_OK));
    cli_note(job->quiet || !transcript->full,
             "a window ended at --max-tokens or at the model's last position: its text may be "
             "incomplete");
    if (!job->stats) return CLI_OK;
    const double spent = seconds_now() - from;
    cli_note(false, "%.1f s of audio and %" PRId64 " tokens in %.2f s",
             (double)audio->count / MHA_AUDIO_RATE, transcript->count, spent);
    return print_heads(job, transcript);
}
