/* Maps of a recording: --audio. */
#include "common/arena.h"
#include "common/commands.h"
#include "common/launched.h"
#include "common/progress.h"
#include "view/view.h"

#include <multihead/transcription.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

ARENA_RELEASE(free_transcript, mha_transcript_free)

/* The decoder's text: that of the command line, or the transcript. */
static cli_exit find_text(const view_options *options, const text_model *model,
                          const mha_audio *audio, mha_maps *maps, mha_audio_maps_desc *desc)
{
    mha_transcript *transcript;
    const mha_transcription_desc how = {
        .struct_size = sizeof how, .samples = audio->samples, .count = audio->count};
    if (options->texts.count > 0) {
        mha_tokens *tokens;
        CLI_TRY(view_take_texts(options, maps));
        CLI_TRY(text_model_encode(model, &(text_limits){0}, maps->text[1], maps->text_bytes[1],
                                  NULL, 0, &tokens));
        desc->ids = tokens->ids;
        desc->id_count = tokens->count;
        return CLI_OK;
    }
    CLI_TRY(ARENA_ALLOC(1, &transcript));
    transcript->struct_size = sizeof *transcript;
    progress shown = progress_begin(options->quiet);
    progress_show(&shown, 0, "transcribing %s", options->audio);
    const mha_status status = mha_transcribe(model->context, model->model, &how, transcript);
    progress_clear(&shown);
    CLI_TRY(cli_check(status));
    CLI_TRY(arena_keep(transcript, free_transcript));
    const int64_t room = transcript->prompt_count + transcript->count;
    const int64_t count = room < model->max_length ? room : model->max_length;
    int32_t *ids;
    CLI_TRY(ARENA_ALLOC(room, &ids));
    memcpy(ids, transcript->prompt, (size_t)transcript->prompt_count * sizeof *ids);
    if (transcript->count > 0)
        memcpy(ids + transcript->prompt_count, transcript->tokens,
               (size_t)transcript->count * sizeof *ids);
    maps->text[1] = transcript->text;
    maps->text_bytes[1] = strlen(transcript->text);
    desc->ids = ids;
    desc->id_count = count;
    return CLI_OK;
}

/* Check the length before the transcription, which takes longest. */
static cli_exit check_length(const text_model *model, const mha_audio *audio)
{
    const mha_model *encoder = mha_model_encoder(model->model);
    mha_audio_input input = {.struct_size = sizeof input};
    CLI_TRY(cli_check(mha_model_audio_input(encoder ? encoder : model->model, &input)));
    const int64_t most = input.frames * MHA_AUDIO_HOP;
    if (audio->count <= most) return CLI_OK;
    return cli_fail(CLI_BAD_INPUT,
                    "--audio: the recording has %.1f s, maps show at most %.3g s; cut it",
                    (double)audio->count / MHA_AUDIO_RATE, (double)most / MHA_AUDIO_RATE);
}

cli_exit view_audio(const view_options *options)
{
    text_model model;
    mha_audio *audio;
    mha_maps *maps;
    maps_picks picks;
    view_options drawn = *options;
    if (options->texts.count > 0 && !*options->texts.items[0])
        return cli_fail(CLI_USAGE, "the text is empty; omit it to transcribe the audio");
    ranks_release();
    if (!ranks_first()) return CLI_OK;
    CLI_TRY(text_read_audio(options->audio, &audio));
    CLI_TRY(maps_new(&maps));
    CLI_TRY(text_model_open_audio(options->model, options->threads, &model));
    CLI_TRY(maps_pick(&options->layers, &options->heads, model.layers, model.heads, &picks));
    mha_audio_maps_desc desc = {.struct_size = sizeof desc,
                                .flags = options->self ? MHA_MAPS_SELF : 0,
                                .samples = audio->samples,
                                .count = audio->count,
                                .on = picks.on};
    const bool decoder = mha_model_encoder(model.model) != NULL;
    CLI_TRY(check_length(&model, audio));
    if (!decoder && (options->self || options->texts.count > 0))
        return cli_fail(CLI_USAGE, "%s: the encoder alone takes no text and no --self",
                        options->model);
    maps->name = model.name;
    maps->text[0] = options->audio;
    maps->text_bytes[0] = strlen(options->audio);
    if (decoder) CLI_TRY(find_text(options, &model, audio, maps, &desc));
    CLI_TRY(cli_check(mha_maps_run_audio(model.context, model.model, &desc, maps)));
    drawn.first_panel = -1;
    return view_finish(&drawn, maps);
}
